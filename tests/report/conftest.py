"""One set of records, and its tables, for the tests of tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.run_records import record, values

from grpo_bench.report.folder import make_tables


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GRPO with seeds 1 and 2, seed 3 failed; PPO with seeds 1 to 3; GRPO alone on format."""
    folder = tmp_path_factory.mktemp("records")
    record(folder, "ppo", 1, values(0.5, 1000, 400e6, critic=40e3))
    record(folder, "ppo", 2, values(0.6, 1000, 400e6, critic=40e3))
    record(folder, "ppo", 3, values(0.7, 1000, 400e6, critic=40e3))
    record(folder, "grpo", 1, values(0.9, 2000, 200e6))
    record(folder, "grpo", 2, values(0.8, 8000, 200e6))
    record(folder, "grpo", 3, values(0.0, 1, 900e6), status="oom")
    record(folder, "grpo", 1, values(0.5, 1000, 200e6), env="format", components=["format"])
    return folder


@pytest.fixture(scope="session")
def tables(results: Path) -> dict[str, pd.DataFrame]:
    """Of ``results``; not to be changed."""
    return make_tables(results)
