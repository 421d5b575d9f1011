"""Streamed text is the text: all deltas together are what decoding all the ids at once gives."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from serve.decoding import Detokenizer
from tests.unit.serve.rendering_models import SMOLLM2, byte_level_model, metaspace_model, stripping_model

SCRIPTS = [
    "Plain English, with numbers 12,345.67 and\n\n\ttabs.",
    "Größe, naïve, Ελληνικά, Кириллица, עברית, العربية",
    "東京の天気は晴れです。한국어 텍스트. ภาษาไทย हिन्दी தமிழ்",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇳🇴 e\u0301 a\u030a 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
    "def f():\r\n    return '\\u00e9'  # é\x00\x1f\x7f\u2028",
]


def prefixed_model(folder: Path) -> Path:
    """As Llama 2's older files: the space mark before every piece, a decoder that takes the first one off."""
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "�": 5} | {f"<0x{n:02X}>": 6 + n for n in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Detokenizer, Tokenizer]]:
    makers = (byte_level_model, metaspace_model, stripping_model, prefixed_model)
    folders = [SMOLLM2, *(make(tmp_path_factory.mktemp("m")) for make in makers)]
    files = [folder / "tokenizer.json" for folder in folders]
    return [(Detokenizer(file), Tokenizer.from_file(str(file))) for file in files]


def streamed(tokens: Detokenizer, ids: list[int], cuts: random.Random) -> str:
    stream, deltas, at = tokens.stream(), [], 0
    while at < len(ids):
        step = cuts.randint(1, 4)
        deltas.append(stream.push(ids[at : at + step]))
        at += step
    deltas.append(stream.finish())
    return "".join(deltas)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), cuts=st.randoms(use_true_random=False))
def test_any_ids(tokenizers: list[tuple[Detokenizer, Tokenizer]], data: Any, cuts: random.Random) -> None:
    tokens, tokenizer = data.draw(st.sampled_from(tokenizers))
    size = tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 20) | st.integers(0, min(size, 300)), max_size=40))
    assert streamed(tokens, ids, cuts) == tokens.decode(ids)


def test_an_unknown_id_is_not_the_first_token(tokenizers: list[tuple[Detokenizer, Tokenizer]]) -> None:
    for tokens, tokenizer in tokenizers:
        size = tokenizer.get_vocab_size()
        for ids in ([0, size, 1], [size, 1], [1, size + 7, size, 4, 1]):
            assert streamed(tokens, ids, random.Random(4)) == tokens.decode(ids)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), cuts=st.randoms(use_true_random=False))
def test_any_text(tokenizers: list[tuple[Detokenizer, Tokenizer]], data: Any, cuts: random.Random) -> None:
    tokens, tokenizer = data.draw(st.sampled_from(tokenizers))
    text = data.draw(st.sampled_from(SCRIPTS) | st.text(max_size=60))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert streamed(tokens, ids, cuts) == tokens.decode(ids)


def test_text_comes_back_whole(tokenizers: list[tuple[Detokenizer, Tokenizer]]) -> None:
    for tokens, tokenizer in (tokenizers[0], tokenizers[3]):  # byte level without a normaliser
        for text in SCRIPTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert streamed(tokens, ids, random.Random(1)) == text


def test_as_the_tokenizer_itself_decodes(tokenizers: list[tuple[Detokenizer, Tokenizer]]) -> None:
    chance = random.Random(2)
    for tokens, tokenizer in tokenizers:
        for _ in range(200):
            ids = [chance.randrange(tokenizer.get_vocab_size()) for _ in range(20)]
            assert tokens.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_half_characters_wait() -> None:
    tokens = Detokenizer(SMOLLM2 / "tokenizer.json")
    ids = Tokenizer.from_file(str(SMOLLM2 / "tokenizer.json")).encode("東👍").ids
    stream = tokens.stream()
    deltas = [stream.push([id]) for id in ids]
    assert "�" not in "".join(deltas) and "".join(deltas) == "東👍" and "" in deltas
    stream = tokens.stream()
    assert stream.push(ids[:1]) == "" and stream.finish() == "�"


def test_specials_are_skipped_but_calls_are_kept(tmp_path: Path) -> None:
    file = byte_level_model(tmp_path) / "tokenizer.json"
    described = json.loads(file.read_text())
    for token in described["added_tokens"]:
        token["special"] = True  # some models mark them all so
    file.write_text(json.dumps(described))
    tokenizer = Tokenizer.from_file(str(file))
    ids = tokenizer.encode("<think>a</think><tool_call>b</tool_call><|im_end|><|fim▁begin|>").ids
    tokens = Detokenizer(file)
    assert tokens.decode(ids) == "<think>a</think><tool_call>b</tool_call>"
    assert streamed(tokens, ids, random.Random(3)) == "<think>a</think><tool_call>b</tool_call>"
    assert tokens.token_text(tokenizer.token_to_id("<|im_end|>")) == "<|im_end|>"
    assert tokens.token_text(tokenizer.token_to_id("a")) == "a"


def test_the_thousandth_token_costs_what_the_first_did(tokenizers: list[tuple[Detokenizer, Tokenizer]]) -> None:
    for tokens, tokenizer in (tokenizers[0], tokenizers[2]):
        ids = tokenizer.encode("The weather in Oslo is cold. " * 1500).ids[:8000]
        stream = tokens.stream()
        stream.push(ids[:500])
        start_s = time.process_time()
        for id in ids:
            stream.push([id])
        assert (time.process_time() - start_s) / len(ids) < 200e-6
