"""A model's chat template: found in its folder, compiled as transformers does, and probed for what it drops or breaks.

What it does: `load_template(model_dir, choice)` picks the model's own template or one of ours in `serve/templates/`;
`ChatTemplate.render` runs it; `probe_traits` finds out by rendering small conversations what it can take.
What it leaves out: bringing messages into the form the template takes (`serve/normal_form.py`), tokens
(`serve/token_encoder.py`). To see a model's report: `python -m serve.rendering MODEL_DIR`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
Tool = dict[str, Any]

OURS = Path(__file__).parent / "templates"
OVERRIDE = "chatml_tools"
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TemplateRefuses(ValueError):
    """The chat template raised on these messages."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: the body as it is."""

    tags = {"generation"}  # noqa: RUF012  jinja reads a plain set

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=32)
def compile_template(source: str) -> jinja2.Template:
    """Compiled in the same environment as transformers' `apply_chat_template`."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env.from_string(source)


@dataclass(frozen=True)
class ChatTemplate:
    """One template: `name` is "own", one of ours, or a path; `sources` has "default" and maybe "tool_use"."""

    name: str
    sources: dict[str, str]
    variables: dict[str, Any] = field(default_factory=dict)  # bos_token, eos_token, default_system, …

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, prompt: bool = True) -> str:
        """The text of the conversation; with `prompt`, up to where the assistant's answer begins."""
        source = self.sources["tool_use"] if tools and "tool_use" in self.sources else self.sources["default"]
        try:
            return compile_template(source).render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **self.variables
            )
        except Exception as error:  # the boundary to foreign code: a template may raise anything
            raise TemplateRefuses(f"the chat template ({self.name}) refuses these messages: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a template can take, as far as rendering small conversations shows it."""

    tools: bool  # declarations appear in the prompt
    calls: bool  # an assistant's tool_calls in the history appear
    tool_results: bool  # role "tool" appears
    consecutive_results: bool  # two tool results in a row appear
    null_content: bool  # content null beside tool_calls
    null_content_error: str | None
    arguments: str  # "object" or "string": the form of a call's arguments it renders as JSON
    system: bool  # role "system" appears
    system_only: bool  # a conversation of one system message
    several_system: bool  # a second system message, in the middle
    same_role_twice: bool  # two user messages in a row
    opens_think: bool  # the prompt ends inside <think>
    chatml: bool


def _tool(name: str) -> Tool:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "description": "Says hello.", "parameters": city}}


def _call(arguments: Any, number: int = 1) -> dict[str, Any]:
    return {"id": f"call00{number}xyz", "type": "function", "function": {"name": "qcall", "arguments": arguments}}


def _says(role: str, text: str) -> Message:
    return {"role": role, "content": text}


class _Prober:
    """Renders small conversations and looks for what was put into them."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def text(self, messages: list[Message], tools: list[Tool] | None = None) -> str:
        try:
            return self._template.render(messages, tools)
        except TemplateRefuses:
            return ""

    def shows(self, messages: list[Message], *wanted: str, tools: list[Tool] | None = None) -> bool:
        text = self.text(messages, tools)
        return all(part in text for part in wanted)

    def error(self, messages: list[Message], tools: list[Tool] | None) -> str | None:
        try:
            self._template.render(messages, tools)
        except TemplateRefuses as error:
            return str(error.__cause__)
        return None


def _with_calls(arguments: Any, content: str | None = "", results: int = 1) -> list[Message]:
    calls = [_call(arguments, n + 1) for n in range(results)]
    found = [
        {"role": "tool", "content": f"qresult{n}", "tool_call_id": calls[n]["id"], "name": "qcall"}
        for n in range(results)
    ]
    return [_says("user", "qask"), {"role": "assistant", "content": content, "tool_calls": calls}, *found]


def probe_traits(template: ChatTemplate) -> Traits:
    """Renders a dozen small conversations; never raises."""
    probe, tools = _Prober(template), [_tool("qcall")]
    system, user, answer = _says("system", "qsys"), _says("user", "qask"), _says("assistant", "qanswer")
    later, again = _says("system", "qlater"), _says("user", "qagain")
    as_object = probe.text(_with_calls({"city": "qOslo"}), tools)
    form = "object" if '"qOslo"' in as_object or "<parameter=city>" in as_object else "string"
    good: Any = {"city": "qOslo"} if form == "object" else '{"city": "qOslo"}'
    null_error = probe.error(_with_calls(good, content=None), tools)
    prompt = probe.text([user])
    return Traits(
        tools=probe.shows([user], "qcall", tools=tools),
        calls=probe.shows(_with_calls(good), "qOslo", tools=tools),
        tool_results=probe.shows(_with_calls(good), "qresult0", tools=tools),
        consecutive_results=probe.shows(_with_calls(good, results=2), "qresult0", "qresult1", tools=tools),
        null_content=null_error is None,
        null_content_error=null_error,
        arguments=form,
        system=probe.shows([system, user], "qsys", "qask"),
        system_only=probe.shows([system], "qsys"),
        several_system=probe.shows([system, user, answer, later, user], "qsys", "qlater")
        and probe.shows([system, later, user], "qsys", "qlater"),
        same_role_twice=probe.shows([user, again], "qask", "qagain"),
        opens_think=prompt.rstrip().endswith("<think>"),
        chatml="<|im_start|>user\nqask<|im_end|>" in prompt and prompt.endswith("<|im_start|>assistant\n"),
    )


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _own_sources(model_dir: Path, config: dict[str, Any]) -> dict[str, str]:
    """As transformers looks for them: chat_template.jinja, then chat_template.json, then tokenizer_config.json."""
    sources: dict[str, str] = {}
    listed = config.get("chat_template") or _read_json(model_dir / "chat_template.json").get("chat_template")
    if isinstance(listed, str):
        sources["default"] = listed
    elif isinstance(listed, list):
        sources |= {entry["name"]: entry["template"] for entry in listed}
    if (model_dir / "chat_template.jinja").is_file():
        sources["default"] = (model_dir / "chat_template.jinja").read_text(encoding="utf-8")
    for more in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        sources[more.stem] = more.read_text(encoding="utf-8")
    return sources


def _special_variables(model_dir: Path, config: dict[str, Any]) -> dict[str, str]:
    named = {**_read_json(model_dir / "special_tokens_map.json"), **config}
    found = {name: named.get(name) for name in SPECIAL_NAMES}
    return {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in found.items()
        if isinstance(value, str | dict)
    }


def _ours(choice: str, variables: dict[str, Any]) -> ChatTemplate:
    path = OURS / f"{choice}.jinja"
    path = path if path.is_file() else Path(choice)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in OURS.glob("*.jinja")))
        raise ValueError(f"chat template {choice!r}: no such file; give own, one of ours ({known}), or a path")
    name = path.stem if path.parent == OURS else str(path)
    return ChatTemplate(name, {"default": path.read_text(encoding="utf-8")}, variables)


def _default_system(own: ChatTemplate | None) -> str:
    """The system text that a ChatML template adds by itself when there is none."""
    if own is None:
        return ""
    try:
        text = own.render([_says("user", "q")], None)
    except TemplateRefuses:
        return ""
    head, mark, _ = text.partition("<|im_end|>\n<|im_start|>user")
    return head.removeprefix("<|im_start|>system\n") if mark and head.startswith("<|im_start|>system\n") else ""


def load_template(model_dir: Path, choice: str | None) -> tuple[ChatTemplate, ChatTemplate | None]:
    """(the template to use, the model's own one or None). `choice`: None decides by probing."""
    config = _read_json(model_dir / "tokenizer_config.json")
    variables: dict[str, Any] = _special_variables(model_dir, config)
    sources = _own_sources(model_dir, config)
    own = ChatTemplate("own", sources, variables) if "default" in sources else None
    if choice == "own" or (choice is None and own is not None):
        if own is None:
            raise ValueError(f"{model_dir} has no chat template of its own: set the template to {OVERRIDE} or a path")
        traits = probe_traits(own) if choice is None else None
        if traits is None or traits.tools or not traits.chatml:
            return own, own
    return _ours(choice or OVERRIDE, {**variables, "default_system": _default_system(own)}), own
