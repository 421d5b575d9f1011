"""Reading what a judge model wrote: its score and its hint.

What it does: reads the verdict from the END of the judge's own text. Thinking, echoes of the fenced data and
passages that stand word for word in the judged text are not the judge's own, and a `\\boxed` inside them is ignored.
What it leaves out: guessing. A text with no score in a known spelling gives None, which is no vote.
"""

import re
from collections.abc import Sequence

from judge.votes import MIN_HINT_CHARS

MAX_HINT_SENTENCES = 3
MAX_HINT_CHARS = 600
_ECHO_CONTEXT = 12  # characters before a \boxed that must match judged text for it to count as a quotation

# A backslash lost, doubled, or turned into a backspace by a JSON decoder ("\b" + "oxed").
_BOXED = re.compile(r"(?:\\{1,2}boxed|(?<![a-zA-Z\\])boxed|\x08oxed)\s*(?:\{|(?=[+\-−]?[01]\b))", re.IGNORECASE)
_WRAPPER = re.compile(r"\\(?:text|textbf|mathbf|mathrm|bf|rm|displaystyle|,|;|!|:| )")
_THINK = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_HINT = re.compile(r"\[\s*HINT_START\s*\](.*?)\[\s*HINT_END\s*\]", re.DOTALL | re.IGNORECASE)
_SPECIAL = re.compile(r"<\|[^|<>]{0,40}\|>|\[/?INST\]|</?s>")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")


def own_text(text: str, fence: str) -> str:
    """The judge's own words: without thinking and without echoed fences (an unclosed one reaches to the end)."""
    text = _THINK.sub("", text)
    if "</think>" in text:  # some servers keep the opening tag in the prompt
        text = text.rsplit("</think>", 1)[1]
    word = re.escape(fence)
    return re.sub(rf"<<<\s*{word}\b[^>]*>>>.*?(?:<<<\s*END\s+{word}\b[^>]*>>>|\Z)", "", text, flags=re.DOTALL)


def read_score(text: str, fence: str, judged: Sequence[str] = ()) -> int | None:
    """The last boxed score of the judge's own text: 1, 0 or -1; None where there is none or it is no such number."""
    text = own_text(text, fence)
    quoted = [_folded(part) for part in judged]
    for match in reversed(list(_BOXED.finditer(text))):
        content, end = _content(text, match)
        if content is None or _is_quotation(text, match.start(), end, quoted):
            continue
        return _as_score(content)
    return None


def read_hint(text: str, fence: str) -> str | None:
    """The hint between the last pair of markers, at most three sentences; None where there is none long enough."""
    found = _HINT.findall(own_text(text, fence))
    return clean_hint(found[-1]) if found else None


def clean_hint(raw: str) -> str | None:
    """One line of one to three sentences, without control tokens; None under 10 characters."""
    hint = " ".join(_SPECIAL.sub(" ", raw).split()).strip("\"'“”` ")
    hint = re.sub(r"^(?:hint\s*:|[-*•]\s)\s*", "", hint, flags=re.IGNORECASE)
    sentences = [part for part in _SENTENCE_END.split(hint) if part.strip()]
    hint = " ".join(sentences[:MAX_HINT_SENTENCES])[:MAX_HINT_CHARS].strip()
    return hint if len(hint) >= MIN_HINT_CHARS else None


def _content(text: str, match: re.Match[str]) -> tuple[str | None, int]:
    """What stands in the box, braces balanced, and where it ends; (None, end) where it is not closed."""
    start = match.end()
    if text[start - 1 : start] != "{":
        number = re.compile(r"[+\-−]?[01]\b").match(text, start)
        return (number.group(), number.end()) if number else (None, start)
    depth = 1
    for at in range(start, min(len(text), start + 80)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at], at + 1
    return None, len(text)


def _as_score(content: str) -> int | None:
    """`1`, `+1`, `1.0`, `\\text{-1}`, `$0$`, full-width and typographic spellings; anything else is None."""
    plain = _WRAPPER.sub("", content)
    plain = re.sub(r"[\s{}$`*\"'“”]", "", plain)
    plain = plain.translate(str.maketrans("−–—－＋０１．", "----+01."))
    match = re.fullmatch(r"([+-]?)([01])(?:\.0*)?", plain)
    if match is None:
        return None
    value = int(match.group(2))
    return -value if match.group(1) == "-" else value


def _is_quotation(text: str, start: int, end: int, quoted: Sequence[str]) -> bool:
    """Whether the box and the words right before it stand like this in what was judged."""
    before = text[max(0, start - 2 * _ECHO_CONTEXT) : start]
    if len(_folded(before)) < _ECHO_CONTEXT:
        return False
    passage = _folded(before)[-_ECHO_CONTEXT:] + _folded(text[start:end])
    return any(passage in part for part in quoted)


def _folded(text: str) -> str:
    return re.sub(r"\s+", "", text).lower()
