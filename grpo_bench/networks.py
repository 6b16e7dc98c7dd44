"""The network bodies, as SB3 features extractors: GRPO and PPO train the very same ones.

The body ends in features of width ``features_dim``; the policies put one linear layer on it (and
PPO's critic another). With ``net_arch=[]`` that is the whole network.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn


class MLPBody(BaseFeaturesExtractor):
    """Fully connected layers with tanh between and after, for flat observations."""

    def __init__(self, observation_space: spaces.Box, widths: tuple[int, ...] = (64, 64)) -> None:
        super().__init__(observation_space, widths[-1])
        sizes = [math.prod(observation_space.shape), *widths]
        layers: list[nn.Module] = [nn.Flatten()]
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)  # (n, widths[-1])


class TokenTransformer(BaseFeaturesExtractor):
    """A small causal transformer over the token ids of a token task (pre-norm, learned positions).

    Tokens are embedded by id: neither one-hot nor, as SB3 would treat a Box, as magnitudes. The
    features are the last token's, so the last block runs for that token only.

    Args:
        observation_space: Dict with ``tokens`` (L,), ``position`` (1,) and ``mask`` (L,).
        width: d, divisible by ``heads``.
        depth: number of blocks, at least 1.
        heads: attention heads.
    """

    def __init__(
        self, observation_space: spaces.Dict, width: int = 64, depth: int = 2, heads: int = 4
    ) -> None:
        super().__init__(observation_space, width)
        tokens = observation_space["tokens"]
        assert isinstance(tokens, spaces.Box)
        self.embed = nn.Embedding(int(tokens.high.max()) + 1, width)
        self.place = nn.Embedding(tokens.shape[0], width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth - 1))
        self.last_block = Block(width, heads)
        self.norm = nn.LayerNorm(width)
        for embedding in (self.embed, self.place):
            nn.init.normal_(embedding.weight, std=0.5)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Features of the last token of each sequence, (n, width)."""
        # SB3 hands every Box over as floats; ids are exact in them
        length = observations["position"].long().flatten()  # (n,) columns so far, gaps included
        longest = int(length.max())
        x = self._embed(observations["tokens"][:, :longest].long())  # (n, t, d)
        for block in self.blocks:
            x = block(x)
        return self.norm(self.last_block.last(x, length)).squeeze(1)

    def sequence(self, tokens: Tensor) -> Tensor:
        """Features after every token, (n, t, width), for supervised training; tokens (n, t)."""
        x = self._embed(tokens)
        for block in [*self.blocks, self.last_block]:
            x = block(x)
        return self.norm(x)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.place.weight[: tokens.shape[1]]


class Block(nn.Module):
    """Causal attention, then an MLP of 4d with GELU, each behind a LayerNorm and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width}: expected a multiple of heads={heads}")
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, t, d) -> (n, t, d)."""
        normed = self.norm_1(x)
        x = x + self._attend(normed, normed, is_causal=True)
        return x + self.mlp(self.norm_2(x))

    def last(self, x: Tensor, length: Tensor) -> Tensor:
        """(n, t, d) -> (n, 1, d), for the last of the ``length`` (n,) tokens of each sequence."""
        n, t, d = x.shape
        normed = self.norm_1(x)
        at = (length - 1).view(n, 1, 1).expand(n, 1, d)
        visible = torch.arange(t, device=x.device) < length[:, None]  # (n, t)
        y = x.gather(1, at) + self._attend(
            normed.gather(1, at), normed, attn_mask=visible[:, None, None, :]
        )
        return y + self.mlp(self.norm_2(y))

    def _attend(self, queries: Tensor, context: Tensor, **how: Any) -> Tensor:
        q = self._split(self.query(queries))  # (n, heads, t_q, d / heads)
        k, v = (self._split(part) for part in self.key_value(context).chunk(2, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, **how)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        return x.view(n, t, self.heads, d // self.heads).transpose(1, 2)


BODIES: dict[str, type[BaseFeaturesExtractor]] = {"mlp": MLPBody, "transformer": TokenTransformer}


def policy_kwargs(network: dict[str, Any]) -> dict[str, Any]:
    """SB3 ``policy_kwargs`` that make the body of a ``network`` config: its ``body`` is a name in
    ``BODIES``, the rest are the body's arguments.

    Raises:
        ValueError: unknown body.
    """
    arguments = dict(network)
    body = arguments.pop("body")
    if body not in BODIES:
        raise ValueError(f"network.body={body!r}: expected one of {', '.join(BODIES)}")
    return {
        "net_arch": [],
        "features_extractor_class": BODIES[body],
        "features_extractor_kwargs": arguments,
        "ortho_init": body == "mlp",  # the transformer brings its own initialisation
        "optimizer_kwargs": {"eps": 1e-5, "fused": True},
    }
