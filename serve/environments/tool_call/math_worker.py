"""The process that compares mathematics: one JSON line in, one JSON line out. Started by `math_peer.py` only.

What it does: parses with math-verify and compares. An expression that takes too long to work out ends this process
(SIGALRM is left at its default, which ends it even within one long multiplication of integers); memory is bounded.
What it leaves out: it imports nothing of ours, so that it starts quickly (`python -I math_worker.py`).
"""

import json
import logging
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 1 << 30  # of address space
SHOWN_CHARS = 200


def main() -> None:
    """Answers requests {"label", "answer" or null, "limit_s"} until the input ends."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sys.set_int_max_str_digits(20_000)
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list[Any]:
        return parse(f"\\boxed{{{text}}}", config, fallback_mode="no_fallback", parsing_timeout=None)

    verify(read("\\{1,2\\}"), read("x+\\frac{1}{2}"), timeout_seconds=None)  # what is slow only once
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["limit_s"])
        try:
            label = read(request["label"])
            answer = read(request["answer"]) if request["answer"] is not None else []
            equal = verify(label, answer, timeout_seconds=None, allow_set_relation_comp=True) if answer else False
            reply = {"label": bool(label), "answer": bool(answer), "equal": bool(equal)}
        except (MemoryError, RecursionError) as error:
            reply = {"too_large": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
