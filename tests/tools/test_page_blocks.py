"""The tables in the pages match the committed records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.run_records import ORIGIN

from grpo_bench.records import claim, plan
from tools.reference.committed import Committed
from tools.reference.page_blocks import BAR, GRID, narrowed, page_blocks

PAGE = "# Title\n\n<!-- table: {} -->\nold\n<!-- end -->\n\nText | text.\n"
ROOT = Path(__file__).resolve().parents[2]
RECORDS = Path("results") / "reference" / "small"


def update(root: Path) -> list[Path]:
    """Write the pages that change and return their paths."""
    changed = {root / path: text for path, text in page_blocks(Committed(root)).items()}
    different = [path for path, text in changed.items() if path.read_text() != text]
    for path in different:
        path.write_text(changed[path])
    return different


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with two runs in results/reference/small and a README with an old block."""
    records = tmp_path / RECORDS
    for algo, success in [("ppo", 0.5), ("grpo", 0.75)]:
        names = {"env": {"name": "vlm"}, "algo": {"name": algo}, "budget": {"name": "smoke"}}
        config = {**names, "seed": 1}
        run = claim(plan(records, config), config, seeds={}, provenance=ORIGIN)
        assert run is not None
        run.log(100, 1, 1.0, 1, {"eval/test/success": success})
        run.finish()
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGE.format("small/summary"))
    return tmp_path


def test_a_block_is_replaced_and_nothing_else(root: Path) -> None:
    assert update(root) == [root / "README.md"]
    text = (root / "README.md").read_text()
    before, after = PAGE.format("small/summary").split("old\n")
    assert text.startswith(
        before + "**Summary: GRPO against PPO; budget smoke; 1 run each**\n\n|env|"
    )
    assert "|vlm|    0.75 / 0.50|" in text
    assert text.endswith("commit 0123456789.</sub>\n" + after)
    assert update(root) == []


def test_a_block_of_records_without_ppo_compares_with_grpo(root: Path) -> None:
    (ppo,) = (root / RECORDS).glob("vlm/ppo/*/manifest.json")
    names = {"name": "rloo", "kind": "grpo"}
    config = {"env": {"name": "vlm"}, "algo": names, "budget": {"name": "smoke"}, "seed": 1}
    (ppo.parents[1]).rename(root / "elsewhere")
    run = claim(plan(root / RECORDS, config), config, seeds={}, provenance=ORIGIN)
    assert run is not None
    run.log(100, 1, 1.0, 1, {"eval/test/success": 0.25})
    run.finish()
    assert update(root) == [root / "README.md"]
    text = (root / "README.md").read_text()
    assert "\n**Summary: each algorithm against grpo; budget smoke; 1 run each**\n\n|env|" in text
    assert "|vlm|rloo|     0.25 / 0.75|" in text


def test_a_table_written_by_a_command_is_copied(root: Path) -> None:
    (root / "results" / "reference" / "oracle").mkdir()
    (root / "results" / "reference" / "oracle" / "all.md").write_text("**KL**\n\n|a|\n|--|\n")
    (root / "README.md").write_text(PAGE.format("oracle/all"))
    assert update(root) == [root / "README.md"]
    text = (root / "README.md").read_text()
    assert text == PAGE.format("oracle/all").replace("old\n", "**KL**\n\n|a|\n|--|\n")


WIDE = """**KL**

|task|form|place|label|estimate|error|cosine|to reverse|variance|error off|cosine off|
|---:|:---|----:|----:|-------:|----:|-----:|---------:|-------:|--------:|---------:|
|one|a\\|b|1|2|0.5|3|4|5|6|7|8|
|||||[0, 1]|||||||
"""


def test_a_wide_table_is_split_and_intervals_stay_with_their_estimates() -> None:
    first, second = narrowed(WIDE, "oracle/kl").removeprefix("**KL**\n\n").split("\n\n")
    assert first.splitlines() == [
        "|task|form|place|label|  estimate|variance|",
        "|---:|:---|----:|----:|---------:|-------:|",
        "| one|a\\|b|    1|    2|0.5 [0, 1]|       6|",
    ]
    assert second.splitlines()[2].split("|")[-2:] == ["         8", ""]
    with pytest.raises(ValueError, match="oracle/kl: no column 'task': expected one of a"):
        narrowed("|a|\n|--|\n|b|\n", "oracle/kl")


def test_tables_fit_a_page() -> None:
    """GitHub shows 946 pixels: seven columns, and some 140 characters. It folds cells of words, so
    the longest one of a column counts for no more than 24."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for grid in GRID.findall(page.read_text(encoding="utf-8")):
            rows = [[c.strip() for c in BAR.split(line[1:-1])] for line in grid.splitlines()]
            where = f"{page.name}: {rows[0]}"
            assert len(rows[0]) <= 7, where
            width = sum(
                min(24, max(map(len, column))) + 1 for column in zip(*rows[2:], strict=True)
            )
            assert width <= 140, where


def test_the_other_pages_too(root: Path) -> None:
    both = PAGE.format("small/accuracy") + PAGE.format("small/summary")
    (root / "docs" / "numbers.md").write_text(both)
    (root / "docs" / "words.md").write_text("No table.\n")
    assert update(root) == [root / "README.md", root / "docs" / "numbers.md"]
    text = (root / "docs" / "numbers.md").read_text()
    assert "**Accuracy: " in text and "**Summary: " in text and "\nold\n" not in text


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE.format("other/summary"), ": no records; expected a folder"),
        (
            PAGE.format("small/costs"),
            "no table 'costs': expected one of trades, summary, accuracy",
        ),
        (PAGE.format("small/summary").replace("end", "End"), "no <!-- end --> before the next"),
        (
            "<!-- table: small/summary -->\n" + PAGE.format("small/speed"),
            "README.md:1: <!-- table: small/summary -->: no <!-- end --> before the next",
        ),
    ],
)
def test_bad_blocks_are_errors(root: Path, page: str, message: str) -> None:
    (root / "README.md").write_text(page)
    with pytest.raises(ValueError, match=re.escape(message)):
        page_blocks(Committed(root))
    assert (root / "README.md").read_text() == page
