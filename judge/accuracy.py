"""How often the `rules` judge is right: `python -m judge.accuracy [--errors] [--json]`.

What it does: judges every labelled reply of `data/replies.jsonl` and prints accuracy and the confusion table of its two
parts. The rules were written against the part `development`; the part `held_out` was set aside by a draw before any
rule was written and not tuned on. `--errors` lists the mistakes of the development part only, so that it stays so.
What it leaves out: strangers. Both parts were written by the makers of the rules, so real replies will do worse.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from judge.base import Judge, JudgeInput
from judge.rules import RulesJudge
from storage.records import NextState, Role

Part = Literal["development", "held_out"]
PARTS: tuple[Part, ...] = ("development", "held_out")
_DATA = Path(__file__).parent / "data" / "replies.jsonl"
_NAMES = {1: "+1", 0: "0", -1: "-1", None: "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledReply:
    """One reply and what it means."""

    reply_id: str
    part: Part
    language: str  # a two-letter code, "-" for tool output
    category: str  # approval, correction, reask, topic, followup, thanks_but, sarcasm, tool_..., test_...
    label: int  # +1, 0, -1
    role: Role
    question: str
    answer: str
    reply: str

    @property
    def item(self) -> JudgeInput:
        """As the judge gets it."""
        state = NextState(
            next_state_id=self.reply_id,
            exchange_id=self.reply_id,
            role=self.role,
            content=self.reply,
            source_exchange_id=None,
            arrived_at=0.0,
        )
        return JudgeInput(exchange_id=self.reply_id, question=self.question, answer=self.answer, next_state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What a judge made of one part."""

    part: Part
    total: int
    right: int
    confusion: dict[tuple[int, int | None], int]  # (label, reward) -> count
    by_category: dict[str, tuple[int, int]]  # category -> (right, total)
    mistakes: tuple[tuple[LabelledReply, int | None, str], ...]

    @property
    def share(self) -> float:
        """Right ones of all, 0 to 1."""
        return self.right / self.total


def labelled_replies() -> list[LabelledReply]:
    """The replies that ship."""
    return [LabelledReply(**json.loads(line)) for line in _DATA.read_text(encoding="utf-8").splitlines() if line]


async def measure(judge: Judge, replies: Sequence[LabelledReply], part: Part) -> Accuracy:
    """Judges one part."""
    rows = [reply for reply in replies if reply.part == part]
    verdicts = await asyncio.gather(*(judge.judge(row.item) for row in rows))
    pairs = list(zip(rows, verdicts, strict=True))
    totals = Counter(row.category for row in rows)
    right = Counter(row.category for row, verdict in pairs if verdict.reward == row.label)
    return Accuracy(
        part=part,
        total=len(rows),
        right=sum(right.values()),
        confusion=dict(Counter((row.label, verdict.reward) for row, verdict in pairs)),
        by_category={name: (right[name], totals[name]) for name in sorted(totals)},
        mistakes=tuple(
            (row, verdict.reward, verdict.evaluative[0].text if verdict.evaluative else verdict.error or "")
            for row, verdict in pairs
            if verdict.reward != row.label
        ),
    )


def _confusion_table(result: Accuracy) -> Table:
    table = Table(title=f"{result.part}: {result.right} of {result.total} right ({result.share:.1%})")
    table.add_column("label")
    rewards = [reward for reward in (1, 0, -1, None) if any(key[1] == reward for key in result.confusion)]
    for reward in rewards:
        table.add_column(f"judged {_NAMES[reward]}", justify="right")
    for label in (1, 0, -1):
        counts = [str(result.confusion.get((label, reward), 0)) for reward in rewards]
        table.add_row(_NAMES[label], *counts)
    return table


def _category_table(results: Sequence[Accuracy]) -> Table:
    table = Table(title="right by category")
    table.add_column("category")
    for result in results:
        table.add_column(result.part, justify="right")
    for name in sorted({name for result in results for name in result.by_category}):
        table.add_row(name, *("{} / {}".format(*result.by_category.get(name, (0, 0))) for result in results))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; 0 whatever they say (the floor is asserted by a test)."""
    parser = argparse.ArgumentParser(prog="python -m judge.accuracy", description="How often the rules judge is right.")
    parser.add_argument("--errors", action="store_true", help="list the mistakes of the development part")
    parser.add_argument("--json", action="store_true", help="print numbers as JSON")
    options = parser.parse_args(arguments)
    judge, replies = RulesJudge(), labelled_replies()
    results = [asyncio.run(measure(judge, replies, part)) for part in PARTS]
    if options.json:
        print(json.dumps({r.part: {"right": r.right, "total": r.total, "share": r.share} for r in results}))
        return 0
    console = Console()
    for result in results:
        console.print(_confusion_table(result))
    console.print(_category_table(results))
    if options.errors:
        for row, reward, why in results[0].mistakes:
            console.print(
                f"{row.category} {row.label:+d} judged {_NAMES[reward]}: {row.reply!r}  ({why})", markup=False
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
