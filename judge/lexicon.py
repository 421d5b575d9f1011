"""The words that the `rules` judge knows, read from `data/phrases.toml` once.

What it does: compiles each list of phrases into one expression and finds which phrase of a list stands in a text.
What it leaves out: what a find means (`replies.py`).
"""

import re
import tomllib
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_DATA = Path(__file__).parent / "data" / "phrases.toml"
_NO_SPACES = re.compile(r"[぀-ヿ㐀-鿿豈-﫿가-힯]")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "´": "'", "“": '"', "”": '"', "…": ".", "\u00a0": " ", "\u202f": " "})


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Compiled lists of phrases, and their version."""

    version: str
    lists: dict[str, re.Pattern[str]]

    def find(self, name: str, text: str) -> re.Match[str] | None:
        """The first phrase of the list in the text, which must be `folded`."""
        return self.lists[name].search(text)


def folded(text: str) -> str:
    """NFKC, straight quotes, lower case, runs of spaces as one."""
    text = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    return re.sub(r"[ \t]+", " ", text).strip().lower()


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The lexicon that ships."""
    data = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    version = data.pop("version")
    return Lexicon(version, {name: _compiled(phrases) for name, phrases in data.items()})


def _compiled(phrases: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(_bounded(phrase) for phrase in dict.fromkeys(phrases)), re.IGNORECASE | re.MULTILINE)


def _bounded(phrase: str) -> str:
    """Word boundaries around it, where its script has spaces and it is not left open."""
    body = phrase.strip("~")
    if _NO_SPACES.search(body):
        return f"(?:{body})"
    left = "" if phrase.startswith(("~", "^", "[", "(?<")) or (not body[0].isalnum() and body[0] != "(") else r"(?<!\w)"
    right = "" if phrase.endswith(("~", "$", "]")) else r"(?!\w)"
    return f"{left}(?:{body}){right}"
