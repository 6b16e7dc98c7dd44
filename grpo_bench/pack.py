"""``python -m grpo_bench.pack results=FOLDER out=FOLDER``: folders of runs into a few small files.

Tables made of the archive are those made of the folders, to the byte; ``grpo_bench.load_results``
and ``python -m grpo_bench.tables`` read both. What is in the archive already stays there, but for a
run that has a later record. The folders are left as they are.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, ListConfig

from grpo_bench.records.archive import METRICS, PROBLEMS, RUNS
from grpo_bench.records.packing import pack
from grpo_bench.runs.door import program
from grpo_bench.runs.stopping import stopping


@program("pack")
def main(config: DictConfig) -> None:
    """Pack the records, and say how large the archive is."""
    out = Path(config.results if config.out is None else config.out)
    try:
        if not isinstance(config.metrics, ListConfig):
            raise ValueError(f"metrics={config.metrics}: expected a list, such as ['eval/*']")
        n = pack(Path(config.results), out, config.metrics)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    size = sum((out / name).stat().st_size for name in (RUNS, METRICS, PROBLEMS))
    print(f"{n} runs, {size / 1e6:.2f} MB in {out}")


if __name__ == "__main__":
    stopping(main)
