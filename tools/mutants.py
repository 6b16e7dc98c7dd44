"""``python -m tools.mutants [MODULE ...]``: mutation testing of the formulas and environments.

    python -m tools.mutants grpo_bench/stats               # a package
    python -m tools.mutants envs/grpo_envs/vlm/task.py     # one file
    python -m tools.mutants --shown grpo_bench/stats       # only print what is known so far

mutmut changes one operator, number, name or argument of a function at a time and runs the tests of
its package. A mutant survives if they still pass. A second call continues where the first stopped.
Each package has its own folder in build/mutants, with both source roots below one ``src``, because
mutmut takes the name of a module from its path.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

from grpo_bench.meter.cpus import usable_cpus

# Tests by package, without simulations and trainings: tests of values must notice a mutant.
TESTS = {
    "grpo_bench/stats": ["tests/stats", "--ignore=tests/stats/test_stats_coverage.py"],
    "grpo_bench/grpo": [
        "tests/grpo",
        *(f"--ignore=tests/grpo/test_{name}.py" for name in ("grpo_sb3", "adapter", "control")),
    ],
    "envs/grpo_envs": ["tests/envs", "--deselect=tests/envs/test_ecosystem.py::test_sb3_trains"],
}
LINKS = {
    "src/grpo_bench": "grpo_bench",
    "src/grpo_envs": "envs/grpo_envs",
    "tests": "tests",
    "conf": "conf",
}
# The wording of messages is not tested: lines that raise, and lines with nothing but a string. The
# fork server has imported the tests but run none, so no cache hides a mutant.
SETTINGS = """
[tool.mutmut]
process_isolation = "forkserver"
source_paths = ["src/grpo_bench", "src/grpo_envs"]
only_mutate = ["src/{package}/*"]
pytest_add_cli_args_test_selection = {tests}
also_copy = ["conf"]
do_not_mutate_patterns = ['^\\s*raise ', '^\\s*f?"[^"]*",?\\)*$']
"""


def main(arguments: list[str] | None = None) -> None:
    """Test the mutants of each package or file; print how many survive, and each of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=[*TESTS])
    parser.add_argument("--processes", type=int, default=usable_cpus())
    parser.add_argument("--shown", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    names: dict[str, list[str]] = {}
    for module in options.modules:
        path = module.rstrip("/").removesuffix(".py")
        package = next((name for name in TESTS if f"{path}/".startswith(f"{name}/")), None)
        if package is None:
            parser.error(f"{module}: expected a path below one of {', '.join(TESTS)}")
        names.setdefault(package, []).append(path.removeprefix("envs/").replace("/", "."))
    for package, chosen in names.items():
        folder, patterns = prepare(Path.cwd(), package), [f"{name}.*" for name in chosen]
        if not options.shown:
            mutmut(folder, "run", f"--max-children={options.processes}", *patterns, output=None)
        show(folder, patterns)


def prepare(root: Path, package: str) -> Path:
    """The folder in which mutmut runs for a package: links to the checkout, and settings."""
    folder = root / "build" / "mutants" / Path(package).name
    (folder / "src").mkdir(parents=True, exist_ok=True)
    for link, target in LINKS.items():
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(root / target)
    tests = [*TESTS[package], "-m", "not slow and not gpu"]
    settings = SETTINGS.format(package=package.removeprefix("envs/"), tests=tests)
    project = (root / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(project + settings, "utf-8")
    return folder


def show(folder: Path, patterns: list[str]) -> None:
    """Print how the mutants of each module ended, and the change of each one that survived."""
    ends = {}
    for line in mutmut(folder, "results", "--all", "true").splitlines():
        mutant, end = line.strip().rsplit(": ", 1)
        if any(fnmatch(mutant, pattern) for pattern in patterns):
            ends[mutant] = end
    for module in sorted({mutant.rpartition(".")[0] for mutant in ends}):
        counts = Counter(ends[mutant] for mutant in ends if mutant.rpartition(".")[0] == module)
        each = ", ".join(f"{n} {end}" for end, n in counts.most_common())
        print(f"{module}: {counts.total()} mutants, {each}")
    for mutant, end in ends.items():
        if end not in ("killed", "timeout", "not checked"):
            print("\n" + mutmut(folder, "show", mutant).rstrip())


def mutmut(folder: Path, *arguments: str, output: int | None = subprocess.PIPE) -> str:
    """Run a command of mutmut in a folder, on one thread, and return what it prints."""
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=output, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout or ""


if __name__ == "__main__":
    main()
