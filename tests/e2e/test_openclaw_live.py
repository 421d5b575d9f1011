"""The real OpenClaw client from npm talks to the whole system: one session, its user's words as next states."""

import time
from pathlib import Path

import pytest

from infra.admin import Running
from storage.journal import JournalTail
from storage.records import Exchange
from tests.contract.openclaw.client import run_openclaw_turns
from tests.contract.test_openclaw_client import TALK, check_three_turns

pytestmark = [pytest.mark.e2e, pytest.mark.openclaw]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("affinity", [False, True])
def test_three_turns_are_one_session(system: Running, tmp_path: Path, affinity: bool) -> None:
    began, model, session = time.time(), system.settings.model.name, f"claw-{int(affinity)}"
    run_openclaw_turns(system.base_url, system.api_key, model, session, TALK, affinity, home=tmp_path)
    time.sleep(4)  # a request that might have overtaken its predecessor is looked up again for 2 s
    events = JournalTail(system.home.journal, model).poll()
    ours = {e.record.exchange_id for e in events if isinstance(e.record, Exchange) and e.record.received_at >= began}
    records = [event.record for event in events if getattr(event.record, "exchange_id", None) in ours]
    check_three_turns(records, session if affinity else None)
