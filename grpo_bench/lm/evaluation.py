"""Answer every problem of a frozen split once: one row per problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from grpo_bench.grpo.seeds import stream
from grpo_bench.lm.generation import generate
from grpo_bench.lm.models import LanguageModel
from grpo_bench.lm.parallel import World
from grpo_bench.lm.sharding import whole
from grpo_bench.lm.tasks import TextTask
from grpo_envs.task import IntArray, Split

EXAMPLES = 8  # completions that are kept as text, of the first problems of a split


@dataclass(frozen=True)
class Evaluation:
    """columns: ``problem_id``, ``reward``, ``success``, ``length`` (tokens), ``completed`` (1 for
    a reply that ended before the limit) and the reward's components, each (n,), in the order of the
    split's frozen list. examples: the texts of the first of them."""

    columns: dict[str, NDArray[np.generic]]
    examples: list[str]


def evaluate(
    lm: LanguageModel,
    task: TextTask,
    split: Split,
    *,
    max_new_tokens: int,
    temperature: float,
    batch_size: int,
    world: World,
) -> Evaluation:
    """One completion of each problem of a split.

    Args:
        temperature: 0 is greedy; else the tokens are drawn, with the same numbers always.
        batch_size: completions side by side.
    """
    ids = task.problem_ids(split)
    own = ids[world.own(len(ids))]
    generator = torch.Generator().manual_seed(int(stream(0, "starts").generate_state(1)[0]))
    rows: list[NDArray[np.float64]] = []
    examples: list[str] = []
    names: list[str] = []
    for first in range(0, len(own), batch_size):
        part: IntArray = own[first : first + batch_size]
        with whole(lm.model):
            completions = generate(
                lm.model,
                task.prompts(part),
                1,
                max_new_tokens,
                temperature,
                lm.eos_ids,
                generator,
            )
        texts = task.texts(completions)
        examples += texts[: EXAMPLES - len(examples)]
        truncated = completions.truncated.cpu().numpy()
        outcome = task.judge(part, texts, truncated)
        columns = {
            "problem_id": part,
            "success": outcome.success,
            "length": completions.length.cpu().numpy(),
            "reward": outcome.reward,
            "completed": ~truncated,
            **outcome.components,
        }
        names = list(columns)
        rows.append(np.stack([column.astype(np.float64) for column in columns.values()], axis=1))
    table = world.gather(torch.from_numpy(np.concatenate(rows)).to(lm.model.device)).cpu().numpy()
    found: dict[str, NDArray[np.generic]] = dict(zip(names, table.T, strict=True))
    for name in ("problem_id", "length"):
        found[name] = found[name].astype(np.int64)
    return Evaluation(found, examples)
