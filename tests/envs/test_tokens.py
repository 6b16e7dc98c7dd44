"""What the token tasks have in common: views that agree, masks, autoreset."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import grpo_envs  # noqa: F401  (registers the ids)
from grpo_envs.tokens.arithmetic import ArithmeticEnv, ArithmeticTask, ArithmeticVectorEnv
from grpo_envs.tokens.format import FormatEnv, FormatTask, FormatVectorEnv
from grpo_envs.tokens.task import TokenTask
from grpo_envs.tokens.vocabulary import EOS, N_TOKENS, PAD, decode

TASKS = [
    *[ArithmeticTask(preset) for preset in ("easy", "medium", "hard")],
    *[FormatTask(preset) for preset in ("easy", "medium", "hard")],
]
EACH_TASK = pytest.mark.parametrize(
    "task", TASKS, ids=lambda t: f"{t.title}-{t.problems.digits}{t.problems.chain}"
)
OPTIONS: list[dict[str, Any]] = [
    *[{"preset": "easy"}, {"preset": "medium"}, {"preset": "hard"}, {"operators": ["*", "mod"]}],
    *[{"preset": None, "operators": "//", "digits": 1, "chain": 1}, {"max_tokens": 40}],
    *[{"digits": 4}, {"chain": 3}, {"split": "test"}, {"render_mode": "ansi"}],
    *[{"render_mode": "rgb_array"}],
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["Arithmetic", "Format"])
def test_checkers_find_no_fault(name: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(f"GRPO-{name}-v0", **options)
        gymnasium_check_env(env.unwrapped, skip_render_check="render_mode" not in options)
        sb3_check_env(env.unwrapped)
        gym.make_vec(f"GRPO-{name}-v0", num_envs=2, **options).reset(seed=0)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), task=st.sampled_from(TASKS), seed=st.integers(0, 2**32 - 1))
def test_scalar_vector_and_text_agree(data: st.DataObject, task: TokenTask, seed: int) -> None:
    """Random edits of demonstrations get equal rewards and components from every view."""
    rng = np.random.default_rng(seed)
    ids = task.sample(rng, 3, "validation")
    tokens, mask = task.demonstrations(ids, rng, noise=data.draw(st.sampled_from([0.0, 0.7])))
    written = np.full((3, task.max_tokens), EOS)
    for i in range(3):
        completion = tokens[i][mask[i]]
        written[i, : len(completion)] = completion
    edits = data.draw(st.lists(st.tuples(*[st.integers(0, 99)] * 3), max_size=4))
    for i, column, token in edits:
        written[i % 3, column % task.max_tokens] = token % N_TOKENS

    is_format = isinstance(task, FormatTask)
    options = {"preset": None, "operators": task.problems.operators}
    options |= {"digits": task.problems.digits, "chain": task.problems.chain}
    vector = (FormatVectorEnv if is_format else ArithmeticVectorEnv)(
        3, autoreset_mode=AutoresetMode.DISABLED, **options
    )
    scalar = (FormatEnv if is_format else ArithmeticEnv)(**options)
    vector.reset(options={"problem_id": ids})
    text = task.score_texts(ids, [decode(row) for row in written])
    rewards, ended = np.zeros(3), np.zeros(3, dtype=bool)
    parts = {name: np.zeros(3) for name in ("is_success", *task.component_names)}
    for actions in written.T:
        observation, reward, terminated, _, infos = vector.step(actions)
        rewards += reward
        for name in parts:
            parts[name] += infos[name] * (terminated & ~ended)
        ended = terminated
    assert ended.all()
    assert rewards.tolist() == text.reward.tolist()
    assert parts["is_success"].tolist() == text.success.tolist()
    for name in task.component_names:
        assert parts[name].tolist() == text.components[name].tolist()
    for i in range(3):
        scalar.reset(options={"problem_id": int(ids[i])})
        for action in written[i]:
            last, reward, terminated, _, info = scalar.step(action)
            if terminated:
                break
        assert reward == rewards[i]
        assert {name: info[name] for name in parts} == {name: parts[name][i] for name in parts}
        assert (last["tokens"] == observation["tokens"][i]).all()


@EACH_TASK
def test_allowed_actions_always_end_in_a_value(task: TokenTask) -> None:
    """Any walk through the masks ends as something that could have been right."""
    rng = np.random.default_rng(5)
    ids = task.sample(rng, 400, "train")
    state, done = task.start(ids), 0
    while len(state["judge"]):
        masks = task.action_masks(state)
        assert masks.any(axis=1).all()
        assert not masks[:, PAD].any()
        actions = np.array([rng.choice(row.nonzero()[0]) for row in masks])
        outcome = task.step(state, actions)
        ended = state["judge"][outcome.terminated]
        assert (task.judge.has_value & task.judge.well_formed)[ended].all()
        done += len(ended)
        state = {name: array[~outcome.terminated] for name, array in state.items()}
    assert done == len(ids)


# -- views ----------------------------------------------------------------------------------------

PAIRS = [(ArithmeticEnv, ArithmeticVectorEnv), (FormatEnv, FormatVectorEnv)]


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
@pytest.mark.parametrize("views", PAIRS, ids=["Arithmetic", "Format"])
def test_autoreset_is_that_of_sync_vector_env(views: Any, mode: AutoresetMode) -> None:
    """The scalar environment in ``SyncVectorEnv``, started on the problems that the native one
    drew, gives the same arrays at every step."""
    scalar, vector = views
    n, rng = 6, np.random.default_rng(0)
    queues: list[list[float]] = [[] for _ in range(n)]

    def make(i: int) -> Any:
        class Driven(scalar):  # type: ignore[misc, valid-type]
            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                return super().reset(seed=seed, options={"problem_id": queues[i].pop(0)})

        return lambda: Driven(max_tokens=20)

    native = vector(n, autoreset_mode=mode, max_tokens=20)
    sync = SyncVectorEnv([make(i) for i in range(n)], autoreset_mode=mode)

    def draw(infos: dict[str, Any], rows: np.ndarray) -> None:
        for i in rows.nonzero()[0]:
            queues[i].append(infos["problem_id"][i])

    left, infos = native.reset(seed=4)
    draw(infos, np.ones(n, dtype=bool))
    right, _ = sync.reset()
    ended = np.zeros(n, dtype=bool)
    n_ended = 0
    for _ in range(60):
        same(left, right)
        if mode is AutoresetMode.DISABLED and ended.any():
            left, infos = native.reset(options={"reset_mask": ended})
            draw(infos, ended)
            right, _ = sync.reset(options={"reset_mask": ended})
            same(left, right)
        actions = rng.choice([EOS, 2, 3, 20, 21, 22, 23], size=n)
        restarted = ended
        left, *left_rest, infos = native.step(actions)
        ended = left_rest[1]
        draw(infos, {"SameStep": ended, "NextStep": restarted}.get(mode.value, ended & False))
        right, *right_rest, sync_infos = sync.step(actions)
        for a, b in zip(left_rest, right_rest, strict=True):
            assert (a == b).all()
        n_ended += ended.sum()
        if mode is AutoresetMode.SAME_STEP and ended.any():
            assert (infos["_final_obs"] == sync_infos["_final_obs"]).all()
            for i in ended.nonzero()[0]:
                for name, part in sync_infos["final_obs"][i].items():
                    assert (infos["final_obs"][name][i] == part).all()
                for name in ("problem_id", "is_success", *native.task.component_names):
                    got, wanted = infos["final_info"][name], sync_infos["final_info"][name]
                    assert got[i] == wanted[i]
    assert n_ended > n


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    for name, part in left.items():
        assert part.dtype == right[name].dtype
        assert (part == right[name]).all()


@pytest.mark.parametrize("views", PAIRS, ids=["Arithmetic", "Format"])
def test_seeds_and_pickles(views: Any) -> None:
    for make in (views[0], lambda: views[1](4)):
        env, twin = make(), make()
        same(env.reset(seed=5)[0], twin.reset(seed=5)[0])
        copy = pickle.loads(pickle.dumps(env))
        action = env.action_space.sample()
        same(env.step(action)[0], copy.step(action)[0])
        same(env.reset()[0], copy.reset()[0])


@EACH_TASK
def test_rendering(task: TokenTask) -> None:
    state = task.start(task.problem_ids("train")[:1])
    assert len(task.describe(state, 0).splitlines()) == 3
    task.step(state, np.array([EOS]))
    assert task.describe(state, 0).splitlines()[-1].startswith("wrong")
    card = task.draw(state, 0)
    assert card.dtype == np.uint8
    assert card.ndim == 3
    assert card.shape[2] == 3


@EACH_TASK
def test_texts(task: TokenTask) -> None:
    ids = task.sample(np.random.default_rng(0), 3, "test")
    prompts = task.prompts(ids)
    for prompt, text in zip(prompts, task.expressions(ids), strict=True):
        assert prompt.startswith(f"What is {text}? ")
        assert ("<answer>" in prompt) == isinstance(task, FormatTask)
    answers = [f" {answer}.0\n" for answer in task.problems.answers(ids)]
    if isinstance(task, FormatTask):
        answers = [f"<reasoning>so</reasoning>\n<answer>{text}</answer>" for text in answers]
    assert (task.score_texts(ids, answers).reward == task.oracle_score).all()
    assert (task.score_texts(ids, ["", "9" * 9999, "<answer>"]).reward == 0).all()
    assert task.score_texts(ids[:0], []).reward.shape == (0,)
    with pytest.raises(ValueError, match="1 completions of 3 problems"):
        task.score_texts(ids, ["7"])
