"""Actor-only policies: SB3's actor, weight for weight, without the value network.

``ActorCriticPolicy`` always builds a critic, which GRPO does not use and which would count in its
memory. The actor (features extractor, MLP, action net, their initialisation) is that of SB3's PPO,
so both algorithms can train the same network.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    DiagGaussianDistribution,
    Distribution,
    make_proba_distribution,
)
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor, nn
from torch.optim import Adam

from grpo_bench.fast.distributions import LogSoftmaxDistribution
from grpo_bench.fast.optimizer import EagerAdam


class ActorPolicy(BasePolicy):
    """The policy pi(a | s) alone, for Discrete, MultiDiscrete, MultiBinary and Box actions.

    Args:
        observation_space, action_space, lr_schedule: as for any SB3 policy.
        net_arch: widths of the hidden layers after the features extractor; None: [64, 64], or no
            layer after ``NatureCNN`` (SB3's defaults).
        activation_fn, ortho_init, log_std_init, features_extractor_class,
            features_extractor_kwargs, normalize_images, optimizer_class, optimizer_kwargs: as in
            SB3's ``ActorCriticPolicy``.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        log_std_init: float = 0.0,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = EagerAdam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if optimizer_kwargs is None:
            optimizer_kwargs = {"eps": 1e-5} if issubclass(optimizer_class, Adam) else {}
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        check_extractor(features_extractor_class, observation_space, normalize_images)
        if net_arch is None:
            net_arch = [] if features_extractor_class is NatureCNN else [64, 64]
        if not isinstance(net_arch, list | tuple):
            widths = net_arch.get("pi", [64, 64]) if isinstance(net_arch, dict) else [64, 64]
            raise ValueError(
                f"net_arch={net_arch!r}: expected the widths of the hidden layers, such as "
                f"{widths}; there is no value network"
            )
        self.net_arch = net_arch
        self.activation_fn = activation_fn
        self.ortho_init = ortho_init
        self.log_std_init = log_std_init
        self._build(lr_schedule)

    def _build(self, lr_schedule: Schedule) -> None:
        self.features_extractor = self.make_features_extractor()
        features_dim = self.features_extractor.features_dim
        layers = create_mlp(features_dim, -1, self.net_arch, self.activation_fn)
        self.mlp = nn.Sequential(*layers)
        latent_dim = self.net_arch[-1] if self.net_arch else features_dim
        action_dist = make_proba_distribution(self.action_space)
        if isinstance(action_dist, DiagGaussianDistribution):
            self.action_net, self.log_std = action_dist.proba_distribution_net(
                latent_dim=latent_dim, log_std_init=self.log_std_init
            )
        else:
            self.action_net = action_dist.proba_distribution_net(latent_dim=latent_dim)  # type: ignore[assignment]
        if self.ortho_init:
            gains = {
                self.features_extractor: np.sqrt(2),
                self.mlp: np.sqrt(2),
                self.action_net: 0.01,
            }
            for module, gain in gains.items():
                module.apply(partial(self.init_weights, gain=gain))
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    # -- pi(a | s), in two halves: the network, and what it parametrises --------------------------

    def forward(self, obs: PyTorchObs) -> Tensor:
        """Parameters of the action distribution, (n, n_params): logits, or means of a Gaussian."""
        features = self.extract_features(obs, self.features_extractor)
        return self.action_net(self.mlp(features))

    def distribution(self, params: Tensor, rows: Tensor | None = None) -> Distribution:
        """The action distribution of ``forward``'s parameters, (n, n_params), in float32: a
        log-softmax in half precision makes a ratio other than 1 on-policy.

        With ``rows`` (m,) it is that of m actions, each in one of the n observations.
        """
        if isinstance(self.action_space, spaces.Discrete):
            return LogSoftmaxDistribution(params.shape[-1]).proba_distribution(params.float(), rows)
        if rows is not None:
            params = params.index_select(0, rows)
        dist = make_proba_distribution(self.action_space)
        if isinstance(dist, DiagGaussianDistribution):
            return dist.proba_distribution(params.float(), self.log_std.float())
        return dist.proba_distribution(action_logits=params.float())

    def get_distribution(self, obs: PyTorchObs) -> Distribution:
        """The action distribution of each observation, under SB3's name."""
        return self.distribution(self(obs))

    def evaluate_actions(
        self, obs: PyTorchObs, actions: Tensor
    ) -> tuple[None, Tensor, Tensor | None]:
        """Values, log-probability (n,) and entropy (n,) of actions, as SB3's actor-critic policies
        return them. Without a critic the values are None: code that needs them fails at once, and
        does not learn from zeros."""
        distribution = self.get_distribution(obs)
        return None, distribution.log_prob(actions), distribution.entropy()

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        return self.get_distribution(observation).get_actions(deterministic=deterministic)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(
            net_arch=self.net_arch,
            activation_fn=self.activation_fn,
            ortho_init=self.ortho_init,
            log_std_init=self.log_std_init,
            features_extractor_class=self.features_extractor_class,
            features_extractor_kwargs=self.features_extractor_kwargs,
            optimizer_class=self.optimizer_class,
            optimizer_kwargs=self.optimizer_kwargs,
            lr_schedule=self._dummy_schedule,  # not needed to load a policy alone
        )
        return data


MlpPolicy = ActorPolicy


class CnnPolicy(ActorPolicy):
    """Actor on ``NatureCNN``, for images."""

    def __init__(
        self,
        *args: Any,
        features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN,
        **kwargs: Any,
    ) -> None:
        kwargs["features_extractor_class"] = features_extractor_class
        super().__init__(*args, **kwargs)


class MultiInputPolicy(ActorPolicy):
    """Actor with ``CombinedExtractor`` in front, for dict observations."""

    def __init__(
        self,
        *args: Any,
        features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor,
        **kwargs: Any,
    ) -> None:
        kwargs["features_extractor_class"] = features_extractor_class
        super().__init__(*args, **kwargs)


def check_policy(policy_class: type) -> None:
    """Raises ValueError for a policy that is not an ``ActorPolicy``."""
    if not issubclass(policy_class, ActorPolicy):
        raise ValueError(
            f"policy={policy_class.__name__}: expected MlpPolicy, CnnPolicy, MultiInputPolicy or a "
            "subclass of grpo_bench.grpo.policies.ActorPolicy, which has no value network"
        )


def check_extractor(
    extractor: type[BaseFeaturesExtractor], space: spaces.Space[Any], normalize_images: bool
) -> None:
    """Raises ValueError where one of SB3's feature extractors cannot read the observations."""
    is_dict = isinstance(space, spaces.Dict)
    is_image = is_image_space(space, check_channels=False, normalized_image=not normalize_images)
    fits = "MultiInputPolicy" if is_dict else "CnnPolicy or MlpPolicy" if is_image else "MlpPolicy"
    reads = {
        FlattenExtractor: (not is_dict, "MlpPolicy reads arrays"),
        NatureCNN: (is_image, "CnnPolicy reads images of uint8 from 0 to 255"),
        CombinedExtractor: (is_dict, "MultiInputPolicy reads dicts"),
    }
    readable, what = reads.get(extractor, (True, ""))
    if not readable:
        raise ValueError(f"{what}, and observations are {space}: expected {fits}")
