"""The torch view of GRPO-VLM: a step runs on one device, with no transfer to the host.

``gymnasium.make_vec("GRPO-VLM-v0", num_envs=1024, device="cuda")`` makes it. Only this module of
the package imports torch, and it is imported only if a device is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from grpo_envs.scalar import RENDER_FPS, RENDER_MODES, check_options, check_render_mode
from grpo_envs.task import Split, check_split
from grpo_envs.vlm.easy_vqa import EasyVQASource
from grpo_envs.vlm.task import RIGHT, WRONG, VLMTask

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class TorchVLMVectorEnv(VectorEnv[Any, Any, Any]):
    """``VLMVectorEnv`` in torch: actions, observations, rewards, ends, infos and their masks are
    tensors on the device, with the same types.

    The embeddings are on the device. A ``torch.Generator`` there, seeded by ``reset(seed=...)``,
    draws problems uniformly over the split, as in the numpy view. The same seed draws different
    problems in numpy and on other kinds of device. ``step``, and ``reset`` without ids, never wait
    for the device, so action values are not checked: one out of range is a wrong answer.

    Args:
        num_envs: number of sub-environments.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; ``auto`` is ``cuda`` if available, else ``cpu``.
        autoreset_mode: SAME_STEP or DISABLED, as for ``TaskVectorEnv``.
        source: ``easy_vqa``. ``synthetic`` needs integer arithmetic that torch does not have on
            every device.
        split, render_mode, **options: as for the scalar environment.

    ``reset(options=...)`` takes ``problem_id`` (num_envs,), an array or a tensor, and
    ``reset_mask`` (num_envs,) bool. Given ids are checked on the host.
    """

    metadata: dict[str, Any]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        device: str | torch.device,
        source: str = "easy_vqa",
        split: str = "train",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        **options: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: expected at least 1")
        check_render_mode(render_mode)
        self.task = VLMTask(source, **options)
        if not isinstance(self.task.source, EasyVQASource):
            raise ValueError(f"source={source!r} on a device: expected 'easy_vqa', or no device")
        self.split: Split = check_split(split)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            raise ValueError("autoreset_mode=NEXT_STEP on a device: expected SAME_STEP or DISABLED")
        self.metadata = {
            "render_modes": RENDER_MODES,
            "render_fps": RENDER_FPS,
            "autoreset_mode": self.autoreset_mode,
        }
        self.single_observation_space = self.task.observation_space
        self.single_action_space = self.task.action_space
        self.observation_space = batch_space(self.task.observation_space, num_envs)
        self.action_space = batch_space(self.task.action_space, num_envs)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.empty(0, device=device).device  # "cuda" is "cuda:0", as tensors say
        self.generator = torch.Generator(self.device)
        self.generator.seed()
        tables = self.task.source.tables
        self._blocks = torch.tensor(tables.blocks, device=self.device)
        self._block_of = torch.tensor(tables.block_of, device=self.device)
        self._place = torch.tensor(tables.place, device=self.device)
        self._split_ids = torch.tensor(tables.ids[self.split], device=self.device)
        self._ids: Tensor | None = None  # (num_envs,) int64
        self._choices = torch.full((num_envs,), -1, device=self.device)  # -1 before the action
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=self.device)

    def draw_problems(self, n: int) -> Tensor:
        """Draw n problem ids, (n,) int64, from the split, with the environment's generator."""
        size = len(self._split_ids)
        drawn = torch.randint(size, (n,), generator=self.generator, device=self.device)
        return self._split_ids[drawn]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.generator.manual_seed(seed)
        check_options(options, {"problem_id", "reset_mask"})
        options = options or {}
        mask = self._reset_mask(options.get("reset_mask"))
        ids = options.get("problem_id")
        fresh = self.draw_problems(self.num_envs) if ids is None else self._checked(ids, mask)
        self._restart(fresh, mask)
        return self._observe(), self._infos(None)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        ids, going = self._started(), ~self._ended
        self._check_actions(actions)
        self._choices = torch.where(going, actions.long(), self._choices)
        success = ((self._place[ids] == actions) & going).double()
        rewards = (success * (RIGHT - WRONG) + WRONG).masked_fill(self._ended, 0.0)
        terminated = torch.ones_like(going)
        infos = self._infos(success)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            final = {"final_obs": self._observe(), "final_info": infos}
            final |= {"_final_obs": terminated, "_final_info": terminated}
            self._restart(self.draw_problems(self.num_envs), terminated)
            infos = self._infos(None) | final
        else:
            self._ended = terminated.clone()
        return self._observe(), rewards, terminated, torch.zeros_like(terminated), infos

    def action_masks(self) -> Tensor:
        """Every action can be right, (num_envs, n_actions)."""
        shape = (len(self._started()), int(self.task.action_space.n))
        return torch.ones(shape, dtype=torch.bool, device=self.device)

    def render(self) -> tuple[Any, ...] | None:
        if self.render_mode is None or self._ids is None:
            return None
        state = {"problem_id": self._ids.numpy(force=True)}
        state["choice"] = self._choices.numpy(force=True)
        one = self.task.describe if self.render_mode == "ansi" else self.task.draw
        return tuple(one(state, i) for i in range(self.num_envs))

    # -- inside -----------------------------------------------------------------------------------

    def _started(self) -> Tensor:
        if self._ids is None:
            raise RuntimeError("call reset() first")
        return self._ids

    def _reset_mask(self, mask: Any) -> Tensor:
        """The mask as a tensor; all True without one."""
        if mask is None:
            return torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        mask = torch.as_tensor(mask, device=self.device)
        if mask.shape != (self.num_envs,) or mask.dtype != torch.bool:
            raise ValueError(
                f"reset_mask of shape {tuple(mask.shape)} and type {mask.dtype}: "
                f"expected ({self.num_envs},) bool"
            )
        if self._ids is None and not mask.all():
            raise RuntimeError("the first reset() starts all episodes: expected no reset_mask")
        return mask

    def _checked(self, ids: Any, mask: Tensor) -> Tensor:
        """Given ids in canonical form where the mask is true, 0 elsewhere."""
        array = ids.numpy(force=True) if isinstance(ids, Tensor) else np.asarray(ids)
        if array.shape != (self.num_envs,):
            raise ValueError(f"problem_id of shape {array.shape}: expected ({self.num_envs},)")
        chosen, whole = mask.numpy(force=True), np.zeros(self.num_envs, dtype=np.int64)
        whole[chosen] = self.task.check_ids(array[chosen])
        return torch.tensor(whole, device=self.device)

    def _restart(self, ids: Tensor, mask: Tensor) -> None:
        self._ids = ids if self._ids is None else torch.where(mask, ids, self._ids)
        self._choices = self._choices.masked_fill(mask, -1)
        self._ended = self._ended & ~mask

    def _check_actions(self, actions: Any) -> None:
        """Check type, shape and device of the actions: none of these waits for the device."""
        expected = f"expected a tensor ({self.num_envs},) of integers on {self.device}"
        if not isinstance(actions, Tensor):
            raise ValueError(f"actions of type {type(actions).__name__}: {expected}")
        shape, kind, home = tuple(actions.shape), actions.dtype, actions.device
        if shape != (self.num_envs,) or kind not in INTEGERS or home != self.device:
            raise ValueError(f"actions of shape {shape} and type {kind} on {home}: {expected}")

    def _observe(self) -> Tensor:
        """(num_envs, 128) float32, a new tensor."""
        return self._blocks[self._block_of[self._started()]].flatten(1)

    def _infos(self, success: Tensor | None) -> dict[str, Any]:
        """Gymnasium's batched infos: a tensor and a mask ``_name`` for each key."""
        ids = self._started().double()
        found = torch.zeros_like(ids) if success is None else success
        infos = {"problem_id": ids, "is_success": found, "accuracy": found.clone()}
        everyone = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        return infos | {f"_{name}": everyone for name in infos}
