"""The vector view: ``gymnasium.vector.VectorEnv`` over any Task, without a loop over episodes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from grpo_envs.scalar import RENDER_FPS, RENDER_MODES, check_options, check_render_mode
from grpo_envs.task import BoolArray, IntArray, Outcome, Split, State, Task, check_split


class TaskVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` episodes at once; every call is a few numpy operations.

    Args:
        num_envs: number of sub-environments.
        split, render_mode, **options: as for the scalar environment.
        autoreset_mode: what follows the end of an episode.
            SAME_STEP (default): the step that ends it returns the next problem's first observation.
            ``infos["final_obs"]`` and ``infos["final_info"]`` have the last ones, as whole batches,
            valid where the masks ``_final_obs`` and ``_final_info`` are true. NEXT_STEP: the next
            step starts the next problem and ignores the action. DISABLED: the episode waits, with
            reward 0, until it is reset.

    ``reset(options=...)`` takes ``problem_id`` (num_envs,) and ``reset_mask`` (num_envs,) bool, to
    restart only some episodes.
    """

    metadata: dict[str, Any]
    task_class: ClassVar[type[Task]]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        split: str = "train",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        **options: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: expected at least 1")
        check_render_mode(render_mode)
        self.task = self.task_class(**options)
        self.split: Split = check_split(split)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {
            "render_modes": RENDER_MODES,
            "render_fps": RENDER_FPS,
            "autoreset_mode": self.autoreset_mode,
        }
        self.single_observation_space = self.task.observation_space
        self.single_action_space = self.task.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._state: State | None = None
        self._ended: BoolArray = np.zeros(num_envs, dtype=bool)

    def draw_problems(self, n: int) -> IntArray:
        """Draw n problem ids, (n,), from the split, with the environment's random generator."""
        return self.task.sample(self.np_random, n, self.split)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        check_options(options, {"problem_id", "reset_mask"})
        options = options or {}
        mask = self._reset_mask(options.get("reset_mask"))
        ids = options.get("problem_id")
        if ids is None:
            ids = self.draw_problems(int(np.count_nonzero(mask)))
        else:
            ids = np.asarray(ids)
            if ids.shape != (self.num_envs,):
                raise ValueError(f"problem_id of shape {ids.shape}: expected ({self.num_envs},)")
            ids = self.task.check_ids(ids[mask])
        self._restart(mask, ids)
        return self.task.observe(self._started()), self._infos(None)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        state = self._started()
        actions = self._check_actions(actions)
        waiting = self._ended
        if waiting.any():
            outcome = self._step_some(~waiting, actions)
        else:
            outcome = self.task.step(state, actions)
        terminated = outcome.terminated
        infos = self._infos(outcome)
        match self.autoreset_mode:
            case AutoresetMode.SAME_STEP:
                if ended := int(np.count_nonzero(terminated)):
                    final = {"final_obs": self.task.observe(state), "final_info": infos}
                    final |= {"_final_obs": terminated, "_final_info": terminated}
                    self._restart(terminated, self.draw_problems(ended))
                    infos = self._infos(None) | final
            case AutoresetMode.NEXT_STEP:
                if waiting.any():
                    self._restart(waiting, self.draw_problems(int(np.count_nonzero(waiting))))
                    infos["problem_id"] = state["problem_id"].astype(np.float64)
                    terminated = terminated & ~waiting
                self._ended = terminated.copy()
            case AutoresetMode.DISABLED:
                self._ended = terminated.copy()
        truncated = np.zeros(self.num_envs, dtype=bool)
        return self.task.observe(state), outcome.reward, terminated, truncated, infos

    def action_masks(self) -> BoolArray:
        """Actions that can still be right, (num_envs, n_actions), for ``MaskablePPO``."""
        return self.task.action_masks(self._started())

    def render(self) -> tuple[Any, ...] | None:
        if self.render_mode is None or self._state is None:
            return None
        one = self.task.describe if self.render_mode == "ansi" else self.task.draw
        return tuple(one(self._state, i) for i in range(self.num_envs))

    # -- inside -----------------------------------------------------------------------------------

    def _started(self) -> State:
        if self._state is None:
            raise RuntimeError("call reset() first")
        return self._state

    def _reset_mask(self, mask: Any) -> BoolArray:
        if mask is None:
            return np.ones(self.num_envs, dtype=bool)
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise ValueError(
                f"reset_mask of shape {mask.shape} and type {mask.dtype}: "
                f"expected ({self.num_envs},) bool"
            )
        if self._state is None and not mask.all():
            raise RuntimeError("the first reset() starts all episodes: expected no reset_mask")
        return mask

    def _restart(self, mask: BoolArray, ids: IntArray) -> None:
        fresh = self.task.start(ids)
        if self._state is None:
            self._state = fresh
        elif len(ids) == self.num_envs:
            self._state.update(fresh)
        else:
            for name, array in fresh.items():
                self._state[name][mask] = array
        self._ended = self._ended & ~mask

    def _check_actions(self, actions: Any) -> IntArray:
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions of shape {actions.shape} and type {actions.dtype}: "
                f"expected ({self.num_envs},) of integers"
            )
        n = int(self.single_action_space.n)  # type: ignore[attr-defined]
        if actions.min() < 0 or actions.max() >= n:
            bad = actions[(actions < 0) | (actions >= n)][0]
            raise ValueError(f"action {bad}: expected 0 to {n - 1}")
        return actions.astype(np.int64, copy=False)

    def _step_some(self, going: BoolArray, actions: IntArray) -> Outcome:
        """Step the running episodes; the others wait, with reward 0 and ``terminated`` true."""
        state = self._started()
        part = {name: array[going] for name, array in state.items()}
        outcome = self.task.step(part, actions[going])
        for name, array in part.items():
            state[name][going] = array

        def spread(values: np.ndarray) -> np.ndarray:
            whole = np.zeros(self.num_envs)
            whole[going] = values
            return whole

        terminated = np.ones(self.num_envs, dtype=bool)
        terminated[going] = outcome.terminated
        components = {name: spread(values) for name, values in outcome.components.items()}
        return Outcome(spread(outcome.reward), terminated, spread(outcome.success), components)

    def _infos(self, outcome: Outcome | None) -> dict[str, Any]:
        """Gymnasium's batched infos: an array and a mask ``_name`` for each key."""
        state = self._started()
        zeros = np.zeros(self.num_envs)
        infos: dict[str, Any] = {"problem_id": state["problem_id"].astype(np.float64)}
        infos["is_success"] = zeros if outcome is None else outcome.success
        for name in self.task.component_names:
            infos[name] = zeros.copy() if outcome is None else outcome.components[name]
        everyone = np.ones(self.num_envs, dtype=bool)
        return infos | {f"_{name}": everyone for name in list(infos)}
