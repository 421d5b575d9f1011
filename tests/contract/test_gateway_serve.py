"""Gateway and policy on a real Ray Serve with the real SGLang: loopback only, and what happens when one is killed."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import pytest

from infra.model import NAME, default_dir
from infra.services import free_port
from serve.engine import HERE
from storage.journal import JournalTail
from storage.records import Exchange

pytestmark = pytest.mark.timeout(1500)

ASK = [{"role": "user", "content": "Tell me about bread."}]
KEY = {"authorization": "Bearer sk-serve"}
DRIVER = """
import json, sys
import ray
given = json.loads(sys.argv[1])
ray.init(address=given["ray"], log_to_driver=False, logging_level="ERROR")
from ray import serve
from serve.app import deploy
from serve.engine import EngineSettings
from serve.gateway import GatewaySettings
from serve.policy import PolicySettings
if given["do"] == "delete":
    serve.delete("gateway")
else:
    engine = EngineSettings(**given["engine"])
    deploy(GatewaySettings(**given["gateway"]), PolicySettings(engine=engine, **given["policy"]), timeout_s=600)
"""


@dataclass
class System:
    """A Ray of our own with both applications."""

    home: Path
    url: str
    head: subprocess.Popen[bytes]
    environ: dict[str, str]
    given: dict[str, Any]

    def drive(self, do: str) -> None:
        """Deploy or delete, in a process of its own."""
        words = [sys.executable, "-c", DRIVER, json.dumps({**self.given, "do": do})]
        done = subprocess.run(words, cwd=HERE, env=self.environ, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]

    def status(self) -> dict[str, Any]:
        return httpx.get(self.url + "/admin/status", headers=KEY, timeout=30).json()

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": NAME, "messages": ASK, "max_tokens": 8, **fields}
        return httpx.post(self.url + "/v1/chat/completions", json=body, headers=KEY, timeout=600)

    def exchanges(self) -> dict[str, Exchange]:
        events = JournalTail(self.home / "journal", NAME).poll()
        return {e.record.exchange_id: e.record for e in events if isinstance(e.record, Exchange)}

    def wait(self, condition: Any, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            try:
                if condition():
                    return
            except (httpx.HTTPError, KeyError):
                pass
            time.sleep(0.3)
        raise AssertionError(f"it did not come about within {within_s:.0f} s")


def start_ray(words: list[str], environ: dict[str, str], log: Path, tries: int = 5) -> subprocess.Popen[bytes]:
    """A Ray head that is ready. Ray gives its own start 30 s, which a busy machine may not keep: so try again."""
    for _ in range(tries):
        with log.open("wb") as out:
            head = subprocess.Popen(words, cwd=HERE, env=environ, stdout=out, stderr=out, start_new_session=True)
        while head.poll() is None:
            if "--block" in log.read_text():
                return head
            time.sleep(0.3)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)  # what it had started
    raise AssertionError(f"Ray did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("serve")
    token, ray_dir = home / "token", Path("/tmp") / f"clawrl-test-{os.getpid()}"  # short: its sockets have long names
    token.write_text(secrets.token_hex(32))
    port, listen = free_port(), free_port()
    low = 22000 + port % 20 * 200
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    words = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={port}", "--include-dashboard=false", "--num-cpus=2", "--object-store-memory=200000000",
        f"--min-worker-port={low}", f"--max-worker-port={low + 199}", f"--temp-dir={ray_dir}", "--disable-usage-stats",
    ]  # fmt: skip
    head = start_ray(words, environ, home / "ray.log")
    model = str(default_dir())
    given = {
        "ray": f"127.0.0.1:{port}",
        "engine": {"log_dir": str(home / "logs"), "start_timeout_s": 600},
        "gateway": {"model": NAME, "model_dir": model, "journal_root": str(home / "journal"), "listen_port": listen,
                    "api_keys": {"sk-serve": "t"}, "engine_wait_s": 600},
        "policy": {"model": NAME, "base_model_dir": model, "weights_dir": str(home / "weights")},
    }  # fmt: skip
    made = System(home, f"http://127.0.0.1:{listen}", head, environ, given)
    try:
        made.drive("deploy")
        yield made
    finally:
        family = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        _, alive = psutil.wait_procs([*family, psutil.Process(head.pid)], timeout=20)
        for process in alive:
            process.kill()


def test_a_request_goes_through_and_is_recorded(system: System) -> None:
    response = system.chat()
    assert response.status_code == 200 and response.headers["x-recorded"] == "true"
    exchange = system.exchanges()[response.headers["x-exchange-id"]]
    assert len(exchange.response_ids) == response.json()["usage"]["completion_tokens"]
    status = system.status()
    assert status["policy"]["state"] == "ready" and status["policy"]["version"] == 0
    assert "error" in status["learner"]  # there is none here, and that is said


def test_everything_listens_on_loopback_only(system: System) -> None:
    listening = {
        (process.name(), connection.laddr.ip)
        for process in psutil.Process(system.head.pid).children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening
    assert [found for found in listening if found[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []


def test_a_killed_gateway_comes_back_on_its_port(system: System) -> None:
    pid = system.status()["gateway"]["pid"]
    os.kill(pid, signal.SIGKILL)
    system.wait(lambda: system.status()["gateway"]["pid"] != pid, 120)
    assert system.chat().status_code == 200


def test_a_killed_policy_takes_its_engine_with_it_and_both_come_back(system: System) -> None:
    policy = system.status()["policy"]
    engine = psutil.Process(policy["engine_pid"])
    family = [engine, *engine.children(recursive=True)]
    os.kill(policy["pid"], signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    response = system.chat()  # waits for the new engine
    assert response.status_code == 200
    assert system.status()["policy"]["engine_pid"] != policy["engine_pid"]


def test_an_ordinary_shutdown_lets_answers_end_and_records_them(system: System) -> None:
    """Last: the gateway is gone after it."""
    found: list[httpx.Response] = []
    client = Thread(target=lambda: found.append(system.chat(max_tokens=40, ignore_eos=True)))
    client.start()
    system.wait(lambda: system.status()["gateway"]["in_flight"] == 1, 30)
    system.drive("delete")
    client.join(120)
    assert found and found[0].status_code == 200
    exchange = system.exchanges()[found[0].headers["x-exchange-id"]]
    assert len(exchange.response_ids) == 40 and exchange.finish_reason == "length"
