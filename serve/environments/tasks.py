"""Tasks: what they are, how they are read from files, and errors that name file, line and field.

What it does: `Task`, common to all tracks; `load_toml`, the form in which our own tasks are shipped (one file a skill);
`check_all`, what must hold over a whole track (no id twice).
What it leaves out: other layouts (`terminal/folders.py`, `tool_call/rows.py`, `swe/rows.py`); they make `Task`s too.

A task file:

    skill = "counting"            # one skill a file
    split = "train"               # or "held_out": a skill is wholly in one of them
    [[task]]
    id = "count-lines"            # unique in its track
    difficulty = 1                # 1 easy to 5 hard
    instruction = "..."
    expert = ["wc -l < a.txt > n"]   # one entry a step; its form is the track's
    wrong = ["echo 0 > n"]           # a plausible solution that the checks reject
    limits = {steps = 5}             # whatever differs from the track's limits
    ...                              # the track's own fields, checked by the track
"""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "held_out"]


class TaskError(ValueError):
    """A task that can't be used, and where its fault lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one episode may take. A track has its own defaults; a task may differ."""

    steps: int = 10  # answers of the policy
    step_s: float = 30.0  # wall time of one step
    episode_s: float = 300.0  # wall time of all of it, from reset to close
    memory_mb: int = 512  # of all the episode's processes together, and the most that one may map
    processes: int = 64
    disk_mb: int = 64  # all files together
    output_chars: int = 8000  # of each of stdout and stderr that one observation shows: head and tail

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
                raise TaskError(f"limits.{one.name} is {value!r}: a number above 0 is needed")
            if one.type is int and not isinstance(value, int):
                raise TaskError(f"limits.{one.name} is {value!r}: a whole number is needed")

    def replace(self, changes: Mapping[str, Any]) -> "Limits":
        """These limits with some of them changed.

        Raises:
            TaskError: an unknown name, or a value that is no number above 0.
        """
        known = [one.name for one in dataclasses.fields(self)]
        if unknown := sorted(set(changes) - set(known)):
            raise TaskError(f"limits has no {unknown[0]!r}: known are {', '.join(known)}")
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do in an environment, and how it is checked."""

    task_id: str  # unique within its track
    track: str
    skill: str
    split: Split
    difficulty: int  # 1 easy to 5 hard
    instruction: str
    limits: Limits
    payload: dict[str, Any]  # the track's own fields, as JSON
    expert: tuple[Any, ...] = ()  # a solution, one entry a step, in the track's own form; empty: none is known
    wrong: tuple[Any, ...] = ()  # a plausible solution that the checks reject
    source: str = ""  # "file:line", for messages

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self) | {"expert": list(self.expert), "wrong": list(self.wrong)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Task":
        """The reverse of `to_json`.

        Raises:
            TaskError: a field is missing, unknown or of a wrong kind.
        """
        known = {one.name: one for one in dataclasses.fields(cls)}
        if unknown := sorted(set(value) - set(known)):
            raise TaskError(f"task has no {str(unknown[0])[:80]!r}: known are {', '.join(known)}")
        given: dict[str, Any] = {}
        for name, (kind, said) in _KINDS.items():
            if name not in value and known[name].default is not dataclasses.MISSING:
                continue
            given[name] = value.get(name)
            if not isinstance(given[name], kind) or isinstance(given[name], bool):
                shown = repr(given[name])[:80] if name in value else "it is missing"
                raise TaskError(f"task.{name}: {shown}: {said} is needed")
        limits = Limits().replace(given["limits"])
        return cls(**given | {"limits": limits, **{n: tuple(given.get(n, ())) for n in ("expert", "wrong")}})


_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    **{name: (str, "a text") for name in ("task_id", "track", "skill", "split", "instruction", "source")},
    "difficulty": (int, "a whole number"),
    **{name: (dict, "an object") for name in ("limits", "payload")},
    **{name: ((list, tuple), "a list") for name in ("expert", "wrong")},
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file a task stands, for messages."""

    path: Path
    lines: tuple[str, ...] = field(repr=False)
    first: int  # line of its [[task]], from 1

    def error(self, name: str, what: str) -> TaskError:
        """An error that names file, line and field; the field's own line where it can be found."""
        return TaskError(f"{self.path}:{self.line(name)}: {name}: {what}")

    def line(self, name: str) -> int:
        """The line of a field of this task, else the task's first."""
        key = re.compile(rf"\s*{re.escape(name.split('.')[0])}\s*=")
        for number, line in enumerate(self.lines[self.first :], self.first + 1):
            if line.startswith("[[task]]"):
                break
            if key.match(line):
                return number
        return self.first


COMMON = {"id", "difficulty", "instruction", "limits", "expert", "wrong"}
# checks a track's own fields: (fields, place) -> payload; raises place.error(...)
ReadPayload = Callable[[dict[str, Any], Place], dict[str, Any]]


def load_toml(path: Path, track: str, limits: Limits, read_payload: ReadPayload) -> list[Task]:
    """The tasks of one skill's file.

    Raises:
        TaskError: names file, line and field.
    """
    try:
        text = path.read_text("utf-8")
        whole = tomllib.loads(text)
    except OSError as error:
        raise TaskError(f"{path}: it can't be read: {error.strerror}") from error
    except ValueError as error:  # TOML's own, a number of thousands of digits, or not UTF-8
        raise TaskError(f"{path}: not TOML: {error}") from error
    except RecursionError:
        raise TaskError(f"{path}: not TOML that can be used: it is nested too deeply") from None
    lines = tuple(text.splitlines())
    top = Place(path, lines, 0)
    skill, split, rows = whole.pop("skill", None), whole.pop("split", None), whole.pop("task", None)
    if not isinstance(skill, str) or not skill:
        raise top.error("skill", f"{skill!r}: the name of the skill is needed at the top of the file")
    if split not in ("train", "held_out"):
        raise top.error("split", f"{split!r}: train or held_out is needed")
    if whole:
        raise top.error(next(iter(whole)), "unknown at the top of a task file; known are skill, split, [[task]]")
    if not isinstance(rows, list) or not rows:
        raise top.error("task", "a task file needs at least one [[task]]")
    starts = [number for number, line in enumerate(lines, 1) if line.startswith("[[task]]")]
    if len(starts) != len(rows):
        raise top.error("task", "write each task under its own [[task]] line, at the line's beginning")
    return [
        _task(row, Place(path, lines, start), track, skill, split, limits, read_payload)
        for row, start in zip(rows, starts, strict=True)
    ]


def _task(
    row: dict[str, Any], place: Place, track: str, skill: str, split: Split, limits: Limits, read_payload: ReadPayload
) -> Task:
    for name in ("id", "instruction"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise place.error(name, f"{row.get(name)!r}: a text is needed")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", row["id"]):
        raise place.error("id", f"{row['id']!r}: up to 80 letters, digits, '_', '.', '-' are needed")
    difficulty = row.get("difficulty")
    if isinstance(difficulty, bool) or not isinstance(difficulty, int) or not 1 <= difficulty <= 5:
        raise place.error("difficulty", f"{difficulty!r}: a whole number from 1 (easy) to 5 is needed")
    for name in ("expert", "wrong"):
        if not isinstance(row.get(name, []), list):
            raise place.error(name, "a list is needed, one entry a step")
        if odd := [entry for entry in row.get(name, []) if not isinstance(entry, str | dict | list) or not entry]:
            raise place.error(name, f"{odd[0]!r}: an entry is a text, a table or a list of such")
    try:
        limits = limits.replace(row.get("limits", {}))
    except (TaskError, TypeError, AttributeError) as error:
        raise place.error("limits", str(error)) from error
    own = {name: value for name, value in row.items() if name not in COMMON}
    return Task(
        task_id=row["id"], track=track, skill=skill, split=split, difficulty=difficulty,
        instruction=row["instruction"].strip(), limits=limits, payload=read_payload(own, place),
        expert=tuple(row.get("expert", ())), wrong=tuple(row.get("wrong", ())),
        source=f"{place.path.name}:{place.first}",
    )  # fmt: skip


def check_all(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks of a track, in order of their ids.

    Raises:
        TaskError: an id stands twice, or a skill in both splits.
    """
    seen: dict[str, Task] = {}
    splits: dict[str, Task] = {}
    for task in tasks:
        if (other := seen.setdefault(task.task_id, task)) is not task:
            raise TaskError(f"{task.source}: id: {task.task_id!r} stands in {other.source} already")
        if (other := splits.setdefault(task.skill, task)).split != task.split:
            raise TaskError(
                f"{task.source}: split: skill {task.skill!r} is {task.split} here and {other.split} in {other.source}"
            )
    return tuple(sorted(seen.values(), key=lambda task: task.task_id))
