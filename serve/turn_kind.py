"""Whether a turn is part of a conversation (main) or a client's own errand (side), and why.

Side turns are served and recorded, and never trained: nobody answers them. They are known by what clients put into
them: a heartbeat's token, a memory flush's order, a title maker's or a summariser's instructions. `X-Turn-Type` wins.
What it leaves out: a turn that merely looks like an errand. A person who asks for a title for their essay is a person:
patterns that could be a person's words count only together with a second sign.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serve.messages import Message, fold, last_user_text, pieces, text_of

Kind = Literal["main", "side"]

PROBE_LIMIT = 100  # characters; OpenClaw asks for one token too, when its prompt fills the window that it was told
_LOOK = 6_000  # characters of a prompt that are looked at, from each end


@dataclass(frozen=True, slots=True)
class Rule:
    """One sign of a side turn."""

    name: str  # what it is, for people
    where: Literal["system", "user"]
    pattern: re.Pattern[str]
    sure: bool = True  # False: could be a person's words, so a second sign is needed


def _rule(name: str, where: Literal["system", "user"], pattern: str, *, sure: bool = True) -> Rule:
    return Rule(name, where, re.compile(pattern, re.IGNORECASE | re.DOTALL), sure)


RULES: tuple[Rule, ...] = (
    _rule("a heartbeat", "user", r"\A\[OpenClaw heartbeat poll\]"),
    _rule("a wake-up by the client itself", "user", r"\A\[OpenClaw (?:cron wake|session event|exec completion)\]"),
    _rule(
        "a heartbeat", "user",
        r"(?:\A|[.!?:;,\n]\s*|\b(?:else|otherwise|then|just|please|must)\s+)"
        r"(?:reply|respond|answer)\b[^.?\n]{0,60}\bHEARTBEAT_OK\b(?!\?)",
    ),
    _rule("a heartbeat", "user", r"\AFollow the heartbeat monitor scratch context"),
    _rule("a heartbeat", "user", r"\ARead HEARTBEAT\.md if it exists"),
    _rule("a memory flush", "user", r"\APre-compaction memory flush\b"),
    _rule("a memory flush", "user", r"\bStore durable memories\b.{0,400}\bNO_REPLY\b"),
    _rule("a memory flush", "user", r"\bSave important context from this session to the daily memory file\b"),
    _rule("a reset greeting", "user", r"\AA new session was started via /new or /reset\b"),
    _rule("a side question", "system", r"\bephemeral /btw side question\b"),
    _rule("a title maker", "system", r"\byou are (?:a|an|the) [\"“]?(?:\w+ )?titles? (?:generat|mak|writ)\w+"),
    _rule(
        "a title maker",
        "system",
        r"\A.{0,300}\b(?:generate|create|write|produce|come up with|make)s?\b[^.\n]{0,60}"
        r"\b(?:session|chat|conversation|thread)?\s*titles?\b[^.\n]{0,120}"
        r"(?:\b(?:conversation|chat|session|thread|first message)\b|\bmax \d+ char)",
    ),
    _rule("a title maker", "user", r"\bisNewTopic\b"),
    _rule("a title maker", "user", r"\AGenerate a title for this conversation\b"),
    _rule("a title maker", "user", r"\bwrite a \d+-\d+ word title for the following conversation\b"),
    _rule("a title maker", "user", r"\bProvide a concise, 5-word-or-less title for the conversation\b"),
    _rule("a title maker", "user", r"\bgenerate a short 1-2 word filename slug\b"),
    _rule(
        "a title maker", "user",
        r"\b(?:generate|create|write|provide|suggest|give)\b[^.\n]{0,60}\btitle\b[^.\n]{0,80}"
        r"\b(?:conversation|chat|session|thread|dialogue)\b",
        sure=False,
    ),
    # Open WebUI's tasks: titles, tags, follow-up questions, search queries
    _rule("a chat window's own task", "user", r"\A### Task:\s.*(?:<chat_history>|### Output:|### Guidelines:)"),
    _rule("a summariser", "system", r"\b(?:context|conversation) summari[sz](?:ation|er|ing)\b[^.\n]{0,40}assistant"),
    _rule("a summariser", "system", r"\b(?:tasked with|responsible for|job is) summari[sz]ing conversations?\b"),
    _rule("a summariser", "system", r"\byou are (?:a|an|the) conversation (?:summari[sz]er|compactor)\b"),
    _rule("a summariser", "user", r"\bThe messages above are a conversation to summari[sz]e\b"),
    _rule("a summariser", "user", r"\AYour task is to create a detailed summary of the (?:RECENT )?conversation\b"),
    _rule("a summariser", "user", r"\bYou are performing a CONTEXT CHECKPOINT COMPACTION\b"),
    _rule("a summariser", "user", r"\AProvide a detailed (?:prompt|summary) (?:for continuing|of) our conversation\b"),
    _rule(
        "a summariser", "user",
        r"\b(?:summari[sz]e|create a (?:structured |detailed |concise )*summary of)\b[^.\n]{0,60}"
        r"\b(?:conversation|chat history|messages|session)\b",
        sure=False,
    ),
    _rule("a command checker", "user", r"<policy_spec>.{0,4000}command prefix"),
    _rule("a warm-up", "user", r"\AWarmup\Z"),
)  # fmt: skip

_SILENT = re.compile(r"\A\W{0,4}(HEARTBEAT_OK|NO_REPLY)\W{0,4}\Z")
_TRANSCRIPT = re.compile(
    r"<(?:chat_history|conversation|transcript)>|^\s*\W{0,3}(?:user|human)\W{0,3}:.*^\s*\W{0,3}(?:assistant|ai)\W{0,3}:",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class TurnKind:
    """The verdict, with a sentence for people."""

    kind: Kind
    why: str
    silent: bool  # the answer was a token that no person is shown


def turn_kind(
    messages: Sequence[Message], tools: Any, sampling: Mapping[str, Any] | None, answer: Message | None,
    turn_type: Kind | None,
) -> TurnKind:  # fmt: skip
    """Main or side, and why."""
    text = fold(text_of(answer.get("content"))) if answer else ""
    token = _SILENT.match(text)
    silent = token is not None and not (answer or {}).get("tool_calls")
    if turn_type is not None:
        return TurnKind(turn_type, f"the header X-Turn-Type says {turn_type}", silent)
    words = last_user_text(messages)
    system = "\n".join(p.text for m in messages for p in pieces(m) if p.role == "system") if _may(messages) else ""
    if found := _find(words, system, messages, tools, sampling):
        return TurnKind("side", found, silent)
    if silent and token is not None and token.group(1) == "HEARTBEAT_OK" and "heartbeat" in words.lower():
        return TurnKind("side", "a heartbeat: the answer is HEARTBEAT_OK to a prompt about heartbeats", silent)
    if _limit(sampling) == 1 and not tools and len(messages) == 1 and len(words) <= PROBE_LIMIT:
        return TurnKind("side", "a probe: a few words alone, and a single token asked for", silent)
    return TurnKind("main", _why_main(messages), silent)


def _find(
    words: str, system: str, messages: Sequence[Message], tools: Any, sampling: Mapping[str, Any] | None
) -> str | None:
    look = words if len(words) <= 2 * _LOOK else f"{words[:_LOOK]}\n{words[-_LOOK:]}"
    for rule in RULES:
        if not rule.pattern.search(system[:_LOOK] if rule.where == "system" else look):
            continue
        if rule.sure:
            return f"{rule.name}: by its {'system prompt' if rule.where == 'system' else 'prompt'}"
        if sign := _second_sign(words, messages, tools, sampling):
            return f"{rule.name}: by its prompt, and {sign}"
    return None


def _second_sign(words: str, messages: Sequence[Message], tools: Any, sampling: Mapping[str, Any] | None) -> str | None:
    if _TRANSCRIPT.search(words):
        return "a transcript of another conversation stands in it"
    limit = _limit(sampling)
    alone = not any(m.get("role") == "assistant" for m in messages)
    if limit is not None and limit <= 100 and alone and not tools:
        return f"it asked for at most {limit} tokens, alone and without tools"
    return None


def _limit(sampling: Mapping[str, Any] | None) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_new_tokens", "max_output_tokens"):
        value = (sampling or {}).get(name)
        if isinstance(value, int):
            return value
    return None


def _may(messages: Sequence[Message]) -> bool:
    return any(message.get("role") in ("system", "developer") for message in messages)


def _why_main(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        found = pieces(message)
        if not found or found[-1].role == "system":
            continue
        return {
            "user": "it answers the user's words",
            "tool": "it goes on after a tool's result",
            "assistant": "it goes on with its own answer",
        }[found[-1].role]
    return "it answers a request without words"
