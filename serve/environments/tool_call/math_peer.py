"""Whether two pieces of mathematics are the same, decided by a bounded process that is kept warm.

What it does: `compare` and `readable`, from any thread, one at a time; the process is started when first needed, ended
when an expression takes longer than `LIMIT_S`, and started again for the next one. It ends by itself with this process.
What it leaves out: plain numbers (`numbers.py` decides them without it).

Why a process: math-verify bounds its time by signals, which work in a main thread only and don't interrupt one long
operation on integers; `9^{9^{9}}` would hold the whole server.
"""

import json
import re
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from serve.environments.protocol import EnvironmentFailed
from serve.environments.tool_call.numbers import tidy

LIMIT_S = 3.0  # for one comparison
START_S = 60.0  # importing sympy takes about a second on an idle machine
ASKED = 2000  # comparisons of one process: what it caches stays bounded
MAX_CHARS = 1000  # of one formula
Verdict = Literal["same", "different", "unreadable", "too long", "undone"]

_PLAIN_WORDS = (
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])(pi|infty|sin|cos|tan|log|ln|exp)(?![A-Za-z])"), r"\\\1"),
    (re.compile(r"(?<![\\A-Za-z])(?:oo|inf|infinity)(?![A-Za-z])"), r"\\infty"),
    (re.compile(r"[√](\d+|\w)"), r"\\sqrt{\1}"),
    (re.compile(r"π"), r"\\pi "),
    (re.compile(r"∞"), r"\\infty "),
    (re.compile(r"<=|≤"), r"\\le "),
    (re.compile(r">=|≥"), r"\\ge "),
    (re.compile(r"∪"), r"\\cup "),
    (re.compile(r"(?<=[\w)}])\s*\*\s*(?=[\w({\\])"), r" \\cdot "),
    (re.compile(r"\^\(([^()]*)\)"), r"^{\1}"),
    (re.compile(r"\^(-?\d+(?:\.\d+)?)"), r"^{\1}"),
)
# What asks for work instead of giving a value: refused in an answer unless the label is written with it too.
_UNDONE = re.compile(r"\\(?:int|sum|prod|lim|binom|d?frac\s*\{\s*d|gcd|lcm|det|max|min|bmod|pmod)(?![A-Za-z])|!")
_SEVERAL = re.compile(r"\\boxed|\\fbox|\\approx|≈|\$|\\[()\[\]]")  # each would be read apart from the rest
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|leq|geq|lt|gt)(?![A-Za-z])")
_EQUAL = re.compile(r"(?<![<>!:])=")
_NAMED = re.compile(r"(?:^|[\s,;({]|\\text\{ ?(?:or|and) ?\})[A-Za-z](?:_\{?\w+\}?)?(?:\([A-Za-z]\))?\s*=(?!=)")
_COMMANDS = re.compile(r"\\(?:text|mathrm|operatorname|begin|end|mathbb|mathbf)\s*\{[^{}]*\}|\\[A-Za-z]+")
_JOINED = re.compile(
    r"\\text\{ ?(?:and|or) ?\}|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])|\\(?:land|lor|wedge|vee)(?![A-Za-z])|[∧∨]"
)
_OR = re.compile(r"or|vee|∨")
_SPACED_NUMBERS = re.compile(r"\d\s+\d(?!\d{2}(?!\d))")  # "41 42" would be read as one value


def _balanced(text: str) -> bool:
    depth = 0
    for sign in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if sign == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def latex(text: str) -> str:
    """Mathematics typed plainly, as LaTeX: sqrt(2) is \\sqrt{2}, x**2 is x^{2}, <= is \\le."""
    text = tidy(text)
    for pattern, replacement in _PLAIN_WORDS:
        text = pattern.sub(replacement, text)
    return text


def refused(label: str, answer: str) -> str | None:
    """Why an answer is no value to compare, or None."""
    if len(answer) > MAX_CHARS:
        return f"the answer has {len(answer)} characters; {MAX_CHARS} is the most"
    if "\n" in answer.strip():
        return "the answer has several lines: one value is asked for"
    if _SEVERAL.search(tidy(answer)) or not _balanced(answer):
        return "the answer is more than one piece of mathematics"
    if len(_EQUAL.findall(answer)) > len(_NAMED.findall(tidy(answer))) and "=" not in label:
        return "the answer is an equation: the value alone is asked for"
    for found in _UNDONE.finditer(latex(answer)):
        if found[0] not in label:
            return f"the answer leaves {found[0]!r} to be worked out"
    if _SPACED_NUMBERS.search(tidy(answer)):
        return "the answer holds numbers side by side: one value is asked for"
    return None


@dataclass(slots=True)
class _Peer:
    """The process, and the lock that lets one thread ask at a time."""

    lock: threading.Lock
    process: subprocess.Popen[bytes] | None = None
    asked: int = 0  # of this process

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The reply, or None where it took longer than allowed."""
        with self.lock:
            if self.process is None or self.process.poll() is not None or self.asked >= ASKED:
                self._start()
            self.asked += 1
            reply = self._exchange(json.dumps(request | {"limit_s": LIMIT_S}).encode() + b"\n", LIMIT_S + 5)
            if reply is not None and "too_large" in reply:
                self._end()
            return reply

    def end(self) -> None:
        """Ends the process; the next question starts another."""
        with self.lock:
            self._end()

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _start(self) -> None:
        self._end()
        script = str(Path(__file__).with_name("math_worker.py"))
        argv, pipe = [sys.executable, "-I", "-W", "ignore", script], subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        self.asked = 0
        if self._exchange(b"", START_S) is None:
            raise EnvironmentFailed(f"the process that compares mathematics was not ready within {START_S:.0f} s")

    def _exchange(self, request: bytes, limit_s: float) -> dict[str, Any] | None:
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(request)
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise EnvironmentFailed("the process that compares mathematics ended by itself") from error
        line, deadline = b"", time.monotonic() + limit_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            read = self.process.stdout.read1(65536) if ready else b""
            if not read:
                return self._ended(bool(ready))
            line += read
        return json.loads(line)

    def _ended(self, closed: bool) -> None:
        """The process is over, or too slow to be waited for: None if by its time limit."""
        assert self.process is not None and self.process.stderr is not None
        if not closed:
            self._end()
            return
        code, said = self.process.wait(), self.process.stderr.read().decode("utf-8", "replace").strip()
        self._end()
        if code != -14:  # SIGALRM: its own limit
            raise EnvironmentFailed(f"the process that compares mathematics ended with {code}: {said[-300:]}")


_PEER = _Peer(threading.Lock())


def readable(label: str) -> bool:
    """Whether a label is mathematics that can be compared."""
    if re.search(r"[A-Za-z]{3}", _COMMANDS.sub(" ", latex(label))):
        return False  # words: they would be read as products of letters
    reply = _PEER.ask({"label": latex(label), "answer": None})
    return bool(reply and reply.get("label"))


def compare(label: str, answer: str) -> Verdict:
    """Whether the answer is the label's mathematics.

    Raises:
        EnvironmentFailed: the comparing process can't be started or broke.
    """
    said = latex(answer)
    if label.startswith("(") and "," in said and not re.search(r"[()\[\]{}=<>\\]", said):
        said = f"({said})"  # the members of a tuple, written bare
    reply = _PEER.ask({"label": latex(label), "answer": _parts(said)})
    if reply is None or "too_large" in reply:
        return "too long"
    if not reply["answer"]:
        return "unreadable"
    if reply["equal"]:
        return "undone" if reply["undone"] else "same"
    return "different"


def _parts(said: str) -> list[str]:
    """An answer; where it joins inequalities by "and" or by "or", each of them, with that word in between."""
    words = {"or" if _OR.search(one) else "and" for one in _JOINED.findall(said)}
    parts = [part.strip() for part in _JOINED.split(said)]
    if len(words) != 1 or not all(_INEQUALITY.search(part) for part in parts):
        return [said]
    (word,) = words
    return [one for part in parts for one in (word, part)][1:]


def end() -> None:
    """Ends the comparing process, if there is one."""
    _PEER.end()
