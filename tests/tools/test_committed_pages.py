"""The tables in the pages are what the committed records give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.run_records import ORIGIN

from grpo_bench.records import claim, plan
from tools.reference.pages import files

PAGE = "# Title\n\n<!-- table: {} -->\nold\n<!-- end -->\n\nText | text.\n"
RECORDS = Path("results") / "reference" / "small"


def update(root: Path) -> list[Path]:
    """Write the pages that change; their paths."""
    changed = {root / path: text for path, text in files(root).items()}
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
        before + "**Summary: what GRPO trades against PPO; budget smoke**\n\n|env|"
    )
    assert "|vlm|grpo|1/1|   0.75|       0.50|" in text
    assert text.endswith("commit 0123456789.</sub>\n" + after)
    assert update(root) == []


def test_a_block_of_records_without_ppo_is_beside_grpo(root: Path) -> None:
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
    assert "\n**Summary: each algorithm beside grpo; budget smoke**\n\n|env|" in text
    assert "|vlm|rloo|1/1|   0.25|        0.75|" in text


def test_a_table_that_a_command_has_written_stands_as_it_is(root: Path) -> None:
    (root / "results" / "reference" / "oracle").mkdir()
    (root / "results" / "reference" / "oracle" / "kl.md").write_text("**KL**\n\n|a|\n|--|\n")
    (root / "README.md").write_text(PAGE.format("oracle/kl"))
    assert update(root) == [root / "README.md"]
    text = (root / "README.md").read_text()
    assert text == PAGE.format("oracle/kl").replace("old\n", "**KL**\n\n|a|\n|--|\n")


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
        (PAGE.format("other/summary"), "no runs under "),
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
def test_what_cannot_be_made_is_an_error(root: Path, page: str, message: str) -> None:
    (root / "README.md").write_text(page)
    with pytest.raises(ValueError, match=re.escape(message)):
        files(root)
    assert (root / "README.md").read_text() == page
