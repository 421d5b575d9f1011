"""One row per turn, joined from the journal and the sealed shards: what `clawrl sessions` shows.

What it does: `read_turns`. What it leaves out: token ids, and anything a model would need; use `dataset.scan`.
"""

from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from storage.arrow import schema, to_row
from storage.objects import ObjectStore
from storage.segments import open_versions, read_segment, segments, version_folder
from storage.tables import TABLE_OF, TABLES, scan

COLUMNS: dict[str, tuple[str, ...]] = {
    "exchanges": (
        *("exchange_id", "tenant", "track", "model", "version", "received_at", "messages", "answer", "finish_reason"),
        *("latency_s", "client", "error", "named_session"),
    ),
    "turns": ("exchange_id", "session_id", "parent_id", "relation", "kind", "why_kind", "ambiguous"),
    "next_states": ("exchange_id", "role", "content", "arrived_at"),
    "verdicts": ("exchange_id", "evaluative", "reward", "hint", "judge", "error", "judged_at"),
    "samples": ("exchange_id", "sample_id", "created_at"),
    "dispositions": ("exchange_id", "reason", "detail", "decided_at"),
    "updates": ("update_id", "to_version", "sample_ids", "ended_at"),
}


def read_turns(
    journal_root: Path,
    model: str,
    objects: ObjectStore | None,
    *,
    session: str | None = None,
    tenant: str | None = None,
    last: int | None = None,
) -> list[dict[str, Any]]:
    """The turns, oldest first: of one session or tenant, and only the `last` ones, where asked. Without `objects`
    only what the journal still has.

    Each row has the columns of COLUMNS["exchanges"] and ["turns"], question (the last user text), next_state and
    next_states, votes, reward, hint, judge, judge_error, sample_id, reason, detail and trained_in.
    """
    open_rows = _journal(journal_root, model)
    frames = {name: _frame(name, open_rows.get(name, []), objects) for name in COLUMNS}
    found = frames["exchanges"].join(frames["turns"], on="exchange_id", how="left").sort("received_at", "exchange_id")
    if session is not None:
        found = found.filter(pl.col("session_id") == session)
    if tenant is not None:
        found = found.filter(pl.col("tenant") == tenant)
    if last is not None:
        found = found.tail(last)
    rest = {name: _by_exchange(frames[name]) for name in ("next_states", "verdicts", "samples", "dispositions")}
    trained = {
        sample_id: row["to_version"] for row in frames["updates"].to_dicts() for sample_id in row["sample_ids"] or ()
    }
    return [_row(row, {name: rows.get(row["exchange_id"], []) for name, rows in rest.items()}, trained)
            for row in found.to_dicts()]  # fmt: skip


def _row(row: dict[str, Any], rest: dict[str, list[dict]], trained: dict[str, int]) -> dict[str, Any]:
    messages, answer = (orjson.loads(row.pop(name) or "null") for name in ("messages", "answer"))
    verdict = rest["verdicts"][-1] if rest["verdicts"] else {}
    sample = rest["samples"][-1] if rest["samples"] else {}
    disposition = rest["dispositions"][-1] if rest["dispositions"] else {}
    asked = [message for message in messages or [] if isinstance(message, dict) and message.get("role") == "user"]
    return {
        **row,
        "received_at": row["received_at"].timestamp(),
        "question": _text(asked[-1].get("content")) if asked else None,
        "answer": _answer_text(answer),
        "next_state": "\n".join(state["content"] for state in rest["next_states"]) or None,
        "next_states": [{key: state[key] for key in ("role", "content")} for state in rest["next_states"]],
        "votes": [vote["score"] for vote in verdict.get("evaluative") or []],
        "reward": verdict.get("reward"),
        "hint": verdict.get("hint"),
        "judge": verdict.get("judge"),
        "judge_error": verdict.get("error"),
        "sample_id": sample.get("sample_id"),
        "reason": disposition.get("reason"),
        "detail": disposition.get("detail"),
        "trained_in": trained.get(sample.get("sample_id", "")),
    }


def _journal(root: Path, model: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of the open segments by table, only the columns that are shown."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for version in open_versions(root, model):
        for path in segments(version_folder(root, model, version)):
            try:
                for event in read_segment(path):
                    name = TABLE_OF.get(event.kind)
                    if name is not None:
                        row = to_row(event.record)
                        rows.setdefault(name, []).append({column: row[column] for column in COLUMNS[name]})
            except FileNotFoundError:  # sealed and removed, or renamed, a moment ago: the shards have it
                continue
    return rows


def _frame(name: str, open_rows: list[dict[str, Any]], objects: ObjectStore | None) -> pl.DataFrame:
    whole = schema(TABLES[name].cls)
    columns = pa.schema([whole.field(column) for column in COLUMNS[name]])
    frame = pl.from_arrow(pa.Table.from_pylist(open_rows, schema=columns))
    assert isinstance(frame, pl.DataFrame)
    if objects is not None:
        sealed = scan(name, objects).select(COLUMNS[name]).collect()
        frame = pl.concat([sealed, frame.cast(dict(sealed.schema))])
    if name in ("exchanges", "turns"):
        frame = frame.unique("exchange_id", keep="last", maintain_order=True)
    return frame


def _by_exchange(frame: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in frame.unique(maintain_order=True).sort(frame.columns[-1]).to_dicts():
        found.setdefault(row["exchange_id"], []).append(row)
    return found


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _answer_text(answer: Any) -> str | None:
    if not isinstance(answer, dict):
        return None
    calls = [call.get("function", {}) for call in answer.get("tool_calls") or []]
    shown = [f"{call.get('name')}({call.get('arguments')})" for call in calls]
    return "\n".join(part for part in (_text(answer.get("content")), *shown) if part)
