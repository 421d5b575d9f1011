"""Which session a request names, in any of the fields that clients use; turn type and done. Torch-free.

What it does: reads the id out of headers and body, and takes the fields that are not part of the API out of the body.
What it leaves out: which turn it is. An id narrows the search, the conversation decides (`serve/sessions.py`).
"""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from serve.openai_api import wrong
from storage.records import Kind

# Headers that name a session, the surest first.
NAMING_HEADERS = (
    "x-session-id",
    "session_id",
    "session-id",
    "x-session-affinity",
    "x-opencode-session",
    "x-claude-code-session-id",
    "x-litellm-session-id",
    "helicone-session-id",
)
# Body fields that name a session and are no part of the API: taken out. Then those below `metadata`.
NAMING_FIELDS = ("session_id", "litellm_session_id")
NAMING_METADATA = ("session_id", "litellm_session_id", "sessionId")
# Fields that many sessions may share, or that one session may change: they only decide between equals.
WEAK_FIELDS = ("prompt_cache_key", "user", "safety_identifier")
LIMIT = 256  # characters of an id that are kept

# OpenClaw sends `<id>:<n>` in these; n counts the compactions of one session (its key for the provider's prompt cache).
_COUNTED = frozenset({"session_id", "x-session-affinity"})
_COUNT = re.compile(r":\d{1,6}\Z")
_CLAUDE_CODE_USER = re.compile(r"_session_([0-9a-fA-F-]{8,})\Z")
_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, kw_only=True)
class SessionFields:
    """What a request says of its session."""

    named_session: str | None  # None where it names none
    fields: dict[str, Any] | None  # every session-like field as received
    turn_type: Kind | None  # X-Turn-Type
    session_done: bool  # X-Session-Done


def named_session(headers: Mapping[str, str], body: MutableMapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The session a request names (None where it names none), and every session-like field as received.

    Takes the fields that are ours out of `body`, so that they do not go on.
    """
    lower = {str(name).lower(): value for name, value in headers.items()}
    fields = {name: lower[name][:LIMIT] for name in NAMING_HEADERS if (lower.get(name) or "").strip()}
    naming = [_counted_off(name, value) for name, value in fields.items()]
    for name in NAMING_FIELDS:
        if text := _text(body.pop(name, None)):
            fields[name if name not in fields else f"body.{name}"] = text
            naming.append(text)
    naming += _from_metadata(body, fields)
    for name in WEAK_FIELDS:
        if text := _text(body.get(name)):
            fields[name] = text
    return (naming[0] if naming else None), fields


def session_fields(headers: Mapping[str, str], body: MutableMapping[str, Any]) -> SessionFields:
    """All that a request says of its session. An ApiError 400 where X-Turn-Type is neither main nor side."""
    lower = {str(name).lower(): value for name, value in headers.items()}
    turn = (lower.get("x-turn-type") or "").strip().lower() or None
    if turn not in (None, "main", "side"):
        raise wrong("X-Turn-Type", f"the header X-Turn-Type is {turn[:40]!r}, but must be main or side.")
    named, fields = named_session(headers, body)
    return SessionFields(
        named_session=named,
        fields=fields or None,
        turn_type=turn,  # type: ignore[arg-type]
        session_done=(lower.get("x-session-done") or "").strip().lower() in _TRUE,
    )


def weak_hints(fields: Mapping[str, str] | None) -> str:
    """The fields that decide between equals, as one string."""
    if not fields:
        return ""
    return "\x1f".join(f"{name}={fields[name]}" for name in WEAK_FIELDS if fields.get(name))


def _from_metadata(body: MutableMapping[str, Any], fields: dict[str, str]) -> list[str]:
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        return []
    rest, naming = dict(metadata), []
    for name in NAMING_METADATA:
        if text := _text(rest.pop(name, None)):
            fields[f"metadata.{name}"] = text
            naming.append(text)
    if text := _text(rest.get("user_id")):  # Claude Code puts its session into it
        fields["metadata.user_id"] = text
        if session := _claude_code_session(text):
            naming.append(session)
    if len(rest) < len(metadata):
        if rest:
            body["metadata"] = rest
        else:
            del body["metadata"]
    return naming


def _claude_code_session(user_id: str) -> str | None:
    if found := _CLAUDE_CODE_USER.search(user_id):
        return found.group(1)
    if user_id.startswith("{"):
        try:
            return _text(orjson.loads(user_id).get("session_id"))
        except orjson.JSONDecodeError:
            return None
    return None


def _counted_off(name: str, value: str) -> str:
    value = value.strip()
    return (_COUNT.sub("", value) or value) if name in _COUNTED else value


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value).strip()[:LIMIT] or None
