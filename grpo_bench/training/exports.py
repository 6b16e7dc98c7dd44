"""Exports to TensorBoard and Weights & Biases: every number that a run logs, under its name, while
it trains, with all four budgets. The results are still those of the record."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.config import RunConfig
from grpo_bench.records import Sink
from grpo_bench.records.schema import BUDGETS, Status

FLUSH = 10  # seconds after which TensorBoard sees what is new
# Keys of the configuration that need the package of the same name.
NEEDS = ("tensorboard", "wandb")


def check_exports(config: RunConfig) -> None:
    """Raises ValueError where an export is asked for whose package is not installed."""
    for name in NEEDS:
        asked = getattr(config, name)
        spec = importlib.util.find_spec(name) if asked else None
        # Weights & Biases makes a folder of that name, which Python would take for a package.
        if asked and (spec is None or spec.origin is None):
            raise ValueError(f"{name}={asked}: needs {name}, pip install {name}")


def sinks(config: RunConfig, folder: Path) -> list[Sink]:
    """The exports of a run, in addition to its record in ``folder``. One that cannot be opened, for
    example without a login, is a warning: it must not stop the run."""
    opened: list[Sink] = []
    for name, open_sink in (("tensorboard", TensorBoard), ("wandb", WeightsAndBiases)):
        if getattr(config, name):
            try:
                opened.append(open_sink(config, folder))
            except Exception as error:
                warnings.warn(f"no export to {name}: {error!r}", stacklevel=2)
    return opened


class TensorBoard(Sink):
    """Event files in the run's folder, under ``tensorboard/``: each metric, and the three other
    budgets as ``budget/<name>``, over transitions. They hold 32 bits of a number."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second

        self.writer = SummaryWriter(str(folder / "tensorboard"), flush_secs=FLUSH)

    def log(self, budgets: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        step = int(budgets[BUDGETS[0]])
        others = {f"budget/{name}": budgets[name] for name in BUDGETS[1:]}
        for name, value in {**metrics, **others}.items():
            self.writer.add_scalar(name, value, step)

    def close(self, status: Status) -> None:
        self.writer.close()


class WeightsAndBiases(Sink):
    """A run of the project that ``wandb`` names. Each metric is drawn over ``budget/transitions``,
    and ``budget/<name>`` of the others is there to choose as another axis."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        import wandb

        self.run: Any = wandb.init(
            project=config.wandb,
            name="/".join(folder.parts[-3:]),
            config=config.plain,
            dir=str(folder),
            reinit="create_new",
        )
        self.run.define_metric("*", step_metric=f"budget/{BUDGETS[0]}")

    def log(self, budgets: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        self.run.log({**metrics, **{f"budget/{name}": value for name, value in budgets.items()}})

    def close(self, status: Status) -> None:
        self.run.finish(exit_code=0 if status == "ok" else 1)
