"""Files that every sandbox shows, made once, read-only: its init compiled, system call filter, /etc, Python packages.

Started by root, a sandbox runs as `nobody`, who can't look into a folder that is root's alone: what lies there is
copied to where it can be read.
"""

import functools
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

from serve.environments.sandbox.system_calls import write_filter

PACKAGE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,80}")  # and no path
INIT = Path(__file__).with_name("init.py")
# what a package imports besides itself, by the names of its files
NEEDS = {
    "pytest": ("_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"),
    "sympy": ("mpmath",),
    "numpy": ("numpy.libs",),
}
# of the host's /etc, what programs need and says nothing of the host
ETC = (
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "magic", "services",
    "protocols",
)  # fmt: skip
ETC_OWN = {
    "passwd": b"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "group": b"root:x:0:\nagent:x:1000:\n",
    "hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n",
}


@functools.cache
def folder() -> Path:
    """Where these files lie: below the system's temporary folder, ours alone to write.

    Raises:
        OSError: a file of somebody else is in its place.
    """
    made = Path(tempfile.gettempdir()) / f"clawrl-sandbox-{os.geteuid()}"
    made.mkdir(mode=0o755, exist_ok=True)
    status = made.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{made} is not a folder of ours alone: remove it, or set TMPDIR to a folder of your own")
    if not _readable(made):
        raise PermissionError(f"{made} can't be read by `nobody`, who runs a sandbox of root: set TMPDIR to /tmp")
    return made


def _publish(path: Path, write) -> Path:
    """The file at `path`, written by `write(temporary path)` if it is not there yet; never half of it."""
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder()) as scratch:
            Path(scratch).chmod(0o755)
            fresh = Path(scratch) / path.name
            write(fresh)
            try:
                fresh.rename(path)
            except OSError:  # another process was first, with a folder
                if not path.exists():
                    raise
    return path


@functools.cache
def init_file(python: str) -> Path:
    """`init.py`, compiled by the Python that runs it."""

    def compiled(fresh: Path) -> None:
        code = (
            "import py_compile, sys; py_compile.compile(sys.argv[1], cfile=sys.argv[2], dfile='init.py', doraise=True)"
        )
        subprocess.run([python, "-I", "-c", code, str(INIT), str(fresh)], check=True, capture_output=True)
        fresh.chmod(0o644)

    version = subprocess.run([python, "-V"], check=True, capture_output=True, text=True).stdout
    name = hashlib.sha256(INIT.read_bytes() + version.encode()).hexdigest()[:16]
    return _publish(folder() / f"init-{name}.pyc", compiled)


@functools.cache
def filter_file() -> Path:
    """The system call filter."""

    def written(fresh: Path) -> None:
        with fresh.open("wb") as file:
            write_filter(file)

    source = Path(__file__).with_name("system_calls.py").read_bytes()
    return _publish(folder() / f"filter-{hashlib.sha256(source).hexdigest()[:16]}.bpf", written)


@functools.cache
def etc_folder() -> Path:
    """All of a sandbox's /etc: one folder, for each one more that is shown makes a start longer."""
    there = [path for name in ETC if (path := Path("/etc", name)).exists()]

    def copied(fresh: Path) -> None:
        fresh.mkdir(mode=0o755)
        for path in there:
            if path.is_dir():
                shutil.copytree(path, fresh / path.name, symlinks=True)
            else:
                shutil.copyfile(path, fresh / path.name)
        for name, data in ETC_OWN.items():
            (fresh / name).write_bytes(data)
        for path in fresh.rglob("*"):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)

    state = [(str(path), path.stat().st_mtime_ns) for path in there]
    return _publish(folder() / f"etc-{hashlib.sha256(repr((state, ETC_OWN)).encode()).hexdigest()[:16]}", copied)


@functools.cache
def package_files(name: str) -> tuple[Path, ...]:
    """Files and folders that make `import name` work, where a sandbox's user can read them.

    Raises:
        ValueError: it is no name of a package, or none that is installed.
    """
    if not PACKAGE_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is no name of a Python package: letters, digits, '_', '.' and '-' are allowed")
    found = []
    for one in (name, *NEEDS.get(name, ())):
        path = _installed(one)
        if path is None and one == name:
            raise ValueError(f"the Python package {name!r} is not installed, so no sandbox can show it")
        if path is not None:
            found.append(path if _readable(path) and _compiled(path) else _copied(path))
    return tuple(found)


def places() -> list[str]:
    """Where packages are installed. Nothing else is shown: neither our own source nor what the folder holds."""
    ours = PathFinder.find_spec("pyseccomp").origin  # one that we need, wherever that is installed
    return list(dict.fromkeys([str(Path(ours).parent), *(sysconfig.get_path(one) for one in ("purelib", "platlib"))]))


def _installed(name: str) -> Path | None:
    spec = PathFinder.find_spec(name, places())
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin)
        return origin.parent if origin.name == "__init__.py" else origin
    beside = [Path(place, name) for place in places()]  # a folder that is no package: numpy.libs
    return next((path for path in beside if path.is_dir()), None)


def _readable(path: Path) -> bool:
    """Whether anybody may read it; who is not root is the sandbox's user himself."""
    if os.geteuid() != 0:
        return True
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents) and bool(path.stat().st_mode & 0o004)


def _compiled(path: Path) -> bool:
    """Whether a sandbox, which can't write it, would not have to compile it at every import."""
    return path.is_file() or not list(path.glob("*.py")) or (path / "__pycache__").is_dir()


def _copied(path: Path) -> Path:
    def copy(fresh: Path) -> None:
        if not path.is_dir():
            shutil.copyfile(path, fresh)
            return
        shutil.copytree(path, fresh, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        compiling = ["-I", "-m", "compileall", "-q", "-s", str(fresh.parent), str(fresh)]
        subprocess.run(["/usr/bin/python3", *compiling], check=False, capture_output=True)  # a file for another Python

    version = f"{path}{path.stat().st_mtime_ns}"
    place = folder() / f"package-{hashlib.sha256(version.encode()).hexdigest()[:16]}"
    place.mkdir(mode=0o755, exist_ok=True)
    return _publish(place / path.name, copy)
