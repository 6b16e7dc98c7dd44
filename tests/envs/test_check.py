"""``check_group_env`` on correct environments, and on environments with one fault each."""

from __future__ import annotations

import datetime
import random
import time
import tracemalloc
from datetime import datetime as imported_datetime
from functools import partial
from time import time as imported_time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorStatistics

from grpo_envs import check_group_env
from grpo_envs.tokens.arithmetic import ArithmeticVectorEnv


class Guess(gym.Env[np.ndarray, int]):
    """Two guesses of a problem's id modulo 3. Each subclass breaks one thing."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(3)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.problem = self.pick(options or {})
        self.guesses = 0
        self.episodes += 1
        return self.observe(), self.info()

    def step(self, action: int) -> Any:
        self.guesses += 1
        reward = float(action == self.problem % 3)
        return self.observe(), reward, self.guesses == 2, False, self.info()

    def pick(self, options: dict[str, Any]) -> int:
        drawn = int(self.np_random.integers(1000))
        return int(options.get("problem_id", drawn))

    def observe(self) -> np.ndarray:
        return np.array([self.problem, self.guesses], dtype=np.float32)

    def info(self) -> dict[str, Any]:
        return {"problem_id": float(self.problem), "is_success": 0.0}


class NoisyStart(Guess):
    def observe(self) -> np.ndarray:
        noise = self.np_random.random() if self.guesses == 0 else 0
        return super().observe() + np.float32(noise)


class NoisyObservation(Guess):
    def observe(self) -> np.ndarray:
        noise = self.np_random.random() if self.guesses == 1 else 0
        return super().observe() + np.float32(noise)


class _NoisyReward(Guess):
    def noise(self) -> float:
        raise NotImplementedError

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.noise(), *rest


class OwnGeneratorReward(_NoisyReward):
    def noise(self) -> float:
        return self.np_random.random()


class GlobalNumpyReward(_NoisyReward):
    def noise(self) -> float:
        return np.random.random()  # noqa: NPY002


class GlobalPythonReward(_NoisyReward):
    def noise(self) -> float:
        return random.random()


class LeftoverReward(_NoisyReward):
    def noise(self) -> float:
        return float(self.episodes)


class LeftoverEnd(Guess):
    def step(self, action: int) -> Any:
        observation, reward, _, *rest = super().step(action)
        return observation, reward, self.guesses == 2 + self.episodes % 2, *rest


class IgnoresTheId(Guess):
    def pick(self, options: dict[str, Any]) -> int:
        return super().pick({})


class NoIdAtTheStart(Guess):
    """After the first resets, from which the ids are taken."""

    def info(self) -> dict[str, Any]:
        return {} if self.episodes > 130 and self.guesses == 0 else super().info()


class WordsForIds(Guess):
    def info(self) -> dict[str, Any]:
        return {"problem_id": f"problem {self.problem}"}


class Remembers(_NoisyReward):
    """A problem that it has seen before is worth more."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def noise(self) -> float:
        known = self.problem in self.seen
        self.seen.add(self.problem)
        return float(known)


class AfterTheOther(_NoisyReward):
    """The reward depends on the problem of the episode before."""

    before = 0

    def reset(self, **start: Any) -> Any:
        self.before = getattr(self, "problem", 0)
        return super().reset(**start)

    def noise(self) -> float:
        return float(self.before % 2)


class HourOfTheDay(_NoisyReward):
    def noise(self) -> float:
        return float(time.time() % 86_400 // 3_600)


class StopWatch(_NoisyReward):
    def noise(self) -> float:
        return float(time.monotonic_ns() // 10**12)


CLOCKS: dict[str, Any] = {
    "datetime": lambda: datetime.datetime.now().hour,
    "with a zone": lambda: datetime.datetime.now(datetime.UTC).hour,
    "date": lambda: datetime.date.today().toordinal() % 1000,
    "imported datetime": lambda: imported_datetime.today().minute,
    "imported time": lambda: imported_time() // 3_600 % 24,
    "localtime": lambda: time.localtime().tm_hour,
    "strftime": lambda: float(time.strftime("%H")),
    "time of the process": lambda: time.process_time() // 10_000,
}


class TorchReward(_NoisyReward):
    def noise(self) -> float:
        return float(torch.rand(1))


class RareChance(_NoisyReward):
    """In about one of ten episodes."""

    def noise(self) -> float:
        return float(random.random() < 0.05)


class OneBadInTwenty(_NoisyReward):
    def noise(self) -> float:
        return random.random() if self.problem % 20 == 7 else 0.0


class GoesOnWhereItWas(_NoisyReward):
    """One problem in twenty, played twice in a row."""

    before = 0

    def reset(self, **start: Any) -> Any:
        self.before = getattr(self, "problem", 0)
        return super().reset(**start)

    def noise(self) -> float:
        return float(self.before == self.problem and self.problem % 20 == 7)


class AfterStep200(_NoisyReward):
    def step(self, action: int) -> Any:
        observation, reward, _, *rest = super().step(action)
        return observation, reward, self.guesses == 300, *rest

    def noise(self) -> float:
        return random.random() if self.guesses > 200 else 0.0


BROKEN = {
    NoisyStart: "the first observations of two rollouts in a row differ",
    NoisyObservation: "observations after step 1 .* differ",
    OwnGeneratorReward: "rewards .* at step 1",
    GlobalNumpyReward: "rewards .* at step 1",
    GlobalPythonReward: "rewards .* at step 1",
    LeftoverReward: "rewards .* at step 1",
    LeftoverEnd: r"\(terminated, truncated\) .* at step 2",
    IgnoresTheId: "was asked for by reset.* but info says",
    NoIdAtTheStart: "was asked for by reset.* but info says nothing",
    Remembers: "rewards .* at step 1",
    AfterTheOther: "rewards .* at step 1",
    HourOfTheDay: "rewards .* at step 1",
    StopWatch: "rewards .* at step 1",
    TorchReward: "rewards .* at step 1",
    RareChance: "rewards .* at step",
    GoesOnWhereItWas: "rewards of two rollouts in a row at step 1",
    OneBadInTwenty: "rewards .* at step 1",
    AfterStep200: "rewards .* at step 201",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda env: env.__name__)
def test_each_fault_is_reported(broken: type[Guess]) -> None:
    with pytest.raises(AssertionError, match=r"^problem \d+.*" + BROKEN[broken]):
        check_group_env(broken())


@pytest.mark.parametrize("clock", CLOCKS)
def test_each_clock_is_moved(clock: str) -> None:
    class Clocked(_NoisyReward):
        def noise(self) -> float:
            return float(CLOCKS[clock]())

    with pytest.raises(AssertionError, match="rewards of a first rollout and a later one"):
        check_group_env(Clocked())


def test_one_problem_is_enough_to_find_leftovers() -> None:
    with pytest.raises(AssertionError, match="rewards"):
        check_group_env(LeftoverReward(), n_problems=1)


def test_ids_that_are_no_numbers() -> None:
    with pytest.raises(
        AssertionError, match=r"info\['problem_id'\] is 'problem \d+': expected a wh"
    ):
        check_group_env(WordsForIds())


@pytest.mark.parametrize(("n", "finds"), [(19, False), (60, True)])
def test_how_many_problems_it_takes(n: int, finds: bool) -> None:
    """Problems 0, 1, 2, ... of which number 19 is the only bad one."""

    class InTurn(_NoisyReward):
        def pick(self, options: dict[str, Any]) -> int:
            return int(options.get("problem_id", self.episodes))

        def noise(self) -> float:
            return random.random() if self.problem == 19 else 0.0

    check = partial(check_group_env, InTurn(), n_problems=n)
    if finds:
        with pytest.raises(AssertionError, match="problem 19: the rewards"):
            check()
    else:
        check()


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="max_steps=0: expected at least 1"):
        check_group_env(Guess(), max_steps=0)
    with pytest.raises(ValueError, match="n_problems=0: expected at least 1"):
        check_group_env(Guess(), n_problems=0)


# -- environments that keep the contract ----------------------------------------------------------


@pytest.mark.parametrize("name", ["Arithmetic", "Format"])
def test_our_environments(name: str) -> None:
    check_group_env(gym.make(f"GRPO-{name}-v0"))
    for mode in AutoresetMode:
        check_group_env(gym.make_vec(f"GRPO-{name}-v0", num_envs=5, autoreset_mode=mode))


class FreeInfo(Guess):
    """Ids as whole numbers, and keys of any kind at any step."""

    kind: Any = int

    def info(self) -> dict[str, Any]:
        more = {"text": "x", "list": [1], "solved": np.bool_(True)} if self.guesses else {}
        return {"problem_id": self.kind(self.problem)} | more


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32, np.array])
def test_infos_are_free_but_for_the_id(kind: Any) -> None:
    env = FreeInfo()
    env.kind = kind
    check_group_env(env)
    check_group_env(RecordEpisodeStatistics(TimeLimit(env, 5)))
    if kind in (int, float):
        vector = SyncVectorEnv([FreeInfo] * 3, autoreset_mode=AutoresetMode.DISABLED)
        with pytest.raises(AssertionError, match="so a group cannot be started"):
            check_group_env(vector)  # gymnasium gives all sub-environments the same options
    check_group_env(VectorStatistics(gym.make_vec("GRPO-Arithmetic-v0", 3)))


def test_infos_of_our_tasks_are_floats_under_the_same_keys() -> None:
    for name in ("VLM", "Arithmetic", "Format"):
        kwargs = {"source": "synthetic"} if name == "VLM" else {}
        env = gym.make(f"GRPO-{name}-v0", **kwargs)
        keys = env.reset(seed=0)[1].keys()
        ended = False
        env.action_space.seed(0)
        while not ended:
            *_, terminated, truncated, info = env.step(env.action_space.sample())
            ended = terminated or truncated
            assert info.keys() == keys and {type(value) for value in info.values()} == {float}
        vector = gym.make_vec(f"GRPO-{name}-v0", num_envs=3, **kwargs)
        infos = vector.reset(seed=0)[1], vector.step(vector.action_space.sample())[-1]
        for info in infos:
            columns = {k: v for k, v in info.items() if "final" not in k and k[0] != "_"}
            assert {values.dtype for values in columns.values()} == {np.dtype(np.float64)}


class LongEpisodes(Guess):
    def step(self, action: int) -> Any:
        observation, reward, _, *rest = super().step(action)
        return observation, reward, self.guesses == 300, *rest


class Calendar(Guess):
    """The date of the problem, by a clock that runs but does not matter."""

    def observe(self) -> np.ndarray:
        day = imported_datetime(2020, 1, 1) + datetime.timedelta(days=self.problem)
        assert isinstance(day, imported_datetime) and isinstance(day, datetime.date)
        assert datetime.datetime.now() > day and time.localtime(0).tm_year < 1971
        return np.array([day.month, time.gmtime(86_400 * self.problem).tm_yday], np.float32)


class Missing(Guess):
    """Nothing is seen, and there is no reward before the end."""

    def observe(self) -> np.ndarray:
        return np.full(2, np.nan, np.float32)

    def step(self, action: int) -> Any:
        observation, reward, ended, *rest = super().step(action)
        return observation, reward if ended else np.nan, ended, *rest


class SignOfZero(Guess):
    """-0.0 and 0.0 are equal."""

    def observe(self) -> np.ndarray:
        return np.float32(0.0) * np.array([self.problem, (-1) ** self.episodes], np.float32)


@pytest.mark.parametrize("env", [Guess, LongEpisodes, Calendar, Missing, SignOfZero])
def test_environments_without_a_fault(env: type[Guess]) -> None:
    check_group_env(env())


class EachItsOwnId(SyncVectorEnv):
    """Sub-environments that name their problem at their resets alone."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if options is None or "problem_id" not in options:
            return super().reset(seed=seed, options=options)
        infos: dict[str, Any] = {}
        for i, (env, id) in enumerate(zip(self.envs, options["problem_id"], strict=True)):
            self._env_obs[i], info = env.reset(options={"problem_id": id})
            infos = self._add_info(infos, info, i)
        self._autoreset_envs[:] = False
        return np.stack(self._env_obs), infos


class IdAtTheStart(Guess):
    def step(self, action: int) -> Any:
        observation, reward, _, truncated, _ = super().step(action)
        return observation, reward, self.guesses == 1 + self.problem % 3, truncated, {}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_ids_at_the_resets_are_enough(mode: AutoresetMode) -> None:
    check_group_env(EachItsOwnId([IdAtTheStart] * 3, autoreset_mode=mode))


def test_images_do_not_fill_the_memory() -> None:
    class Images(Guess):
        observation_space = spaces.Box(0, 255, (100_000,), np.uint8)  # type: ignore[assignment]

        def observe(self) -> np.ndarray:
            return np.full(100_000, self.problem % 256, np.uint8)

    tracemalloc.start()
    try:
        check_group_env(Images())
        assert tracemalloc.get_traced_memory()[1] < 5e6  # all images: 18 million bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_environments_without_ids(env_id: str) -> None:
    """Third-party environments need only equal seeds: dict, tuple and discrete spaces."""
    check_group_env(gym.make(env_id))
    for mode in AutoresetMode:
        check_group_env(SyncVectorEnv([lambda: gym.make(env_id)] * 3, autoreset_mode=mode))


def test_the_global_generators_are_left_as_they_were() -> None:
    def states() -> Any:
        numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
        return random.getstate(), numpy, torch.get_rng_state().tolist()

    def clocks() -> Any:
        ours = imported_time, imported_datetime, datetime.datetime
        return {k: v for k, v in vars(time).items() if callable(v)}, ours

    before = states(), clocks()
    check_group_env(gym.make("GRPO-Arithmetic-v0"))
    with pytest.raises(AssertionError):
        check_group_env(GlobalNumpyReward())
    assert (states(), clocks()) == before


# -- vector environments --------------------------------------------------------------------------


class PlaceInTheBatch(ArithmeticVectorEnv):
    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return observation, reward + np.arange(self.num_envs), *rest


class CrossTalk(ArithmeticVectorEnv):
    """Rewards depend on the whole batch: equal within one group, different in a mixed batch."""

    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return observation, reward + np.mean(actions), *rest


class NoFinalObservation(ArithmeticVectorEnv):
    """Only the first observation of the next, random episode follows the last step of one."""

    metadata: ClassVar[dict[str, Any]]

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        for name in ("final_obs", "_final_obs"):
            infos.pop(name, None)
        return *rest, infos


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (PlaceInTheBatch(3), "rewards of group members 0 and 1 at step 1"),
        (CrossTalk(3), "rewards of a first rollout and a later one at step 1"),
        (NoFinalObservation(3), "observations after step"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_broken_vector_environments(env: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_group_env(env)


@pytest.mark.parametrize(
    "env",
    [
        gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"),
        SyncVectorEnv([lambda: gym.make("GRPO-Arithmetic-v0")] * 3),
    ],
    ids=["one seed only", "one id only"],
)
def test_vector_environments_that_cannot_start_a_group(env: Any) -> None:
    with pytest.raises(AssertionError, match="so a group cannot be started"):
        check_group_env(env)
