"""The network bodies, as SB3 features extractors: GRPO and PPO train the very same ones.

The body ends in features of width ``features_dim``; the policies put one linear layer on it (and
PPO's critic another). With ``net_arch=[]`` that is the whole network.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from grpo_bench.config.imports import imported
from grpo_bench.config.schema import NetworkConfig
from grpo_bench.fast.optimizer import EagerAdam
from grpo_bench.fast.prefixes import PrefixTree, prefix_tree
from grpo_bench.grpo.choices import choice


class Tanh(nn.Module):
    """The hyperbolic tangent as 2 sigmoid(2 x) - 1, to within the rounding of a float near 1: on a
    CPU torch takes ten times as long for its own as for a sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(2 * x).mul(2).sub(1)


class MLPBody(BaseFeaturesExtractor):
    """Fully connected layers with tanh between and after, for flat observations."""

    def __init__(self, observation_space: spaces.Box, widths: tuple[int, ...] = (64, 64)) -> None:
        super().__init__(observation_space, widths[-1])
        sizes = [math.prod(observation_space.shape), *widths]
        layers: list[nn.Module] = [nn.Flatten()]
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)  # (n, widths[-1])


class TokenTransformer(BaseFeaturesExtractor):
    """A small causal transformer over the token ids of a token task (pre-norm, learned positions).

    Tokens are embedded by id: neither one-hot nor, as SB3 would treat a Box, as magnitudes. What
    follows a prefix is computed once, in however many of the observations it stands, and the last
    block goes on from its attention only where features are wanted.

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
        tokens = observations["tokens"][:, : int(length.max())].long()
        tree = prefix_tree(tokens, length, self.embed.num_embeddings)
        return self._features(tree, tree.node.gather(1, length[:, None] - 1).squeeze(1))

    def after(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        """Features after each token where ``wanted`` (n, t) bool is true, in the order of
        ``tokens[wanted]``, for supervised training; tokens (n, t)."""
        columns = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        length = (wanted * columns).amax(1)
        tree = prefix_tree(tokens, length, self.embed.num_embeddings)
        return self._features(tree, tree.node[wanted])

    def _features(self, tree: PrefixTree, wanted: Tensor) -> Tensor:
        """Features after the prefixes ``wanted`` (n,) of the tree, (n, width)."""
        x = self.embed(tree.token) + self.place(tree.column)  # (m, d)
        for block in self.blocks:
            x = block(x, tree)
        return self.norm(self.last_block(x, tree, wanted))


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

    def forward(self, x: Tensor, tree: PrefixTree, wanted: Tensor | None = None) -> Tensor:
        """At every prefix of the tree, (m, d) -> (m, d), or at those ``wanted`` (n,) -> (n, d)."""
        column, leaf, first = tree.column, tree.leaf, 0
        normed = self.norm_1(x)
        if wanted is not None:
            x, column, leaf = x.index_select(0, wanted), column[wanted], leaf[wanted]
            first = int(column.min())  # no query stands before it
        mixed = self._attend(normed, tree.paths, first)  # (s, t - first, d)
        at = leaf * mixed.shape[1] + column - first
        x = x + self.out(mixed.flatten(0, 1).index_select(0, at))
        return x + self.mlp(self.norm_2(x))

    def _attend(self, x: Tensor, paths: Tensor, first: int) -> Tensor:
        """Each path (s, t) attends from its columns from ``first`` on to those up to there."""
        (s, t), d = paths.shape, x.shape[1]
        (q,) = self._split(self.query(x), paths[:, first:])
        k, v = self._split(self.key_value(x), paths)
        hidden = torch.full((t, t), -math.inf, dtype=x.dtype, device=x.device).tril(-1)
        # Keys before queries, (s heads, t, t - first): torch's softmax over fewer than 16 places
        # is several times faster along any dimension but the last, and its fused attention slower
        # than these three steps, most of all backwards.
        scale = (d // self.heads) ** -0.5
        scores = torch.baddbmm(hidden[:, first:], k, q.transpose(1, 2), alpha=scale)
        mixed = scores.softmax(1).transpose(1, 2) @ v
        return mixed.view(s, self.heads, -1, d // self.heads).transpose(1, 2).flatten(2)

    def _split(self, x: Tensor, paths: Tensor) -> Tensor:
        """(m, parts d), along paths (s, t) -> (parts, s heads, t, d / heads)."""
        (s, t), d = paths.shape, self.out.in_features
        x = x.index_select(0, paths.flatten()).view(s, t, -1, self.heads, d // self.heads)
        return x.permute(2, 0, 3, 1, 4).flatten(1, 2)


BODIES: dict[str, type[BaseFeaturesExtractor]] = {"mlp": MLPBody, "transformer": TokenTransformer}


def policy_kwargs(network: NetworkConfig) -> dict[str, Any]:
    """The ``policy_kwargs`` of SB3 that make this network.

    Raises:
        ValueError: unknown body.
    """
    if ":" in network.body:
        body = imported("env.network.body", network.body)
    else:
        body = choice("network.body", network.body, BODIES)
    return {
        "net_arch": [],
        "features_extractor_class": body,
        "features_extractor_kwargs": dict(network.arguments),
        "ortho_init": network.body == "mlp",  # the transformer brings its own initialisation
        "optimizer_class": EagerAdam,
        "optimizer_kwargs": {"eps": 1e-5, "fused": True},
    }
