"""Chat messages and tools to token ids and back, without torch or transformers: the one room for chat templates.

What it does: `Renderer(model_dir)` renders as transformers' `apply_chat_template` would, with three differences: the
messages are brought into the form that the template takes (`serve/normal_form.py`); text that spells a special token
stays text (`serve/token_encoder.py`); and a template that drops tools is replaced by ours where it can be
(`serve/templates/`), which `probe()` says.
What it leaves out: parsing answers (`serve/parsing.py`); a prompt longer than `window` is rendered all the same, the
caller compares.
How to run it: `python -m serve.rendering MODEL_DIR [--template NAME]` prints the report and times.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serve.chat_template import ChatTemplate, Message, Tool, Traits, load_template, probe_traits
from serve.decoding import Detokenizer, StreamDecoder
from serve.messages import last_user_index
from serve.normal_form import content_text, normal_messages, normal_tools
from serve.parsing import AnswerFormat
from serve.token_encoder import TokenEncoder

HINT_FORM = "\n\n[user's hint / instruction]\n{hint}"


class HintDoesNotFit(ValueError):
    """The prompt with the hint can't be had; the message says why. The turn is left out by that name."""


@dataclass(frozen=True, kw_only=True)
class TemplateReport:
    """What a model's chat template takes, and what was done about what it doesn't."""

    model: str  # the folder's name
    template: str  # "own", one of ours, or a path
    own: Traits | None  # of the model's own template; None where it has none
    used: Traits
    findings: tuple[str, ...]  # sentences for people, the most important first

    def __str__(self) -> str:
        return "\n".join((f"{self.model}: template {self.template}", *self.findings))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Renderer:
    """One model's prompts. Thread-safe."""

    def __init__(self, model_dir: Path, template: str | None = None) -> None:
        """`template`: None chooses by probing; "own", the name of one of ours, or a path decides."""
        self.model_dir = Path(model_dir)
        if not (self.model_dir / "tokenizer.json").is_file():
            raise ValueError(f"{self.model_dir} has no tokenizer.json: give a model folder as transformers saves it")
        self._config = _read_json(self.model_dir / "config.json")
        self._encoder = TokenEncoder(self.model_dir / "tokenizer.json")
        self._tokens = Detokenizer(self.model_dir / "tokenizer.json")
        self._template, self._own = load_template(self.model_dir, template)
        self.traits: Traits = probe_traits(self._template)
        self.format = AnswerFormat(starts_in_reasoning=self.traits.opens_think)
        self.window: int = _window(self._config, self.model_dir)  # tokens, prompt and answer together
        self.vocab_size: int = _text_config(self._config).get("vocab_size") or self._tokens.vocab_size
        self.eos_ids: tuple[int, ...] = self._find_eos()
        self._report = self._make_report()

    def probe(self) -> TemplateReport:
        """What the template takes, drops and breaks: found out once, when the model is loaded."""
        return self._report

    def _make_report(self) -> TemplateReport:
        own = probe_traits(self._own) if self._own else None
        return TemplateReport(
            model=self.model_dir.name,
            template=self._template.name,
            own=own,
            used=self.traits,
            findings=tuple(_findings(own, self.traits, self._template)),
        )

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> str:
        """The prompt as text, for people; special tokens in a client's text look like real ones here."""
        return self._template.render(normal_messages(messages, self.traits), normal_tools(tools, "auto"))

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, tool_choice: Any = "auto"
    ) -> tuple[int, ...]:
        """[P] ids up to where the answer begins, a forced call's beginning (`forced_prefix`) included."""
        taken: list[str] = []
        guarded = self._encoder.guard(normal_messages(messages, self.traits), taken)
        declared = self._encoder.guard(normal_tools(tools, tool_choice), taken)
        text = self._template.render(guarded, declared)
        prefix = self.forced_prefix(tools, tool_choice)
        return tuple(self._encoder.encode(text + self._encoder.guard(prefix, taken), taken))

    def forced_prefix(self, tools: Sequence[Tool] | None, tool_choice: Any) -> str:
        """How the answer begins where a call is required, "" otherwise. The parser is given it too.

        It ends where the model's own tokens fit on: in a string, or before a space.
        """
        names = required_names(tools, tool_choice)
        if names is None:
            return ""
        opening = f'{self.format.tool_open}\n{{"name": "'
        if len(names) == 1:
            function = next(tool["function"] for tool in tools or [] if tool["function"]["name"] == names[0])
            opening += f'{json.dumps(names[0], ensure_ascii=False)[1:]}, "arguments":{_first_argument(function)}'
        return f"\n{self.format.think_close}\n\n{opening}" if self.format.starts_in_reasoning else opening

    def enhanced_prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        hint: str,
        expect: Sequence[int],
        *,
        response_length: int = 0,
    ) -> tuple[int, ...]:
        """[P'] the prompt with the hint at the end of the last user message that stays in the history.

        `expect` is the prompt that was sampled from: without the hint the rendering must give exactly it.
        """
        index = last_user_index(messages)
        if index is None or index < 0:
            raise HintDoesNotFit("the prompt has no user message to put the hint on")
        choice = self._choice_of(messages, tools, tuple(expect))
        said = content_text(messages[index].get("content"), f"messages[{index}]")
        hinted = [*messages]
        hinted[index] = {**messages[index], "content": said + HINT_FORM.format(hint=hint.strip())}
        ids = self.prompt_ids(hinted, tools, choice)
        if len(ids) + response_length > self.window:
            raise HintDoesNotFit(
                f"with the hint the prompt has {len(ids)} tokens and the answer {response_length}: "
                f"more than the window of {self.window}"
            )
        return ids

    def _choice_of(self, messages: Sequence[Message], tools: Sequence[Tool] | None, expect: tuple[int, ...]) -> Any:
        """The tool_choice under which the messages give `expect`: an exchange does not record it."""
        choices: list[Any] = ["auto"]
        if tools:
            named = [{"type": "function", "function": {"name": tool["function"]["name"]}} for tool in tools]
            choices += ["required", "none", *named]
        lengths = []
        for choice in choices:
            try:
                ids = self.prompt_ids(messages, tools, choice)
            except ValueError as error:
                raise HintDoesNotFit(f"the messages don't render: {error}") from error
            if ids == expect:
                return choice
            lengths.append(len(ids))
        raise HintDoesNotFit(
            f"rendering without the hint gives other ids ({lengths[0]} tokens) than the prompt that was sampled from "
            f"({len(expect)} tokens)"
        )

    def stream_decoder(self) -> StreamDecoder:
        """A fresh one for one answer."""
        return self._tokens.stream()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, special tokens left out."""
        return self._tokens.decode(ids)

    def decode_all(self, ids: Sequence[int]) -> str:
        """The same with special tokens by name, for people."""
        return self._tokens.decode_all(ids)

    def token_text(self, id: int) -> str:
        """One token for people; half characters as U+FFFD, special tokens by name."""
        return self._tokens.token_text(id)

    def _find_eos(self) -> tuple[int, ...]:
        found: list[int] = []
        for source in (_read_json(self.model_dir / "generation_config.json"), _text_config(self._config)):
            given = source.get("eos_token_id")
            found += given if isinstance(given, list) else [given] if isinstance(given, int) else []
        named = self._tokens.id_of(str(self._template.variables.get("eos_token", "")))
        return tuple(dict.fromkeys(found if named is None else [*found, named]))


def required_names(tools: Sequence[Tool] | None, tool_choice: Any) -> list[str] | None:
    """The functions of which one must be called; None where none must."""
    declared = [tool["function"]["name"] for tool in tools or []]
    if tool_choice in (None, "auto", "none"):
        return None
    if tool_choice in ("required", "any"):
        if not declared:
            raise ValueError(f"tool_choice is {tool_choice!r} but no tools are declared: declare some, or use auto")
        return declared
    function = tool_choice.get("function", tool_choice) if isinstance(tool_choice, dict) else {}
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ValueError(f"tool_choice is {tool_choice!r}: use auto, none, required, or type function with a name")
    if name not in declared:
        raise ValueError(f"tool_choice names {name!r}, which is not declared; declared are: {', '.join(declared)}")
    return [name]


def _first_argument(function: dict[str, Any]) -> str:
    """How a call's arguments begin with what the schema requires first: small models need it."""
    schema = function.get("parameters")
    schema = schema if isinstance(schema, dict) else {}
    required = schema.get("required")
    if not isinstance(required, list) or not required or not isinstance(required[0], str):
        return ""
    properties = schema.get("properties")
    described = properties.get(required[0]) if isinstance(properties, dict) else None
    is_text = isinstance(described, dict) and described.get("type") == "string"
    return f" {{{json.dumps(required[0], ensure_ascii=False)}:" + (' "' if is_text else "")


def _findings(own: Traits | None, used: Traits, template: ChatTemplate) -> list[str]:
    found = []
    if own is None:
        found.append(f"The model has no chat template of its own; {template.name} is used.")
    elif template.name != "own":
        why = "drops tools" if not own.tools else "is set aside by the settings"
        found.append(f"The model's own template {why}; {template.name} is used instead.")
    missing = {
        "tools": "drops tools: clients may send them, the model will not see them",
        "calls": "drops an assistant's tool calls: they are spelled out as text",
        "consecutive_results": "does not take tool results: they are given as user messages",
        "null_content": "fails on content null: it is given an empty string",
        "system": "takes no system message: it is put before the first user message",
        "system_only": "does not take a conversation of a system message only",
        "several_system": "takes one system message only: several are merged into the first",
        "same_role_twice": "does not take two messages of one role in a row: they are merged",
    }
    for name, words in missing.items():
        if not getattr(used, name):
            found.append(f"The template ({template.name}) {words}.")
        elif own is not None and template.name != "own" and name != "tools" and not getattr(own, name):
            found.append(f"The model's own template {words.split(':')[0]}; {template.name} does.")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **(config.get("text_config") or {})}


def _window(config: dict[str, Any], model_dir: Path) -> int:
    window = _text_config(config).get("max_position_embeddings")
    if not isinstance(window, int) or window < 1:
        raise ValueError(f"{model_dir}/config.json has no max_position_embeddings: the window is not known")
    return window


def _measure(renderer: Renderer) -> list[str]:
    """Times of a small and of a large request: first, with other text, and again."""
    lines = []
    word = "The quick brown fox, 7 of 12, jumps over `the_lazy.dog()` and says: naïve café! "
    for name, repeats in (("small", 2), ("large", 600)):
        times = []
        for run in range(6):
            text = f"{run} " + word * repeats
            messages = [{"role": "system", "content": text}, {"role": "user", "content": "Hello"}]
            for _ in range(2):
                start_s = time.perf_counter()
                ids = renderer.prompt_ids(messages)
                times.append(time.perf_counter() - start_s)
        new, again = min(times[2::2]) * 1e3, min(times[3::2]) * 1e3
        lines.append(f"{name}: {len(ids)} tokens, new text {new:.2f} ms, again {again:.2f} ms")
    return lines


def main() -> None:
    """Prints what a model folder's template takes, and how fast it renders."""
    parser = argparse.ArgumentParser(prog="python -m serve.rendering", description=main.__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--template", help="own, one of ours, or a path; chosen by probing if not given")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    start_s = time.perf_counter()
    renderer = Renderer(given.model_dir, given.template)
    loaded_s = time.perf_counter() - start_s
    report = renderer.probe()
    if given.json:
        print(json.dumps(report.as_dict(), indent=2))
        return
    print(f"{report.model}: template {report.template}, window {renderer.window} tokens, eos {renderer.eos_ids}")
    print("\n".join(f"- {line}" for line in report.findings) or "- nothing to report")
    print(f"loaded in {loaded_s:.2f} s", *_measure(renderer), sep="\n")


if __name__ == "__main__":
    main()
