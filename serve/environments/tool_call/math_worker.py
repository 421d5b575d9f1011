"""The process that compares mathematics: one JSON line in, one JSON line out. Started by `math_peer.py` only.

What it does: parses with math-verify and compares. An answer that leaves work undone is told apart: a relation of one
unknown that is not solved for it, a sum or product of plain numbers; unless the label is written so itself.
An expression that takes too long to work out ends this process (SIGALRM is left at its default, which ends it even
within one long multiplication of integers); memory is bounded.
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
    import sympy
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list[Any]:
        return parse(f"\\boxed{{{text}}}", config, fallback_mode="no_fallback", parsing_timeout=None)

    def read_answer(parts: list[str]) -> list[Any]:
        """One expression; or the set of several relations, solved for one unknown: -1 <= x "and" x <= 7."""
        if len(parts) < 3:
            return read(parts[0])
        found = [read(part) for part in parts[::2]]
        relations = [one[0] for one in found if one and isinstance(one[0], (sympy.Rel, sympy.And))]
        if len(relations) < len(found) or len(set().union(*(one.free_symbols for one in relations))) != 1:
            return []
        if any(_unsolved(one) or _unworked(one) for one in relations):
            return relations[:1]
        joined = sympy.And if parts[1] == "and" else sympy.Or
        return [joined(*relations).as_set()]

    verify(read("\\{1,2\\}"), read("x+\\frac{1}{2}"), timeout_seconds=None)  # what is slow only once
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["limit_s"])
        try:
            label = read(request["label"])
            answer = read_answer(request["answer"]) if request["answer"] is not None else []
            equal = verify(label, answer, timeout_seconds=None, allow_set_relation_comp=True) if answer else False
            undone = bool(answer and label) and _undone(answer[0], label[0])
            reply = {"label": bool(label), "answer": bool(answer), "equal": bool(equal), "undone": undone}
        except (MemoryError, RecursionError) as error:
            reply = {"too_large": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), flush=True)


def _undone(answer: Any, label: Any) -> bool:
    """Whether an answer leaves work undone that the label does not leave.

    Relations of several unknowns are formulas, compared as they stand: y = 2x + 1 is 2x - y = -1.
    """
    formula = len(getattr(label, "free_symbols", ())) > 1
    return any(lacks(answer) and not lacks(label) for lacks in ((_unworked,) if formula else (_unworked, _unsolved)))


def _unsolved(value: Any) -> bool:
    """Whether a relation in it has its unknown anywhere but alone on one side: |x - 3| <= 4, 2x <= 6."""
    import sympy

    def solved(relation: Any) -> bool:
        pairs = ((relation.lhs, relation.rhs), (relation.rhs, relation.lhs))
        return any(one.is_Symbol and not other.free_symbols for one, other in pairs)

    found = sympy.preorder_traversal(value) if isinstance(value, sympy.Basic) else ()
    return any(isinstance(one, sympy.Rel) and not solved(one) for one in found)


def _unworked(value: Any) -> bool:
    """Whether plain numbers are left to be added or multiplied: 2 + 3, 2 * 3 * pi; but not 1 + sqrt(2), 3 * 2^10."""
    import sympy

    def left(one: Any) -> bool:
        numbers = [part for part in one.args if isinstance(part, sympy.Number) and part.is_finite and part != -1]
        if isinstance(one, sympy.Add):
            return len(numbers) + one.args.count(sympy.Integer(-1)) > 1
        if isinstance(one, sympy.Mul):
            return len(numbers) > 1 or one.args.count(sympy.Integer(-1)) > 1
        return isinstance(one, (sympy.Abs, sympy.Min, sympy.Max)) and not one.free_symbols

    found = sympy.preorder_traversal(value) if isinstance(value, sympy.Basic) else ()
    return any(left(one) for one in found)


if __name__ == "__main__":
    main()
