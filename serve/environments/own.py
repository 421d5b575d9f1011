"""Tasks that are not ours: from a file or folder in one of the forms that a track can load.

What it leaves out: the forms themselves, which are each track's own (`folders.py`, `rows.py`, `load.py`).
"""

from pathlib import Path

from serve.environments.protocol import TRACKS
from serve.environments.tasks import Task, TaskError, check_all

Loaded = tuple[tuple[Task, ...], tuple[TaskError, ...]]  # tasks, and the faults of rows that were left out
ROWS = (".jsonl", ".json", ".parquet")


def load_own(track: str, path: Path, repositories: Path | None = None) -> Loaded:
    """The tasks of a file or folder, and the faults of rows that were left out.

    Args:
        track: whose tasks they are.
        path: terminal: a task's folder, a folder of such, or .toml; tool_call: .jsonl, .parquet or .toml; swe: .jsonl
            or .parquet; gui: .toml.
        repositories: for swe: where the git repositories lie, as `owner/name` below it.

    Raises:
        TaskError: names file, line and field; or the path is of no form that the track knows.
        ValueError: no such track; swe rows without `repositories`.
    """
    if not path.exists():
        raise TaskError(f"{path}: there is no such file or folder")
    found = _LOADERS[track](path, repositories) if track in TRACKS else None
    if found is None:
        raise ValueError(f"there is no track {track!r}: there are {', '.join(TRACKS)}")
    return found


def _terminal(path: Path, _: Path | None) -> Loaded:
    from serve.environments.terminal import LIMITS, load_file
    from serve.environments.terminal.folders import load_folder, load_folders

    if (path / "task.toml").is_file():
        return (load_folder(path, LIMITS),), ()
    if path.is_dir():
        return load_folders(path, LIMITS), ()
    _must_be(path, "terminal", (".toml",), "a task's folder, a folder of such, or a .toml file")
    return check_all(load_file(path)), ()


def _tool_call(path: Path, _: Path | None) -> Loaded:
    from serve.environments.tool_call import load_file
    from serve.environments.tool_call.rows import load_rows

    _must_be(path, "tool_call", (*ROWS, ".toml"), "a .jsonl, .parquet or .toml file")
    if path.suffix == ".toml":
        return check_all(load_file(path)), ()
    rows = load_rows(path, on_error="skip")
    return rows.tasks, rows.errors


def _swe(path: Path, repositories: Path | None) -> Loaded:
    from serve.environments.swe.rows import load_rows

    _must_be(path, "swe", ROWS, "a .jsonl or .parquet file")
    if repositories is None:
        raise ValueError(f"{path}: rows name git repositories: say in which folder they lie (--repositories)")
    rows = load_rows(path, repositories, on_error="skip")
    return rows.tasks, rows.refused


def _gui(path: Path, _: Path | None) -> Loaded:
    from serve.environments.gui.load import load_file

    _must_be(path, "gui", (".toml",), "a .toml file")
    return check_all(load_file(path)), ()


def _must_be(path: Path, track: str, suffixes: tuple[str, ...], said: str) -> None:
    if path.is_dir() or path.suffix not in suffixes:
        raise TaskError(f"{path}: {track} takes {said}")


_LOADERS = {"terminal": _terminal, "tool_call": _tool_call, "swe": _swe, "gui": _gui}
