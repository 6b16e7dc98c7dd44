"""The scalar view: ``gymnasium.Env`` over any Task, as a batch of one."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from grpo_envs.task import BoolArray, Outcome, Split, State, Task, check_split

RENDER_MODES = ["ansi", "rgb_array"]
RENDER_FPS = 1


class TaskEnv(gym.Env[Any, Any]):
    """One episode at a time. A subclass names its Task and documents the environment.

    Args:
        split: draw problems from ``train``, ``validation``, ``test`` or ``tuning``.
        render_mode: ``ansi`` (text), ``rgb_array`` (a card) or None.
        **options: of the task.

    ``reset(options={"problem_id": k})`` starts problem k of any split.
    """

    metadata: dict[str, Any] = {"render_modes": RENDER_MODES, "render_fps": RENDER_FPS}
    task_class: ClassVar[type[Task]]

    def __init__(
        self, *, split: str = "train", render_mode: str | None = None, **options: Any
    ) -> None:
        check_render_mode(render_mode)
        self.task = self.task_class(**options)
        self.split: Split = check_split(split)
        self.render_mode = render_mode
        self.observation_space = self.task.observation_space
        self.action_space = self.task.action_space
        self._state: State | None = None
        self._ended = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        check_options(options, {"problem_id"})
        if options and options.get("problem_id") is not None:
            ids = self.task.check_ids([options["problem_id"]])
        else:
            ids = self.task.sample(self.np_random, 1, self.split)
        self._state = self.task.start(ids)
        self._ended = False
        return self._observe(), self._info(None)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._state is None or self._ended:
            raise RuntimeError("step() before reset(): the episode has ended or never began")
        state = self._state
        if not self.action_space.contains(action):
            raise ValueError(f"action={action!r}: expected a member of {self.action_space}")
        outcome = self.task.step(state, np.array([action], dtype=np.int64))
        observation, info = self._observe(), self._info(outcome)
        self._ended = bool(outcome.terminated[0])
        return observation, float(outcome.reward[0]), self._ended, False, info

    def action_masks(self) -> BoolArray:
        """Actions that can still be right, (n_actions,), for ``MaskablePPO``."""
        if self._state is None:
            raise RuntimeError("action_masks() before reset()")
        return self.task.action_masks(self._state)[0]

    def render(self) -> Any:
        if self.render_mode is None or self._state is None:
            return None
        if self.render_mode == "ansi":
            return self.task.describe(self._state, 0)
        return self.task.draw(self._state, 0)

    def _observe(self) -> Any:
        assert self._state is not None
        batch = self.task.observe(self._state)
        if isinstance(batch, dict):
            return {name: array[0] for name, array in batch.items()}
        return batch[0]

    def _info(self, outcome: Outcome | None) -> dict[str, float]:
        assert self._state is not None
        info = {"problem_id": float(self._state["problem_id"][0])}
        info["is_success"] = 0.0 if outcome is None else float(outcome.success[0])
        for name in self.task.component_names:
            info[name] = 0.0 if outcome is None else float(outcome.components[name][0])
        return info


def check_render_mode(render_mode: str | None) -> None:
    """Raises ValueError unless ``render_mode`` is one of ``RENDER_MODES`` or None."""
    if render_mode not in (None, *RENDER_MODES):
        raise ValueError(f"render_mode={render_mode!r}: expected one of {RENDER_MODES} or None")


def check_options(options: dict[str, Any] | None, allowed: set[str]) -> None:
    """Raises ValueError for an unknown option of ``reset``."""
    unknown = set(options or ()) - allowed
    if unknown:
        raise ValueError(
            f"reset(options={options}): unknown {sorted(unknown)}, expected {sorted(allowed)}"
        )
