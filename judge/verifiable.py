"""The `verifiable` judge: exact checks of an answer against an expected value.

What it does: compares the last number of the answer with the expected number, or the normalised text where the
expected value is no number. What it leaves out: hints (a right value is not a direction) and anything that needs
reading. A turn without an expected value gets no vote.
"""

import re
import time
from decimal import Decimal, InvalidOperation

from judge.base import JudgeInput
from judge.votes import make_verdict, vote
from storage.records import Verdict

VERSION = "1"
# Groups of three after a comma are thousands; a sign counts only where no digit or word stands right before it.
_NUMBER = re.compile(
    r"(?<![\d.\w])[-−]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|(?<![\d\w.])[-−]?\d+(?:\.\d+)?|\d+(?:\.\d+)?"
)
_MARKED = re.compile(r"(?:####|\\boxed\s*\{|answer\s*(?:is|:)\s*:?)\s*\$?\s*", re.IGNORECASE)


def numbers(text: str) -> list[Decimal]:
    """Every number of the text, in order."""
    return [Decimal(found.replace(",", "").replace("−", "-")) for found in _NUMBER.findall(text)]


def final_number(text: str) -> Decimal | None:
    """The number that the answer ends on: after its last answer marker, else the last one."""
    marks = list(_MARKED.finditer(text))
    if marks and (after := numbers(text[marks[-1].end() :].split("\n", 1)[0])):
        return after[0] if "=" not in text[marks[-1].end() :].split("\n", 1)[0] else after[-1]
    found = numbers(text)
    return found[-1] if found else None


def is_right(answer: str, expected: str) -> bool:
    """Whether the answer ends on the expected value."""
    try:
        wanted = Decimal(expected.strip().replace(",", ""))
    except InvalidOperation:
        return _folded(expected) in _folded(answer)[-len(_folded(expected)) - 40 :]
    return final_number(answer) == wanted


def _folded(text: str) -> str:
    return re.sub(r"[^\w]+", " ", text.lower()).strip()


class VerifiableJudge:
    """+1 for the right value, -1 for another; no vote where no expected value is known."""

    def __init__(self) -> None:
        self.name = f"verifiable/{VERSION}"

    async def judge(self, item: JudgeInput) -> Verdict:
        """Compares; never fails."""
        started = time.perf_counter()
        votes, errors = [], []
        if item.expected is None:
            errors.append("no expected value is known for this turn")
        elif is_right(item.answer, item.expected):
            votes.append(vote(1, f"verifiable: ends on {item.expected}"))
        else:
            votes.append(vote(-1, f"verifiable: does not end on {item.expected}"))
        return make_verdict(
            item, judge=self.name, prompt_version=self.name, started=started, evaluative=votes, errors=errors
        )
