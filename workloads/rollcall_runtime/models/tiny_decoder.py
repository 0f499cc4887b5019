"""A pre-LayerNorm decoder that is small enough to train on one core (102,592 parameters).

Source of the shape: GPT-2 (Radford et al. 2019) with learned positions and an untied head. The
small initial weights make the first policy nearly uniform.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from rollcall_runtime.models.sequence_attention import RowLayout, attend_by_sequence

_INITIAL_STD = 0.02
_MOST = {
    "vocabulary": 1 << 24,
    "positions": 1 << 20,
    "width": 1 << 16,
    "heads": 1 << 10,
    "layers": 1 << 10,
}


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Sizes. `positions` bounds prompt and response together, `eos` is the token that ends one."""

    vocabulary: int = 13
    positions: int = 13
    width: int = 64
    heads: int = 4
    layers: int = 2
    eos: int = 2

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} must be a number from 1 to {most}")
        if self.width % self.heads:
            raise ValueError(f"heads must divide width: {self}")
        if type(self.eos) is not int or not 0 <= self.eos < self.vocabulary:
            raise ValueError(f"eos {self.eos} is outside the vocabulary of {self.vocabulary}")


@dataclass(slots=True)
class KeyValueCache:
    """Keys and values of the tokens seen so far, [rows, heads, tokens, head width] a layer."""

    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, by their numbers, each as often as it is named."""
        self.layers = [(key[rows], value[rows]) for key, value in self.layers]

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append to `layer` and return all of its keys and values."""
        if layer == len(self.layers):
            self.layers.append((key, value))
        else:
            old_key, old_value = self.layers[layer]
            self.layers[layer] = (
                torch.cat([old_key, key], dim=2),
                torch.cat([old_value, value], dim=2),
            )
        return self.layers[layer]


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a LayerNorm and added to its input."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(
        self,
        x: Tensor,
        *,
        layer: int,
        cache: KeyValueCache | None,
        mask: Tensor | None,
        layout: RowLayout | None,
    ) -> Tensor:
        rows, tokens, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(rows, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        if layout is not None:
            mixed = attend_by_sequence(query, key, value, layout)
        else:
            causal = mask is None and tokens > 1
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=causal
            ).transpose(1, 2)
        x = x + self.project(mixed.reshape(rows, tokens, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.feed_norm(x))))
        return out


class TinyDecoder(nn.Module):
    """Token numbers [rows, tokens] to next-token logits [rows, tokens, vocabulary].

    With `outputs` it gives that many numbers [rows, tokens, outputs] instead of logits, from a
    layer named `score`.
    """

    def __init__(self, config: TinyConfig, *, outputs: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        if outputs:
            self.score = nn.Linear(config.width, outputs, bias=False)
        else:
            self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    @property
    def output_layer(self) -> nn.Linear:
        """What makes logits, or other outputs, of hidden states."""
        return self.score if hasattr(self, "score") else self.head

    @classmethod
    def seeded(cls, config: TinyConfig, *, seed: int) -> "TinyDecoder":
        """Fresh weights from `seed`, the same everywhere; the global RNG is left alone."""
        with torch.random.fork_rng(devices=[]):  # the layers' own initialization uses it
            model = cls(config)
        generator = torch.Generator().manual_seed(seed)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=_INITIAL_STD, generator=generator)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        return model

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Next-token logits of `tokens`; see `hidden_states`."""
        hidden = self.hidden_states(tokens, cache=cache, positions=positions, mask=mask)
        logits: Tensor = self.output_layer(hidden)
        return logits

    def hidden_states(
        self,
        tokens: Tensor,
        *,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layout: RowLayout | None = None,
    ) -> Tensor:
        """What the output layer reads, [rows, tokens, width]; `tokens` follow what `cache` holds.

        Without `positions` ([rows, tokens] or [tokens]) they count from 0. `mask`, broadcast to
        [rows, heads, tokens, keys], says who may look at whom; without it: causal, and a single
        token looks at all before it. `layout`, without a cache and a mask: sequences in each row
        that see themselves alone.
        """
        if positions is None:
            place = self.position.weight[: tokens.shape[1]]
        else:
            place = self.position(positions)
        x = self.embed(tokens) + place
        for layer, block in enumerate(self.blocks):
            x = block(x, layer=layer, cache=cache, mask=mask, layout=layout)
        hidden: Tensor = self.norm(x)
        return hidden
