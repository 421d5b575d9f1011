"""Counting votes: m opinions become one verdict.

What it does: the majority of scores, the choice among hints, and the verdict record. Pure.
What it leaves out: `overlap` (the hint whose teacher distribution is nearest to the student's): it needs the
model's own distributions, so `choose_hint` takes those numbers from outside and falls back to `longest` by name.
"""

import time
from collections import Counter
from collections.abc import Sequence

from judge.base import HintChoice, JudgeInput
from storage.records import Verdict, Vote, new_id

MIN_HINT_CHARS = 10
MAX_VOTE_CHARS = 2000


def vote(score: int, text: str, hint: str | None = None) -> Vote:
    """A vote, its text cut to what the record allows."""
    assert score in (-1, 0, 1), score
    return Vote(score=score, hint=hint, text=text[:MAX_VOTE_CHARS])


def majority(votes: Sequence[Vote]) -> int | None:
    """The score that most votes name; a tie is 0; None without votes."""
    if not votes:
        return None
    ranked = Counter(v.score for v in votes).most_common(2)
    if len(ranked) == 2 and ranked[0][1] == ranked[1][1]:
        return 0
    return ranked[0][0]


def choose_hint(
    votes: Sequence[Vote], choice: HintChoice = "longest", overlaps: Sequence[float] | None = None
) -> tuple[str | None, str | None]:
    """The hint to teach with, and by which rule it was chosen; (None, None) where no vote carries a usable one.

    `overlaps[i]` belongs to `votes[i]`: the share of the student's top-k tokens that the hinted teacher shares.
    """
    usable = [(i, v.hint.strip()) for i, v in enumerate(votes) if v.hint and len(v.hint.strip()) >= MIN_HINT_CHARS]
    if not usable:
        return None, None
    if choice == "overlap" and overlaps is not None:
        if len(overlaps) != len(votes):
            raise ValueError(f"{len(overlaps)} overlaps for {len(votes)} votes: one per vote is needed")
        return max(usable, key=lambda pair: overlaps[pair[0]])[1], "overlap"
    return max(usable, key=lambda pair: len(pair[1]))[1], "longest"


def make_verdict(
    item: JudgeInput,
    *,
    judge: str,
    prompt_version: str,
    started: float,
    evaluative: Sequence[Vote] = (),
    directive: Sequence[Vote] = (),
    hint_choice: HintChoice = "longest",
    errors: Sequence[str] = (),
) -> Verdict:
    """The verdict on one turn. `started` is `time.perf_counter()` when judging began.

    The reward is the evaluative majority. Without a valid evaluative vote it is None and `error` says why; a hint
    from a valid directive vote is kept all the same.
    """
    hint, chosen_by = choose_hint(directive, hint_choice)
    reward = majority(evaluative)
    error = None
    if reward is None:
        error = "no valid vote: " + ("; ".join(dict.fromkeys(errors)) or "nobody voted")
    return Verdict(
        verdict_id=new_id(),
        exchange_id=item.exchange_id,
        next_state_id=item.next_state.next_state_id,
        evaluative=tuple(evaluative),
        reward=reward,
        directive=tuple(directive),
        hint=hint,
        chosen_by=chosen_by,
        judge=judge,
        prompt_version=prompt_version,
        latency_s=max(0.0, time.perf_counter() - started),
        error=error,
        judged_at=time.time(),
    )
