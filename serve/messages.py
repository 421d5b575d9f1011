"""The vocabulary of chat messages: what of them counts, what a client only put there for a moment, what followed what.

What it does: reads text out of any shape of `content`, takes out the blocks that clients add and withdraw, and says
which words are the user's. Understands messages of the OpenAI and the Anthropic APIs alike. Pure and torch-free.
What it leaves out: hashes and the search for anchors (`serve/anchors.py`), and chat templates (`serve/rendering.py`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import orjson

Message = Mapping[str, Any]

# Blocks that a client adds to a request and takes out of the history again. (mark to look for, what to take out)
_BLOCKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>",
        re.compile(r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>|\Z)", re.DOTALL),
    ),
    ("<system-reminder>", re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)),
    ("<system_reminder>", re.compile(r"<system_reminder>.*?(?:</system_reminder>|\Z)", re.DOTALL)),
    ("<environment_details>", re.compile(r"<environment_details>.*?(?:</environment_details>|\Z)", re.DOTALL)),
    ("<environment_context>", re.compile(r"<environment_context>.*?(?:</environment_context>|\Z)", re.DOTALL)),
)
# Lines that a client writes into the user's own message. They may stay in the history, but nobody said them.
_CTX = "\u27e6openclaw:ctx\u27e7"
_USER_LINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("Runtime: ", re.compile(r"^Runtime: [^\n|]*\|[^\n]*$", re.MULTILINE)),
    ("[message_id:", re.compile(r"^\[message_id: [^\]\n]*\]\s*$", re.MULTILINE)),
    # a header line with OpenClaw's mark, then a JSON block or a paragraph
    (
        _CTX,
        re.compile(rf"^[^\n]{{1,120}}{_CTX}[ \t]*\n(?:```json\n.*?\n```[ \t]*$|.*?(?:\n[ \t]*\n|\Z))", re.M | re.S),
    ),
    ("(untrusted", re.compile(r"^[A-Z][^\n]{2,80}\(untrusted[^)\n]*\):[ \t]*\n```json\n.*?\n```[ \t]*$", re.M | re.S)),
)
_DATE_PREFIX = re.compile(r"\A\s*\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2}[^\]\n]{0,40}\][ \t]*")
# What a client puts in the place of the history that it cut off: nobody's words, and nobody's next state.
_SUMMARY_BLOCK = re.compile(
    r"\A\s*The conversation history before this point was compacted into the following summary:\s*"
    r"<summary>.*?(?:</summary>|\Z)",
    re.DOTALL,
)
_SUMMARY_OPENINGS = (
    "The conversation history before this point was compacted",
    "The following is a summary of a branch that this conversation came back from",
    "This session is being continued from a previous conversation",
    "Another language model started to solve this problem and produced a summary",
    "[CONTEXT COMPACTION",
    "[CONTEXT SUMMARY]",
    "[Previous conversation summary]",
    "Previous conversation summary:",
    "Summary of the conversation so far:",
    "<conversation_summary>",
)
_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
_THINKING_END = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL)
_REPLY_TAGS = re.compile(r"\[\[(?:reply_to_current|reply_to:[^\]\n]*|audio_as_voice)\]\]\s*")  # OpenClaw takes them out
_THINKING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content", "summary_text"})
_TOOL_RESULT_PARTS = frozenset({"tool_result", "function_call_output"})
_TOOL_CALL_PARTS = frozenset({"tool_use", "function_call"})
_MEDIA_PARTS = {"image_url": "image", "image": "image", "input_image": "image", "input_audio": "audio", "file": "file"}

CALL = "\x1d"  # opens a tool call in a canonical text
QUESTION_LIMIT = 8_000  # characters of a question that a judge is shown
TOOL_LIMIT = 4_000  # characters of one tool's output in a next state


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a message that counts: someone's words, a tool's result, or an answer with its tool calls."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str  # as sent, ephemeral blocks and thinking taken out
    calls: str = ""  # an answer's tool calls, one canonical line each
    call_id: str | None = None  # which call a tool's result answers
    name: str | None = None  # the tool's name, where the result says it


def text_of(content: Any) -> str:
    """The text of a message's `content`: a string, a list of parts, or nothing. Pictures are named, thinking is not."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return _part_text(content)
    if isinstance(content, Sequence):
        return "\n".join(text for part in content if (text := _part_text(part)))
    return str(content)


def fold(text: str) -> str:
    """Every run of white space as one space, none at the ends."""
    return " ".join(text.split())


def without_thinking(text: str) -> str:
    """An answer's text without what the model thought aloud, and without marks that clients take out."""
    if "[[" in text:
        text = _REPLY_TAGS.sub("", text)
    if "think" not in text:
        return text
    text = _THINKING.sub("", text)
    return _THINKING_END.sub("", text) if "</think" in text else text


def without_ephemeral(text: str, *, user: bool = True) -> str:
    """Text without the blocks that clients add and withdraw; for a user's message also without dates and the like."""
    if "<" in text:
        for mark, pattern in _BLOCKS:
            if mark in text:
                text = pattern.sub("", text)
    if not user:
        return text
    text = _without_date(text)
    for mark, pattern in _USER_LINES:
        if mark in text:
            text = _without_date(pattern.sub("", text))  # it stands behind the metadata blocks where there are some
    return _without_summary(text)


def pieces(message: Message) -> list[Piece]:
    """What counts in a message, in order; nothing where it is ephemeral through and through."""
    role, content = _role(message), message.get("content")
    if role == "assistant":
        text, calls = without_thinking(text_of(content)), "".join(_calls(message))
        return [Piece("assistant", text, calls)] if text.strip() or calls else []
    if role == "tool":
        text = without_ephemeral(text_of(content), user=False)
        call_id, name = message.get("tool_call_id"), message.get("name")
        return [
            Piece(
                "tool", text,
                call_id=call_id if isinstance(call_id, str) else None, name=name if isinstance(name, str) else None,
            )
        ]  # fmt: skip
    if role == "system":
        return [Piece("system", text_of(content))]
    return _user_pieces(content)


def is_ephemeral(message: Message) -> bool:
    """Whether a message is only something that the client put there: no words, no results."""
    return not pieces(message)


def strip_ephemeral(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages without ephemeral ones, and without ephemeral blocks in those that stay."""
    kept: list[dict[str, Any]] = []
    for message in messages:
        if not pieces(message):
            continue
        clean = dict(message)
        role, content = _role(message), message.get("content")
        if role in ("user", "tool"):
            clean["content"] = _clean_content(content, user=role == "user")
        kept.append(clean)
    return kept


def canonical(message: Message) -> str:
    """One string for all spellings of the same message: without thinking, ephemera and ids, white space folded."""
    return "\x1e".join(f"{piece.role}\x1f{fold(piece.text)}{piece.calls}" for piece in pieces(message))


def last_user_index(messages: Sequence[Message]) -> int | None:
    """Where the last words of the user stand (not a tool's result, not a block of the client's). A hint goes there."""
    for index in range(len(messages) - 1, -1, -1):
        if _role(messages[index]) == "user" and any(piece.role == "user" for piece in pieces(messages[index])):
            return index
    return None


def last_user_text(messages: Sequence[Message]) -> str:
    """The user's last words, clean of ephemera; empty where there are none."""
    index = last_user_index(messages)
    return "" if index is None else _user_words(messages[index])


def question_of(messages: Sequence[Message]) -> str:
    """What an answer answered: the user's last words, and the tool results that came after them."""
    index = last_user_index(messages)
    if index is None:
        return ""
    words = _clip(_user_words(messages[index]), QUESTION_LIMIT)
    results = _tool_texts(messages[index + 1 :], messages[index + 1 :])
    return "\n\n".join([words, *results])[-2 * QUESTION_LIMIT :]


def next_state_of(
    after: Sequence[Message], answer: Sequence[Message] = ()
) -> tuple[Literal["user", "tool"], str] | None:
    """What followed an answer: (role, content) from the messages after it, up to the next answer.

    All parallel tool results are one next state, each under its tool's name (known from `answer`, the answer's own
    messages). With results there, words of the user come last under `user:` and the role is tool. None where nothing
    but ephemeral blocks followed.
    """
    end = next((i for i, message in enumerate(after) if _role(message) == "assistant"), len(after))
    results = _tool_texts(after[:end], answer)
    words = "\n\n".join(
        piece.text.strip() for message in after[:end] for piece in pieces(message) if piece.role == "user"
    )
    if not results:
        return ("user", words) if words else None
    return "tool", "\n\n".join([*results, f"user: {words}"] if words else results)


def is_assistant(message: Message) -> bool:
    """Whether a message is an answer."""
    return _role(message) == "assistant"


def _role(message: Message) -> str:
    role = message.get("role")
    return {"developer": "system", "function": "tool", "model": "assistant"}.get(role, role) or "user"


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    kind = part.get("type")
    if kind in _THINKING_PARTS or kind in _TOOL_RESULT_PARTS or kind in _TOOL_CALL_PARTS:
        return ""
    if kind in _MEDIA_PARTS:
        return f"[{_MEDIA_PARTS[kind]} {_media_mark(part)}]"
    text = part.get("text", part.get("content"))
    return text if isinstance(text, str) else ""


def _media_mark(part: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in part.items() if key not in ("cache_control", "detail")}
    return blake2b(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def _user_pieces(content: Any) -> list[Piece]:
    if isinstance(content, str):
        words = without_ephemeral(content)
        return [Piece("user", words)] if words.strip() else []
    found: list[Piece] = []
    if isinstance(content, Sequence):
        found = [
            Piece("tool", without_ephemeral(text_of(part.get("content", part.get("output"))), user=False),
                  call_id=part.get("tool_use_id", part.get("call_id")))
            for part in content
            if isinstance(part, Mapping) and part.get("type") in _TOOL_RESULT_PARTS
        ]  # fmt: skip
        # each part is cleaned by itself: a client's block and the user's words are often parts of one message
        words = "\n".join(w for part in content if (w := without_ephemeral(_part_text(part)).strip()))
    else:
        words = without_ephemeral(text_of(content))
    if words.strip():
        found.append(Piece("user", words))
    return found


def _user_words(message: Message) -> str:
    return "\n".join(piece.text.strip() for piece in pieces(message) if piece.role == "user")


def _clean_content(content: Any, *, user: bool) -> Any:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return without_ephemeral(text_of(content), user=user).strip() if content is not None else None
    cleaned = []
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text = without_ephemeral(part["text"], user=user).strip()
            if text:
                cleaned.append({**part, "text": text})
        else:
            cleaned.append(part)
    return cleaned


def _without_date(text: str) -> str:
    return _DATE_PREFIX.sub("", text, count=1) if text[:20].lstrip().startswith("[") else text


def _without_summary(text: str) -> str:
    if not text[:200].lstrip().startswith(_SUMMARY_OPENINGS):
        return text
    rest = _SUMMARY_BLOCK.sub("", text)
    return rest if len(rest) < len(text) else ""


def _calls(message: Message) -> Iterator[str]:
    """An answer's tool calls as canonical lines."""
    for call in message.get("tool_calls") or ():
        yield _one_call(call.get("function") or call if isinstance(call, Mapping) else call)
    if old := message.get("function_call"):
        yield _one_call(old)
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        for part in content:
            if isinstance(part, Mapping) and part.get("type") in _TOOL_CALL_PARTS:
                yield _call_line(part.get("name"), part.get("input", part.get("arguments")))


def _one_call(function: Any) -> str:
    if isinstance(function, Mapping):
        return _call_line(function.get("name"), function.get("arguments"))
    return _call_line(None, function)  # of no known form: it is told apart from others all the same


def _call_line(name: Any, arguments: Any) -> str:
    return f"{CALL}{name}{CALL}{_json_value(arguments)}"


def _json_value(arguments: Any) -> str:
    """Arguments as a JSON value: key order, spacing and escapes don't count, 1 and 1.0 are one (JavaScript's view)."""
    given = arguments
    try:
        if isinstance(arguments, str):
            arguments = orjson.loads(arguments) if arguments.strip() else {}
        return orjson.dumps(_plain(arguments if arguments is not None else {}), option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, TypeError, RecursionError):  # no JSON, or nested deeper than orjson writes
        return fold(given) if isinstance(given, str) else "?"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _tool_texts(messages: Sequence[Message], callers: Sequence[Message]) -> list[str]:
    """Tool results, each under its tool's name, clipped."""
    names = {call_id: name for message in callers for call_id, name in _call_names(message)}
    found = [piece for message in messages for piece in pieces(message) if piece.role == "tool"]
    return [
        f"{piece.name or names.get(piece.call_id or '') or 'tool'}: {_clip(piece.text.strip(), TOOL_LIMIT)}"
        for piece in found
    ]


def _call_names(message: Message) -> Iterator[tuple[str, str]]:
    for call in message.get("tool_calls") or ():
        if isinstance(call, Mapping):
            function = call.get("function") or call
            yield str(call.get("id")), str(function.get("name") if isinstance(function, Mapping) else None)
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        for part in content:
            if isinstance(part, Mapping) and part.get("type") in _TOOL_CALL_PARTS:
                yield str(part.get("id", part.get("call_id"))), str(part.get("name"))


def _clip(text: str, limit: int) -> str:
    """Keep both ends: a tool's verdict often stands last."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - limit} characters left out …]\n{text[-half:]}"
