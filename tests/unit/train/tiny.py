"""A tiny random model in a Hugging Face folder, and samples for it."""

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from storage.records import Sample, VersionSpan, new_id
from train.batch import plain_sequence
from train.megatron.engine import Engine

VOCAB = 320


def make_model(folder: Path, family: str = "llama", tied: bool = True, seed: int = 0, **more: object) -> Path:
    """2 layers, hidden 64, 4 heads, 2 key/value heads, a byte-level tokenizer."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config  # slow, and not all need it

    kind = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[family]
    config = kind(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=tied,
        initializer_range=0.1, bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):  # zero as they come: one that is not mapped would not show
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def make_sample(seed: int, engine: Engine | None = None, **changes: object) -> Sample:
    """A sample with random ids; μ is what the engine scores, or -ln V where there is none."""
    draw = random.Random(seed)
    prompt = tuple(draw.randrange(VOCAB) for _ in range(draw.randint(3, 9)))
    response = tuple(draw.randrange(VOCAB) for _ in range(draw.randint(2, 12)))
    hinted = seed % 2 == 0
    fields: dict = {
        "sample_id": f"s{seed:04d}-{new_id()}",
        "exchange_id": f"e{seed}",
        "tenant": "owner",
        "track": "personal",
        "token_ids": prompt + response,
        "mask": (0,) * len(prompt) + (1,) * len(response),
        "rollout_logprobs": (-5.768,) * len(response),
        "temperature": (0.0, 0.7, 1.0)[seed % 3],
        "versions": (VersionSpan(version=0, start=0, end=len(response)),),
        "reward": (1.0, -1.0)[seed // 2 % 2],
        "hint": "say it shorter" if hinted else None,
        "enhanced_prompt_ids": (7, 8, 9, *prompt) if hinted else None,
        "group_id": None,
        "step_index": None,
        "kl_weight": 0.05,
        "loss_weight": 1.0,
        "created_at": 0.0,
        **changes,
    }
    sample = Sample(**fields)
    if engine is None:
        return sample
    [logp] = engine.score([plain_sequence(sample)], 512)
    return Sample(**{**fields, "rollout_logprobs": tuple(logp.tolist())})
