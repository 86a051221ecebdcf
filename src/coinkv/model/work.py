"""Work: what was computed for a context, in layer-tokens and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.model.backbone import Backbone
from coinkv.model.narrow import decoder_layers


@dataclass(frozen=True)
class Work:
    """What forward passes computed.

    Attributes:
        layer_tokens: tokens computed, summed over the layers.
        attended: query-key pairs, summed over the layers (masked ones included: they cost as much).
    """

    layer_tokens: int = 0
    attended: int = 0


def flops(backbone: Backbone, work: Work) -> int:
    """Floating-point operations of some work, and of one row of logits.

    Two for each weight of a layer's matrices and token, four for each query-key pair, head and
    number of a head; norms and activations are left out. All experts of a mixture count.
    """
    config = backbone.model.config
    layers = decoder_layers(backbone.model, backbone.name)
    weights = sum(p.numel() for p in layers.parameters() if p.ndim >= 2) / len(layers)
    pair = 4 * config.num_attention_heads * backbone.shape.head_dim
    logits = 2 * config.vocab_size * config.hidden_size
    return int(2 * weights * work.layer_tokens + pair * work.attended + logits)
