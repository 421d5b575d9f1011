"""Answers of the chat API: whole, or as the bytes of server-sent events that are not serialised twice."""

from dataclasses import dataclass, field
from typing import Any

import orjson


def usage(prompt: int, answer: int) -> dict[str, int]:
    """Token counts."""
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def completion(
    *,
    id: str,
    created: int,
    model: str,
    message: dict[str, Any],
    finish_reason: str,
    counts: dict[str, int],
    logprobs: list[dict[str, Any]] | None,
) -> bytes:
    """A whole answer."""
    choice = {
        "index": 0,
        "message": {**message, "refusal": None},
        "logprobs": None if logprobs is None else {"content": logprobs, "refusal": None},
        "finish_reason": finish_reason,
    }
    return orjson.dumps(
        {
            "id": id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": counts,
        }
    )


@dataclass(slots=True)
class ChunkWriter:
    """The server-sent events of one streamed answer, as bytes. With usage asked for, every chunk says `usage: null`."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    _head: bytes = field(init=False)
    _tail: bytes = field(init=False)

    def __post_init__(self) -> None:
        fields = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        self._head = b"data: " + orjson.dumps(fields)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self.include_usage else b"]}\n\n"

    def role(self) -> bytes:
        """The first chunk."""
        return b"".join((self._head, b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,',
                         b'"finish_reason":null}', self._tail))  # fmt: skip

    def delta(self, delta: dict[str, Any], logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """A piece of content, reasoning or a tool call."""
        shown = b"null" if logprobs is None else orjson.dumps({"content": logprobs, "refusal": None})
        return b"".join((self._head, b'{"index":0,"delta":', orjson.dumps(delta), b',"logprobs":', shown,
                         b',"finish_reason":null}', self._tail))  # fmt: skip

    def last(self, finish_reason: str, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """The chunk that says why the answer ended."""
        shown = b"null" if logprobs is None else orjson.dumps({"content": logprobs, "refusal": None})
        return b"".join((self._head, b'{"index":0,"delta":{},"logprobs":', shown, b',"finish_reason":"',
                         finish_reason.encode(), b'"}', self._tail))  # fmt: skip

    def usage(self, counts: dict[str, int]) -> bytes:
        """The chunk with the token counts and no choice."""
        return b"".join((self._head, b'],"usage":', orjson.dumps(counts), b"}\n\n"))


DONE = b"data: [DONE]\n\n"
