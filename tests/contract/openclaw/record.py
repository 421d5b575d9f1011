"""Records what the real OpenClaw client sends, as fixtures for the tracker's unit tests.

Run: `python -m tests.contract.openclaw.record` (some minutes; writes tests/unit/serve/fixtures/openclaw_*.json)

Scrubbed: keys, ports, paths, host and system names. Of the client's own instructions only the beginning stands, and
tool descriptions are left out.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.contract.openclaw.client import run_openclaw_turns
from tests.contract.openclaw.recording_stand_in import DEFAULT_ANSWERS, Recorded, RecordingStandIn

FIXTURES = Path(__file__).resolve().parents[2] / "unit" / "serve" / "fixtures"
MODEL = "smollm2-135m-instruct"
TALK = ["Hello, who are you?", "Tell me about tides.", "No, shorter please."]
SENTENCE = "The tide comes in and the tide goes out, and nobody at the harbour asks it why. "
TALE = SENTENCE * 80
STATUS_CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "tool_search", "arguments": '{"query": "status"}'}}
    ],
}
SCENES: dict[str, dict[str, Any]] = {
    "plain": {"messages": TALK, "affinity": False},
    "affinity": {"messages": TALK, "affinity": True},
    "full": {"messages": TALK, "affinity": False, "profile": "full", "short_workspace": False,
             "window": 32_768},
    "tools": {"messages": ["What is your status?", "Thanks, that is enough."], "affinity": False,
              "answers": (STATUS_CALL, *DEFAULT_ANSWERS)},
    "compaction": {"messages": [f"Remember number {n}: {TALE}" for n in range(5)], "affinity": True,
                   "defaults": {"compaction": {"keepRecentTokens": 1_500, "maxActiveTranscriptBytes": 16_000,
                                               "qualityGuard": {"enabled": False}}},
                   "answers": tuple(f"Answer number {n} of the stand-in, in words enough to be found again after a "
                                    f"history was rewritten by its client." for n in range(30))},
}  # fmt: skip
_KEPT_HEADERS = ("session_id", "user-agent", "x-client-request-id", "x-session-affinity", "x-stainless-retry-count")
_PROMPT_LIMIT = 250  # characters


def record(name: str, scene: dict[str, Any]) -> Path:
    """Play one scene and write its fixture."""
    scene = dict(scene)
    with (
        RecordingStandIn(scene.pop("answers", DEFAULT_ANSWERS)) as server,
        tempfile.TemporaryDirectory(
            ignore_cleanup_errors=True  # the client may still write its caches
        ) as home,
    ):
        run_openclaw_turns(server.base_url, "sk-stand-in", MODEL, "s1", scene.pop("messages"), home=Path(home), **scene)
        return write(name, server.recorded, home)


def write(name: str, recorded: list[Recorded], home: str) -> Path:
    """The fixture of what was recorded."""
    start = recorded[0].at
    rows = [
        {
            "after_s": round(r.at - start, 1),
            "headers": {k: v for k, v in r.headers.items() if k.lower() in _KEPT_HEADERS},
            "body": _cut(r.body),
            "answer": r.answer,
        }
        for r in recorded
    ]
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    path = FIXTURES / f"openclaw_{name}.json"
    path.write_text(_scrub(text, home) + "\n")
    return path


def _cut(body: dict[str, Any]) -> dict[str, Any]:
    cut = json.loads(json.dumps(body))
    for message in cut.get("messages", []):
        if message["role"] == "system" and isinstance(message["content"], str):
            message["content"] = message["content"][:_PROMPT_LIMIT]
    for tool in cut.get("tools") or []:
        tool["function"] = {"name": tool["function"]["name"], "parameters": {"type": "object"}}
    return cut


def _scrub(text: str, home: str) -> str:
    text = text.replace(home, "/home/claw")
    text = re.sub(f"(?:{re.escape(SENTENCE)}){{2,}}", SENTENCE, text)
    text = re.sub(r"/[^ \"\\\\]*/\.node/[^ \"\\\\]+", "/home/claw/openclaw", text)
    text = re.sub(r"/tmp/[^ |\"\\\\]+", "/home/claw/workspace", text)
    text = re.sub(r"host=[^ |\\]+", "host=laptop", text)
    text = re.sub(r"os=[^|\\\"]+ \|", "os=Linux |", text)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", text)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SCENES:
        print(record(chosen, SCENES[chosen]))
