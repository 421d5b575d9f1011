"""Records for tests, each valid, with the fields that a test names changed."""

import time
from typing import Any

from storage.records import (
    Disposition,
    Exchange,
    NextState,
    Sample,
    Turn,
    Update,
    Verdict,
    Version,
    VersionSpan,
    Vote,
    new_id,
)

MODEL = "tiny"


def exchange(**changes: Any) -> Exchange:
    """An answered request of 3 prompt and 2 response tokens."""
    fields: dict[str, Any] = {
        "exchange_id": new_id(),
        "tenant": "owner",
        "model": MODEL,
        "version": 1,
        "received_at": time.time(),
        "messages": [{"role": "user", "content": "hello – ünï"}],
        "tools": None,
        "sampling": {"temperature": 0.7, "max_tokens": 8},
        "prompt_ids": (1, 2, 3),
        "response_ids": (4, 5),
        "response_logprobs": (-0.5, -1.25),
        "version_spans": (VersionSpan(version=1, start=0, end=2),),
        "answer": {"role": "assistant", "content": "hi"},
        "finish_reason": "stop",
        "latency_s": 0.5,
        "first_token_s": 0.1,
        "client": "test",
    }
    return Exchange(**(fields | changes))


def turn(exchange_id: str, **changes: Any) -> Turn:
    """A main turn."""
    fields: dict[str, Any] = {
        "exchange_id": exchange_id,
        "session_id": "s1",
        "parent_id": None,
        "relation": "first",
        "kind": "main",
        "why_kind": "it has no sign of a side turn",
        "ambiguous": False,
        "version": 1,
        "decided_at": time.time(),
    }
    return Turn(**(fields | changes))


def next_state(exchange_id: str, **changes: Any) -> NextState:
    """A user's reply."""
    fields: dict[str, Any] = {
        "next_state_id": new_id(),
        "exchange_id": exchange_id,
        "role": "user",
        "content": "thanks",
        "source_exchange_id": None,
        "arrived_at": time.time(),
    }
    return NextState(**(fields | changes))


def verdict(exchange_id: str, next_state_id: str, **changes: Any) -> Verdict:
    """One vote for +1."""
    fields: dict[str, Any] = {
        "verdict_id": new_id(),
        "exchange_id": exchange_id,
        "next_state_id": next_state_id,
        "evaluative": (Vote(score=1, hint=None, text="approval"),),
        "reward": 1,
        "directive": (),
        "hint": None,
        "chosen_by": None,
        "judge": "rules/1",
        "prompt_version": "1",
        "latency_s": 0.001,
        "error": None,
        "judged_at": time.time(),
    }
    return Verdict(**(fields | changes))


def sample(exchange_id: str, **changes: Any) -> Sample:
    """A sample with a reward."""
    fields: dict[str, Any] = {
        "sample_id": new_id(),
        "exchange_id": exchange_id,
        "tenant": "owner",
        "track": "personal",
        "token_ids": (1, 2, 3, 4, 5),
        "mask": (0, 0, 0, 1, 1),
        "rollout_logprobs": (-0.5, -1.25),
        "temperature": 0.7,
        "versions": (VersionSpan(version=1, start=0, end=2),),
        "reward": 1.0,
        "hint": None,
        "enhanced_prompt_ids": None,
        "group_id": None,
        "step_index": None,
        "kl_weight": 0.0,
        "loss_weight": 1.0,
        "created_at": time.time(),
    }
    return Sample(**(fields | changes))


def disposition(exchange_id: str, **changes: Any) -> Disposition:
    """A turn that will not train."""
    fields: dict[str, Any] = {
        "exchange_id": exchange_id,
        "sample_id": None,
        "reason": "no next state",
        "detail": "nothing followed within the idle time",
        "decided_at": time.time(),
    }
    return Disposition(**(fields | changes))


def update(sample_ids: tuple[str, ...], **changes: Any) -> Update:
    """An update from version 1 to 2."""
    fields: dict[str, Any] = {
        "update_id": new_id(),
        "model": MODEL,
        "from_version": 1,
        "to_version": 2,
        "sample_ids": sample_ids,
        "metrics": {"loss": 0.5},
        "started_at": time.time(),
        "ended_at": time.time(),
    }
    return Update(**(fields | changes))


def version(number: int, parent: int | None, **changes: Any) -> Version:
    """A version without shards."""
    update_id = changes.pop("update_id", new_id())
    fields: dict[str, Any] = {
        "model": MODEL,
        "number": number,
        "parent": parent,
        "update_id": update_id,
        "source": f"s3://clawrl/weights/{MODEL}/v{number:06d}/{update_id}",
        "shards": (),
        "sample_ids": (),
        "metrics": {"loss": 0.5, "text": "not a number"},
        "fence": 1,
        "optimizer_from": None,
        "created_at": time.time(),
    }
    return Version(**(fields | changes))
