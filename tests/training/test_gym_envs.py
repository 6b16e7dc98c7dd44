"""Any Gymnasium environment in the harness, and algorithms of one's own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from support.configs import CONTROL

from grpo_bench import GRPO, load_results
from grpo_bench.config import ControlConfig, composed
from grpo_bench.runs.job import check, execute
from grpo_bench.runs.models import make_model
from grpo_bench.training.control import evaluate, evaluation_seeds
from grpo_envs.task import SPLITS

SHORT = [
    "budget=smoke",
    "budget.transitions=64",
    "budget.evaluations=1",
    "env.evaluation.episodes=3",
]
NEEDS = {"lunarlander": "Box2D", "minigrid_empty": "minigrid", "minigrid_doorkey": "minigrid"}
RUN = [sys.executable, "-m", "grpo_bench.run"]
NEEDS |= {"highway": "highway_env"}


def config(results: Path, *overrides: str) -> ControlConfig:
    found = composed(*SHORT, "tuned=none", f"results='{results}'", *overrides)
    assert isinstance(found, ControlConfig)
    return found


class Corridor(gym.Env):
    """Right 4 times; of at most 9 steps. It reports whether it got there if it is asked to."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reports=False):
        self.reports = reports

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.x, self.t = max(0, self.x + (1 if action else -1)), self.t + 1
        there = self.x == 4
        info = {"is_success": there} if self.reports else {}
        return np.array([self.x / 4], np.float32), 2.0 * there - 0.25, there, self.t == 9, info


class Backwards(gym.ActionWrapper):
    def action(self, action):
        return 1 - action


class Flat(gym.ObservationWrapper):
    """Images of nothing."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def observation(self, observation):
        return np.zeros((36, 36, 1), np.uint8)


class AsDict(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Dict(x=env.observation_space)

    def observation(self, observation):
        return {"x": observation}


class Renamed(GRPO):
    """A change of GRPO's."""

    def __init__(self, *arguments, factor=1.0, **options):
        super().__init__(*arguments, **options)
        self.factor = factor


gym.register("GRPO-Test-Corridor-v0", Corridor)
HERE = __name__
CORRIDOR = ["env=gym", "env.id=GRPO-Test-Corridor-v0"]


class Always:
    """A policy of one action."""

    def __init__(self, action):
        self.action = action

    def predict(self, obs, deterministic):
        n = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        return np.full(n, self.action), None

    def get_vec_normalize_env(self):
        return None


@pytest.mark.parametrize("name", CONTROL)
def test_every_ready_environment_plays(tmp_path, name):
    run = config(tmp_path, f"env={name}", "budget.transitions=16")
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        with pytest.raises(ValueError, match=r"pip install -c constraints.txt '.\[control\]'"):
            check(run)
        return
    check(run)
    model = make_model(run, "cpu")
    model.env.reset()
    model.env.step([model.action_space.sample() for _ in range(model.env.num_envs)])
    model.env.close()


@pytest.mark.parametrize("algo", ["grpo", "grpo_rtg", "ppo", "ppo_zoo", "a2c", "trpo"])
def test_algorithms_run_on_cartpole(tmp_path, algo):
    folder = execute(config(tmp_path, "env=cartpole", f"algo={algo}"))
    results = load_results(tmp_path)
    assert list(results.runs["status"]) == ["ok"]
    metrics = results.metrics.groupby("metric")["value"].last()
    returns = metrics["eval/test/reward"]
    assert metrics["eval/test/success"] == pytest.approx((returns - 22.7) / (500 - 22.7))
    assert (metrics["task/random_score"], metrics["task/oracle_score"]) == (22.7, 500)
    assert metrics["rollout/ep_rew_mean"] > 0 and metrics["time/transitions_per_second"] > 0
    assert ("memory/critic_bytes" in metrics) == (not algo.startswith("grpo"))
    rows = pd.read_parquet(folder / "eval.parquet").query("split == 'test'")
    assert list(rows["problem_id"]) == evaluation_seeds("test", 3)


def test_an_evaluation_by_hand(tmp_path):
    """Always right: 4 steps of -0.25 and 2 at the end. Always left: 9 steps of -0.25."""
    plain = config(tmp_path, *CORRIDOR).env
    right, left = (evaluate(Always(action), plain, "test") for action in (1, 0))
    assert right["reward"].tolist() == [1.0] * 3 and right["length"].tolist() == [4] * 3
    assert left["reward"].tolist() == [-2.25] * 3 and left["length"].tolist() == [9] * 3
    assert right["success"].tolist() == [1.0] * 3, "no score is known, so it is the return"
    scored = config(tmp_path, *CORRIDOR, "env.returns={random: -2.25, reference: 4.25}").env
    assert evaluate(Always(1), scored, "test")["success"].tolist() == [0.5] * 3
    told = config(tmp_path, *CORRIDOR, "+env.kwargs.reports=true").env
    assert evaluate(Always(1), told, "test")["success"].tolist() == [1.0] * 3
    assert evaluate(Always(0), told, "test")["success"].tolist() == [0.0] * 3
    turned = config(tmp_path, *CORRIDOR, f"env.wrappers=['{HERE}:Backwards']").env
    assert evaluate(Always(0), turned, "test")["reward"].tolist() == [1.0] * 3


def test_sampled_evaluations_are_alike_and_leave_training_alone(tmp_path):
    """An untrained policy wanders: sampled, its episodes differ from each other; greedy, they do
    not, since all of them start alike."""
    sampled = config(tmp_path, *CORRIDOR, "env.evaluation={episodes: 20, greedy: false}")
    model = make_model(sampled, "cpu")
    before = torch.get_rng_state()
    first, second = (evaluate(model, sampled.env, "test") for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first["length"].tolist() == second["length"].tolist()
    assert len(set(first["length"].tolist())) > 1
    greedy = config(tmp_path, *CORRIDOR, "env.evaluation={episodes: 20, greedy: true}")
    assert len(set(evaluate(model, greedy.env, "test")["length"].tolist())) == 1


def test_evaluation_seeds_are_fixed_and_of_each_split_its_own():
    seeds = {split: evaluation_seeds(split, 200) for split in SPLITS}
    assert len({seed for each in seeds.values() for seed in each}) == 200 * len(SPLITS)
    assert seeds["test"][:5] == evaluation_seeds("test", 5)
    assert all(0 <= seed < 2**31 for seed in seeds["validation"])


@pytest.mark.parametrize(
    ("wrappers", "policy"),
    [("", "MlpPolicy"), (f"'{HERE}:Flat'", "CnnPolicy"), (f"'{HERE}:AsDict'", "MultiInputPolicy")],
)
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_the_policy_fits_the_observations(tmp_path, wrappers, policy, algo):
    run = config(tmp_path, *CORRIDOR, f"env.wrappers=[{wrappers}]", f"algo={algo}")
    model = make_model(run, "cpu")
    expected = type(model).policy_aliases[policy]
    assert type(model.policy) is expected
    if policy != "CnnPolicy":  # seconds for nothing
        execute(run)
        assert list(load_results(tmp_path).runs["status"]) == ["ok"]


def test_normalised_and_in_processes(tmp_path):
    run = config(tmp_path, *CORRIDOR, "env.normalize=true", "env.workers=2", "env.train.sub_envs=2")
    model = make_model(run, "cpu")
    assert isinstance(model.env, VecNormalize) and isinstance(model.env.venv, SubprocVecEnv)
    model.env.close()
    folder = execute(run)
    assert (folder / "checkpoint" / "model.zip").exists()
    assert list(load_results(tmp_path).runs["status"]) == ["ok"]


@pytest.mark.parametrize("env", [CORRIDOR, ["env=vlm"]])
def test_an_algorithm_of_ones_own_is_a_row_like_others(tmp_path, env):
    short = [word for word in SHORT if "episodes" not in word or env == CORRIDOR]
    run = composed(
        *short, "tuned=none", f"results='{tmp_path}'", *env, "algo=class",
        f"algo.id={HERE}:Renamed", "+algo.factor=0.5", "+algo.group_size=4",
    )  # fmt: skip
    assert run.algo.name == "Renamed"
    model = make_model(run, "cpu")
    assert type(model).__name__ == "Renamed" and model.factor == 0.5 and model.group_size == 4
    assert model.gamma == (0.99 if env == CORRIDOR else 1.0)
    check(run)


def test_any_algorithm_of_sb3_runs(tmp_path):
    run = config(
        tmp_path, *CORRIDOR, "algo=class", "algo.id=stable_baselines3:DQN", "algo.name=deep_q",
        "+algo.learning_starts=10",
    )  # fmt: skip
    assert isinstance(make_model(run, "cpu"), DQN)
    execute(run)
    runs = load_results(tmp_path).runs
    assert list(runs["status"]) == ["ok"] and list(runs["algo"]) == ["deep_q"]


def test_constant_length_is_the_limit_of_the_episodes(tmp_path):
    model = make_model(config(tmp_path, "env=cartpole", "algo=dr_grpo"), "cpu")
    assert (model.aggregation, model.max_len) == ("constant_length", 500)


def test_the_zoos_ppo_has_the_zoos_settings(tmp_path):
    """CartPole-v1 in hyperparams/ppo.yml: 8 x 32 steps, batches of 256, 20 epochs, lin_0.001."""
    model = make_model(config(tmp_path, "env=cartpole", "algo=ppo_zoo"), "cpu")
    assert isinstance(model, PPO) and isinstance(model.env, DummyVecEnv)
    assert (model.env.num_envs, model.n_steps, model.batch_size, model.n_epochs) == (8, 32, 256, 20)
    assert (model.gamma, model.gae_lambda, model.ent_coef) == (0.98, 0.8, 0.0)
    for schedule, start in ((model.lr_schedule, 0.001), (model.clip_range, 0.2)):
        assert schedule(1.0) == start and schedule(0.5) == start / 2
    steady = make_model(config(tmp_path, "env=acrobot", "algo=ppo_zoo"), "cpu")
    assert isinstance(steady.env, VecNormalize) and steady.env.num_envs == 16
    assert steady.lr_schedule(0.5) == 3e-4 and steady.clip_range(0.5) == 0.2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env=gym"], r"env\.id: missing, expected"),
        (["env=gym", "env.id=CartPoole-v1"], "env.id=CartPoole-v1: .*CartPole"),
        (["env=gym", "env.id=no_such:Thing-v0"], "No module named 'no_such'"),
        ([*CORRIDOR, "env.wrappers=[Foo]"], "env.wrappers=Foo: expected package.module:Name"),
        ([*CORRIDOR, "env.wrappers=['json:Foo']"], "env.wrappers=json:Foo: json has no Foo"),
        ([*CORRIDOR, "+env.kwargs.speed=3"], "unexpected keyword argument 'speed'"),
        ([*CORRIDOR, "env.workers=0"], "env.workers=0: expected a whole number"),
        (
            [*CORRIDOR, "algo=class", "algo.id=json:dumps"],
            "json:dumps: expected a subclass",
        ),
        ([*CORRIDOR, "algo=class"], r"algo\.id: missing"),
        ([*CORRIDOR, "algo=ppo_zoo"], "RL Baselines3 Zoo has no settings"),
        ([*CORRIDOR, "algo=maskable_ppo"], "expected an environment with action_masks"),
        (
            [*CORRIDOR, "algo.group_size=5"],
            "episodes=16: expected a multiple of group_size=5",
        ),
        (
            [*CORRIDOR, "algo=ppo", "algo.minibatches=3"],
            "expected a divisor of the 1024",
        ),
        (
            ["env=pendulum", "algo=class", "algo.id=stable_baselines3:DQN"],
            "only supports .*Discrete",
        ),
    ],
)
def test_what_cannot_be_is_named(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        check(config(tmp_path, *overrides))


def test_from_a_folder_of_ones_own(tmp_path):
    """An environment, an algorithm and their configurations beside where the user stands."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import gymnasium as gym
            import numpy as np
            from grpo_bench import GRPO

            class Guess(gym.Env):
                observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
                action_space = gym.spaces.Discrete(2)

                def reset(self, seed=None, options=None):
                    super().reset(seed=seed)
                    return np.zeros(1, np.float32), {}

                def step(self, action):
                    return np.zeros(1, np.float32), float(action), True, False, {}

            gym.register("Guess-v0", Guess)

            class Mine(GRPO):
                pass
            """
        )
    )
    for group, name, text in (
        ("env", "guess", "defaults: [gym, _self_]\nid: mine:Guess-v0\nname: guess\n"),
        ("algo", "mine", "defaults: [class, _self_]\nid: mine:Mine\nname: mine\n"),
    ):
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / f"{name}.yaml").write_text(text)
    done = subprocess.run(
        [*RUN, "-m", "env=guess", "algo=grpo,mine", "seed=1", *SHORT],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[2/2] " in done.stdout and "guess" in done.stdout and "mine" in done.stdout
    runs = load_results(tmp_path / "results" / "runs").runs
    assert set(zip(runs["env"], runs["algo"], strict=True)) == {
        ("guess", "grpo"),
        ("guess", "mine"),
    }
