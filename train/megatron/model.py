"""A Megatron-Core GPT model from a Hugging Face config, that returns log-probs of chosen tokens only.

What it does: maps Llama, Qwen2 and Qwen3 configs, refuses by name whatever it does not map, and runs the output layer
on the chosen positions alone, so that no [B, S, V] logits exist.
What it leaves out: other families, biases but Qwen2's, rotary scaling but Llama 3's and the linear one, experts.

Axes: B = sequences, S = longest sequence, N = chosen positions, V = vocabulary.
"""

import copy
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from train.batch import TokenBatch
from train.megatron.attention import CausalAttention

_FAMILIES = ("llama", "qwen2", "qwen3")
_ROPES = ("default", "linear", "llama3")


class ScoringModel(GPTModel):
    """Megatron's GPT, whose forward gives the log-probs of a batch's target tokens (or all logits there)."""

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states  # the output layer runs in forward(), on chosen positions

    def forward(self, batch: TokenBatch, logits: bool = False) -> Tensor:
        """[N] log-probs of batch.target_N at each request's temperature; with `logits` [N, V] at temperature 1."""
        position_ids = torch.arange(batch.token_ids_BS.shape[1]).expand_as(batch.token_ids_BS)
        hidden_SBH = super().forward(batch.token_ids_BS, position_ids, attention_mask=None)
        chosen_N1H = hidden_SBH[batch.column_N, batch.row_N][:, None]
        if not logits:  # there is no bias, so scaling what goes in scales the logits
            chosen_N1H = chosen_N1H / batch.temperature_N[:, None, None]
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits_N1V, _ = self.output_layer(chosen_N1H, weight=weight)
        if logits:
            return logits_N1V[:, 0]
        return -tensor_parallel.vocab_parallel_cross_entropy(logits_N1V.float(), batch.target_N[:, None])[:, 0]


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder, checked: everything in it that changes the maths is mapped, or refused."""
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"{folder} has no config.json: it must be a folder that transformers loads")
    config = orjson.loads(path.read_bytes())
    kind = rope_of(config).get("rope_type", "default")
    refused = {
        f"model_type {config.get('model_type')!r} (mapped: {', '.join(_FAMILIES)})": config.get("model_type")
        not in _FAMILIES,
        f"rope type {kind!r} (mapped: {', '.join(_ROPES)})": kind not in _ROPES,
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
        "a sliding window": bool(config.get("use_sliding_window")),
        "partial rotary embeddings": config.get("partial_rotary_factor", 1.0) not in (None, 1.0),
        "quantised weights": config.get("quantization_config") is not None,
    }
    faults = [name for name, found in refused.items() if found]
    if faults:
        raise ValueError(f"{path}: not mapped to Megatron: {'; '.join(faults)}. Train another model, or add the map.")
    return config


def rope_of(config: dict[str, Any]) -> dict[str, Any]:
    """What a config says of its rotary embeddings, in transformers' newer or older place; its base is among it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return {"rope_theta": config.get("rope_theta") or 10000.0, **rope, "rope_type": kind}


def head_width(config: dict[str, Any]) -> int:
    """Width of one attention head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def transformer_config(config: dict[str, Any], dtype: torch.dtype) -> TransformerConfig:
    """Megatron's config of a Hugging Face one."""
    return TransformerConfig(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config.get("num_key_value_heads") or config["num_attention_heads"],
        kv_channels=head_width(config),
        normalization="RMSNorm",
        layernorm_epsilon=config["rms_norm_eps"],
        qk_layernorm=config["model_type"] == "qwen3",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=config["model_type"] == "qwen2",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        pipeline_dtype=dtype,
        attention_softmax_in_fp32=True,
        use_cpu_initialization=True,
        perform_initialization=True,  # without it tensor-parallel grad norms are silently wrong
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
        calculate_per_token_loss=True,  # the loss is a sum: gradients are divided once, by the batch's sample count
    )


def build(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> ScoringModel:
    """The model with random weights. The parallel state must be up."""
    mcore = transformer_config(config, dtype)
    spec = copy.deepcopy(get_gpt_layer_local_spec(qk_layernorm=mcore.qk_layernorm, normalization="RMSNorm"))
    spec.submodules.self_attention.submodules.core_attention = CausalAttention
    rope = rope_of(config)
    model = ScoringModel(
        mcore,
        spec,
        vocab_size=config["vocab_size"],
        max_sequence_length=config["max_position_embeddings"],
        position_embedding_type="rope",
        rotary_base=rope["rope_theta"],
        seq_len_interpolation_factor=rope["factor"] if rope["rope_type"] == "linear" else None,
        share_embeddings_and_output_weights=bool(config.get("tie_word_embeddings")),
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    if rope["rope_type"] == "llama3":  # Megatron's own switch fixes all but the factor to Llama 3.1's numbers
        rotary = model.rotary_pos_emb
        rotary.inv_freq = rotary._apply_scaling(
            rotary.inv_freq,
            factor=rope["factor"],
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
            original_max_position_embeddings=rope["original_max_position_embeddings"],
        )
    return model.to(dtype)
