"""The facts of a step that the judges understand: what the environment knows for certain about what happened.

What it does: reads them from the JSON of `StepInput.facts`, typed; a fact that is missing or null is not known.
What it leaves out: other keys, which are passed over.

    fault          why the call could not be read, or true where the result says it
    schema_valid   the call fits the function's schema
    calls          [{"name": ..., "ok": true}, ...]: each call of the step, and whether it succeeded
    exit_code      of the command                        timed_out     it was stopped for its time
    ended          why it was stopped otherwise          error_type    class of the exception; null: none was raised
    edit_applied   an edit or patch could be applied     diff_changed  the repository's diff is not what it was
    changed        the screen did, or its address        pixels_changed   share of the screen, or yes or no
    done           the policy said that it is finished   correct       the final answer's check
    tests_passed, tests_failed                           of the tests that this step ran
    checks_passed, checks_passed_before                  of the task's own checks, after the step and before it
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

SHOWN = (  # to a judge model: what the policy could know too, never how the task's own checks went
    "fault", "schema_valid", "calls", "exit_code", "timed_out", "ended", "error_type", "edit_applied", "diff_changed",
    "changed", "pixels_changed", "done", "tests_passed", "tests_failed",
)  # fmt: skip
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("a whole number", (int,)),
    "bool": ("true or false", (bool,)),
    "str": ("a text", (str,)),
    "float": ("a number, or true or false", (bool, int, float)),
    "str | bool": ("a text, or true or false", (str, bool)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """None: not known."""

    fault: str | bool | None = None
    schema_valid: bool | None = None
    exit_code: int | None = None
    timed_out: bool | None = None
    ended: str | None = None
    error_type: str | None = None
    edit_applied: bool | None = None
    diff_changed: bool | None = None
    changed: bool | None = None
    pixels_changed: float | None = None
    done: bool | None = None
    correct: bool | None = None
    tests_passed: int | None = None
    tests_failed: int | None = None
    checks_passed: int | None = None
    checks_passed_before: int | None = None

    calls_ok: tuple[bool, ...] | None = None  # from `calls`
    ran: bool = False  # code ran and no exception was raised: `error_type` is there, and null

    @property
    def succeeded(self) -> bool:
        """The environment says for certain that the command or every call went well."""
        failed = self.fault or self.timed_out or self.ended or self.error_type or self.schema_valid is False
        if failed or (self.calls_ok is not None and not all(self.calls_ok)):
            return False
        return (
            self.exit_code == 0 if self.exit_code is not None else bool(self.ran or self.schema_valid or self.calls_ok)
        )


def read_facts(facts: Mapping[str, Any]) -> StepFacts:
    """The facts that are understood.

    Raises:
        ValueError: one of them is of a wrong kind.
    """
    found: dict[str, Any] = {}
    for one in fields(StepFacts):
        value = facts.get(one.name)
        if value is None or one.name in ("calls_ok", "ran"):
            continue
        said, types = _KINDS[str(one.type).removesuffix(" | None")]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"fact {one.name} is {value!r}: {said} is needed, or null where it is not known")
        found[one.name] = value
    return StepFacts(**found, calls_ok=_calls(facts.get("calls")), ran=facts.get("error_type", "") is None)


def _calls(value: Any) -> tuple[bool, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        isinstance(one, dict) and isinstance(one.get("ok"), bool) for one in value
    ):
        raise ValueError(f'fact calls is {value!r}: a list of {{"name": ..., "ok": true or false}} is needed')
    return tuple(one["ok"] for one in value)
