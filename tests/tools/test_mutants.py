"""``python -m tools.mutants``: how it calls mutmut. The run itself takes hours."""

import tomllib
from pathlib import Path

import pytest

from tools.mutants import TESTS, main, prepare

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", TESTS)
def test_a_folder_for_each_package(package: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for name in ("grpo_bench", "envs", "tests", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = prepare(tmp_path, package)
    assert prepare(tmp_path, package) == folder
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["mutmut"]
    (mutated,) = settings["only_mutate"]
    assert [*folder.glob(mutated)]
    tests = settings["pytest_add_cli_args_test_selection"]
    assert tests[-2:] == ["-m", "not slow and not gpu"]
    paths = [word.removeprefix("--ignore=").removeprefix("--deselect=") for word in tests[:-2]]
    assert all((folder / path.partition("::")[0]).exists() for path in paths)


def test_a_module_without_tests(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["grpo_bench/lm/trainer.py"])
    assert "grpo_bench/lm/trainer.py: expected a path below one of" in capsys.readouterr().err
