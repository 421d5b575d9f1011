"""The word problems that ship: `practice` ones to talk about, `unseen` ones for scoring only.

What it does: reads `problems.jsonl`. What it leaves out: difficulty. They are of one or two steps with small numbers,
because a model of 135M parameters gets few harder ones right.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_DATA = Path(__file__).parent / "problems.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A word problem and its answer."""

    problem_id: str
    part: Literal["practice", "unseen"]
    question: str
    working: str  # the calculation, as "18 - 7 + 4"
    answer: int


def load_problems(part: Literal["practice", "unseen"]) -> tuple[Problem, ...]:
    """The problems of one part, in the file's order."""
    rows = (Problem(**json.loads(line)) for line in _DATA.read_text(encoding="utf-8").splitlines() if line)
    return tuple(row for row in rows if row.part == part)
