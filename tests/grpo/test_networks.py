"""The token transformer, and the actor-only policies beside SB3's actor-critic."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy

from grpo_bench.baselines import actor_modules, load_actor
from grpo_bench.grpo.policies import CnnPolicy, MlpPolicy
from grpo_bench.networks import MLPBody, TokenTransformer, policy_kwargs

SPACE = gym.make("GRPO-Arithmetic-v0").observation_space
LENGTH = SPACE["tokens"].shape[0]
N_TOKENS = int(SPACE["tokens"].high.max()) + 1


def transformer(**how):
    torch.manual_seed(0)
    return TokenTransformer(SPACE, **{"width": 16, "depth": 3, "heads": 4, **how})


def sequences(n=6):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(N_TOKENS, (n, LENGTH), generator=generator)
    position = torch.randint(1, LENGTH + 1, (n, 1), generator=generator)
    return tokens, position


def observation(tokens, position):
    """As SB3 hands it over: floats."""
    mask = torch.arange(LENGTH) < position
    return {"tokens": tokens.float(), "position": position.float(), "mask": mask.float()}


def test_it_is_causal_and_looks_at_every_earlier_token():
    net, (tokens, _) = transformer(), sequences()
    before = net.sequence(tokens)
    for t in (0, 3, LENGTH - 1):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % N_TOKENS
        difference = (net.sequence(changed) - before).abs().amax(dim=(0, 2))
        assert (difference[:t] == 0).all()
        assert (difference[t:] > 1e-6).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_forward_is_the_sequence_at_the_last_token(depth):
    net, (tokens, position) = transformer(depth=depth), sequences()
    expected = net.sequence(tokens)[torch.arange(len(tokens)), position.flatten() - 1]
    torch.testing.assert_close(net(observation(tokens, position)), expected, rtol=1e-4, atol=1e-5)


def test_neither_padding_nor_the_other_sequences_matter():
    net, (tokens, position) = transformer(), sequences()
    expected = net(observation(tokens, position))
    noise = torch.randint(N_TOKENS, tokens.shape)
    padded = torch.where(torch.arange(LENGTH) < position, tokens, noise)
    torch.testing.assert_close(net(observation(padded, position)), expected)
    for i in range(len(tokens)):
        alone = net(observation(tokens[[i]], position[[i]]))
        torch.testing.assert_close(alone[0], expected[i], rtol=1e-4, atol=1e-5)


def test_the_order_of_the_tokens_matters():
    net, (tokens, _) = transformer(depth=1), sequences()  # one block sees order by position alone
    full = torch.full((len(tokens), 1), LENGTH)
    swapped = tokens[:, [1, 0, *range(2, LENGTH)]]
    different = tokens[:, 0] != tokens[:, 1]
    one, two = net(observation(tokens, full)), net(observation(swapped, full))
    assert ((one - two).abs().amax(dim=1) > 1e-5)[different].all() and different.any()


def test_errors_name_the_value():
    with pytest.raises(ValueError, match="width=10: expected a multiple of heads=4"):
        transformer(width=10)
    with pytest.raises(ValueError, match=r"network.body='rnn': expected one of mlp, transformer"):
        policy_kwargs({"body": "rnn"})
    with pytest.raises(ValueError, match=r"net_arch=\{'pi': \[8\]\}: expected the widths"):
        MlpPolicy(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), lambda _: 1e-3, net_arch={"pi": [8]})


# -- the actor is PPO's, without the critic -------------------------------------------------------

FLAT = spaces.Box(-1, 1, (5,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
ACTIONS = [
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(4),
    spaces.Box(-1, 1, (2, 2), np.float32),
]


def actor_parameters(policy):
    """PPO's actor under our names."""
    shared = dict(policy.named_parameters())
    if not isinstance(policy, ActorCriticPolicy):
        return shared
    names = {name: name.replace("mlp_extractor.policy_net", "mlp") for name in shared}
    unwanted = ("value_net", "vf_features", "pi_features", "mlp_extractor")
    return {names[n]: p for n, p in shared.items() if not names[n].startswith(unwanted)}


@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
@pytest.mark.parametrize(
    ("ours", "theirs", "observation_space"),
    [(MlpPolicy, ActorCriticPolicy, FLAT), (CnnPolicy, ActorCriticCnnPolicy, IMAGE)],
)
def test_same_parameters_as_ppos_actor_and_no_others(ours, theirs, observation_space, action_space):
    one = ours(observation_space, action_space, lambda _: 1e-3)
    two = theirs(observation_space, action_space, lambda _: 1e-3)
    shapes = [
        {name: tuple(p.shape) for name, p in actor_parameters(policy).items()}
        for policy in (one, two)
    ]
    assert shapes[0] == shapes[1]
    assert one.optimizer.defaults["eps"] == two.optimizer.defaults["eps"] == 1e-5


def test_same_first_weights_from_the_same_seed():
    """Where the critic draws nothing before the actor does: one body, no initialisation after."""
    policies = []
    for policy, arch in ((MlpPolicy, [7]), (ActorCriticPolicy, {"pi": [7], "vf": []})):
        torch.manual_seed(3)
        policies.append(
            policy(
                FLAT,
                spaces.Discrete(3),
                lambda _: 1e-3,
                net_arch=arch,
                ortho_init=False,
                features_extractor_class=MLPBody,
                features_extractor_kwargs={"widths": (6, 6)},
            )
        )
    one, two = map(actor_parameters, policies)
    assert one.keys() == two.keys() and len(one) == 8
    for name, weights in one.items():
        assert torch.equal(weights, two[name]), name


@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_equal_weights_make_equal_policies(action_space, shared):
    """Log-probability, entropy and mode are those of SB3's actor with the same weights."""
    body = policy_kwargs({"body": "mlp", "widths": (6, 6)}) | {"log_std_init": 0.5}
    one = MlpPolicy(FLAT, action_space, lambda _: 1e-3, **body)
    two = ActorCriticPolicy(
        FLAT, action_space, lambda _: 1e-3, share_features_extractor=shared, **body
    )
    load_actor(two, {name: m.state_dict() for name, m in actor_modules(one).items()})
    seen = torch.randn(9, 5)
    ours, theirs = one.get_distribution(seen), two.get_distribution(seen)
    actions = ours.sample()
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.mode(), theirs.mode())
    if not shared:
        body_of_critic, body_of_actor = two.vf_features_extractor, two.pi_features_extractor
        for a, b in zip(body_of_critic.parameters(), body_of_actor.parameters(), strict=True):
            assert torch.equal(a, b) and a is not b


def test_half_precision_parameters_give_float32_log_probabilities():
    policy = MlpPolicy(FLAT, spaces.Discrete(3), lambda _: 1e-3)
    distribution = policy.distribution(torch.randn(4, 3, dtype=torch.bfloat16))
    assert distribution.log_prob(torch.zeros(4)).dtype == torch.float32
