"""The real OpenClaw client from npm: three turns of one session, without and with its session header.

Here it talks to a stand-in that answers from a list, and a real tracker hears what it sent. `check_three_turns` asserts
the same on any journal's records, so that it can be run against the whole system too.

Run: `python -m pytest tests/contract/test_openclaw_client.py` (the first time it installs the client, some minutes).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serve.session_fields import named_session
from serve.sessions import Made
from storage.records import NextState, Turn
from tests.contract.openclaw.client import run_openclaw_turns
from tests.contract.openclaw.recording_stand_in import RecordingStandIn
from tests.unit.serve.session_builders import Scene

MODEL = "smollm2-135m-instruct"
TALK = ["Hello, who are you?", "Tell me about tides.", "No, shorter please."]


def check_three_turns(records: Sequence[Any], session: str | None, talk: Sequence[str] = TALK) -> list[Turn]:
    """Of a journal's records (others are passed over): one session, main turns, the user's own words as next states.

    `session` is the id that the client was to name, None where it was to name none. Returns the turns.
    """
    turns = [record for record in records if isinstance(record, Turn)]
    main = [turn for turn in turns if turn.kind == "main"]
    assert len(main) == len(talk), [(turn.exchange_id, turn.kind, turn.why_kind) for turn in turns]
    assert len({turn.session_id for turn in turns}) == 1, turns
    assert [turn.parent_id for turn in main] == [None, *(turn.exchange_id for turn in main[:-1])], main
    if session is not None:
        assert main[0].session_id == session
    said = {record.exchange_id: record for record in records if isinstance(record, NextState)}
    followed = [said[turn.exchange_id] for turn in main[:-1]]
    assert [state.content for state in followed] == list(talk[1:])
    assert {state.role for state in followed} == {"user"}
    assert main[-1].exchange_id not in said
    return turns


def hear(server: RecordingStandIn) -> list[Made]:
    """What the tracker makes of the recorded requests."""
    scene = Scene()
    for recorded in server.recorded:
        body = recorded.body
        named, fields = named_session(recorded.headers, body)
        scene.ask(
            body["messages"], recorded.answer, tools=body.get("tools"), named_session=named, session_fields=fields,
            sampling={"max_tokens": body.get("max_completion_tokens")},
            client=recorded.headers.get("user-agent", ""),
        )  # fmt: skip
    scene.wait(3)
    return scene.made


@pytest.mark.openclaw
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("affinity", [False, True])
def test_three_turns_of_the_real_client_are_one_session(tmp_path: Path, affinity: bool) -> None:
    with RecordingStandIn() as server:
        turns = run_openclaw_turns(server.base_url, "sk-stand-in", MODEL, "s1", TALK, affinity, home=tmp_path)
    assert [turn.text for turn in turns] == [recorded.answer["content"] for recorded in server.recorded]
    assert ("x-session-affinity" in {k.lower() for k in server.recorded[0].headers}) is affinity
    check_three_turns(hear(server), "s1" if affinity else None)
