"""What remembering turns costs, and how quick it is."""

import time
import tracemalloc

from serve.sessions import Tracker
from tests.unit.serve.session_builders import START, exchange, says, user

SESSIONS, TURNS = 300, 5_000


def test_five_thousand_turns_over_three_hundred_sessions_stay_below_60_mb() -> None:
    """Whole histories are sent, and none is kept."""
    tracker = Tracker()
    histories: dict[int, list[dict[str, str]]] = {n: [] for n in range(SESSIONS)}
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    spent_s = 0.0
    for turn in range(TURNS):
        session = turn % SESSIONS
        history = histories[session]
        history.append(user(f"question {turn} of session {session}, in some words more than that"))
        answer = f"answer {turn}: it says a few words and no more than these here"
        taken = exchange(
            f"01J{turn:023d}", list(history), answer, START + turn,
            named_session=f"s{session}" if session % 2 else None, session_fields={"user": f"u{session}"},
        )  # fmt: skip
        started = time.perf_counter()
        tracker.ingest(taken, START + turn)
        spent_s += time.perf_counter() - started
        history.append(says(answer))
        del taken
    grown, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    texts = sum(len(m["content"]) + 300 for h in histories.values() for m in h)  # the test's own histories
    mine = grown - before - texts
    print(f"{TURNS} turns: {mine / 1e6:.1f} MB held, {(peak - before) / 1e6:.1f} MB peak with the test's own "
          f"histories, {spent_s / TURNS * 1e3:.2f} ms a turn while traced")  # fmt: skip
    assert peak - before < 60e6
    counts = tracker.snapshot()
    assert counts["remembered_turns"] == TURNS
    assert counts["open_turns"] == SESSIONS  # all the others know what followed
