"""The token transformer, and the actor-only policies beside SB3's actor-critic."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy

from grpo_bench.config.schema import NetworkConfig
from grpo_bench.grpo.policies import CnnPolicy, MlpPolicy
from grpo_bench.training.baselines import actor_modules, load_actor
from grpo_bench.training.networks import MLPBody, TokenTransformer, policy_kwargs

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


def everywhere(net, tokens):
    """Features after every token, (n, t, width)."""
    return net.after(tokens, torch.ones_like(tokens, dtype=torch.bool)).view(*tokens.shape, -1)


def alone(net, tokens):
    """Features after the last of the tokens (t,), written out in plain matrices."""
    x = net.embed.weight[tokens] + net.place.weight[: len(tokens)]
    for block in [*net.blocks, net.last_block]:
        h = block.norm_1(x)
        q, (k, v) = block.query(h), block.key_value(h).chunk(2, dim=1)
        mixed = []
        for i in range(block.heads):
            part = slice(i * x.shape[1] // block.heads, (i + 1) * x.shape[1] // block.heads)
            scores = q[:, part] @ k[:, part].T / (part.stop - part.start) ** 0.5
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            mixed.append(scores.masked_fill(later, -torch.inf).softmax(1) @ v[:, part])
        x = x + block.out(torch.cat(mixed, dim=1))
        x = x + block.mlp(block.norm_2(x))
    return net.norm(x[-1])


def assert_as_alone(net, tokens, position):
    """Values and gradients of the batch are those of its rows, computed one by one."""
    pull = torch.randn(len(tokens), net.features_dim, generator=torch.Generator().manual_seed(2))
    rows = zip(tokens, position.flatten(), strict=True)
    expected = torch.stack([alone(net, row[:length]) for row, length in rows])
    actual = net(observation(tokens, position))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    gradients = [
        torch.autograd.grad((features * pull).sum(), list(net.parameters()))
        for features in (actual, expected)
    ]
    for (name, _), one, two in zip(net.named_parameters(), *gradients, strict=True):
        torch.testing.assert_close(
            one, two, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_it_is_causal_and_looks_at_every_earlier_token():
    net, (tokens, _) = transformer(), sequences()
    before = everywhere(net, tokens)
    for t in (0, 3, LENGTH - 1):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % N_TOKENS
        difference = (everywhere(net, changed) - before).abs().amax(dim=(0, 2))
        assert (difference[:t] < 1e-6).all()
        assert (difference[t:] > 1e-5).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_unrelated_rows_are_as_alone(depth):
    assert_as_alone(transformer(depth=depth), *sequences())


RELATED = {
    "a batch of one": ([[3, 1, 4, 1, 5, 9]], [4]),
    "an episode": ([[3, 1, 4, 1, 5, 9]] * 4, [6, 3, 5, 4]),
    "the same twice": ([[3, 1, 4, 1, 5, 9]] * 2, [3, 3]),
    "the last token differs": ([[3, 1, 4], [3, 1, 5], [3, 1, 0]], [3, 3, 3]),
    "the first token differs": ([[3, 1, 4], [2, 1, 4]], [3, 3]),
    "equal as far as the shorter goes": ([[3, 1, 4], [3, 1, 5]], [3, 2]),
    "a gap is a token, what follows the end is none": (
        [[3, 0, 4], [3, 4, 0], [3, 0, 0]],
        [3, 2, 1],
    ),
    "one token": ([[3], [4], [3]], [1, 1, 1]),
}


@pytest.mark.parametrize("rows", RELATED)
def test_related_rows_are_as_alone(rows):
    tokens = torch.zeros(len(RELATED[rows][0]), LENGTH, dtype=torch.long)
    for row, written in zip(tokens, RELATED[rows][0], strict=True):
        row[: len(written)] = torch.tensor(written)
    assert_as_alone(transformer(), tokens, torch.tensor(RELATED[rows][1])[:, None])


@pytest.mark.parametrize("name", ["GRPO-Arithmetic-v0", "GRPO-Format-v0"])
def test_transitions_of_an_environment_are_as_alone(name):
    env = gym.make_vec(name, 8)
    obs, _ = env.reset(seed=0, options={"problem_id": np.repeat([3, 70], 4)})
    env.action_space.seed(0)
    seen = [obs]
    for _ in range(6):
        obs, *_ = env.step(env.action_space.sample() % 4)  # few tokens: members go the same way
        seen.append(obs)
    tokens, position = (
        torch.as_tensor(np.concatenate([obs[key] for obs in seen]))
        for key in ("tokens", "position")
    )
    torch.manual_seed(0)
    assert_as_alone(TokenTransformer(env.single_observation_space, 16, 2, 4), tokens, position)


def test_after_gives_the_wanted_places_in_order():
    net, (tokens, position) = transformer(), sequences()
    columns = torch.arange(LENGTH)
    wanted = (columns < position) & (columns % 3 == 1)  # most not to the end of their row
    wanted[2] = False
    expected = [
        alone(net, row[: t + 1])
        for row, at in zip(tokens, wanted, strict=True)
        for t in at.nonzero().flatten()
    ]
    torch.testing.assert_close(
        net.after(tokens, wanted), torch.stack(expected), rtol=1e-4, atol=1e-5
    )


def test_it_can_be_differentiated_twice():
    """For TRPO's product with the Fisher matrix."""
    net = transformer().double()
    tokens, position = sequences(3)
    weight = net.last_block.query.weight
    start = weight.detach().clone()

    def loss(change):
        with_change = {"last_block.query.weight": start + change}
        inputs = {name: value.double() for name, value in observation(tokens, position).items()}
        return torch.func.functional_call(net, with_change, (inputs,)).pow(2).mean()

    direction = torch.randn_like(start)
    point = torch.zeros_like(start, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(point), point, create_graph=True)
    (curved,) = torch.autograd.grad((slope * direction).sum(), point)
    step = 1e-5
    slopes = []
    for sign in (1, -1):
        moved = (sign * step * direction).requires_grad_()
        slopes.append(torch.autograd.grad(loss(moved), moved)[0])
    torch.testing.assert_close(curved, (slopes[0] - slopes[1]) / (2 * step), rtol=1e-5, atol=1e-9)


def test_neither_padding_nor_the_other_sequences_matter():
    net, (tokens, position) = transformer(), sequences()
    expected = net(observation(tokens, position))
    noise = torch.randint(N_TOKENS, tokens.shape)
    padded = torch.where(torch.arange(LENGTH) < position, tokens, noise)
    torch.testing.assert_close(net(observation(padded, position)), expected)
    order = torch.randperm(len(tokens))
    permuted = net(observation(tokens[order], position[order]))
    torch.testing.assert_close(permuted, expected[order])


def test_the_order_of_the_tokens_matters():
    net, (tokens, _) = transformer(depth=1), sequences()  # one block sees order by position alone
    full = torch.full((len(tokens), 1), LENGTH)
    swapped = tokens[:, [1, 0, *range(2, LENGTH)]]
    different = tokens[:, 0] != tokens[:, 1]
    one, two = net(observation(tokens, full)), net(observation(swapped, full))
    assert ((one - two).abs().amax(dim=1) > 1e-5)[different].all() and different.any()


def test_the_mlp_has_tanh_between_and_after():
    torch.manual_seed(0)
    body = MLPBody(spaces.Box(-1, 1, (3, 2), np.float32), widths=(5, 4))
    (w_1, b_1, w_2, b_2), seen = body.parameters(), torch.randn(7, 3, 2)
    expected = ((seen.reshape(7, 6) @ w_1.T + b_1).tanh() @ w_2.T + b_2).tanh()
    assert body.features_dim == 4
    torch.testing.assert_close(body(seen), expected)


def test_errors_name_the_value():
    with pytest.raises(ValueError, match="width=10: expected a multiple of heads=4"):
        transformer(width=10)
    with pytest.raises(ValueError, match=r"network.body='rnn': expected one of mlp, transformer"):
        policy_kwargs(NetworkConfig("rnn", {}))
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
    body = policy_kwargs(NetworkConfig("mlp", {"widths": (6, 6)})) | {"log_std_init": 0.5}
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
