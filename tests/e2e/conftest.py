"""One whole system on loopback for all end-to-end tests: started by the `clawrl` command, real parts only."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from infra.admin import Running
from infra.home import Home

ROOT = Path(__file__).parents[2]
SETTINGS = """
[server]
gateway_port = 0
mlflow_port = 0
s3_port = 0
ray_port = 0
[pool]
batch_size = 6
batch_least = 4
[live]
keep_s = 5.0

"""


def clawrl(home: Home, *arguments: str, check: bool = True, timeout_s: float = 400) -> subprocess.CompletedProcess:
    """Run the command as a person would."""
    command = [sys.executable, "-m", "infra", "--home", str(home.root), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    if check and done.returncode:
        logs = "".join(f"\n--- {log.name}\n{log.read_text()[-2500:]}" for log in sorted(home.logs.glob("*.log")))
        raise AssertionError(f"clawrl {arguments} gave {done.returncode}\n{done.stdout}{done.stderr}{logs}")
    return done


@pytest.fixture(scope="package")
def system() -> Iterator[Running]:
    home = Home(Path(tempfile.mkdtemp(prefix="claw-e2e-"))).make()
    home.config.write_text(SETTINGS)
    try:
        clawrl(home, "up")
        yield Running(home)
    finally:
        clawrl(home, "down", check=False)
        kept = Path("/tmp/claw-e2e-logs")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(home.logs, kept)
        shutil.rmtree(home.root)


@pytest.fixture
def client(system: Running) -> OpenAI:
    return OpenAI(base_url=system.base_url, api_key=system.api_key, max_retries=0, timeout=120)


def wait_for(system: Running, reached: Callable[[dict[str, Any]], Any], what: str, limit_s: float = 180.0) -> dict:
    """Poll the status until `reached(status)`; the last status is in the failure."""
    until, status = time.monotonic() + limit_s, {}
    while time.monotonic() < until:
        try:
            status = system.admin()
            if reached(status):
                return status
        except (ConnectionError, KeyError, TypeError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"waited {limit_s:.0f} s for {what}: {json.dumps(status, default=str)[:3000]}")


def converse(
    client: OpenAI, model: str, says: list[str], *, max_tokens: int = 24, session: str | None = None, **options: Any
) -> list[str]:
    """One conversation, streamed; returns the exchange ids. A named session is ended with its last request."""
    history: list[dict[str, str]] = []
    ids = []
    for text in says:
        history.append({"role": "user", "content": text})
        headers = {"X-Session-Id": session, "X-Session-Done": str(text is says[-1]).lower()} if session else {}
        stream = client.chat.completions.create(
            model=model, messages=history, stream=True, max_tokens=max_tokens, extra_headers=headers, **options
        )
        parts = []
        for chunk in stream:
            parts += [choice.delta.content or "" for choice in chunk.choices]
            name = chunk.id
        history.append({"role": "assistant", "content": "".join(parts)})
        ids.append(name.removeprefix("chatcmpl-"))
    return ids
