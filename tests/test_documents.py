"""What the pages say can be done: links lead somewhere, command lines parse, examples run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

import grpo_bench.run  # noqa: F401  (registers what conf/config.yaml needs)
from grpo_bench.config import CONF, resolved
from grpo_bench.config.resolve import with_signs
from grpo_bench.tables import FLAGS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "benchmarks", "envs", "tests", "results/reference")
PAGES = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|<img src=\"([^\"]+)\"")
CALL = r"(?:\.venv/bin/)?(?:python|torchrun --nproc-per-node \d) -m grpo_bench\.(\w+) ?"
PROGRAMS = re.compile(rf"^ *(?:# )?{CALL}(.*)$|`{CALL}([^`]*)`", re.MULTILINE)
CONFIGS = {"run": "config"} | {name: name for name in ("tables", "tune", "pack", "plan", "audit")}


def links(text: str) -> list[str]:
    """Where the links and pictures of a page lead, but for those of the web."""
    code = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
    found = [page or picture for page, picture in LINK.findall(code.sub("code", text))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def dead(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    text = page.read_text(encoding="utf-8")
    wrong = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        place = page.parent / path if path else page
        known = not anchor or (place.is_file() and anchor in anchors(place.read_text("utf-8")))
        if not place.exists() or not known:
            wrong.append(target)
    return wrong


def test_no_link_is_dead() -> None:
    assert {page.relative_to(ROOT).as_posix(): dead(page) for page in PAGES if dead(page)} == {}


def test_a_dead_link_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# Two words, here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#two-words-here) [c](https://example.org) ![d](gone.svg)\n"
        "[e](there.md#three) [two\nlines](gone.md) `[code](gone)`\n```\n[code](gone)\n```\n"
        '<img src="gone.png" width="9">'
    )
    assert dead(page) == ["gone.svg", "there.md#three", "gone.md", "gone.png"]


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The programs that a text calls, on a line of their own or in quotes, with keys."""
    for found in PROGRAMS.finditer(text.replace("\\\n", " ")):
        program = found[1] or found[3]
        if program in CONFIGS:
            yield program, re.split("   *| #", found[2] or found[4] or "")[0].strip()


def written() -> dict[str, list[tuple[str, str]]]:
    """The command lines of every page of people, and of the help of the programs."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "conf").rglob("*.yaml")]
    pages += (ROOT / "grpo_bench").glob("*.py")
    found = {p.relative_to(ROOT).as_posix(): list(commands(p.read_text("utf-8"))) for p in pages}
    return {name: lines for name, lines in found.items() if lines}


# A word stands for the reader's own, or the line needs the reader's own configuration.
FORMS = ("...", "FOLDER", "env=NAME", "ALGO", "--config-dir", "env=corridor")
COMMANDS = sorted({command for lines in written().values() for command in lines})


def chosen(override: str) -> str:
    """An override with the first of the values that it gives."""
    parsed = OverridesParser.create().parse_override(override)
    if not parsed.is_sweep_override():
        return override
    first = str(next(iter(parsed.sweep_string_iterator()))) if "glob" not in override else "grpo"
    return f"{override.partition('=')[0]}={first}"


@pytest.mark.parametrize(("program", "line"), COMMANDS, ids=[f"{p} {x}" for p, x in COMMANDS])
def test_a_command_line_is_one(program: str, line: str) -> None:
    """Hydra's own parser takes it, and what it asks for is there."""
    words = [f"{w[2:]}=true" if w in FLAGS else w for w in shlex.split(line)]
    if any(form in line for form in FORMS):
        pytest.skip("a form, not a command")
    asked = get_args_parser().parse_args(words)
    overrides = with_signs([chosen(each) for each in asked.overrides])
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(CONFIGS[program], overrides)
    if program == "run" and not any("experiment" in each for each in overrides):
        resolved(config)


def test_there_are_commands() -> None:
    assert {program for program, _ in COMMANDS} == {*CONFIGS}
    assert {"README.md", "docs/protocol.md", "docs/records.md", "conf/config.yaml"} <= {*written()}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("README.md", "python"), ids=["environment", "grpo"])
def test_the_examples_of_the_readme_run(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code.replace("60_000", "64"), {})


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


@pytest.mark.slow
def test_an_own_task_is_compared_as_documented(tmp_path: Path) -> None:
    """The module, the configuration and the command of docs/environments.md, in a new folder."""
    (task,) = (code for code in blocks("docs/environments.md", "python") if "(Task)" in code)
    (settings,) = blocks("docs/environments.md", "yaml")
    page = (ROOT / "docs/environments.md").read_text("utf-8")
    (line,) = re.findall(r"^python (.*--config-dir.*)$", page, re.MULTILINE)
    (tmp_path / "largest.py").write_text(task)
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "largest.yaml").write_text(settings)
    words = shlex.split(line.replace("seed=1,2,3", "seed=1 budget=smoke"))
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"largest +\S+ / \S+", done.stdout)


@pytest.mark.slow
def test_what_people_bring_is_compared_as_documented(tmp_path: Path) -> None:
    """The modules, the configuration and the commands of docs/your_own.md, in a new folder."""
    environment, algorithm = blocks("docs/your_own.md", "python")
    (settings,) = blocks("docs/your_own.md", "yaml")
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "corridor.yaml").write_text(settings)
    (tmp_path / "corridor.py").write_text(environment)
    (tmp_path / "brave.py").write_text(algorithm)
    page = (ROOT / "docs/your_own.md").read_text("utf-8")
    lines = re.findall(r"^python (-c.*|.*env=corridor.*)$", page, re.MULTILINE)
    assert len(lines) == 7
    for line in (lines[0], lines[2], lines[5], lines[6]):  # each start takes seconds
        words = shlex.split(line.replace("seed=1,2,3", "seed=1 budget=smoke"))
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
    table = (tmp_path / "results" / "runs" / "tables" / "accuracy.md").read_text("utf-8")
    for row in ("Brave", "grpo (baseline=brave:best_of_group", "ppo (env.network"):
        assert row in table
