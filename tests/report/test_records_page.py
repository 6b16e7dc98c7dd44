"""The example in docs/records.md does what it says, with records in folders and packed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.run_records import record, values

import grpo_bench
from grpo_bench.records.packing import pack

PAGE = Path(__file__).resolve().parents[2] / "docs" / "records.md"
RUNS = Path("results") / "runs"


@pytest.mark.parametrize("packed", [False, True])
def test_the_example(
    tmp_path: Path,
    packed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = tmp_path / ("elsewhere" if packed else RUNS)
    record(written, "grpo", 1, values(0.5, 1000, 2e8))
    record(written, "grpo", 2, values(0.75, 1000, 2e8))
    record(written, "ppo", 1, values(0.25, 1000, 2e8), status="oom")
    if packed:
        pack(written, tmp_path / RUNS)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # `record` notes 0 before, at a first moment, and two problems that both are solved.
    assert ["vlm", "grpo", "4", "0.3125"] in lines
    assert ["2", "vlm", "ppo", "1", "oom"] in lines
    assert ["vlm", "grpo", "1", "2.0"] in lines


def test_the_folder_of_runs_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / RUNS, "grpo", 1, values(0.5, 1000, 2e8))
    monkeypatch.chdir(tmp_path)
    assert list(grpo_bench.load_results().runs["algo"]) == ["grpo"]
