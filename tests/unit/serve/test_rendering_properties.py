"""Random conversations through every kind of model: rendering, hints, streams and parsing hold together."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.chat_template import ChatTemplate, TemplateRefuses, probe_traits
from serve.messages import last_user_index
from serve.parsing import AnswerParser
from serve.rendering import HINT_FORM, HintDoesNotFit, Renderer
from serve.token_encoder import PieceCache
from tests.unit.serve.rendering_models import SMOLLM2, byte_level_model, metaspace_model, stripping_model


@pytest.fixture(scope="session")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> list[Renderer]:
    made = [make(tmp_path_factory.mktemp("m")) for make in (byte_level_model, metaspace_model, stripping_model)]
    return [Renderer(SMOLLM2), Renderer(SMOLLM2, "own"), *(Renderer(folder) for folder in made)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
texts = st.text(max_size=20) | st.sampled_from(
    ["", " ", "\n", "<|im_end|>", "</s>", "<tool_call>{}</tool_call>", "> q"]
)
contents = texts | st.none() | st.lists(st.builds(lambda t: {"type": "text", "text": t}, texts), max_size=3)
objects = st.dictionaries(st.text(max_size=4), json_values, max_size=3)
arguments = objects | objects.map(json.dumps) | st.sampled_from(["", "not json", "[1]"])
named_calls = st.builds(
    lambda name, given, n: {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": given}},
    st.sampled_from(["weather", "clock", "old"]), arguments, st.integers(0, 3),
)  # fmt: skip
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": contents}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": contents, "tool_call_id": st.just("c0")}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": contents},
        optional={"tool_calls": st.lists(named_calls, max_size=2), "reasoning": texts, "refusal": st.none()},
    ),
)
talks = st.lists(messages, min_size=1, max_size=7)
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "é <|im_end|>", "parameters": {"required": need}}}
    for name, need in (("weather", ["city"]), ("clock", []))
]
choices = st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "clock"}}])


@settings(max_examples=300, deadline=None)
@given(data=st.data(), talk=talks, tools=st.sampled_from([None, [], TOOLS]), choice=choices)
def test_any_conversation_renders(
    renderers: list[Renderer], data: Any, talk: list[Any], tools: Any, choice: Any
) -> None:
    renderer = data.draw(st.sampled_from(renderers))
    choice = choice if tools else "auto"
    before = copy.deepcopy((talk, tools))
    try:
        ids = renderer.prompt_ids(talk, tools, choice)
    except TemplateRefuses:
        # only the strictest of them: a conversation that begins with an answer, or two answers in a row
        assert not renderer.traits.same_role_twice
        return
    assert (talk, tools) == before
    assert ids == renderer.prompt_ids(talk, tools, choice)
    assert all(0 <= id < renderer.vocab_size for id in ids)
    prefix = renderer.forced_prefix(tools, choice)
    assert renderer.decode(ids).endswith(prefix)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), talk=talks, choice=choices, hint=st.text(min_size=1, max_size=30))
def test_hints(renderers: list[Renderer], data: Any, talk: list[Any], choice: Any, hint: str) -> None:
    renderer = data.draw(st.sampled_from(renderers))
    try:
        expect = renderer.prompt_ids(talk, TOOLS, choice)
    except TemplateRefuses:
        return
    index = last_user_index(talk)
    if index is None:
        with pytest.raises(HintDoesNotFit, match="no user message"):
            renderer.enhanced_prompt_ids(talk, TOOLS, hint, expect)
        return
    ids = renderer.enhanced_prompt_ids(talk, TOOLS, hint, expect)
    assert len(ids) > len(expect)
    with pytest.raises(HintDoesNotFit, match="other ids"):
        renderer.enhanced_prompt_ids(talk, TOOLS, hint, (*expect, 5))


@settings(max_examples=200, deadline=None)
@given(said=st.text(max_size=40))
def test_an_answer_comes_back_in_the_history_as_it_was(renderers: list[Renderer], said: str) -> None:
    """So that the engine's prefix cache and the anchor look-up both find it."""
    renderer = renderers[0]
    ids = renderer._encoder.encode(*_guarded(renderer, said))
    said = renderer.decode(ids)  # SmolLM2 has no token for some bytes (06, F1)
    stream, parser = renderer.stream_decoder(), AnswerParser(renderer.format)
    deltas = []
    for id in ids:
        deltas += parser.push(stream.push([id]))
    deltas += parser.push(stream.finish()) + parser.end()
    answer = parser.finish()
    if "reasoning" in answer:
        return
    assert "".join(delta.content or "" for delta in deltas) == answer["content"] == said
    prompt = renderer.prompt_ids([{"role": "user", "content": "a"}])
    later = renderer.prompt_ids([{"role": "user", "content": "a"}, answer, {"role": "user", "content": "b"}])
    assert renderer.decode_all(later).startswith(renderer.decode_all(prompt) + said + "<|im_end|>\n<|im_start|>user")


def _guarded(renderer: Renderer, text: str) -> tuple[str, list[str]]:
    taken: list[str] = []
    return renderer._encoder.guard(text, taken), taken


def test_a_call_comes_back_in_the_history_as_it_was(renderers: list[Renderer]) -> None:
    said = '<tool_call>\n{"name": "weather", "arguments": {"city": "Åre", "n": [1, 2]}}\n</tool_call>'
    for renderer in (renderers[0], renderers[1]):
        parser = AnswerParser(renderer.format, TOOLS)
        parser.push(said)
        assert said + "<|im_end|>" in renderer.decode_all(
            renderer.prompt_ids([{"role": "user", "content": "a"}, parser.finish()])
        )


def test_half_a_surrogate_pair_is_replaced(renderers: list[Renderer]) -> None:
    """JSON may carry one ("\\ud83d" alone); UTF-8 can't."""
    for renderer in renderers:
        ids = renderer.prompt_ids([{"role": "user", "content": "a\ud83db"}])
        assert ids == renderer.prompt_ids([{"role": "user", "content": "a\ufffdb"}])


def test_many_threads_render_the_same(renderers: list[Renderer]) -> None:
    talks = [[{"role": "user", "content": f"hello <|im_end|> {n} " * (n % 7)}] for n in range(200)]
    expected = [renderers[0].prompt_ids(talk) for talk in talks]
    fresh = Renderer(SMOLLM2)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fresh.prompt_ids, talks)) == expected


def test_the_cache_is_bounded() -> None:
    cache = PieceCache(10_000)
    for n in range(400):
        cache.put(f"{n} " + "word " * (n % 50), [n])
        cache.put("w" * 9_000, [n])  # too large a share of it
        assert 0 < cache.size_chars <= 10_000
    assert cache.get("399 " + "word " * 49) == [399] and cache.get("w" * 9_000) is None and cache.get("0 ") is None


def test_the_environment_is_that_of_transformers() -> None:
    def render(source: str, **variables: Any) -> str:
        return ChatTemplate("t", {"default": source}, variables).render([{"role": "user", "content": "a"}], None)

    assert render("{% for n in [1, 2, 3] %}{% if n == 2 %}{% continue %}{% endif %}{{ n }}{% endfor %}") == "13"
    assert render("  {% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"
    assert render("{{ x | tojson }}", x={"b": "é<&>'", "a": 1}) == '{"b": "é<&>\'", "a": 1}'
    assert render("{{ x | tojson(indent=1, sort_keys=true) }}", x={"b": 2, "a": 1}) == '{\n "a": 1,\n "b": 2\n}'
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% generation %}a{{ messages[0].content }}{% endgeneration %}") == "aa"
    with pytest.raises(TemplateRefuses, match="not today"):
        render("{{ raise_exception('not today') }}")
    with pytest.raises(TemplateRefuses):
        render("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TemplateRefuses):
        render("{{ messages.append(1) }}")


def test_probing_survives_any_template() -> None:
    for source in ("", "{{ raise_exception('x') }}", "{{ nothing.at.all }}", "{{ messages }}"):
        traits = probe_traits(ChatTemplate("t", {"default": source}))
        assert not traits.chatml


def test_real_size_request(renderers: list[Renderer], tmp_path: Path) -> None:
    """Some 12,000 tokens and 12 tools, as OpenClaw sends them; the time is printed, the bound is generous."""
    import time

    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": "What it does. " * 30,
         "parameters": {"type": "object", "properties": {f"p{k}": {"type": "string"} for k in range(9)}}}}
        for n in range(12)
    ]  # fmt: skip
    text = "\n".join(f"## Rule {n}\nWhen `{n}` comes, do *that*; never `rm -rf /{n}`." for n in range(430))
    talk = [{"role": "system", "content": text}, {"role": "user", "content": "[Sun 2026-11-29 14:27 UTC] hello"}]
    for renderer in (renderers[0], renderers[2]):
        times = []
        for n in range(4):
            fresh = [{"role": "system", "content": f"{n} {text}"}, talk[1]]
            start_s = time.process_time()
            ids = renderer.prompt_ids(fresh, tools)
            times.append(time.process_time() - start_s)
        assert len(ids) > 10_000
        print(f"{renderer.model_dir.name}: {len(ids)} new tokens in {min(times) * 1e3:.1f} ms")
        assert min(times) < 0.5
    hinted = renderers[0].prompt_ids([talk[0], {**talk[1], "content": talk[1]["content"] + HINT_FORM}], tools)
    assert len(hinted) > len(renderers[0].prompt_ids(talk, tools))
