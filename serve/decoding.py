"""Token ids to text as they come: never half a character, never the same work twice.

What it does: `Detokenizer` knows one tokenizer; `StreamDecoder.push(ids)` gives the text that is certain by now, and
`finish()` the rest. All deltas together are exactly `Detokenizer.decode(all ids)`. Special tokens give no text, except
those that the parser needs (`<tool_call>`, `<think>`), which some tokenizers call special.
What it leaves out: stop strings and tool calls (`serve/parsing.py`).
"""

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

KEPT = frozenset(
    ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
)
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def _byte_of_char() -> dict[str, int]:
    """GPT-2's table: which byte each printable stand-in character means."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return table | {chr(256 + n): byte for n, byte in enumerate(others)}


class Detokenizer:
    """One model's tokenizer, for decoding. Thread-safe; its decoders are not."""

    def __init__(self, tokenizer_json: Path) -> None:
        text = tokenizer_json.read_text(encoding="utf-8")
        described: dict[str, Any] = json.loads(text)
        self._tokenizer = Tokenizer.from_str(text)
        added = described.get("added_tokens") or []
        self._skipped = frozenset(token["id"] for token in added if token["special"] and token["content"] not in KEPT)
        self._byte_level = (described.get("decoder") or {}).get("type") == "ByteLevel"
        self._bytes_by_char = _byte_of_char()
        self._bytes_by_id: dict[int, bytes] = {}
        self._byte_ids = frozenset(
            id
            for token, id in self._tokenizer.get_vocab(with_added_tokens=False).items()
            if BYTE_TOKEN.fullmatch(token)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of all the ids at once."""
        return self._tokenizer.decode([id for id in ids if id not in self._skipped], skip_special_tokens=False)

    def decode_all(self, ids: Sequence[int]) -> str:
        """The same with special tokens by name, for people."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def stream(self) -> "StreamDecoder":
        """A fresh incremental decoder."""
        return _ByteStream(self) if self._byte_level else _WindowStream(self)

    def bytes_of(self, id: int) -> bytes:
        """A byte-level token's own bytes; none for skipped and unknown ids."""
        known = self._bytes_by_id.get(id)
        if known is None:
            token = None if id in self._skipped else self._tokenizer.id_to_token(id)
            known = self._bytes_by_id[id] = self._to_bytes(token or "")
        return known

    def _to_bytes(self, token: str) -> bytes:
        try:
            return bytes(self._bytes_by_char[char] for char in token)
        except KeyError:  # an added token with other characters stands for itself
            return token.encode()

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def id_of(self, token: str) -> int | None:
        """The id of a token given by its name."""
        return self._tokenizer.token_to_id(token) if token else None

    def token_text(self, id: int) -> str:
        """One token for people; half characters as U+FFFD, special tokens by name."""
        if self.is_skipped(id):
            return self._tokenizer.id_to_token(id) or ""
        return self.bytes_of(id).decode(errors="replace") if self._byte_level else self.decode([id])

    def is_skipped(self, id: int) -> bool:
        """Whether it is a special token that gives no text."""
        return id in self._skipped

    def is_unknown(self, id: int) -> bool:
        """Whether no token has this id; an engine whose output layer is padded can sample one. It gives no text."""
        return self._tokenizer.id_to_token(id) is None

    def is_byte(self, id: int) -> bool:
        """Whether it is one byte of a character (byte fallback)."""
        return id in self._byte_ids


class StreamDecoder:
    """Ids in, text out. Make it with `Detokenizer.stream()`."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids made certain."""
        raise NotImplementedError

    def finish(self) -> str:
        """What is left; half characters become U+FFFD. Nothing may be pushed after it."""
        raise NotImplementedError


class _ByteStream(StreamDecoder):
    """Byte-level BPE: each token is some bytes of UTF-8."""

    def __init__(self, tokens: Detokenizer) -> None:
        self._tokens = tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._utf8.decode(b"".join(map(self._tokens.bytes_of, ids)))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowStream(StreamDecoder):
    """Any other decoder: decodes a new token together with the one before it, and holds a run of byte tokens."""

    def __init__(self, tokens: Detokenizer) -> None:
        self._tokens = tokens
        self._window: list[int] = []  # the last token given out, then those held
        self._given = ""  # the text of the window's first token alone

    def push(self, ids: Iterable[int]) -> str:
        deltas = []
        for id in ids:
            if self._tokens.is_skipped(id) or self._tokens.is_unknown(id):
                continue
            self._window.append(id)
            if not self._tokens.is_byte(id):
                deltas.append(self._give())
        return "".join(deltas)

    def finish(self) -> str:
        return self._give() if self._window else ""

    def _give(self) -> str:
        delta = self._tokens.decode(self._window)[len(self._given) :]
        self._window = self._window[-1:]
        self._given = self._tokens.decode(self._window)
        return delta
