"""The policy's patch: what differs between the repository in its sandbox and the commit it began with.

What it does: `unpack` puts the repository there; `Watch.look` gives the difference after a step; `take` the one that is
judged. Both use a git folder of their own, with its own index, so that nothing depends on what the policy does with
`/work/repo/.git`, and its index and commits stay its own.
What it leaves out: whether the patch is any good (`evaluation.py`). It is data: nothing in it is run here.
"""

import secrets
import shlex
from dataclasses import dataclass

from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import CommandResult, Sandbox
from serve.environments.swe.repository import Base

REPO = "/work/repo"
PATCH_BYTES = 1_000_000
GIT_S = 60.0
NAMES_CHARS = 2000  # of all names of changed files together
ENVIRONMENT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
UNPACK = 'mkdir -p "$1" && tar -xf - -C "$1"'
CHECKOUT = f"{UNPACK} && git -C \"$1\" checkout --quiet --force main && echo '[safe]\n\tdirectory = *' > ~/.gitconfig"
DIFFERENCE = """\
set -e
mkdir -p "$2"
export GIT_DIR="$1/.git" GIT_WORK_TREE="$2" GIT_INDEX_FILE="$1/index"
cd "$2"
[ -e "$1/index" ] || git read-tree HEAD
git -c core.hooksPath=/dev/null -c core.fsmonitor=false add --all . >&2
git diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color HEAD > "$1/patch"
git diff --cached --name-only --no-renames -z HEAD | head -c "$3"
"""
# what could keep git from reading the files: missing rights, repositories within
READABLE = f"chmod -R u+rwX {REPO}; find {REPO} -mindepth 2 -name .git -prune -exec rm -rf {{}} +; true"


class NoPatch(Exception):
    """What the policy left can't be made into a patch; says why."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A patch, and the files that it changes."""

    patch: bytes = b""
    files: tuple[str, ...] = ()


async def unpack(sandbox: Sandbox, base: Base) -> None:
    """Put the repository at REPO, checked out.

    Raises:
        EnvironmentFailed: it does not fit, or git does not work there.
    """
    result = await _script(sandbox, CHECKOUT, REPO, stdin=base.archive, environment=None)
    if result.exit_code != 0:
        why = result.stderr.strip()[-300:] or result.ended or "it took too long"
        raise EnvironmentFailed(f"the repository can't be unpacked in the sandbox: {why}. Is limits.disk_mb enough?")


class Watch:
    """Sees what each step changes."""

    def __init__(self, sandbox: Sandbox, base: Base) -> None:
        self._sandbox, self._base = sandbox, base
        self._folder: str | None = None
        self.last = Difference()

    async def look(self) -> tuple[Difference, bool]:
        """The difference now, and whether it is another than before.

        Raises:
            NoPatch: none can be made; the next look tries again.
        """
        try:
            now = await self._difference()
        except NoPatch:
            self._folder = None
            raise
        changed, self.last = now.patch != self.last.patch, now
        return now, changed

    async def take(self) -> Difference:
        """The difference in the end, when nothing of the policy runs any more. Whatever lies elsewhere is removed.

        Raises:
            NoPatch: none can be made.
        """
        await self._sandbox.run(["bash", "-c", "rm -rf /tmp/* /tmp/.[!.]* ~/* ~/.[!.]*; " + READABLE], timeout_s=GIT_S)
        self._folder = None
        return await self._difference()

    async def _difference(self) -> Difference:
        if self._folder is None:
            folder = f"/tmp/.base-{secrets.token_hex(4)}"
            try:
                result = await _script(self._sandbox, UNPACK, folder, stdin=self._base.archive)
            except OSError as error:
                raise NoPatch(f"there is no room to compare the files: {error}") from error
            if result.exit_code != 0:
                raise NoPatch(f"there is no room to compare the files: {result.stderr.strip()[-200:]}")
            self._folder = folder
        result = await _script(self._sandbox, DIFFERENCE, self._folder, REPO, str(NAMES_CHARS))
        if result.exit_code != 0:
            why = "it took too long" if result.timed_out else result.ended or result.stderr.strip()[-300:]
            raise NoPatch(f"git can't compare the files: {why}")
        try:
            patch = await self._sandbox.read(f"{self._folder}/patch", limit=PATCH_BYTES)
        except (OSError, ValueError) as error:
            raise NoPatch(f"the patch can't be read: {error}. At most {PATCH_BYTES} bytes are taken") from error
        return Difference(patch, tuple(result.stdout.split("\0")[:-1]))


async def _script(
    sandbox: Sandbox, script: str, *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = ENVIRONMENT
) -> CommandResult:
    return await sandbox.run(
        ["bash", "-c", script, "swe", *arguments], stdin=stdin, env=environment, cwd="/work", timeout_s=GIT_S
    )


def change_directory(path: str) -> str:
    """The command that brings a shell there."""
    return f"cd {shlex.quote(path)}"
