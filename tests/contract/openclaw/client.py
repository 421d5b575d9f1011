"""Runs the real OpenClaw client against any base URL, one turn a call, its home in a folder of its own.

What it leaves out: its gateway process and its channels; `openclaw agent --local` runs the same agent without them.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.openclaw.install import Installed, installed

PROVIDER = "clawrl"
WINDOW = 8192  # tokens, the small model's
TURN_TIMEOUT_S = 600  # a turn took 30 s on a busy two-core machine, and minutes on a much busier one


@dataclass(frozen=True)
class OpenClawTurn:
    """What the client made of one turn."""

    message: str
    text: str  # what it would show its user
    printed: dict[str, Any]  # its own JSON


def run_openclaw_turns(
    base_url: str,
    api_key: str,
    model: str,
    session: str,
    messages: list[str],
    affinity: bool,
    *,
    home: Path,
    profile: str = "minimal",
    short_workspace: bool = True,
    window: int = WINDOW,
    defaults: dict[str, Any] | None = None,
    timeout_s: float = TURN_TIMEOUT_S,
) -> list[OpenClawTurn]:
    """Say `messages` one after another in one session of a fresh (or the given) home. `base_url` ends in /v1."""
    client = installed()
    prepare_home(
        home, base_url, api_key, model,
        affinity=affinity, profile=profile, short_workspace=short_workspace, window=window, defaults=defaults,
    )  # fmt: skip
    return [say(client, home, session, message, timeout_s) for message in messages]


def prepare_home(
    home: Path,
    base_url: str,
    api_key: str,
    model: str,
    *,
    affinity: bool,
    profile: str,
    short_workspace: bool,
    window: int,
    defaults: dict[str, Any] | None = None,
) -> None:
    """Write the client's settings and, where asked, a workspace of a line per file (so that it fits 8,192 tokens)."""
    folder, workspace = home / ".openclaw", home / "workspace"
    folder.mkdir(parents=True, exist_ok=True)
    workspace.mkdir(parents=True, exist_ok=True)
    entry: dict[str, Any] = {
        "id": model,
        "name": model,
        "api": "openai-completions",
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": window,
        "maxTokens": 256,
    }
    if affinity:
        entry["compat"] = {"sendSessionAffinityHeaders": True}
    settings: dict[str, Any] = {
        "models": {
            "mode": "merge",
            "providers": {
                PROVIDER: {
                    "baseUrl": base_url, "apiKey": api_key, "api": "openai-completions", "models": [entry],
                },
            },
        },
        "agents": {
            "defaults": {
                "model": {"primary": f"{PROVIDER}/{model}"},
                "workspace": str(workspace),
                "skipBootstrap": short_workspace,
                **(defaults or {}),
            }
        },
        "tools": {"profile": profile},
        "update": {"checkOnStart": False},
    }  # fmt: skip
    (folder / "openclaw.json").write_text(json.dumps(settings, indent=2))
    if short_workspace:
        for name, line in (
            ("AGENTS.md", "Help the user."),
            ("SOUL.md", "Be brief."),
            ("IDENTITY.md", "Name: Claw."),
            ("USER.md", "One person."),
        ):
            (workspace / name).write_text(line + "\n")


def say(client: Installed, home: Path, session: str, message: str, timeout_s: float = TURN_TIMEOUT_S) -> OpenClawTurn:
    """One turn. RuntimeError with the client's own words where it fails."""
    command = [
        str(client.node), str(client.cli), "agent", "--local", "--agent", "main",
        "--session-id", session, "--message", message, "--json",
    ]  # fmt: skip
    ran = subprocess.run(
        command, cwd=home, env=_env(client, home), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"openclaw agent ended with {ran.returncode}:\n{ran.stderr[-2000:]}\n{ran.stdout[-2000:]}")
    printed = json.loads(ran.stdout[ran.stdout.index("{") :])
    payloads = printed.get("payloads") or printed.get("result", {}).get("payloads") or []
    return OpenClawTurn(message, "\n".join(p.get("text") or "" for p in payloads), printed)


def _env(client: Installed, home: Path) -> dict[str, str]:
    """Nothing of ours: no keys, no proxies, no settings."""
    return {
        "HOME": str(home),
        "PATH": f"{client.node.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "TMPDIR": str(home),
        "NODE_COMPILE_CACHE": str(client.node.parents[4] / "compile-cache"),  # kept from run to run: starts are quicker
        "TZ": "UTC",
        "NO_COLOR": "1",
        "NO_PROXY": "*",
    }
