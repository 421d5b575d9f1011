"""What a request says of its session: explicit ids, weak hints, turn type, done. Torch-free, and no judgement here.

What it leaves out: what is made of it (the tracker in `serve/sessions.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serve.openai_api import wrong
from storage.records import Kind

HEADERS = ("x-session-id", "session_id", "x-session-affinity", "x-opencode-session", "x-client-request-id")
NAMING = HEADERS[:-1]
FIELDS = ("session_id", "prompt_cache_key", "user")
LONGEST = 512  # characters


@dataclass(frozen=True, kw_only=True)
class SessionFields:
    """As received."""

    named_session: str | None
    fields: dict[str, Any] | None
    turn_type: Kind | None
    session_done: bool


def named_session(headers: Mapping[str, str], body: dict[str, Any]) -> str | None:
    """The session that the request names, and None where it names none."""
    metadata = body.get("metadata")
    given = [headers.get(name) for name in NAMING]
    given += [body.get("session_id"), metadata.get("session_id") if isinstance(metadata, dict) else None]
    return next((value[:LONGEST] for value in given if isinstance(value, str) and value), None)


def session_fields(headers: Mapping[str, str], body: dict[str, Any]) -> SessionFields:
    """Read them; an ApiError 400 where X-Turn-Type is neither main nor side."""
    metadata = body.get("metadata")
    found: dict[str, Any] = {name: headers[name][:LONGEST] for name in HEADERS if headers.get(name)}
    found |= {name: body[name][:LONGEST] for name in FIELDS if isinstance(body.get(name), str) and body[name]}
    if isinstance(metadata, dict) and isinstance(metadata.get("session_id"), str):
        found["metadata.session_id"] = metadata["session_id"][:LONGEST]
    turn = headers.get("x-turn-type", "").strip().lower() or None
    if turn not in (None, "main", "side"):
        raise wrong("X-Turn-Type", f"the header X-Turn-Type is {turn!r}, but must be main or side.")
    return SessionFields(
        named_session=named_session(headers, body),
        fields=found or None,
        turn_type=turn,  # type: ignore[arg-type]
        session_done=headers.get("x-session-done", "").strip().lower() in ("1", "true", "yes"),
    )
