"""The package as a whole: what imports what, what the wheel holds, what is documented."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import grpo_bench
import grpo_envs
from grpo_bench.__main__ import PROGRAMS

ROOT = Path(__file__).resolve().parents[1]
IDS = sorted(name for name in gym.registry if name.startswith("GRPO-"))
FOLDERS = {"grpo_envs": ROOT / "envs" / "grpo_envs", "grpo_bench": ROOT / "grpo_bench"}


def python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """What a fresh Python prints. ``path`` comes first on its search path."""
    environment = dict(os.environ) | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- what imports what ----------------------------------------------------------------------------


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """The contracts of pyproject.toml, checked on a copy of the sources."""
    lint = Path(sys.executable).with_name("lint-imports")
    environment = dict(os.environ) | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'envs'}"}
    command = [str(lint), "--no-cache", "--config", str(root / "pyproject.toml")]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("grpo_bench/grpo/kl.py", "import grpo_bench.runs.job", "The house"),
        ("grpo_bench/report/rows/cells.py", "import grpo_bench.report.page", "A report"),
        ("envs/grpo_envs/task.py", "import grpo_envs.vector", "Environments"),
        ("envs/grpo_envs/scalar.py", "import grpo_bench.grpo.kl", "The house"),
        ("grpo_bench/stats/checks.py", "import grpo_bench.stats.intervals", "No circles"),
        ("grpo_bench/grpo/objectives.py", "import numpy", "The formulas"),
    ],
)
def test_a_wrong_import_breaks_a_contract(
    file: str, line: str, contract: str, tmp_path: Path
) -> None:
    for name in ("envs", "grpo_bench", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / file).open("a") as source:
        source.write(f"\n{line}\n")
    told = lint_imports(tmp_path)
    assert told.returncode == 1
    broken = [text for text in told.stdout.splitlines() if text.endswith("BROKEN")]
    assert any(text.startswith(contract) for text in broken), told.stdout


def test_torch_is_in_one_file_of_the_environments() -> None:
    names = {
        file.name
        for file in (ROOT / "envs" / "grpo_envs").rglob("*.py")
        if re.search(r"^\s*(import|from) torch\b", file.read_text(), re.MULTILINE)
    }
    assert names == {"torch_view.py"}


def test_environments_come_without_the_rest(tmp_path: Path) -> None:
    code = "import grpo_envs, sys; print([m for m in {heavy} if m in sys.modules])"
    heavy = ["torch", "stable_baselines3", "pandas", "scipy", "PIL", "hydra", "grpo_bench"]
    assert python("-c", code.format(heavy=heavy), cwd=tmp_path) == "[]\n"


def test_help_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = "import grpo_bench.run, sys; print('torch' in sys.modules)"
    assert python("-c", code, cwd=tmp_path) == "False\n"


def test_a_run_does_without_the_compiler(tmp_path: Path) -> None:
    """From its first step to its checkpoint: the wrappers that ``EagerAdam`` takes off are all that
    would import it, with this torch."""
    arguments = ["env=arithmetic", "budget=smoke", "env.warmup.steps=1", "results=runs"]
    code = (
        f"import sys\nfrom grpo_bench.run import main\nsys.argv[1:] = {arguments}\n"
        "main()\nprint('torch._dynamo' in sys.modules)"
    )
    assert python("-c", code, cwd=tmp_path).endswith("\nFalse\n")
    assert list(tmp_path.glob("runs/*/*/*/checkpoint/model.zip"))


# -- what an installation holds -------------------------------------------------------------------


MAKE = """
import sys
import gymnasium
print("grpo_envs" in sys.modules, "grpo_envs.check" in sys.modules)
print(gymnasium.make("GRPO-VLM-v0").reset(seed=0)[0].shape)
print(gymnasium.make_vec("GRPO-Arithmetic-v0", num_envs=4).num_envs)
import grpo_envs
grpo_envs.register_ids()  # as an entry point, after the import
"""
MADE = "True False\n(128,)\n4\n"
# In a fresh Python, arguments: a site folder to add, then folders that are only searched.
PACKAGES = [folder for folder in sys.path if folder.endswith("-packages")]
AS_INSTALLED = "import site, sys\nsite.addsitedir(sys.argv[1])\nsys.path += sys.argv[2:]\n"


def test_make_without_an_import(tmp_path: Path) -> None:
    assert python("-W", "error", "-c", MAKE, cwd=tmp_path) == MADE


def test_python_starts_without_the_environments(tmp_path: Path) -> None:
    code = "import sys; print([m for m in {names} if m in sys.modules])"
    names = ["grpo_envs", "gymnasium", "numpy"]
    assert python("-c", code.format(names=names), cwd=tmp_path) == "[]\n"


def test_make_by_the_name_of_the_package(tmp_path: Path) -> None:
    code = "import gymnasium as g; print(g.make('grpo_envs:GRPO-VLM-v0').reset(seed=0)[0].shape)"
    assert python("-c", code, cwd=tmp_path) == "(128,)\n"


def test_the_launcher_is_found_from_another_folder(tmp_path: Path) -> None:
    told = python("-m", "grpo_bench.run", "--info", "plugins", cwd=tmp_path)
    assert "ProcessLauncher" in told


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources, so that nothing is left behind in them."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    for name in ("envs", "grpo_bench", "conf"):
        skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, sources / name, ignore=skipped)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    python("-m", "pip", "wheel", *options, str(sources), cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def unpacked(wheel: Path, folder: Path) -> Path:
    """A folder with what the wheel puts into ``site-packages``."""
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_the_wheel_holds_everything(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = [str(p.relative_to(ROOT / "envs")) for p in FOLDERS["grpo_envs"].rglob("*.py")]
    wanted += [str(p.relative_to(ROOT)) for p in FOLDERS["grpo_bench"].rglob("*.py")]
    wanted += [f"grpo_bench/{p.relative_to(ROOT)}" for p in (ROOT / "conf").rglob("*.yaml")]
    wanted += [f"grpo_bench/report/page/page.{kind}" for kind in ("css", "js")]
    wanted += ["grpo_envs_ids.pth", "_grpo_envs_ids.py"]
    wanted += [
        f"grpo_envs/data/{name}"
        for name in ("easy_vqa.npz", "pictures.npz", "LICENSE-easy-vqa", "LICENSE-efficientnet")
    ]
    assert set(wanted) - names == set()
    licences = {name.rsplit("/", 1)[1] for name in names if "dist-info/licenses" in name}
    assert {"LICENSE", "LICENSE-easy-vqa", "LICENSE-efficientnet"} <= licences
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        *("grpo_bench", "grpo_envs", "grpo_envs_ids.pth", "_grpo_envs_ids.py")
    }
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_works_outside_a_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked and first on the path: the packages, the data, the launcher and the configuration
    all come from there, and the configuration composes."""
    site = unpacked(wheel, tmp_path)
    code = (
        "import grpo_bench, grpo_envs\n"
        "from grpo_bench.config import CONF\n"
        "print(*[m.__file__ for m in (grpo_bench, grpo_envs)], CONF, sep='\\n')"
    )
    for line in python("-c", code, cwd=tmp_path, path=site).splitlines():
        assert Path(line).is_relative_to(site), line
    composed = python("-m", "grpo_bench.run", "--cfg", "job", cwd=tmp_path, path=site)
    assert "GRPO-VLM-v0" in composed


def test_make_without_an_import_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """``-S``: only the ``.pth`` file of the wheel is read, not that of this installation."""
    site = unpacked(wheel, tmp_path)
    code = f"{AS_INSTALLED}{MAKE}print(grpo_envs.__file__)"
    printed = python("-I", "-S", "-W", "error", "-c", code, str(site), *PACKAGES, cwd=tmp_path)
    assert printed == f"{MADE}{site / 'grpo_envs' / '__init__.py'}\n"


def test_gymnasium_works_where_the_environments_do_not(wheel: Path, tmp_path: Path) -> None:
    site = unpacked(wheel, tmp_path)
    (site / "grpo_envs" / "__init__.py").write_text("raise OSError('a broken installation')\n")
    code = f"{AS_INSTALLED}import gymnasium\nprint(gymnasium.make('CartPole-v1').spec.id)"
    printed = python("-I", "-S", "-W", "error", "-c", code, str(site), *PACKAGES, cwd=tmp_path)
    assert printed == "CartPole-v1\n"


def test_python_starts_without_gymnasium(wheel: Path, tmp_path: Path) -> None:
    code = f"{AS_INSTALLED}import importlib.util\nprint(importlib.util.find_spec('gymnasium'))"
    printed = python("-I", "-S", "-c", code, str(unpacked(wheel, tmp_path)), cwd=tmp_path)
    assert printed == "None\n"


def test_constraints_hold_for_every_extra() -> None:
    """But for vllm; constraints.txt says why."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    del extras["vllm"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {canonicalize_name(pin.name): str(pin.specifier).lstrip("=") for pin in pins}
    for line in chain(project["dependencies"], *extras.values()):
        needed = Requirement(line)
        assert needed.specifier.contains(versions[canonicalize_name(needed.name)]), line


# -- the programs by name -------------------------------------------------------------------------


def test_programs_are_the_modules_at_the_root() -> None:
    names = {found.name for found in pkgutil.iter_modules(grpo_bench.__path__) if not found.ispkg}
    assert names - {"__main__"} == set(PROGRAMS)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_programs_are_listed(arguments: list[str], tmp_path: Path) -> None:
    printed = python("-m", "grpo_bench", *arguments, cwd=tmp_path)
    assert all(f"  {name} " in printed and text in printed for name, text in PROGRAMS.items())


def test_an_unknown_program_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpo_bench", "tabels", "results=x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "grpo-bench tabels: no such program, did you mean tables?\n"


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_by_name_is_its_module(name: str, tmp_path: Path) -> None:
    (script,) = entry_points(group="console_scripts", name="grpo-bench")
    options = ["--help"] if name == "oracle" else ["--cfg", "all"]
    by_module = python("-m", f"grpo_bench.{name}", *options, cwd=tmp_path)
    command = f"import sys; from {script.module} import {script.attr}; {script.attr}()"
    assert python("-c", command, name, *options, cwd=tmp_path) == by_module


# -- what is documented ---------------------------------------------------------------------------

HEADINGS = [
    *("Description", "Action Space", "Observation Space", "Rewards", "Starting State"),
    *("Episode End", "Arguments", "Vectorized environment", "Version History"),
]


def modules() -> Iterator[ModuleType]:
    """Every module of both packages; of language models where their extra is installed."""
    with_lm = importlib.util.find_spec("transformers") is not None
    for package in (grpo_envs, grpo_bench):
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if with_lm or not found.name.startswith("grpo_bench.lm."):
                yield importlib.import_module(found.name)


def public_members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions and classes that a module defines, and the methods of its classes."""
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(member) or inspect.isclass(member):
            yield name, member
        if inspect.isclass(member):
            for part in vars(member):
                method = inspect.getattr_static(member, part)
                is_code = inspect.isfunction(method) or isinstance(method, property | classmethod)
                if is_code and not part.startswith("_"):
                    yield f"{name}.{part}", getattr(member, part)


def test_everything_public_has_a_docstring() -> None:
    """Its own, or that of what it overrides; a class always its own."""
    bare = []
    for module in modules():
        if not module.__doc__:
            bare.append(module.__name__)
        for name, member in public_members(module):
            text = member.__doc__ if inspect.isclass(member) else inspect.getdoc(member)
            if not text or text.startswith(f"{name}("):  # a dataclass writes its signature there
                bare.append(f"{module.__name__}.{name}")
    assert bare == []


@pytest.mark.parametrize("env_id", IDS)
def test_every_id_has_its_page(env_id: str) -> None:
    page = inspect.getdoc(gym.make(env_id).unwrapped) or ""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    assert parts[1::2] == HEADINGS
    assert all(text.strip() for text in parts[2::2])


@pytest.mark.parametrize("env_id", IDS)
def test_a_spec_goes_through_json(env_id: str) -> None:
    spec = gym.make(env_id, split="test").spec
    assert spec is not None
    back = EnvSpec.from_json(spec.to_json())
    assert json.loads(spec.to_json())["kwargs"]["split"] == "test"
    assert back == spec
    assert gym.make(back).unwrapped.split == "test"  # type: ignore[attr-defined]


# -- what stays on the machine where it was written -----------------------------------------------

# Folders at the root of a machine that a shared file has no business naming.
MACHINE_PATH = re.compile(r"(?<![\w.~}$])/(?:work|tmp|root|home|opt|Users|mnt|private)/\w")
OURS = [
    *("conf", "docs", "envs", "grpo_bench", "benchmarks", "scripts", "tests", "tools"),
    *(".ci", ".github", "results/reference"),
]


def project_files() -> Iterator[Path]:
    """The text files that travel with the project."""
    yield from (p for p in ROOT.iterdir() if p.is_file() and p.name != ".git")  # of a worktree
    for name in OURS:
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def test_no_file_names_a_machine() -> None:
    assert MACHINE_PATH.search('open("' + "/".join(["", "home", "someone", "a.txt"]) + '")')
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if match := MACHINE_PATH.search(text):
            found.append(f"{path.relative_to(ROOT)}: {match.group()}")
    assert found == []
