"""Tables as people read them: Markdown, LaTeX, CSV, on a screen, and the command."""

import csv
import math
import subprocess
import sys

import numpy as np
import pytest
from support.run_records import record, values

from grpo_bench.report import block, brief, display, latex, markdown
from grpo_bench.report.folder import make_tables
from grpo_bench.report.text.numbers import (
    difference,
    hundredths,
    in_units,
    ratio,
    share,
    significant,
    whole,
)
from grpo_bench.report.text.screen import SPARE, fit, print_tables
from grpo_bench.report.text.writers import COLUMNS, escaped, no_formula, without_tags
from grpo_bench.tables import write_tables


def test_markdown_says_where_it_comes_from_and_what_failed(tables):
    text = markdown(display("accuracy", tables["accuracy"]))
    assert (
        "Processor_X 3 & 4 (2 cores); 1 thread(s) a run, 2 run(s) at a time; "
        "Python 3.11.7, torch 2.13.0, numpy 2.4.6; commit 0123456789." in text
    )
    assert "- Not in the means: vlm, smoke, grpo: oom (seed 3)\n" in text
    grid = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in grid}) == 1  # aligned
    assert len({tuple(i for i, c in enumerate(line) if c == "|") for line in grid}) == 1
    assert len(grid) == 2 + 3  # titles and rule; a row each, with its intervals in it


def test_markdown_of_the_summary_by_hand(tables):
    # Of two seeds there is no interval.
    assert markdown(display("summary", tables["summary"])).split("\n\n")[2] == (
        "|env   |budget|algo| ok|success|      PPO success|verdict              "
        "|speed ×|peak mem ×|static mem ×|\n"
        "|:-----|:-----|:---|--:|------:|----------------:|:--------------------"
        "|------:|---------:|-----------:|\n"
        "|format|smoke |grpo|1/1|   0.50|                –|–                    "
        "|      –|         –|           –|\n"
        "|vlm   |smoke |grpo|2/3|   0.85|0.60 [0.35, 0.85]|cannot tell (needs 5)"
        "|   4.00|      0.50|       0.500|"
    )


def test_brief_columns_by_hand(tables):
    shown = brief("summary", tables["summary"])
    assert shown.attrs["caption"] == "Summary: GRPO against PPO; budget smoke; 1 to 2 runs each"
    assert shown.iloc[1].to_dict() == {
        "env": "vlm",
        "success / PPO's": "0.85 / 0.60",
        "verdict": "cannot tell\n(needs 5)",
        "speed ×": "4.00",
        "peak mem ×": "0.50",
        "static mem ×": "0.500",
    }
    trade = brief("trades", tables["trades"]).iloc[0].to_dict()
    assert (trade["PPO's critic"], trade["success, GRPO / PPO"]) == ("separate", "0.85 / 0.60")


def test_block_for_a_page_has_all_the_words(tables):
    shown = brief("memory", tables["memory"])
    text = block(shown)
    grid = markdown(shown).split("\n\n")[2]
    caption = "**Memory: GRPO against PPO, one fresh process per run; budget smoke**"
    assert text.startswith(f"{caption}\n\n{grid}\n\n<sub>")
    assert "\nNot in the means: vlm, smoke, grpo: oom (seed 3).\nProcessor_X" in text
    assert shown.attrs["reading"] in text
    assert text.endswith("commit 0123456789.</sub>\n")


def test_bars_in_a_label_do_not_make_columns(tmp_path):
    for kind in ("a|b", "c"):
        record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), kind=kind)
    text = markdown(display("speed", make_tables(tmp_path)["speed"]))
    assert r"|grpo (kind=a\|b)|" in text


def test_latex_is_escaped(tables):
    text = latex(display("accuracy", tables["accuracy"]), "accuracy")
    assert r"Processor\_X 3 \& 4" in text
    assert r"95 \% interval over the seeds that ended ok, Student's t below 10 seeds" in text
    assert r"vlm & smoke & grpo & 2/3 & 2.05 & 0.250 & 0.900 & 0.850" in text
    assert r" &  &  &  &  &  & [0.402, 0.898] & [0.352, 0.848]" in text
    assert r"\label{tab:accuracy}" in text
    assert "–" not in text
    assert text.count(r"\begin") == text.count(r"\end") == 2
    assert r"speed $\times$" in latex(display("summary", tables["summary"]), "summary")


def test_csv_has_ten_digits_and_empty_fields(tables, tmp_path):
    write_tables(tables, tmp_path)
    with (tmp_path / "accuracy.csv").open() as file:
        rows = list(csv.DictReader(file))
    # 0.6 + t(2) 0.1 / sqrt(3), t(2) = 4.3026527297; of two seeds there are no bounds
    assert rows[2]["test_success_high"] == "0.8484137712"
    assert tables["accuracy"]["test_success_high"][2] == pytest.approx(0.8484137712, abs=1e-10)
    assert rows[1]["test_success_high"] == ""
    assert rows[2]["difference"] == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}.{ending}" for name in sorted(tables) for ending in _ENDINGS
    ]


_ENDINGS = ("csv", "md", "tex")


# -- findings of the doctor -----------------------------------------------------------------------

ZERO = "kl form: kl={} has an expected gradient of zero, so kl_coef={} adds noise"
SPREAD = "no spread: in {} updates in a row no group had rewards that differ"


def test_each_finding_stands_once_with_its_places(tmp_path):
    for env, algo, seed, findings in [
        ("vlm", "grpo", 1, []),
        ("vlm", "tutorial", 1, [ZERO.format("k1", 0.04)]),
        ("vlm", "tutorial", 2, [ZERO.format("k1", 0.04), SPREAD.format(12)]),
        ("format", "tutorial", 10, [ZERO.format("k1", 1e-05)]),
        ("format", "tutorial", 2, [ZERO.format("k1", 0.5), ZERO.format("k1", 0.6)]),
        ("vlm", "other", 1, [ZERO.format("k2", 0.04), SPREAD.format("1,010")]),
    ]:
        record(tmp_path, algo, seed, values(0.5, 1000, 1e6), env=env, findings=findings)
    record(tmp_path, "rloo", 1, values(0.5, 1, 1), status="nan", findings=[SPREAD.format(99)])
    table = make_tables(tmp_path)["accuracy"]
    # Numbers may differ, and the first run's are shown; another form of KL is another finding.
    expected = [
        f"Finding in tutorial (format, vlm; 4 runs): {ZERO.format('k1', 0.5)}",
        f"Finding in other (vlm; 1 run): {ZERO.format('k2', 0.04)}",
        "Finding in other (vlm; 1 run) and rloo (vlm; 1 run) and tutorial (vlm; 1 run): "
        + SPREAD.format("1,010"),
    ]
    assert table.attrs["footnotes"] == [
        "Not in the means: vlm, smoke, rloo: nan (seed 1)",
        *expected,
    ]
    shown = display("accuracy", table)
    assert markdown(shown).endswith("".join(f"- {note}\n" for note in expected))
    assert f"\n{expected[0]}.\n" in block(shown)


# -- on a screen ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 200])
def test_printed_for_people(tables, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(tables)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    assert len(lines) <= 20
    assert "Summary: GRPO against PPO; budget smoke; 1 to 2 runs each" in lines
    (row,) = (line.split() for line in lines if line.startswith("vlm "))
    assert row == ["vlm", "0.85", "/", "0.60", "cannot", "tell", "4.00", "0.50", "0.500"]
    assert sum("(needs 5)" in line for line in lines) == 1
    assert sum("Processor_X" in line for line in lines) == 1
    assert sum("oom (seed 3)" in line for line in lines) == 1
    assert sum(line.startswith("More in the files: trades.md, accuracy.md") for line in lines) == 1


def test_piped_as_wide_as_a_page(tables, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_tables(tables)
    assert 90 < max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) <= 100


def test_without_a_comparison_each_algorithm_is_printed(tmp_path, capsys, monkeypatch):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6))
    monkeypatch.setenv("COLUMNS", "80")
    print_tables(make_tables(tmp_path))
    printed = capsys.readouterr().out
    assert all(f"{name}: each algorithm" in printed for name in ("Accuracy", "Speed", "Memory"))


def test_before_any_run_has_ended_one_line_is_printed(tmp_path, capsys):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), status="oom")
    record(tmp_path, "ppo", 1, values(0.5, 1000, 1e6), status="oom")
    print_tables(make_tables(tmp_path))
    assert capsys.readouterr().out == "No run has ended ok yet.\n"


PRESETS = [
    *("grpo", "cispo", "dapo", "dr_grpo", "grpo_paper", "grpo_tutorial", "gspo", "reinforce"),
    *("reinforce_pp", "rloo"),
]


def test_ten_algorithms_on_a_page_and_on_a_screen(tmp_path, capsys, monkeypatch):
    for i, algo in enumerate(PRESETS):
        for seed, noise in [(1, 0.0), (2, 0.001), (3, 0.0015)]:
            last = values(0.5 + 0.02 * i + noise * i, 1000 + 13 * i * seed, 4e8 + 1e6 * i * seed)
            record(tmp_path, algo, seed, last, env="arithmetic", kind="grpo", components=["format"])
    tables = make_tables(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    print_tables(tables)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, printed)) <= 100
    rows = [line.split() for line in printed if line.startswith("arithmetic ")]
    assert [row[1] for row in rows] == PRESETS[1:]  # whole, and a row each
    assert sum("grpo_tutorial better" in line for line in printed) == 1
    for name, table in tables.items():
        grid = [line for line in markdown(display(name, table)).splitlines() if line[0:1] == "|"]
        labels = [line.split("|")[3].strip() for line in grid[2:]]
        assert list(filter(None, labels)) == list(table["algo"])
        assert len({len(line) for line in grid}) == 1
    narrow = block(brief("summary", tables["summary"])).splitlines()
    assert max(len(line) for line in narrow if line.startswith("|")) < 130


@pytest.mark.parametrize("name", SPARE)
def test_a_narrow_screen_leaves_out_intervals_and_then_spare_columns(tables, name):
    assert set(SPARE[name]) < {column.title for column in COLUMNS[name]}
    shown = brief(name, tables[name])
    assert fit(name, shown, 1000).equals(shown)
    narrow = fit(name, shown, 1)
    spare = {title.format(reference="PPO", unit="KB") for title in SPARE[name]}
    assert set(narrow.columns) == set(shown.columns) - spare
    assert "[" not in narrow.to_string()


def test_two_budgets_stay_apart_on_any_screen(tables):
    shown = display("speed", tables["speed"]).assign(budget=["smoke", "full", "full"])
    narrow = fit("speed", shown, 1)
    assert list(narrow["budget"]) == ["smoke", "full", "full"]
    assert "budget" not in narrow.attrs["caption"]


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "x", "expected"),
    [
        (significant, 1234567, "1,230,000"),
        (significant, 9.996, "10.0"),
        (significant, 0.0123456, "0.0123"),
        (significant, -12.34, "-12.3"),
        (significant, 0, "0"),
        (significant, math.nan, "–"),
        (significant, math.inf, "inf"),
        (whole, 1234567, "1,234,567"),
        (share, -0.0001, "0.000"),
        (difference, 0.0514, "+0.051"),
        (difference, -0.0001, "+0.000"),
        (hundredths, 0.9951, "1.00"),
        (hundredths, -0.001, "0.00"),
        (hundredths, math.nan, "–"),
        (ratio, 0.1, "0.10"),
        (ratio, 0.996, "1.00"),
        (ratio, 9.994, "9.99"),
        (ratio, 9.996, "10.0"),
        (ratio, 0.0456, "0.0456"),
        (ratio, math.nan, "–"),
        (in_units(1e3), 152_345, "152"),
    ],
)
def test_numbers(form, x, expected):
    assert form(x) == expected
    assert form(np.float64(x)) == expected


# -- the command ----------------------------------------------------------------------------------


def command(folder, *arguments):
    whole = [sys.executable, "-m", "grpo_bench.tables", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, cwd=folder)


def test_command_twice_gives_the_same_bytes_and_nothing_else(results, tmp_path):
    first = command(tmp_path, f"results={results}", "out=one")
    assert first.returncode == 0, first.stderr
    assert "Summary: GRPO against PPO" in first.stdout
    assert command(tmp_path, f"results={results}", "out=two").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    contents = [{p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two")]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 3 * 8


def test_command_with_another_reference(results, tmp_path):
    done = command(tmp_path, f"results={results}", "out=one", "reference=grpo")
    assert "Summary: each algorithm against grpo" in done.stdout
    assert "|vlm|smoke |ppo |3/3|" in (tmp_path / "one" / "summary.md").read_text()
    wrong = command(tmp_path, f"results={results}", "out=two", "reference=pop")
    assert wrong.returncode == 1
    assert wrong.stderr == "reference=pop: expected an algorithm that has runs here: grpo, ppo\n"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_command_checks_and_writes_nothing(results, tmp_path):
    arguments = (f"results={results}", "out=one")
    missing = command(tmp_path, *arguments, "check=true")
    assert missing.returncode == 1
    assert "one/summary.md: not what its records give\n" in missing.stdout
    assert not list(tmp_path.iterdir())
    command(tmp_path, *arguments)
    checked = command(tmp_path, *arguments, "check=true")
    assert (checked.returncode, checked.stdout) == (0, "Nothing would change in one\n")
    path = tmp_path / "one" / "speed.csv"
    path.write_text(path.read_text().replace("1000", "1001", 1))
    checked = command(tmp_path, *arguments, "check=true")
    assert (checked.returncode, checked.stdout) == (
        1,
        "one/speed.csv: not what its records give\n",
    )


def test_command_without_runs_says_so(tmp_path):
    done = command(tmp_path, "results=empty")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "empty: no records; expected a folder that python -m grpo_bench.run"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("grpo", "grpo"),
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+SUM(A1)", "'+SUM(A1)"),
        ("-SUM(A1)", "'-SUM(A1)"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t =1+1", "'\t =1+1"),
        ("\r\n=1", "'\r\n=1"),
        ("-0.5", "-0.5"),
        ("+1e-3", "+1e-3"),
        ("-inf", "-inf"),
        ("a=b", "a=b"),
        ("\N{EN DASH}", "\N{EN DASH}"),
    ],
)
def test_no_cell_is_a_formula(text, cell):
    assert no_formula(text) == cell


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),  # else the backslash would be escaped, and the bar a bar
        ("a\r\nb\rc", "a b c"),
        ("<b>x</b>", "&lt;b>x&lt;/b>"),
        ("<!-- x", "&lt;!-- x"),
        ("p < 0.01, <0.01", "p < 0.01, <0.01"),
        ("`<answer>`", "`<answer>`"),
        ("``<a>`</a>`` <b>", "``<a>`</a>`` &lt;b>"),
        ("`<b>``", "`&lt;b>``"),  # no code: the ticks differ in number
        (r"\`<b>`", r"\`&lt;b>`"),
        ("`<b>", "`&lt;b>"),
    ],
)
def test_no_cell_breaks_its_markdown_table(text, cell):
    assert escaped(text) == cell


def test_tables_of_a_hostile_record(tmp_path):
    """Names that are formulas, tags, bars and escape sequences."""
    name = "=1+1|<img src=x onerror=alert(1)>\x1b[2J"
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), env=name)
    tables = make_tables(tmp_path)
    write_tables(tables, tmp_path / "tables")
    with (tmp_path / "tables/accuracy.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["env"] == f"'{name}" and float(row["test_success"]) == 0.5
    text = (tmp_path / "tables/accuracy.md").read_text()
    assert "<img" not in text and r"=1+1\|&lt;img" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace(r"\|", "").count("|") for line in lines}) == 1
    assert "<img" not in without_tags(text)


def test_escape_sequences_of_a_record_do_not_reach_the_terminal(tmp_path, capsys):
    record(tmp_path, "grpo", 1, values(0.5, 1000, 1e6), env="a\x1b[2J\x1b]0;owned\x07b")
    print_tables(make_tables(tmp_path))
    assert "ab" in (shown := capsys.readouterr().out) and "\x1b" not in shown
