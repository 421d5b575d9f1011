"""Tasks that lie in folders, one folder a task, in the layout of Harbor and Terminal-Bench 2.

What it does: `load_folder` and `load_folders` make `Task`s of them. Errors name file, line and field.
What it leaves out: building images. Tasks run in our sandbox, which has no container engine, no network, and the
programs of this machine's /usr; the working folder is /work.

    task.toml        required; its fields stand below
    instruction.md   required: what the policy is asked
    files/           copied into /work, with their executable bits
    setup.sh         run in /work when the episode begins (or environment/setup.sh)
    tests/test.sh    run in /work when the episode is over; `verdicts.py` says how its verdict is read. Where it is
                     missing but there is tests/test_*.py, pytest is run on them
    solution.sh      an expert's solution, run as one step (or solution/solve.sh)

Fields of task.toml, at the top or in the tables [task] and [metadata]: `id` or `name` (else the folder's name; of a
name org/name the last part), `skill` or `category` (else general), `difficulty` (1 to 5, or easy, medium, hard),
`split` (train or held_out). Tables: [limits] as in our own task files; `verifier.timeout_sec`, `agent.timeout_sec` (of
the whole episode), `environment.memory_mb`, `environment.storage_mb`. Other fields of these tables say nothing here and
are passed over; other tables, and what needs a container (Dockerfile, compose files, docker_image, steps), are refused.
"""

import base64
import re
import tomllib
from pathlib import Path
from typing import Any

from serve.environments.tasks import Limits, Task, TaskError, check_all
from serve.environments.terminal.payload import PYTEST_FILE, read_payload

TABLES = ("task", "metadata", "verifier", "agent", "environment", "solution", "limits")
TOP = ("id", "name", "skill", "category", "difficulty", "split", "version", "schema_version", *TABLES)
DIFFICULTIES = {"easy": 2, "medium": 3, "hard": 4}
CONTAINERS = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
PYTEST_PACKAGES = ("pytest", "py")  # pytest's own distribution holds both
INSTEAD = (
    "there is no container engine here. Put what its COPY lines bring into files/, what its RUN lines do into setup.sh "
    "(no network: only programs of this machine's /usr), name /work as the working folder, and remove it"
)
NETWORK = re.compile(r"^[^#\n]*?\b(apt-get|apt|pip3? install|curl|wget|uvx?|npm)\b", re.MULTILINE)


def load_folders(root: Path, limits: Limits) -> tuple[Task, ...]:
    """The tasks of all folders in `root` that hold a task.toml.

    Raises:
        TaskError: names file, line and field; there is none; an id stands twice.
    """
    folders = sorted(path.parent for path in root.glob("*/task.toml"))
    if not folders:
        raise TaskError(f"{root}: no folder in it holds a task.toml")
    return check_all(load_folder(folder, limits) for folder in folders)


def load_folder(folder: Path, limits: Limits) -> Task:
    """The task of one folder. `limits`: those of the track.

    Raises:
        TaskError: names file, line and field.
    """
    _refuse_containers(folder)
    source = _Source(folder / "task.toml")
    for name in source.fields:
        if name not in TOP:
            raise source.error(name, f"unknown; known are {', '.join(TOP)}")
    for name in TABLES:
        if not isinstance(source.fields.get(name, {}), dict):
            raise source.error(name, "a table is needed")
    if "docker_image" in source.fields.get("environment", {}):
        raise source.error("environment.docker_image", INSTEAD)
    instruction = _text(folder / "instruction.md").strip()
    if not instruction:
        raise TaskError(f"{folder / 'instruction.md'}:1: instruction: it is empty")
    solution = _first_text(folder, "solution.sh", "solution/solve.sh")
    return Task(
        task_id=_id(source), track="terminal", skill=str(source.first("skill", "category") or "general"),
        split=_split(source), difficulty=_difficulty(source), instruction=instruction, limits=_limits(source, limits),
        payload=read_payload(_payload(folder, source), source.error),
        expert=(f"(\n{solution.rstrip()}\n)", "done") if solution else (), source=str(source.path),
    )  # fmt: skip


class _Source:
    """A task.toml, and where in it a field stands."""

    def __init__(self, path: Path) -> None:
        self.path, text = path, _text(path)
        try:
            self.fields: dict[str, Any] = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise TaskError(f"{path}: not TOML: {error}") from error
        self._lines = text.splitlines()

    def error(self, name: str, what: str) -> TaskError:
        return TaskError(f"{self.path}:{self._line(name)}: {name}: {what}")

    def first(self, *names: str) -> Any:
        """The field of one of these names, at the top, in [task] or in [metadata]."""
        return next((value for _, value in self.found(*names)), None)

    def found(self, *names: str) -> list[tuple[str, Any]]:
        tables = [("", self.fields), *((f"{name}.", self.fields.get(name, {})) for name in ("task", "metadata"))]
        return [(before + name, table[name]) for before, table in tables for name in names if name in table]

    def _line(self, name: str) -> int:
        """The line of `field` or `table.field`; else that of its table; else the first."""
        table, _, key = name.rpartition(".")
        now, best = "", 1
        for number, line in enumerate(self._lines, 1):
            if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
                now = header[1]
                best = number if now in (table or key, name) else best
            elif now == table and re.match(rf"\s*{re.escape(key)}\s*=", line):
                return number
        return best


def _id(source: _Source) -> str:
    given = source.first("id", "name")
    task_id = source.path.parent.name if given is None else given
    task_id = task_id.rpartition("/")[2] if isinstance(task_id, str) else task_id
    if not isinstance(task_id, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", task_id):
        raise source.error("id", f"{task_id!r}: up to 80 letters, digits, '_', '.', '-' are needed")
    return task_id


def _split(source: _Source) -> Any:
    split = source.first("split") or "train"
    if split not in ("train", "held_out"):
        raise source.error("split", f"{split!r}: train or held_out is needed")
    return split


def _difficulty(source: _Source) -> int:
    for name, value in source.found("difficulty"):
        level = DIFFICULTIES.get(value, value) if isinstance(value, str) else value
        if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= 5:
            raise source.error(name, f"{value!r}: a whole number from 1 (easy) to 5, or easy, medium, hard, is needed")
        return level
    return 3


def _limits(source: _Source, limits: Limits) -> Limits:
    changes = {}
    for table, field, name in (
        ("agent", "timeout_sec", "episode_s"), ("environment", "memory_mb", "memory_mb"),
        ("environment", "storage_mb", "disk_mb"),
    ):  # fmt: skip
        if field in source.fields.get(table, {}):
            try:
                changes[name] = getattr(limits.replace({name: source.fields[table][field]}), name)
            except TaskError as error:
                raise source.error(f"{table}.{field}", str(error)) from error
    try:
        return limits.replace(changes | source.fields.get("limits", {}))
    except TaskError as error:
        raise source.error("limits", str(error)) from error


def _payload(folder: Path, source: _Source) -> dict[str, Any]:
    tests = _files(folder / "tests")
    if "test.sh" not in tests and not any(PYTEST_FILE.fullmatch(name) for name in tests):
        raise TaskError(f"{folder / 'tests'}: neither test.sh nor test_*.py: there is nothing that tells success")
    script = tests.get("test.sh", {}).get("text", "")
    if found := NETWORK.search(script):
        line = script[: found.start(1)].count("\n") + 1
        raise TaskError(
            f"{folder / 'tests' / 'test.sh'}:{line}: {found[1]!r}: there is no network in the sandbox. Run what is "
            "there, such as python3 -m pytest"
        )
    uses_pytest = "test.sh" not in tests or any("pytest" in file.get("text", "") for file in tests.values())
    verifier = source.fields.get("verifier", {})
    timeout = {"timeout_s": verifier["timeout_sec"]} if "timeout_sec" in verifier else {}
    return {
        "files": _files(folder / "files"), "setup": _first_text(folder, "setup.sh", "environment/setup.sh"),
        "tests": {"files": tests, "packages": list(PYTEST_PACKAGES) if uses_pytest else []} | timeout,
    }  # fmt: skip


def _refuse_containers(folder: Path) -> None:
    for name in CONTAINERS:
        for path in (folder / name, folder / "environment" / name):
            if path.exists():
                raise TaskError(f"{path}: {INSTEAD}")
    if (folder / "steps").exists():
        raise TaskError(
            f"{folder / 'steps'}: tasks of several steps, each with its own tests, can't be run: make a folder of each"
        )


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    """All files below a folder, as in a payload. Links are refused: what they point to may lie anywhere."""
    files: dict[str, dict[str, Any]] = {}
    _refuse_link_outside(folder)
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise TaskError(f"{path}: a link: put the file itself there, or make the link in setup.sh")
        if path.is_file() and "__pycache__" not in path.parts:
            data, mode = path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644
            try:
                files[path.relative_to(folder).as_posix()] = {"text": data.decode("utf-8"), "mode": mode}
            except UnicodeDecodeError:
                files[path.relative_to(folder).as_posix()] = {"base64": base64.b64encode(data).decode(), "mode": mode}
    return files


def _refuse_link_outside(path: Path) -> None:
    """A task must not show files of this machine: a link of its folder leads to a place in that folder."""
    own = next((parent for parent in path.parents if (parent / "task.toml").exists()), path.parent).resolve()
    try:
        place = path.resolve()
    except (OSError, RuntimeError) as error:
        raise TaskError(f"{path}: can't be read: {error}") from error
    if not place.is_relative_to(own):
        raise TaskError(f"{path}: a link to {place}, outside of the task's folder: put the file itself there")


def _text(path: Path) -> str:
    _refuse_link_outside(path)
    if path.exists() and not path.is_file():
        raise TaskError(f"{path}: can't be read: it is no regular file")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: can't be read: {error}") from error


def _first_text(folder: Path, *names: str) -> str:
    return next((_text(folder / name) for name in names if (folder / name).exists()), "")
