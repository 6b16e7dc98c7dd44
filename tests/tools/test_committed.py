"""Everything that is committed is what its sources give, and a changed digit is seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.reference import check_all, first_difference, is_checkout, make_all

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("README.md", "docs", "results", "conf")
# A table of each kind, and a digit of it.
CHANGES = {
    "results/reference/comparison/tables/summary.md": "grpo",
    "results/reference/comparison/tables/accuracy.csv": "grpo",
    "results/reference/tuning/tables/trials.csv": "grpo",
    "results/reference/speed.md": "met",
    "results/reference/lm/curves.md": "0.18",
    "results/reference/training/kl.md": "tutorial",
    "results/reference/claims.csv": "passes",
    "README.md": "<sub>",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is committed, which nobody minds being changed."""
    root = tmp_path_factory.mktemp("checkout")
    for name in PARTS:
        part = ROOT / name
        if part.is_dir():
            shutil.copytree(part, root / name)
        else:
            shutil.copy(part, root / name)
    return root


def test_all_of_it_is_what_its_sources_give() -> None:
    assert list(check_all(ROOT)) == []


def test_changed_digits_are_seen_and_mended(copy: Path) -> None:
    """A word of each table is misspelt where it first stands."""
    whole = {name: (copy / name).read_text(encoding="utf-8") for name in CHANGES}
    lines = {}
    for name, word in CHANGES.items():
        assert word in whole[name], name
        lines[name] = whole[name][: whole[name].index(word)].count("\n") + 1
        (copy / name).write_text(whole[name].replace(word, f"{word}1", 1), encoding="utf-8")
    found = dict(place.rsplit(":", 1) for place in check_all(copy))
    assert {name: int(found[name]) for name in CHANGES} == lines
    assert {str(path) for path in make_all(copy)} >= set(CHANGES)
    assert {name: (copy / name).read_text(encoding="utf-8") for name in CHANGES} == whole
    assert list(check_all(copy)) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("lm_memory.md", b"135m", b"136m"),  # of a benchmark, in no page
        ("oracle/kl.csv", b"tutorial", b"tutorials"),
        ("lm/notes.txt", b"Other", b"No other"),
        ("figures/comparison-summary.svg", b"</svg>", b" </svg>"),  # its numbers are as before
    ],
)
def test_a_changed_digit_of_what_is_measured_is_seen(
    copy: Path, name: str, old: bytes, new: bytes
) -> None:
    path = copy / "results" / "reference" / name
    whole = path.read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new, 1))
    assert f"results/reference/{name}" in list(check_all(copy))
    path.write_bytes(whole)


def test_a_file_that_is_gone_is_seen(copy: Path) -> None:
    path = copy / "results" / "reference" / "claims.md"
    text = path.read_bytes()
    path.unlink()
    assert list(check_all(copy)) == ["results/reference/claims.md:1"]
    path.write_bytes(text)


# One file of each kind that is made, which nothing gives.
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


def test_a_file_that_nothing_gives_any_more_is_seen(copy: Path) -> None:
    for name in LEFT_OVER:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("left over\n", encoding="utf-8")
    (copy / "results/reference/training/.DS_Store").write_text("", encoding="utf-8")
    assert sorted(check_all(copy)) == sorted(LEFT_OVER)
    for name in LEFT_OVER:
        (copy / name).unlink()
    assert list(check_all(copy)) == []


def test_the_first_line_that_differs() -> None:
    assert first_difference("a\nb\nc\n", "a\nB\nc\n") == 2
    assert first_difference("a\n", "a\nb\n") == 2
    assert first_difference("", "a\n") == 1
    assert first_difference("a\r\n", "a\n") == 1  # the end of a line alone


def test_elsewhere_nothing_is_committed(tmp_path: Path) -> None:
    assert is_checkout(ROOT) and not is_checkout(tmp_path)
