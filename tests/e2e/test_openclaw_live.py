"""The real OpenClaw client from npm talks to the whole system: one session, its user's words as next states.

Run: `python -m pytest tests/e2e/test_openclaw_live.py` (the first time it installs the client, some minutes).
"""

import time
from pathlib import Path

import pytest

from infra.admin import Running
from storage.journal import JournalTail
from storage.records import Exchange, NextState, Turn
from tests.contract.openclaw.client import run_openclaw_turns

pytestmark = [pytest.mark.e2e, pytest.mark.openclaw]
TALK = ["Hello, who are you?", "Tell me about tides.", "No, shorter please."]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("affinity", [False, True], ids=["no header", "affinity header"])
def test_three_turns_are_one_session(system: Running, tmp_path: Path, affinity: bool) -> None:
    began, model, session = time.time(), system.settings.model.name, f"claw-{int(affinity)}"
    run_openclaw_turns(system.base_url, system.api_key, model, session, TALK, affinity, home=tmp_path)
    time.sleep(4)  # a request that might have overtaken its predecessor is looked up again for 2 s
    records = [event.record for event in JournalTail(system.home.journal, model).poll()]
    exchanges = [record for record in records if isinstance(record, Exchange) and record.received_at >= began]
    assert all(("x-session-affinity" in (exchange.session_fields or {})) is affinity for exchange in exchanges), (
        exchanges
    )
    ids = {exchange.exchange_id for exchange in exchanges}

    turns = [record for record in records if isinstance(record, Turn) and record.exchange_id in ids]
    main = [turn for turn in turns if turn.kind == "main"]
    assert len(main) == len(TALK), [(turn.exchange_id, turn.kind, turn.why_kind) for turn in turns]
    assert len({turn.session_id for turn in turns}) == 1, turns
    assert main[0].session_id == session or not affinity
    assert [turn.parent_id for turn in main] == [None, *(turn.exchange_id for turn in main[:-1])], main

    said = {record.exchange_id: record for record in records if isinstance(record, NextState)}
    followed = [said[turn.exchange_id] for turn in main[:-1]]
    assert [state.content for state in followed] == TALK[1:]
    assert {state.role for state in followed} == {"user"}
    assert main[-1].exchange_id not in said
