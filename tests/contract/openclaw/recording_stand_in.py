"""A stand-in for an OpenAI-compatible server: answers from a list, and keeps every request as it came.

For recording what a client sends, and for testing the tracker against a client without a model.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEFAULT_ANSWERS = (
    "Here is the first answer of the stand-in: it is long enough to be found again, with over twenty tokens in it.",
    "Here is the second answer of the stand-in, which differs from the first one and has just as many words as that.",
    "Here is the third answer of the stand-in; after this one nobody needs to say anything any more, and so it ends.",
)


@dataclass
class Recorded:
    """One request, and the assistant message that it was given."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    answer: dict[str, Any]
    at: float = field(default_factory=time.time)


class RecordingStandIn:
    """Serves on a free loopback port while used as a context manager."""

    def __init__(self, answers: tuple[str | dict[str, Any], ...] = DEFAULT_ANSWERS) -> None:
        self.answers = answers
        self.recorded: list[Recorded] = []
        self._lock = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(200, "application/json", b'{"object":"list","data":[]}')

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                answer = stand_in.record(self.path, dict(self.headers.items()), body)
                if body.get("stream"):
                    self._send(200, "text/event-stream", _stream(body, answer))
                else:
                    self._send(200, "application/json", json.dumps(_whole(body, answer)).encode())

            def _send(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def base_url(self) -> str:
        """With /v1."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def record(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """Keep a request and choose its answer."""
        with self._lock:
            given = self.answers[min(len(self.recorded), len(self.answers) - 1)]
            answer = given if isinstance(given, dict) else {"role": "assistant", "content": given}
            self.recorded.append(Recorded(path, headers, body, answer))
            return answer

    def __enter__(self) -> "RecordingStandIn":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _reason(answer: dict[str, Any]) -> str:
    return "tool_calls" if answer.get("tool_calls") else "stop"


def _usage(body: dict[str, Any]) -> dict[str, int]:
    """About four characters a token: clients compact by it."""
    prompt = len(json.dumps([body.get("messages"), body.get("tools")])) // 4
    return {"prompt_tokens": prompt, "completion_tokens": 30, "total_tokens": prompt + 30}


def _whole(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-stand-in", "object": "chat.completion", "created": int(time.time()), "model": body.get("model"),
        "choices": [{"index": 0, "message": answer, "finish_reason": _reason(answer)}],
        "usage": _usage(body),
    }  # fmt: skip


def _stream(body: dict[str, Any], answer: dict[str, Any]) -> bytes:
    calls = [{"index": index, **call} for index, call in enumerate(answer.get("tool_calls") or ())]
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": word + " "}, None) for word in (answer.get("content") or "").split()]
    deltas += [({"tool_calls": [call]}, None) for call in calls]
    deltas += [({}, _reason(answer))]
    chunks = [
        {"id": "chatcmpl-stand-in", "object": "chat.completion.chunk", "created": int(time.time()),
         "model": body.get("model"), "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in deltas
    ]  # fmt: skip
    chunks.append({**chunks[-1], "choices": [], "usage": _usage(body)})
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
