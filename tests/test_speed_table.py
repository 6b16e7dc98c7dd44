"""The table of all targets is what the benchmarks wrote, and a changed digit is seen."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Path("results") / "reference"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("speed", ROOT / "scripts" / "speed_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the reference: the targets, and the table made of them."""
    shutil.copytree(ROOT / REFERENCE / "benchmarks", tmp_path / REFERENCE / "benchmarks")
    for ending in ("md", "csv"):
        shutil.copy(ROOT / REFERENCE / f"speed.{ending}", tmp_path / REFERENCE)
    return tmp_path


def test_the_committed_table_is_what_the_benchmarks_wrote(script: ModuleType, root: Path) -> None:
    assert script.main(["--check"], root=root) == 0


def test_a_changed_digit_is_seen_and_mended(script: ModuleType, root: Path) -> None:
    path = root / REFERENCE / "speed.md"
    text = path.read_text()
    path.write_text(text.replace("at least 20", "at least 21"))
    assert script.main(["--check"], root=root) == 1
    assert "at least 21" in path.read_text(), "checking writes nothing"
    assert script.main([], root=root) == 0
    assert path.read_text() == text


def test_a_row_by_hand(script: ModuleType, root: Path) -> None:
    folder = root / REFERENCE / "benchmarks"
    header = "what,wanted,verdict,estimate,low,high,median,note,measured\n"
    for name in script.ORDER:
        row = "GRPO / PPO,at least 2,met,2.1234,2.05,2.2,2.11,,somewhere\n"
        (folder / f"{name}_targets.csv").write_text(header + row)
    (folder / "scaling_targets.csv").write_text(
        header + "steps,at most 1.1,missed,,,,,reached by 1 of 2,elsewhere\n"
    )
    table = script.shown(script.found(folder))
    assert len(table) == len(script.ORDER)
    first, last = table.iloc[0], table.iloc[-1]
    assert (first["median"], first["mean"], first["verdict"]) == (
        "2.11",
        "2.12\n[2.05, 2.20]",
        "met",
    )
    assert (last["median"], last["mean"], last["verdict"]) == ("–", "–\n[–, –]", "missed")
    assert table.attrs["footnotes"] == ["steps: reached by 1 of 2"]
    assert table.attrs["header"] == "somewhere\nelsewhere"
