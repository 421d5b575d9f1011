"""`POST /v1/feedback`: a thumb, a score or a sentence about an answer becomes its strongest next state.

What it leaves out: HTTP (`serve/gateway.py`), what is made of it (`judge/`).
"""

import re
import time
from pathlib import Path
from typing import Any

from serve.api_error import ApiError, wrong
from storage.journal import open_versions, read_segment, segments, version_folder
from storage.records import NextState, new_id

ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
THUMBS = {"up": 1.0, "down": -1.0}
LONGEST = 20_000  # characters of a text


def feedback_of(body: dict[str, Any]) -> NextState:
    """The next state of a request's body; an ApiError that names the field."""
    name = "id" if "id" in body else "exchange_id"
    id = body.get(name)
    if not isinstance(id, str):
        raise wrong(name, 'id must be the answer\'s id, as "chatcmpl-01J…".')
    exchange_id = id.removeprefix("chatcmpl-")
    if not ULID.fullmatch(exchange_id):
        raise ApiError(404, f"There is no answer {id[:100]!r}.", param=name, code="not_found")
    text = body.get("text")
    if text is not None and (not isinstance(text, str) or not text.strip() or len(text) > LONGEST):
        raise wrong("text", f"text must be a string, not empty, of at most {LONGEST} characters.")
    score = _score(body)
    if score is None and text is None:
        raise wrong("score", "Feedback needs a score (-1 to 1), a thumb (up or down) or a text.")
    return NextState(
        next_state_id=new_id(),
        exchange_id=exchange_id,
        role="feedback",
        content=text or "",
        source_exchange_id=None,
        arrived_at=time.time(),
        score=score,
    )


def _score(body: dict[str, Any]) -> float | None:
    score, thumb = body.get("score"), body.get("thumb")
    if score is not None and thumb is not None:
        raise wrong("thumb", "Give a score or a thumb, not both.")
    if thumb is not None:
        if thumb not in ("up", "down"):
            raise wrong("thumb", f"thumb must be up or down, not {thumb!r}.")
        return THUMBS[thumb]
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1 <= score <= 1:
        raise wrong("score", f"score must be a number from -1 to 1, not {score!r}.")
    return float(score)


def find_exchange(root: Path, model: str, exchange_id: str) -> tuple[str, int] | None:
    """Tenant and version of an answer in the open journal; None where it is not (any more)."""
    needle = exchange_id.encode()
    for version in sorted(open_versions(root, model), reverse=True):
        for path in segments(version_folder(root, model, version)):
            if needle not in path.read_bytes():
                continue
            for event in read_segment(path):
                if event.kind == "exchange" and event.record.exchange_id == exchange_id:
                    return event.record.tenant, event.record.version
    return None
