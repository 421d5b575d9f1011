"""A repository at one commit, as a tar file that is unpacked in a sandbox.

What it does: `shipped` makes a repository of the source in `repositories/`, with a bug put in: one commit, whose id is
always the same; `at_commit` takes one commit out of a repository of the caller's. Both keep what they made for the
process. The commit has no parents and there are no other commits: nothing that came later can be looked up.
What it leaves out: submodules, large files kept elsewhere (LFS), and the history before the commit.
"""

import functools
import io
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from serve.environments.protocol import EnvironmentFailed
from serve.environments.scratch import scratch

SOURCES = Path(__file__).with_name("repositories")
GIT_S = 300.0  # for one git command on a large repository
NAME, EMAIL, DATE = "Maintainer", "maintainer@example.org", "2024-05-01T12:00:00+0000"
CONFIG = f"""\
[core]
\trepositoryformatversion = 0
\tbare = false
\tlogallrefupdates = true
[user]
\tname = {NAME}
\temail = {EMAIL}
[gc]
\tauto = 0
[advice]
\tdetachedHead = false
"""
EXCLUDED = "__pycache__/\n*.py[co]\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n*.egg-info/\n"  # what tools leave lying
# a .gitattributes of the policy must not change what git reads or writes
ATTRIBUTES = "* -working-tree-encoding -filter -ident\n"


@dataclass(frozen=True, slots=True)
class Base:
    """What a task begins with."""

    commit: str
    files: tuple[str, ...]  # all paths of the commit
    archive: bytes  # a tar file of the folder .git


def source_files(name: str) -> dict[str, str]:
    """The files of a shipped repository, without a bug.

    Raises:
        ValueError: there is none of this name; names those there are.
    """
    known = sorted(path.name for path in SOURCES.iterdir() if path.is_dir())
    if name not in known:
        raise ValueError(f"there is no repository {name!r}: there are {', '.join(known)}")
    root = SOURCES / name
    paths = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(paths)}


def with_bug(files: dict[str, str], bug: tuple[tuple[str, str, str], ...]) -> dict[str, str]:
    """The files with each (path, good text, bad text) put in.

    Raises:
        ValueError: a file is missing, or the good text does not stand in it exactly once.
    """
    broken = dict(files)
    for path, good, bad in bug:
        count = broken.get(path, "").count(good)
        if count != 1:
            raise ValueError(f"the text to replace must stand once in {path}; it stands there {count} times: {good!r}")
        broken[path] = broken[path].replace(good, bad)
    return broken


@functools.lru_cache(maxsize=256)
def shipped(name: str, bug: tuple[tuple[str, str, str], ...]) -> Base:
    """A repository of ours with a bug.

    Raises:
        ValueError: as `source_files` and `with_bug` do.
        EnvironmentFailed: git does not work here.
    """
    files = with_bug(source_files(name), bug)
    with scratch("swe") as folder:
        root = folder / "repo"
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, "utf-8")
        _git(root, "init", "--quiet", "--template=", "--initial-branch=main")
        _git(root, "add", "--all")
        _git(root, "commit", "--quiet", "--no-gpg-sign", "--message", f"{name}: present state")
        return _packed(root)


@functools.lru_cache(maxsize=16)
def at_commit(path: Path, commit: str) -> Base:
    """One commit of a repository on this machine, which is only read.

    Raises:
        EnvironmentFailed: there is no such repository or commit, or it can't be read.
    """
    if (objects := objects_of(path)) is None or not has_commit(path, commit):
        raise EnvironmentFailed(f"{path} has no commit {commit}")
    with scratch("swe") as folder:
        root = folder / "repo"
        root.mkdir()
        _git(root, "init", "--quiet", "--template=", "--initial-branch=main")
        borrowed = root / ".git/objects/info/alternates"
        borrowed.parent.mkdir(parents=True, exist_ok=True)
        borrowed.write_text(f"{objects.resolve()}\n")
        (root / ".git/shallow").write_text(f"{commit}\n")  # its parents are taken to be none
        _git(root, "update-ref", "refs/heads/main", commit)
        _git(root, "repack", "-a", "-d", "--quiet")
        borrowed.unlink()
        return _packed(root)


def objects_of(path: Path) -> Path | None:
    """Where a repository keeps its objects; None where it is no repository."""
    return next((place for place in (path / ".git/objects", path / "objects") if place.is_dir()), None)


def has_commit(path: Path, commit: str) -> bool:
    """Whether a repository on this machine has a commit."""
    if (objects := objects_of(path)) is None:
        return False
    command = ["git", f"--git-dir={objects.parent}", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, env=_environment(path), capture_output=True, timeout=GIT_S).returncode == 0


def _packed(root: Path) -> Base:
    commit = _git(root, "rev-parse", "HEAD").strip()
    files = _git(root, "ls-tree", "-r", "-z", "--name-only", "--full-tree", "HEAD").split("\0")[:-1]
    (root / ".git/config").write_text(CONFIG)
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text(EXCLUDED)
    (root / ".git/info/attributes").write_text(ATTRIBUTES)
    (root / ".git/index").unlink(missing_ok=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(root / ".git", arcname=".git", filter=_plain)
    return Base(commit, tuple(files), buffer.getvalue())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what would differ from run to run, and without reflogs."""
    if member.name == ".git/logs" or member.name.startswith(".git/logs/"):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def _environment(home: Path) -> dict[str, str]:
    """Nothing of the caller's own settings, and the same author and time always."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(home), "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": NAME, "GIT_AUTHOR_EMAIL": EMAIL, "GIT_AUTHOR_DATE": DATE,
        "GIT_COMMITTER_NAME": NAME, "GIT_COMMITTER_EMAIL": EMAIL, "GIT_COMMITTER_DATE": DATE,
    }  # fmt: skip


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, env=_environment(root), capture_output=True, timeout=GIT_S)
    except FileNotFoundError as error:
        raise EnvironmentFailed("git is missing on this machine: apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"git {arguments[0]} took longer than {GIT_S:g} s") from error
    if done.returncode != 0:
        raise EnvironmentFailed(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout.decode("utf-8", "surrogateescape")
