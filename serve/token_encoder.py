"""Rendered chat text to token ids, such that special tokens come from the template only.

What it does: text that a client wrote and that spells a special token (`<|im_start|>`) is encoded as plain text. For
this, `guard` puts placeholders into what goes to the template, and `encode` takes them out again after it has found
the template's own special tokens. For harmless text the ids are those of `Tokenizer.encode(add_special_tokens=False)`.
Where the boundaries at special tokens are safe (they are for byte-level BPE), the pieces between them are cached.
What it leaves out: added tokens that are not special (`<tool_call>`, `<think>` in Qwen): they are encoded as such
wherever they stand, as transformers does; they can't open a turn.
"""

import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from tokenizers import AddedToken, Tokenizer

# What templates look for by name; guarded, they would not be found where a special token ends like one of them.
WORDS = frozenset((
    "role", "content", "name", "type", "id", "function", "parameters", "arguments", "description",
    "properties", "required", "tool_calls", "tool_call_id", "reasoning_content", "system", "user",
    "assistant", "tool", "string", "number", "integer", "boolean", "object", "array", "null", "enum", "items",
))  # fmt: skip
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may carry half a pair, UTF-8 can't
CACHE_CHARS = 8_000_000  # characters of text whose ids are kept


class PieceCache:
    """Least recently used pieces of text and their ids, bounded in characters. Thread-safe."""

    def __init__(self, limit_chars: int) -> None:
        self._limit, self._chars, self._lock = limit_chars, 0, Lock()
        self._kept: OrderedDict[str, list[int]] = OrderedDict()

    @property
    def size_chars(self) -> int:
        """Characters kept, and 64 for each piece."""
        return self._chars

    def get(self, text: str) -> list[int] | None:
        with self._lock:
            ids = self._kept.get(text)
            if ids is not None:
                self._kept.move_to_end(text)
            return ids

    def put(self, text: str, ids: list[int]) -> None:
        with self._lock:
            if text in self._kept or len(text) > self._limit // 4:
                return
            self._kept[text] = ids
            self._chars += len(text) + 64
            while self._chars > self._limit:
                old, _ = self._kept.popitem(last=False)
                self._chars -= len(old) + 64


class TokenEncoder:
    """Encodes one model's prompts."""

    def __init__(self, tokenizer_json: Path) -> None:
        text = tokenizer_json.read_text(encoding="utf-8")
        described = json.loads(text)
        self._tokenizer = _plain(text)
        added = described.get("added_tokens") or []
        self._special = {token["content"]: token["id"] for token in added if token["special"] and token["content"]}
        by_length = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, by_length))})" if by_length else r"(?!)()")
        self._longest = max(map(len, by_length), default=0)
        self._heads = {special[:n] for special in by_length for n in range(1, len(special) + 1)}
        self._tails = {special[n:] for special in by_length for n in range(len(special))}
        self._cache = PieceCache(CACHE_CHARS)
        self._nonce = f"zq{secrets.token_hex(8)}"
        self._placeholder = re.compile(rf"{self._nonce}n(\d+)z")
        self.segmented = _boundaries_are_safe(described, added)
        self._alias: dict[str, str] = {}
        self._alias_ids: dict[int, int] = {}
        if not self.segmented:
            self._add_aliases(added)

    def guard(self, value: Any, taken: list[str]) -> Any:
        """`value` with what spells (a part of) a special token as placeholders; what was there goes to `taken`."""
        if isinstance(value, str):
            return value if value in WORDS else self._guard_text(value, taken)
        if isinstance(value, dict):
            return {self.guard(key, taken): self.guard(item, taken) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard(item, taken) for item in value]
        return value

    def _guard_text(self, text: str, taken: list[str]) -> str:
        """Whole special tokens anywhere; the end of one at the start, and the beginning of one at the end."""
        start = _longest_in(self._tails, self._longest, lambda n: text[:n] if n <= len(text) else "")
        rest = text[start:]
        end = _longest_in(self._heads, self._longest, lambda n: rest[-n:] if n <= len(rest) else "")
        middle = rest[: len(rest) - end]
        middle = self._split.sub(lambda found: self._take(found.group(), taken), middle)
        return self._take(text[:start], taken) + middle + self._take(rest[len(rest) - end :], taken)

    def _take(self, text: str, taken: list[str]) -> str:
        if not text:
            return ""
        taken.append(text)
        return f"{self._nonce}n{len(taken) - 1}z"

    def restore(self, text: str, taken: list[str]) -> str:
        """The text with placeholders replaced by what they stand for."""
        if not taken or self._nonce not in text:
            return text
        return self._placeholder.sub(lambda found: taken[int(found.group(1))], text)

    def encode(self, rendered: str, taken: list[str]) -> list[int]:
        """Ids of a rendered prompt."""
        if not self.segmented:
            return self._encode_aliased(rendered, taken)
        ids: list[int] = []
        for n, piece in enumerate(self._split.split(rendered)):
            if n % 2:
                ids.append(self._special[piece])
            elif piece:
                ids += self._encode_piece(self.restore(piece, taken))
        return ids

    def _encode_piece(self, text: str) -> list[int]:
        ids = self._cache.get(text)
        if ids is None:
            ids = self._ids(text)
            self._cache.put(text, ids)
        return ids

    def _add_aliases(self, added: list[dict[str, Any]]) -> None:
        """Each special token gets a second name that no client can know, with the same rules at its edges."""
        for n, token in enumerate(entry for entry in added if entry["special"] and entry["content"]):
            alias = f"<{self._nonce}s{n}>"
            flags = {name: token[name] for name in ("single_word", "lstrip", "rstrip")}
            self._tokenizer.add_tokens([AddedToken(alias, normalized=False, special=False, **flags)])
            self._alias[token["content"]] = alias
            self._alias_ids[self._tokenizer.token_to_id(alias)] = token["id"]

    def _encode_aliased(self, rendered: str, taken: list[str]) -> list[int]:
        named = self._split.sub(lambda found: self._alias[found.group()], rendered)
        return [self._alias_ids.get(token, token) for token in self._ids(self.restore(named, taken))]

    def _ids(self, text: str) -> list[int]:
        """The batch form has a variant that keeps no offsets: a quarter faster."""
        if not text.isascii():
            text = SURROGATE.sub("\ufffd", text)
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _plain(text: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # special tokens' text is plain text
    return tokenizer


def _longest_in(parts: set[str], longest: int, cut: Callable[[int], str]) -> int:
    return next((n for n in range(longest, 0, -1) if cut(n) in parts), 0)


def _boundaries_are_safe(described: dict[str, Any], added: list[dict[str, Any]]) -> bool:
    """Whether the text between two special tokens is encoded the same alone as in its place."""
    edges = any(token["special"] and (token["lstrip"] or token["rstrip"] or token["single_word"]) for token in added)
    normalized = described.get("normalizer") is not None and any(t["special"] and t["normalized"] for t in added)
    first_only = '"prepend_scheme": "first"' in json.dumps(described.get("pre_tokenizer"))
    return not edges and not normalized and not first_only
