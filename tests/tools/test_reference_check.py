"""The check finds a changed digit in every kind of committed file. ``make reference-check`` shows
that nothing differs now. One check takes so long that the tests here share one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import reference
from tools.reference import check_all, first_difference, is_checkout, make_all

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path("results/reference")
PARTS = ("README.md", "docs", "results", "conf")
# A table of each kind, and a word of it whose first occurrence is misspelt.
MADE = {
    "results/reference/comparison/tables/summary.md": "grpo",
    "results/reference/comparison/tables/accuracy.csv": "grpo",
    "results/reference/tuning/tables/trials.csv": "grpo",
    "results/reference/speed.md": "met",
    "results/reference/lm/curves.md": "0.18",
    "results/reference/training/kl.md": "tutorial",
    "results/reference/claims.csv": "passes",
    "README.md": "<sub>",
}
MEASURED = {
    "results/reference/lm_memory.md": "135m",  # of a benchmark, in no page
    "results/reference/oracle/off_policy.csv": ",",
    "results/reference/benchmarks/env_speed.md": "GRPO",
    "results/reference/figures/comparison-summary.svg": "</svg>",  # without a change of numbers
}
GONE = "results/reference/claims.md"
# One file of each generated kind, without a source.
LEFT_OVER = (
    "results/reference/comparison/tables/gone.md",
    "results/reference/comparison/tables/gone.csv",
    "results/reference/tuning/tables/gone.md",
    "results/reference/nothing/tables/accuracy.md",
    "results/reference/training/gone.md",
    "results/reference/figures/comparison-curves-gone.svg",
    "conf/tuned/vlm/gone.yaml",
    "conf/tuned/gone/grpo.yaml",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """The findings of the check in a checkout with all of these changes: for each path, the line it
    names and the line that was changed."""
    root = tmp_path_factory.mktemp("checkout")
    for name in PARTS:
        part = ROOT / name
        copy = shutil.copytree if part.is_dir() else shutil.copy
        copy(part, root / name)
    lines = {GONE: "1"}
    for name, word in (MADE | MEASURED).items():
        text = (root / name).read_text(encoding="utf-8")
        assert word in text, name
        lines[name] = str(text[: text.index(word)].count("\n") + 1) if name in MADE else ""
        (root / name).write_text(text.replace(word, f"{word}1", 1), encoding="utf-8")
    (root / GONE).unlink()
    for name in LEFT_OVER:
        lines[name] = ""
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("left over\n", encoding="utf-8")
    (root / "results/reference/training/.DS_Store").write_text("", encoding="utf-8")
    places = dict(place.partition(":")[::2] for place in check_all(root))
    return {n: (places.get(n, "not found"), lines.get(n, "unchanged")) for n in places | lines}


@pytest.mark.parametrize("name", [*MADE, *MEASURED, GONE, *LEFT_OVER])
def test_a_change_is_found_in_its_line(found: dict[str, tuple[str, str]], name: str) -> None:
    line, expected = found[name]
    assert line == expected


def test_of_other_files_only_pages_with_a_changed_table_are_found(
    found: dict[str, tuple[str, str]],
) -> None:
    others = set(found) - {*MADE, *MEASURED, GONE, *LEFT_OVER}
    assert all(name.startswith("docs/") for name in others), others


def test_what_differs_is_written_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two files from one step, and no figures."""
    texts = {RESULTS / "old.md": "new\n", RESULTS / "same.md": "same\n"}
    (tmp_path / RESULTS).mkdir(parents=True)
    (tmp_path / RESULTS / "old.md").write_text("old\n", encoding="utf-8")
    (tmp_path / RESULTS / "same.md").write_text("same\n", encoding="utf-8")
    (tmp_path / RESULTS / "measured.csv").write_text("1\n", encoding="utf-8")
    monkeypatch.setattr(reference, "STEPS", (lambda _: texts,))
    monkeypatch.setattr(reference.figures, "main_report", lambda _: None)
    monkeypatch.setattr(reference.figures, "digests", lambda _: {})
    assert list(make_all(tmp_path)) == [RESULTS / "old.md", RESULTS / "sources.sha256"]
    assert (tmp_path / RESULTS / "old.md").read_text(encoding="utf-8") == "new\n"
    assert list(make_all(tmp_path)) == list(check_all(tmp_path)) == []


def test_the_first_line_that_differs() -> None:
    assert first_difference("a\nb\nc\n", "a\nB\nc\n") == 2
    assert first_difference("a\n", "a\nb\n") == 2
    assert first_difference("", "a\n") == 1
    assert first_difference("a\r\n", "a\n") == 1  # the end of a line alone


def test_elsewhere_nothing_is_committed(tmp_path: Path) -> None:
    assert is_checkout(ROOT) and not is_checkout(tmp_path)
