"""Break the algorithm on purpose, one line at a time, and see that a test goes red.

    python scripts/mutate.py --jobs 2     # everything: a quarter of an hour on two cores
    python scripts/mutate.py grpo/kl      # one module, or all in a folder

The mutations of ``grpo_bench/NAME.py`` stand in ``scripts/mutations/NAME.toml``: the test files
that cover it, in the order in which they run, and for each mutation the text that is replaced, once
in the file, what replaces it, and, where no test can see it, why that changes nothing
(``equivalent``). Each is applied to a copy of the project, and the first test that goes red is
named in ``results/reference/mutations/NAME.md``.

The exit status is 1 if one survives that is not marked equivalent, or goes red though it is.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import multiprocessing
import os
import queue
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MUTATIONS = Path("scripts/mutations")
RESULTS = Path("results/reference/mutations")
COPIED = ("grpo_bench", "envs", "conf", "hydra_plugins", "tests")
OURS = (*COPIED, "grpo_envs")  # packages
TIMEOUT_S = 120.0  # for the tests of one mutation: many times what they need
# imported once, for the processes of all mutations
PRELOADED = ["pytest", "hypothesis.extra.numpy", "torch", "sb3_contrib", "scipy.stats", "pandas"]
WRONG = ("SURVIVED", "NOT EQUIVALENT")  # how a verdict begins that must not be


@dataclass(frozen=True)
class Mutation:
    """One change, and why it is none if it is."""

    old: str
    new: str
    equivalent: str = ""


@dataclass(frozen=True)
class Module:
    """The mutations of one source file, and the tests that are to see them."""

    name: str
    tests: tuple[str, ...]
    mutations: tuple[Mutation, ...]

    @property
    def source(self) -> Path:
        """The file that is mutated, relative to the project."""
        return Path("grpo_bench") / f"{self.name}.py"


# -- the list -------------------------------------------------------------------------------------


def load_modules(root: Path, names: Sequence[str] = ()) -> list[Module]:
    """The modules of those names, or in folders of those names; all if there are none.

    Raises:
        ValueError: a name that nothing has, or a mutation that does not fit its file any more.
    """
    folder = root / MUTATIONS
    paths = sorted(folder.rglob("*.toml"))
    found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
    for name in names:
        if not any(_within(known, name) for known in found):
            raise ValueError(f"no mutations of {name!r}: expected some of {', '.join(found)}")
    chosen = [name for name in found if not names or any(_within(name, n) for n in names)]
    return [_load(name, found[name], root) for name in chosen]


def _within(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}/")


def _load(name: str, path: Path, root: Path) -> Module:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    module = Module(name, tuple(data["tests"]), tuple(Mutation(**m) for m in data["mutation"]))
    check(module, root)
    return module


def check(module: Module, root: Path) -> None:
    """ValueError naming the first mutation that stands there twice, changes nothing, is not Python,
    or whose text is not in the file exactly once; or a test file that is not there."""
    for test in module.tests:
        if not (root / test).is_file():
            raise ValueError(f"{module.name}: no test file {test}")
    source = (root / module.source).read_text(encoding="utf-8")
    seen = {source}
    for mutation in module.mutations:
        which = f"{module.name}: {mutation.old!r} -> {mutation.new!r}"
        if (times := source.count(mutation.old)) != 1:
            raise ValueError(f"{which}: the text is {times} times in {module.source}, expected 1")
        mutated = source.replace(mutation.old, mutation.new)
        if mutated in seen:
            raise ValueError(f"{which}: expected a file that is new")
        seen.add(mutated)
        try:
            ast.parse(mutated)
        except SyntaxError as error:
            raise ValueError(f"{which}: expected Python, but {error}") from None


# -- the tests of one mutation, in a process of their own ------------------------------------------


class FirstRed:
    """A pytest plugin that remembers the first thing that went wrong."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.name is None:
            self.name = f"{report.nodeid} (cannot be imported)"


def run_tests(copy: Path, tests: Sequence[str], found: Connection) -> None:
    """Send the first red test, or None; what they print is in ``output.txt`` of the copy."""
    os.setsid()  # what the tests start dies with them
    os.chdir(copy)
    with open("output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    paths = [str(copy), str(copy / "envs")]
    sys.path[:0] = paths
    sys.dont_write_bytecode = True  # which another mutation, as long and as old, would be read from
    # for what the tests start
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    # a fork server that something else has started may have ours imported already
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    spec = importlib.util.find_spec("grpo_bench")
    assert spec is not None and spec.origin == str(copy / "grpo_bench" / "__init__.py"), spec
    first = FirstRed()
    options = ["-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--rootdir={copy}"]
    status = pytest.main([*options, *tests], plugins=[first])
    found.send(first.name if first.name or not status else f"pytest ends with {int(status)}")


def first_red(copy: Path, tests: Sequence[str], timeout_s: float) -> str | None:
    """The first test that goes red in that copy, or what else went wrong; None if nothing did."""
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # examples that others failed
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_tests, args=(copy, tests, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(timeout_s):
            return receiver.recv()
    except EOFError:
        return "(the tests died)"
    else:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        return f"(no end after {timeout_s:.0f} s)"
    finally:
        process.join()
        receiver.close()


# -- all of them ----------------------------------------------------------------------------------


class Bench:
    """Copies of the project, one for each mutation that is tried at a time."""

    def __init__(self, root: Path, folder: Path, jobs: int, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.jobs = jobs
        self.copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copy = folder.resolve() / str(number)
            for name in COPIED:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(root / name, copy / name, ignore=ignored)
            shutil.copy(root / "pyproject.toml", copy)
            self.copies.put(copy)

    def check_green(self, modules: Iterable[Module]) -> None:
        """RuntimeError unless all tests pass while nothing is mutated."""
        tests = list(dict.fromkeys(test for module in modules for test in module.tests))
        copy = self.copies.get()
        if red := first_red(copy, tests, len(tests) * self.timeout_s):
            tail = (copy / "output.txt").read_text()[-2000:]
            raise RuntimeError(f"red without a mutation: {red}\n{tail}")
        self.copies.put(copy)

    def first_reds(
        self, todo: Sequence[tuple[Module, Mutation]]
    ) -> Iterator[tuple[Module, Mutation, str | None]]:
        """Each mutation with the first test that it turns red, in order."""
        with ThreadPoolExecutor(self.jobs) as pool:
            found = pool.map(lambda pair: self._try(*pair), todo)
            for (module, mutation), red in zip(todo, found, strict=True):
                yield module, mutation, red

    def _try(self, module: Module, mutation: Mutation) -> str | None:
        copy = self.copies.get()
        path = copy / module.source
        source = path.read_text(encoding="utf-8")
        try:
            path.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
            return first_red(copy, module.tests, self.timeout_s)
        finally:
            path.write_text(source, encoding="utf-8")
            self.copies.put(copy)


def verdict(mutation: Mutation, red: str | None) -> str:
    """What the table says of it."""
    if mutation.equivalent:
        return f"{WRONG[1]}: {red}" if red else f"equivalent: {mutation.equivalent}"
    return red or WRONG[0]


def table(module: Module, verdicts: Sequence[str]) -> str:
    """One row for each mutation, in Markdown."""
    n_equivalent = sum(bool(mutation.equivalent) for mutation in module.mutations)
    lines = [
        f"**{module.source.as_posix()}**: {len(verdicts)} mutations, {n_equivalent} of them "
        "equivalent, and the first test that each turns red",
        "",
        "| code | mutated to | red |",
        "|---|---|---|",
    ]
    for mutation, said in zip(module.mutations, verdicts, strict=True):
        lines.append(f"| {_code(mutation.old)} | {_code(mutation.new)} | {_cell(said)} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text.strip() else "(removed)"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def mutate(root: Path, modules: Sequence[Module], jobs: int, timeout_s: float = TIMEOUT_S) -> int:
    """Try the mutations of those modules, write their tables, and return how many are wrong."""
    todo = [(module, mutation) for module in modules for mutation in module.mutations]
    verdicts: list[str] = []  # of the module at hand
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(root, Path(folder), jobs, timeout_s)
        print(f"{len(todo)} mutations of {len(modules)} modules; first the tests without one")
        bench.check_green(modules)
        for number, (module, mutation, red) in enumerate(bench.first_reds(todo), start=1):
            verdicts.append(verdict(mutation, red))
            wrong += verdicts[-1].startswith(WRONG)
            new = _code(mutation.new)
            print(f"[{number}/{len(todo)}] {module.name}: {new}: {verdicts[-1]}", flush=True)
            if len(verdicts) == len(module.mutations):
                path = root / RESULTS / f"{module.name}.md"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(table(module, verdicts), encoding="utf-8")
                verdicts = []
    print(f"{len(todo)} mutations, {wrong} wrong; tables in {RESULTS}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as grpo/kl, or grpo")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at a time")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: expected at least 1")
    try:
        modules = load_modules(ROOT, options.names)
    except ValueError as error:
        parser.error(str(error))
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    return 1 if mutate(ROOT, modules, options.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
