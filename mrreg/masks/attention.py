"""Multi-head attention whose number of heads is that of its weights, not of the embedding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiheadAttention(nn.MultiheadAttention):
    """The class of attention modules in thin models: torch's own, unless heads or units of its inputs are left out."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Attend with what is there."""
        widths = [self.out_proj.weight.shape[1], *(each.shape[-1] for each in (query, key, value))]
        if widths != [self.embed_dim, self.embed_dim, self.kdim, self.vdim]:
            return attend(self, query, key, value, *args, **kwargs)
        return super().forward(query, key, value, *args, **kwargs)


def attend(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute what the module's own forward does, to rounding, with as many heads as its weights have.

    torch's takes the width of a head to be the embedding's over `num_heads`. Keys that it adds are left to its own.
    """
    if module.bias_k is not None or module.add_zero_attn:
        return nn.MultiheadAttention.forward(
            module, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
    batched, first = query.dim() == 3, module.batch_first and query.dim() == 3
    if not first:  # to (batch, length, width)
        query, key, value = (x.transpose(0, 1) if batched else x.unsqueeze(0) for x in (query, key, value))
    q, k, v = (x.view(*x.shape[:2], -1, module.head_dim).transpose(1, 2) for x in _project(module, [query, key, value]))
    causal = is_causal and key_padding_mask is None and not need_weights
    mask = None if causal else _mask(attn_mask, key_padding_mask, q)
    dropout = module.dropout if module.training else 0.0
    weights = None
    if need_weights:
        scores = q @ k.transpose(-2, -1) * module.head_dim**-0.5
        weights = F.dropout(F.softmax(scores if mask is None else scores + mask, -1), dropout)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
    out = F.linear(out.transpose(1, 2).flatten(2), module.out_proj.weight, module.out_proj.bias)
    if not batched:
        return out.squeeze(0), None if weights is None else weights.squeeze(0)
    return out if first else out.transpose(0, 1), weights


def _project(module: nn.MultiheadAttention, streams: list[Tensor]) -> list[Tensor]:
    """Return queries, keys and values, (batch, length, heads times head_dim)."""
    weights: list[Any] = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    if module._qkv_same_embed_dim:
        weights = list(module.in_proj_weight.chunk(3))
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    return [F.linear(x, weight, bias) for x, weight, bias in zip(streams, weights, biases, strict=True)]


def _mask(attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """Return both masks as one that is added to the scores."""
    batch, heads = q.shape[:2]
    masks = []
    if attn_mask is not None:  # (length, keys) or (batch * heads, length, keys)
        masks.append(attn_mask.view(batch, heads, *attn_mask.shape[-2:]) if attn_mask.dim() == 3 else attn_mask)
    if padding is not None:  # (batch, keys), without batch (keys)
        masks.append(padding.view(batch, 1, 1, -1))
    floats = [
        torch.zeros_like(each, dtype=q.dtype).masked_fill_(each, -torch.inf) if each.dtype == torch.bool else each
        for each in masks
    ]
    return sum(floats[1:], floats[0]) if floats else None
