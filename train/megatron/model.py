"""A Megatron-Core GPT model from a Hugging Face config, that returns log-probs of chosen tokens only.

What it does: maps Llama, Qwen2 and Qwen3 configs, refuses by name whatever it does not map, and runs the output layer
on the chosen positions alone, so that no [B, S, V] logits exist.
What it leaves out: other families, biases but Qwen2's, rotary scaling but Llama 3's and the linear one, experts.

Axes: B = sequences, S = longest sequence, N = chosen positions, V = vocabulary.
"""

import copy
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from train.batch import TokenBatch, TokenScores, Wanted
from train.megatron import vocabulary
from train.megatron.attention import CausalAttention
from train.megatron.layout import head_width, kv_heads, rope_of
from train.megatron.lora import spec_with_lora
from train.settings import LoraSettings

DEVICE = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class ScoringModel(GPTModel):
    """Megatron's GPT, whose last stage gives the log-probs of a batch's target tokens (or all logits there)."""

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states  # the output layer runs in forward(), on chosen positions

    def forward(self, batch: TokenBatch, logits: bool = False) -> TokenScores | Tensor:
        """Scores of batch.target_N, and what else is wanted, at each request's temperature; with `logits` [N, V] at
        temperature 1 (this rank's part of V). A stage that is not the last gives [S, B, H] for the next one."""
        position_ids = torch.arange(batch.token_ids_BS.shape[1], device=batch.token_ids_BS.device)
        hidden_SBH = super().forward(batch.token_ids_BS, position_ids.expand_as(batch.token_ids_BS), None)
        if not self.post_process:
            return hidden_SBH
        chosen_N1H = hidden_SBH[batch.column_N, batch.row_N][:, None]
        scale_N11 = batch.temperature_N[:, None, None]
        exact = chosen_N1H.dtype == torch.float32
        if exact and not logits:  # there is no bias, so scaling what goes in scales the logits, without a copy of them
            chosen_N1H = chosen_N1H / scale_N11
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits_N1V, _ = self.output_layer(chosen_N1H, weight=weight)
        if logits:
            return logits_N1V[:, 0]
        logits_N1V = logits_N1V if exact else logits_N1V.float() / scale_N11
        if batch.wanted == Wanted():
            loss_N1 = tensor_parallel.vocab_parallel_cross_entropy(logits_N1V, batch.target_N[:, None])
            return TokenScores(logp=-loss_N1[:, 0])
        return _more(logits_N1V[:, 0], batch)


def _more(logits_NV: Tensor, batch: TokenBatch) -> TokenScores:
    """Log-probs and what else is wanted, from this rank's part of the logits."""
    wanted, normaliser_N = batch.wanted, vocabulary.log_normaliser(logits_NV)
    top_ids_NK, top_NK = vocabulary.top(logits_NV, normaliser_N, wanted.top) if wanted.top else (None, None)
    if batch.of_NK is not None:
        top_NK = vocabulary.log_probs(logits_NV, normaliser_N, batch.of_NK)
    return TokenScores(
        logp=vocabulary.log_probs(logits_NV, normaliser_N, batch.target_N[:, None])[:, 0],
        entropy=vocabulary.entropy(logits_NV, normaliser_N) if wanted.entropy else None,
        top=top_NK,
        top_ids=top_ids_NK,
    )


def transformer_config(config: dict[str, Any], dtype: torch.dtype) -> TransformerConfig:
    """Megatron's config of a Hugging Face one."""
    return TransformerConfig(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=kv_heads(config),
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
        variable_seq_lengths=parallel_state.get_pipeline_model_parallel_world_size() > 1,  # micro-batches differ
        moe_token_dispatcher_type="alltoall",  # no experts here, but the other one is refused with variable lengths
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


def layer_spec(mcore: TransformerConfig, lora: LoraSettings | None = None) -> ModuleSpec:
    """TransformerEngine's layers on GPUs that have it, else Megatron's own with torch's scaled-dot-product one."""
    if torch.cuda.is_available() and find_spec("transformer_engine") and lora is None:
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=mcore.qk_layernorm)
    spec = copy.deepcopy(get_gpt_layer_local_spec(qk_layernorm=mcore.qk_layernorm, normalization="RMSNorm"))
    spec.submodules.self_attention.submodules.core_attention = CausalAttention
    return spec if lora is None else spec_with_lora(spec, lora)


def build(config: dict[str, Any], dtype: torch.dtype = torch.float32, lora: LoraSettings | None = None) -> ScoringModel:
    """The model with random weights, adapters among them if asked for. The parallel state must be up."""
    mcore = transformer_config(config, dtype)
    spec = layer_spec(mcore, lora)
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
    return model.to(device=DEVICE, dtype=dtype)
