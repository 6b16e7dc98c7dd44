"""``python -m grpo_bench.run``: one run. ``-m``: a sweep, by default the whole comparison.

    python -m grpo_bench.run env=format algo=ppo seed=3
    python -m grpo_bench.run -m seed=1,2,3
    python -m grpo_bench.run -m env=vlm algo=grpo,ppo,ppo_shared seed=range(0,10) budget=full

Every run writes a record (see ``grpo_bench.records``); a sweep ends with the tables.
"""

from __future__ import annotations

from typing import Any

import hydra
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from grpo_bench.config import CONF
from hydra_plugins.grpo_bench_launcher import ProcessLauncher

# Hydra looks through the folders on the path, and an editable installation puts none there.
Plugins.instance().register(ProcessLauncher)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> float:
    """One run in this process; its success rate on the validation split."""
    from tqdm import tqdm

    from grpo_bench.job import check, execute

    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    try:
        check(plain)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    with tqdm(total=100, unit="%", leave=False, disable=None) as bar:

        def show(stage: str, share: float, success: float) -> None:
            bar.set_description(f"{stage}, {success:.3f} right")
            bar.update(100 * share - bar.n)

        folder = execute(plain, show)
    from grpo_bench.sweep import outcome  # late: the run need not wait for what prints tables

    ended = outcome(folder, plain)
    print(f"{ended.line()}\nRecord: {folder}")
    return ended.score


if __name__ == "__main__":
    main()
