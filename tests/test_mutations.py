"""The list of mutations fits the code as it is, and what tries them tells red from green."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))  # the processes that it starts import it by its name

import mutate  # noqa: E402

SOURCE = '"""Signs."""\n\n\ndef flipped(x):\n    return -x\n'
TEST = "from grpo_bench.sign import flipped\n\n\ndef test_sign():\n    assert flipped(2) == -2\n"
LISTS = ROOT / mutate.MUTATIONS
NAMES = [p.relative_to(LISTS).with_suffix("").as_posix() for p in sorted(LISTS.rglob("*.toml"))]
HEAD = 'tests = ["tests/test_sign.py"]\n'


def entry(old: str, new: str, equivalent: str = "") -> str:
    because = f"equivalent = '{equivalent}'\n" if equivalent else ""
    return f"\n[[mutation]]\nold = '{old}'\nnew = '{new}'\n{because}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one function and one test."""
    for name in mutate.COPIED:
        (tmp_path / name).mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "grpo_bench" / "__init__.py").touch()
    (tmp_path / "grpo_bench" / "sign.py").write_text(SOURCE)
    (tmp_path / "tests" / "test_sign.py").write_text(TEST)
    (tmp_path / mutate.MUTATIONS).mkdir(parents=True)
    return tmp_path


def write(project: Path, *entries: str) -> None:
    (project / mutate.MUTATIONS / "sign.toml").write_text(HEAD + "".join(entries))


# -- the list -------------------------------------------------------------------------------------


def test_every_mutation_fits_its_file_today() -> None:
    """Each text stands there once, what is made of it is new and is Python: else it raises."""
    modules = mutate.load_modules(ROOT)
    assert [module.name for module in modules] == NAMES
    assert {"grpo/advantages", "grpo/objectives", "grpo/kl", "grpo/algorithm"} <= set(NAMES)
    assert sum(len(module.mutations) for module in modules) > 300


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_table_is_of_this_list(name: str) -> None:
    (module,) = mutate.load_modules(ROOT, [name])
    text = (ROOT / mutate.RESULTS / f"{name}.md").read_text(encoding="utf-8")
    verdicts = [row.split(" | ")[-1][:-2] for row in text.splitlines()[4:]]
    assert not [said for said in verdicts if said.startswith(mutate.WRONG)]
    plain = [said.replace("\\|", "|") for said in verdicts]
    assert mutate.table(module, plain) == text


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry("return x", "return -x")], "'return x' -> 'return -x': the text is 0 times"),
        ([entry("x", "y")], "the text is 2 times in grpo_bench/sign.py, expected 1"),
        ([entry("-x", "-x")], "'-x' -> '-x': expected a file that is new"),
        ([entry("-x", "x"), entry("return -x", "return x")], "'return x': expected a file that"),
        ([entry("-x", "-")], "'-x' -> '-': expected Python"),
    ],
)
def test_a_mutation_that_does_not_fit_is_named(
    project: Path, entries: list[str], told: str
) -> None:
    write(project, *entries)
    with pytest.raises(ValueError, match=f"sign: .*{re.escape(told)}"):
        mutate.load_modules(project)


def test_names_choose_modules_and_folders() -> None:
    names = {module.name for module in mutate.load_modules(ROOT, ["grpo/kl", "enumeration"])}
    assert names > {"grpo/kl", "enumeration/groups"}
    assert all(name == "grpo/kl" or name.startswith("enumeration/") for name in names)
    with pytest.raises(ValueError, match=r"no mutations of 'grpo/k': expected some of .*grpo/kl"):
        mutate.load_modules(ROOT, ["grpo/k"])


# -- trying them ----------------------------------------------------------------------------------


def test_from_the_list_to_the_table(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        entry("return -x", "return x"),
        entry("return -x", "return 0 - x"),
        entry("return -x", "return x * -1", "the same"),
        entry("return -x", "return x + 1", "the same"),
        entry("def flipped", "def flopped"),
    ]
    write(project, *entries)
    modules = mutate.load_modules(project)
    assert mutate.mutate(project, modules, jobs=2) == 2
    rows = (project / mutate.RESULTS / "sign.md").read_text().splitlines()
    assert "5 mutations, 2 of them equivalent" in rows[0]
    assert rows[4:] == [
        "| `return -x` | `return x` | tests/test_sign.py::test_sign |",
        "| `return -x` | `return 0 - x` | SURVIVED |",
        "| `return -x` | `return x * -1` | equivalent: the same |",
        "| `return -x` | `return x + 1` | NOT EQUIVALENT: tests/test_sign.py::test_sign |",
        "| `def flipped` | `def flopped` | tests/test_sign.py (cannot be imported) |",
    ]
    assert "[5/5] sign: `def flopped`" in capsys.readouterr().out
    assert (project / "grpo_bench" / "sign.py").read_text() == SOURCE


def test_nothing_is_tried_where_the_tests_are_red_already(project: Path) -> None:
    write(project, entry("return -x", "return x"))
    (project / "tests" / "test_sign.py").write_text(TEST.replace("-2", "2"))
    with pytest.raises(RuntimeError, match=r"without a mutation: tests/test_sign.py::test_sign"):
        mutate.mutate(project, mutate.load_modules(project), jobs=1)


def test_what_hangs_and_what_dies_is_red(project: Path, tmp_path: Path) -> None:
    bench = mutate.Bench(project, tmp_path / "copies", jobs=1)
    copy = bench.copies.get()
    for source, timeout_s, told in (
        ("while True: pass", 1.0, "(no end after 1 s)"),
        ("import os; os._exit(3)", 60.0, "(the tests died)"),
    ):
        (copy / "grpo_bench" / "sign.py").write_text(source)
        assert mutate.first_red(copy, ["tests/test_sign.py"], timeout_s) == told
