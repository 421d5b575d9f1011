"""Core attention by torch's scaled_dot_product_attention: no S×S map is kept, forwards or backwards.

What it leaves out: masks other than causal (rows are padded on the right, so causal is enough), packing, dropout,
context parallelism; each is refused.

Axes: S = tokens, B = sequences, H = query heads of this rank, G = key/value heads of this rank, D = head width.
"""

import math
from typing import Any

from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class CausalAttention(MegatronModule):
    """Takes the place of Megatron's DotProductAttention in a layer spec."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        **_: Any,  # attention_dropout, cp_comm_type, pg_collection: of no effect here
    ) -> None:
        super().__init__(config=config)
        assert config.context_parallel_size == 1, "context parallelism needs another core attention"
        assert config.attention_dropout == 0.0 and attn_mask_type == AttnMaskType.causal, (attn_mask_type, layer_number)
        self.scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query_SBHD: Tensor,
        key_SBGD: Tensor,
        value_SBGD: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """[S, B, H·D]."""
        assert attention_mask is None and attention_bias is None and packed_seq_params is None
        groups = query_SBHD.size(2) // key_SBGD.size(2)
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query_SBHD, key_SBGD, value_SBGD))
        if groups > 1:  # repeated here: with enable_gqa the CPU falls back to the path that keeps the S×S map
            key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        out_BHSD = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        return out_BHSD.permute(2, 0, 1, 3).reshape(query_SBHD.size(0), query_SBHD.size(1), -1)
