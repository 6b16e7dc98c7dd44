"""The tables in the pages are what the committed records give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from grpo_bench.meter import Provenance
from grpo_bench.records import claim, plan

ROOT = Path(__file__).resolve().parents[1]
PAGE = "# Title\n\n<!-- table: {} -->\nold\n<!-- end -->\n\nText | text.\n"
RECORDS = Path("results") / "reference" / "small"
ORIGIN = Provenance(
    commit="0123456789abcdef",
    dirty=False,
    code_digest="c0de" * 16,
    versions={"torch": "2.13.0"},
    python="3.11.7",
    platform="Linux",
    processor="Processor X",
    cores=2,
    accelerator=None,
    threads=1,
)


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update", ROOT / "scripts" / "update_readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()


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


def test_the_pages_of_this_project(capsys: pytest.CaptureFixture[str]) -> None:
    if not any(script.START.search(p.read_text(encoding="utf-8")) for p in script.pages(ROOT)):
        pytest.skip("no page has a table yet")
    assert script.main(["--check"]) == 0, capsys.readouterr().out


def test_a_block_is_replaced_and_nothing_else(root: Path) -> None:
    assert script.main([], root=root) == 0
    text = (root / "README.md").read_text()
    before, after = PAGE.format("small/summary").split("old\n")
    assert text.startswith(before + "**Summary: what GRPO trades against PPO**\n\n|env|")
    assert "|vlm|smoke |grpo|1/1|   0.75|       0.50|" in text
    assert text.endswith("commit 0123456789.</sub>\n" + after)
    assert script.main(["--check"], root=root) == 0
    assert script.main([], root=root) == 0
    assert (root / "README.md").read_text() == text


def test_a_block_of_records_without_ppo_is_beside_grpo(root: Path) -> None:
    (ppo,) = (root / RECORDS).glob("vlm/ppo/*/manifest.json")
    names = {"name": "rloo", "kind": "grpo"}
    config = {"env": {"name": "vlm"}, "algo": names, "budget": {"name": "smoke"}, "seed": 1}
    (ppo.parents[1]).rename(root / "elsewhere")
    run = claim(plan(root / RECORDS, config), config, seeds={}, provenance=ORIGIN)
    assert run is not None
    run.log(100, 1, 1.0, 1, {"eval/test/success": 0.25})
    run.finish()
    assert script.main([], root=root) == 0
    text = (root / "README.md").read_text()
    assert "\n**Summary: each algorithm beside grpo**\n\n|env|" in text
    assert "|vlm|smoke |rloo|1/1|   0.25|        0.75|" in text


def test_a_table_that_a_command_has_written_stands_as_it_is(root: Path) -> None:
    (root / "results" / "reference" / "oracle").mkdir()
    (root / "results" / "reference" / "oracle" / "kl.md").write_text("**KL**\n\n|a|\n|--|\n")
    (root / "README.md").write_text(PAGE.format("oracle/kl"))
    assert script.main(["--check"], root=root) == 1
    assert script.main([], root=root) == 0
    text = (root / "README.md").read_text()
    assert text == PAGE.format("oracle/kl").replace("old\n", "**KL**\n\n|a|\n|--|\n")


def test_one_changed_digit_fails(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = root / "README.md"
    script.main([], root=root)
    changed = page.read_text().replace("0.75", "0.76")
    page.write_text(changed)
    capsys.readouterr()
    assert script.main(["--check"], root=root) == 1
    out = capsys.readouterr().out
    assert out == "README.md:3: <!-- table: small/summary -->: not what the records give\n"
    assert page.read_text() == changed  # checking writes nothing


def test_the_other_pages_too(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.main([], root=root)
    both = PAGE.format("small/accuracy") + PAGE.format("small/summary")
    (root / "docs" / "numbers.md").write_text(both)
    (root / "docs" / "words.md").write_text("No table.\n")
    capsys.readouterr()
    assert script.main(["--check"], root=root) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[: line.index(" ")] for line in lines] == [
        "docs/numbers.md:3:",
        "docs/numbers.md:10:",
    ]
    assert script.main([], root=root) == 0
    assert script.main(["--check"], root=root) == 0


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE.format("other/summary"), "no runs under "),
        (
            PAGE.format("small/costs"),
            "no table 'costs': expected one of summary, accuracy, speed, memory",
        ),
        (PAGE.format("small/summary").replace("end", "End"), "no <!-- end --> before the next"),
        (
            "<!-- table: small/summary -->\n" + PAGE.format("small/speed"),
            "README.md:1: <!-- table: small/summary -->: no <!-- end --> before the next",
        ),
    ],
)
@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_what_cannot_be_made_is_an_error(
    root: Path, capsys: pytest.CaptureFixture[str], page: str, message: str, arguments: list[str]
) -> None:
    (root / "README.md").write_text(page)
    assert script.main(arguments, root=root) == 1
    assert message in capsys.readouterr().out
    assert (root / "README.md").read_text() == page
