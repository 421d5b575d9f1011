"""Ids in headers and bodies."""

import pytest

from serve.openai_api import ApiError
from serve.session_fields import named_session, session_fields


@pytest.mark.parametrize(
    ("headers", "body", "named"),
    [
        ({"X-Session-Id": "a"}, {}, "a"),
        ({"session_id": "s1:0", "x-session-affinity": "s1:0", "x-client-request-id": "s1:0"}, {}, "s1"),
        ({"x-session-affinity": "s1:12"}, {}, "s1"),  # n counts compactions: one session
        ({"x-session-affinity": "agent:main:main:3"}, {}, "agent:main:main"),
        ({"X-Session-Id": "mine:7"}, {}, "mine:7"),  # a person's own id is taken as it is
        ({"x-session-affinity": ":3"}, {}, ":3"),
        ({"x-opencode-session": "ses_1"}, {}, "ses_1"),
        ({}, {"session_id": "b"}, "b"),
        ({}, {"metadata": {"session_id": "c"}}, "c"),
        ({}, {"metadata": {"user_id": "user_ab_account__session_0af5e1d2-77aa"}}, "0af5e1d2-77aa"),
        ({}, {"metadata": {"user_id": '{"device_id":"d","session_id":"e"}'}}, "e"),
        ({}, {"metadata": {"user_id": "someone"}}, None),
        ({}, {"user": "u", "prompt_cache_key": "k"}, None),
        ({"X-Session-Id": "a"}, {"session_id": "b"}, "a"),
        ({"X-Session-Id": "  "}, {"session_id": 7}, "7"),
        ({}, {"session_id": {"x": 1}, "metadata": "odd"}, None),
        ({}, {}, None),
    ],
)
def test_named(headers: dict, body: dict, named: str | None) -> None:
    assert named_session(headers, body)[0] == named


def test_our_fields_do_not_go_on_and_all_are_kept_as_received() -> None:
    body = {"model": "m", "session_id": "b", "user": "u", "metadata": {"session_id": "c", "team": "x"}}
    named, fields = named_session({"X-Session-Affinity": "s:1"}, body)
    assert named == "s"
    assert body == {"model": "m", "user": "u", "metadata": {"team": "x"}}
    assert fields == {"x-session-affinity": "s:1", "session_id": "b", "metadata.session_id": "c", "user": "u"}
    only = {"metadata": {"session_id": "c"}}
    named_session({}, only)
    assert only == {}


def test_marks() -> None:
    assert session_fields({"x-turn-type": "Side", "X-SESSION-DONE": "true"}, {}).turn_type == "side"
    assert session_fields({"X-Session-Done": "1"}, {}).session_done
    assert not session_fields({"X-Session-Done": "0"}, {}).session_done
    with pytest.raises(ApiError, match="must be main or side"):
        session_fields({"X-Turn-Type": "other"}, {})
