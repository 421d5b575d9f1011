"""The object store and MLflow die while people talk: serving goes on, an alarm says so, nothing is missing after."""

import os
import signal
import time

import pytest
from openai import OpenAI
from rich.console import Console

from infra.admin import Running
from infra.soak import settle
from storage.audit import audit
from tests.e2e.conftest import clawrl, converse, wait_for

pytestmark = pytest.mark.e2e
BAD = "No, that is wrong. Start with the number, please."


@pytest.mark.parametrize(("part", "down_s"), [("s3", 60), ("mlflow", 20)])
def test_a_store_is_down_and_comes_back(system: Running, client: OpenAI, part: str, down_s: float) -> None:
    state = system.home.state()
    assert state is not None
    victim = next(started for started in state.processes if started.name == part).process()
    assert victim is not None
    for process in (victim, *victim.children(recursive=True)):
        os.kill(process.pid, signal.SIGKILL)
    accepted = []
    down_until = time.monotonic() + down_s
    while time.monotonic() < down_until:
        accepted += converse(client, system.settings.model.name, ["Say hello.", BAD], max_tokens=48)
    status = wait_for(system, lambda s: s["learner"]["alarms"] or s["policy"]["alarms"], "an alarm", 60)
    words = str(status["learner"]["alarms"]) + str(status["policy"]["alarms"])
    assert "StoreDown" in words or "RegistryDown" in words or "does not answer" in words
    assert "starting it again" in clawrl(system.home, "up").stdout
    wait_for(system, lambda s: not s["learner"]["alarms"], "the learner to be well", 120)
    settle(system, Console())
    found = audit(system.home.journal, system.settings.model.name, system.objects(), expected=accepted)
    assert found.ok, str(found)
