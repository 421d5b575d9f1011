"""Rendering equals transformers' where transformers can, and does what it promises where it can't."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serve.rendering import HINT_FORM, HintDoesNotFit, Renderer
from tests.unit.serve.rendering_models import (
    SMOLLM2,
    THINKING,
    as_transformers,
    byte_level_model,
    metaspace_model,
    stripping_model,
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather, as it is < now > & here: 晴れ",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def calls(*arguments: Any, content: str | None = "") -> dict[str, Any]:
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "get_weather", "arguments": given}}
        for n, given in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def result(text: str, n: int = 0) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": f"call_{n}", "name": "get_weather"}


TALKS = [
    [user("Hello")],
    [system("You are brief."), user("Hello, 東京 👩‍👩‍👧‍👦!")],
    [user("  leading and trailing  "), says("\n\nWell,\n"), user("and\n\n\nmore \t tabs\n")],
    [system(""), user("It's 12,345 o'clock\r\n> quoted\n<b>html</b> a < b > c")],
    [system("S"), user("a"), says("b"), user("c"), says("d"), user("e" * 500)],
]


@pytest.fixture(scope="session")
def smol() -> Renderer:
    return Renderer(SMOLLM2)


@pytest.fixture(scope="session", params=[byte_level_model, metaspace_model, stripping_model])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], Path] = request.param
    return make(tmp_path_factory.mktemp(make.__name__))


@pytest.mark.parametrize("talk", TALKS)
def test_smollm2_as_transformers(smol: Renderer, talk: list[dict[str, Any]]) -> None:
    expected = as_transformers(SMOLLM2, talk)
    assert Renderer(SMOLLM2, "own").prompt_ids(talk) == expected
    assert smol.prompt_ids(talk) == expected  # our template is theirs when there are no tools
    assert smol.prompt_ids(talk) == expected  # from the cache


@pytest.mark.parametrize("talk", TALKS)
def test_made_models_as_transformers(made: Path, talk: list[dict[str, Any]]) -> None:
    renderer = Renderer(made, "own")
    if not renderer.traits.system:
        talk = [message for message in talk if message["role"] != "system"]
    assert renderer.prompt_ids(talk) == as_transformers(made, talk)


def test_tools_as_transformers(tmp_path: Path) -> None:
    thinking, brackets = byte_level_model(tmp_path / "a"), metaspace_model(tmp_path / "b")
    talk = [system("S"), user("a"), calls({"city": "Oslo"}, {"city": "Åre"}), result("1"), result("2", 1), says("b")]
    talk = [*talk, user("c"), calls({"city": "Oslo"}), result("3")]
    assert Renderer(thinking).prompt_ids(talk, [WEATHER, CLOCK]) == as_transformers(thinking, talk, [WEATHER, CLOCK])
    talk = [user("a"), calls('{"city": "Oslo"}'), result("1"), says("b"), user("c")]
    assert Renderer(brackets).prompt_ids(talk, [WEATHER]) == as_transformers(brackets, talk, [WEATHER])


def test_arguments_take_the_form_that_the_template_wants(tmp_path: Path) -> None:
    for make, form in ((byte_level_model, "object"), (metaspace_model, "string")):
        renderer = Renderer(make(tmp_path / form))
        assert renderer.traits.arguments == form
        as_text = renderer.prompt_ids([user("a"), calls('{"city": "Oslo"}', content=None), result("1")], [WEATHER])
        as_object = renderer.prompt_ids([user("a"), calls({"city": "Oslo"}), result("1")], [WEATHER])
        assert as_text == as_object
        assert '"arguments": {"city": "Oslo"}' in renderer.decode(as_text)


def test_reasoning_is_dropped_from_history_as_the_template_says(tmp_path: Path) -> None:
    folder = byte_level_model(tmp_path)
    renderer = Renderer(folder)
    old = [user("a"), {**says("b"), "reasoning": "because"}, user("c")]
    now = [user("a"), {**calls({"city": "Oslo"}), "reasoning": "because"}, result("1")]
    assert "because" not in renderer.decode(renderer.prompt_ids(old))
    assert "because" in renderer.decode(renderer.prompt_ids(now))
    renamed = [user("a"), {**calls({"city": "Oslo"}), "reasoning_content": "because"}, result("1")]
    assert renderer.prompt_ids(now) == as_transformers(folder, renamed)


def test_content_arrays_and_roles_are_normalised(smol: Renderer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}]
    talk = [{"role": "developer", "content": "S"}, user(parts), says("x"), user("three")]
    assert smol.prompt_ids(talk) == smol.prompt_ids([system("S"), user("one\ntwo"), says("x"), user("three")])
    assert smol.prompt_ids([user(None)]) == smol.prompt_ids([user("")])


@pytest.mark.parametrize(
    ("messages", "says_what"),
    [
        (
            [user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}])],
            r"messages\[0\].content\[1\]",
        ),
        ([{"role": "robot", "content": "a"}], r"messages\[0\].role is 'robot'"),
        ([user(3)], r"messages\[0\].content is int"),
        ([], "at least one message"),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}],
            r"tool_calls\[0\] has no function",
        ),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_name(smol: Renderer, messages: Any, says_what: str) -> None:
    with pytest.raises(ValueError, match=says_what):
        smol.prompt_ids(messages)


def test_smollm2_report(smol: Renderer) -> None:
    report = smol.probe()
    assert report.template == "chatml_tools"
    assert report.own is not None and not report.own.tools and not report.own.null_content
    assert report.used.tools and report.used.null_content and report.used.consecutive_results
    assert "drops tools" in report.findings[0] and "chatml_tools" in report.findings[0]
    assert json.loads(json.dumps(report.as_dict()))["used"]["tools"] is True
    assert "drops tools" in str(report)
    assert "drops tools" in " ".join(Renderer(SMOLLM2, "own").probe().findings)
    assert smol.window == 8192 and smol.vocab_size == 49152 and smol.eos_ids == (2,)


def test_override_shows_tools_calls_and_results(smol: Renderer) -> None:
    talk = [user("a"), calls('{"city": "Åre"}', content=None), result("one"), result("two", 1), user("b")]
    text = smol.decode_all(smol.prompt_ids(talk, [WEATHER]))
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\n")
    assert json.dumps(WEATHER, ensure_ascii=False) in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call><|im_end|>' in text
    assert (
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>"
        in text
    )


def test_own_template_spells_out_what_it_drops() -> None:
    renderer = Renderer(SMOLLM2, "own")
    text = renderer.decode(renderer.prompt_ids([user("a"), calls('{"city": "Oslo"}', content=None), result("cold")]))
    assert '{"name": "get_weather", "arguments": {"city": "Oslo"}}' in text and "cold" in text


def test_a_template_that_takes_little_is_given_what_it_takes(tmp_path: Path) -> None:
    renderer = Renderer(stripping_model(tmp_path))
    assert renderer.probe().template == "own" and not renderer.traits.system and not renderer.traits.same_role_twice
    talk = [system("S"), user("a"), user("b"), says("c"), result("d"), user("e"), system("later")]
    assert (
        renderer.decode(renderer.prompt_ids(talk)) == "S\n\nlater\n\na\n\nbc<tool_response>\nd\n</tool_response>\n\ne"
    )
    assert len(renderer.probe().findings) >= 4


def test_templates_are_chosen(tmp_path: Path) -> None:
    assert Renderer(byte_level_model(tmp_path / "a")).probe().template == "own"
    assert Renderer(byte_level_model(tmp_path / "a"), "chatml_tools").probe().template == "chatml_tools"
    assert Renderer(byte_level_model(tmp_path / "b", None)).probe().template == "chatml_tools"
    mine = tmp_path / "mine.jinja"
    mine.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert Renderer(byte_level_model(tmp_path / "a"), str(mine)).decode_all(
        Renderer(byte_level_model(tmp_path / "a"), str(mine)).prompt_ids([user("hi")])
    ) == "hi"  # fmt: skip
    with pytest.raises(ValueError, match="no such file"):
        Renderer(byte_level_model(tmp_path / "a"), "nonsense")
    with pytest.raises(ValueError, match="no chat template of its own"):
        Renderer(byte_level_model(tmp_path / "b", None), "own")
    named = byte_level_model(tmp_path / "c", None)
    config = json.loads((named / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ tools }}"}]
    (named / "tokenizer_config.json").write_text(json.dumps(config))
    renderer = Renderer(named, "own")
    assert renderer.prompt_text([user("a")]) == "D" and renderer.prompt_text([user("a")], [CLOCK]).startswith("T[")


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Renderer(tmp_path)
    folder = byte_level_model(tmp_path / "m")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="max_position_embeddings"):
        Renderer(folder)


def test_tool_choice(smol: Renderer) -> None:
    talk, tools = [user("a")], [WEATHER, CLOCK]
    named = {"type": "function", "function": {"name": "clock"}}
    assert smol.prompt_ids(talk, tools, "none") == smol.prompt_ids(talk)
    assert smol.forced_prefix(tools, "auto") == smol.forced_prefix(None, None) == ""
    assert smol.forced_prefix(tools, named) == '<tool_call>\n{"name": "clock", "arguments":'
    assert smol.forced_prefix([CLOCK], "required") == smol.forced_prefix(tools, named)
    assert smol.forced_prefix(tools, "required") == '<tool_call>\n{"name": "'
    weather = {"type": "function", "function": {"name": "get_weather"}}
    assert smol.forced_prefix(tools, weather) == '<tool_call>\n{"name": "get_weather", "arguments": {"city": "'
    forced = smol.prompt_ids(talk, tools, named)
    assert smol.decode(forced).endswith('assistant\n<tool_call>\n{"name": "clock", "arguments":')
    with pytest.raises(ValueError, match="'nope', which is not declared"):
        smol.prompt_ids(talk, tools, {"type": "function", "function": {"name": "nope"}})
    with pytest.raises(ValueError, match="no tools are declared"):
        smol.prompt_ids(talk, None, "required")


def test_prompt_that_opens_thinking(tmp_path: Path) -> None:
    renderer = Renderer(byte_level_model(tmp_path, "{% set opens = true %}" + THINKING))
    assert renderer.format.starts_in_reasoning
    assert renderer.forced_prefix([CLOCK], "required").startswith("\n</think>\n\n<tool_call>")


def test_hint_goes_to_the_last_user_message(smol: Renderer) -> None:
    talk = [system("S"), user("a"), says("b"), user([{"type": "text", "text": "c"}])]
    hinted = [system("S"), user("a"), says("b"), user("c" + HINT_FORM.format(hint="Be brief."))]
    ids = smol.enhanced_prompt_ids(talk, None, " Be brief.\n", smol.prompt_ids(talk))
    assert ids == smol.prompt_ids(hinted)
    assert talk[-1]["content"] == [{"type": "text", "text": "c"}]


def test_hint_passes_over_ephemeral_messages(smol: Renderer) -> None:
    block = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nsecret\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    talk = [system("S"), user("question"), user([{"type": "text", "text": block}])]
    text = smol.decode(smol.enhanced_prompt_ids(talk, [CLOCK], "Be brief, please.", smol.prompt_ids(talk, [CLOCK])))
    assert "question\n\n[user's hint / instruction]\nBe brief, please." in text
    assert text.index("Be brief") < text.index("secret")


def test_hint_under_any_tool_choice(smol: Renderer) -> None:
    talk, tools = [user("a")], [WEATHER, CLOCK]
    for choice in ("auto", "none", "required", {"type": "function", "function": {"name": "clock"}}):
        ids = smol.enhanced_prompt_ids(talk, tools, "Be brief, please.", smol.prompt_ids(talk, tools, choice))
        assert ids == smol.prompt_ids([user("a" + HINT_FORM.format(hint="Be brief, please."))], tools, choice)


def test_hint_that_does_not_fit(smol: Renderer) -> None:
    talk = [user("a")]
    good = smol.prompt_ids(talk)
    with pytest.raises(HintDoesNotFit, match="rendering without the hint gives other ids"):
        smol.enhanced_prompt_ids(talk, None, "Be brief, please.", good[:-1])
    with pytest.raises(HintDoesNotFit, match="window of 8192"):
        smol.enhanced_prompt_ids(talk, None, "word " * 9000, good)
    with pytest.raises(HintDoesNotFit, match="answer 8192"):
        smol.enhanced_prompt_ids(talk, None, "Be brief, please.", good, response_length=8192)
    with pytest.raises(HintDoesNotFit, match="no user message"):
        smol.enhanced_prompt_ids([system("S")], None, "Be brief, please.", smol.prompt_ids([system("S")]))


def test_a_large_request_is_fast(smol: Renderer) -> None:
    text = "\n".join(f"{n}. Use `tool_{n}` when the user asks for item {n}, and only then." for n in range(600))
    talk = [system(text), user("hello")]
    smol.prompt_ids(talk)
    times = []
    for n in range(5):
        start_s = time.process_time()
        ids = smol.prompt_ids([*talk, says("hi"), user(f"and {n}")])
        times.append(time.process_time() - start_s)
    assert len(ids) > 10_000
    assert min(times) < 0.050, f"a known system prompt of {len(ids)} tokens took {min(times):.3f} s"


def test_the_package_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, serve.rendering; print([n for n in ('torch', 'transformers') if n in sys.modules])"
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert ran.stdout.strip() == "[]"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from serve import rendering

    folder = tmp_path / "model"
    shutil.copytree(SMOLLM2, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setattr("sys.argv", ["rendering", str(folder)])
    rendering.main()
    assert "drops tools" in capsys.readouterr().out
