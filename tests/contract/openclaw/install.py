"""Brings the real OpenClaw client, and a Node that runs it, from npm into `.node/` (git-ignored), once.

Run: `python -m tests.contract.openclaw.install`
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OPENCLAW_VERSION = "2026.9.6"
NODE_MAJOR = 24  # OpenClaw needs 24.16 or newer; the npm package `node` brings one
FOLDER = Path(__file__).resolve().parents[3] / ".node"
TIMEOUT_S = 900


@dataclass(frozen=True)
class Installed:
    """Where the client lies."""

    node: Path
    cli: Path  # openclaw.mjs


def installed(folder: Path = FOLDER) -> Installed:
    """The client, installed first where it is missing. RuntimeError with npm's own words where that fails."""
    runtime, client = folder / "runtime", folder / "client"
    node = runtime / "node_modules" / "node" / "bin" / "node"
    package = client / "node_modules" / "openclaw"
    if not node.exists():
        _npm_install(runtime, f"node@{NODE_MAJOR}", None)
    if _version(package) != OPENCLAW_VERSION:
        _npm_install(client, f"openclaw@{OPENCLAW_VERSION}", node)
    return Installed(node=node, cli=package / "openclaw.mjs")


def _version(package: Path) -> str | None:
    manifest = package / "package.json"
    return json.loads(manifest.read_text())["version"] if manifest.exists() else None


def _npm_install(prefix: Path, what: str, node: Path | None) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(f"`npm` is needed once to install {what} into {prefix}, and is not on the PATH")
    prefix.mkdir(parents=True, exist_ok=True)
    (prefix / "package.json").write_text('{"private": true}\n')
    command = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(prefix), what]
    if node is not None:  # the client's own scripts refuse an older Node
        command = [str(node), str(Path(npm).resolve()), *command[1:]]
    ran = subprocess.run(command, cwd=prefix, env=_env(node), capture_output=True, text=True, timeout=TIMEOUT_S)
    if ran.returncode:
        raise RuntimeError(f"`npm install {what}` failed ({ran.returncode}):\n{(ran.stderr or ran.stdout)[-2000:]}")


def _env(node: Path | None) -> dict[str, str]:
    env = dict(os.environ)
    if node is not None:
        env["PATH"] = f"{node.parent}{os.pathsep}{env.get('PATH', '')}"
    return env


if __name__ == "__main__":
    print(installed())
