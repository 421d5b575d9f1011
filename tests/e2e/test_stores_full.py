"""The disk takes nothing any more while people talk: they are served and told, and nothing is missing once it does.

RLIMIT_FSIZE, set from outside on the two processes that write the journal, stands in for the full disk: every write to
a file fails, as with ENOSPC, and no root is needed.
"""

import contextlib
import json
import resource
from collections.abc import Iterator

import httpx
import psutil
import pytest
from openai import OpenAI
from rich.console import Console

from infra.admin import Running
from infra.processes import of_instance
from infra.soak import settle
from infra.status import part_of
from storage.audit import audit
from tests.e2e.conftest import clawrl, converse, wait_for

pytestmark = pytest.mark.e2e


@contextlib.contextmanager
def full_disk(system: Running) -> Iterator[None]:
    writers = [p for p in of_instance(system.state.instance) if part_of(p) in ("gateway", "learner")]
    assert len(writers) == 2
    for process in writers:
        process.rlimit(psutil.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for process in writers:
            process.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_full_disk_is_told_and_nothing_is_missing_after(system: Running, client: OpenAI) -> None:
    settle(system, Console())
    model = system.settings.model.name
    hello = ["Say hello.", "Too long. Please answer in one word."]
    accepted = converse(client, model, hello, max_tokens=16, session="disk-1")
    with full_disk(system):
        answer = httpx.post(
            system.base_url + "/chat/completions",
            headers={"Authorization": f"Bearer {system.api_key}", "X-Session-Id": "disk-2", "X-Session-Done": "1"},
            json={"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8},
            timeout=60,
        )
        assert answer.status_code == 200 and answer.headers["x-recorded"] == "false"
        accepted.append(answer.json()["id"].removeprefix("chatcmpl-"))
        fruit = ["Name a fruit.", "No, that is wrong. Name a fruit."]
        accepted += converse(client, model, fruit, max_tokens=16, session="disk-3")
        alarms = json.loads(clawrl(system.home, "status", "--json").stdout)["alarms"]
        assert "does not take records" in str(alarms) and "Free some space" in str(alarms)
    status = wait_for(
        system, lambda s: not (s["gateway"]["alarms"] or s["learner"]["alarms"]), "the disk's recovery", 60
    )
    assert status["gateway"]["unrecorded"] >= 1, "how many were answered without a record stays on the account"
    settle(system, Console())
    found = audit(system.home.journal, model, system.objects(), expected=accepted)
    assert found.ok, str(found)
