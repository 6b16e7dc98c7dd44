"""The page: its markup is sound, its numbers are those of the tables, and all leads somewhere."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.pages import HOSTILE, make_records, make_report
from support.run_records import record, values

from grpo_bench.records import RecordError
from grpo_bench.records.errors import load_errors
from grpo_bench.report.contents import OWNED, REST, Report, coloured, gather, recorded_parts
from grpo_bench.report.figures import palette, panels
from grpo_bench.report.figures.drawing import draw_curves, draw_profiles
from grpo_bench.report.page import elements, report_page
from grpo_bench.report.page.charts import chart
from grpo_bench.report.page.sortable_table import _side
from grpo_bench.report.page.trade_summary import count_verdicts
from grpo_bench.report.text.writers import display, without_budget

VOID = {"meta", "link", "input", "wbr"}
Attributes = dict[str, str | None]


class Tree(HTMLParser):
    """What a page consists of; an assertion fails where a tag is not closed.

    tags: each start tag with its attributes. texts: what each element of some class or name holds.
    rows: the cells of each table by its label, a list of (attributes, text) for each row.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, Attributes]] = []
        self.rows: dict[str, list[list[tuple[Attributes, str]]]] = {}
        self.table = ""
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.table = str(dict(attrs)["aria-label"])
            while self.table in self.rows:  # both sections have a table of this caption
                self.table += "'"
            self.rows[self.table] = []
        if tag == "tr":
            self.rows[self.table].append([])
        if tag in ("td", "th"):
            self.rows[self.table][-1].append((dict(attrs), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            attributes, text = self.rows[self.table][-1].pop()
            between = "\n" if self.open[-1] == "small" else ""
            self.rows[self.table][-1].append((attributes, text + between + data))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("page")
    make_records(folder)
    return make_report(folder)


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return report_page(report)


@pytest.fixture(scope="module")
def tree(text: str) -> Tree:
    return Tree(text)


# -- markup ---------------------------------------------------------------------------------------


def test_ids_are_unique_and_links_have_targets(tree: Tree) -> None:
    ids = [attributes["id"] for _, attributes in tree.tags if "id" in attributes]
    assert [name for name, n in Counter(ids).items() if n > 1] == []
    links = [str(attributes["href"]) for tag, attributes in tree.tags if tag == "a"]
    inside = {link for link in links if link.startswith("#")}
    assert {link[1:] for link in inside} <= set(ids)
    assert set(links) - inside == {"https://example.org/?a=1&b=2"}


def test_nothing_is_fetched(text: str, tree: Tree) -> None:
    for tag, attributes in tree.tags:
        assert not {"src", "srcset", "poster", "style", "onload"} & set(attributes)
        assert tag not in {"img", "iframe", "object", "embed", "base", "form"}
    assert [a["href"] for tag, a in tree.tags if tag == "link"] == ["data:,"]
    assert "url(" not in text and "@import" not in text
    (policy,) = (a["content"] for t, a in tree.tags if "http-equiv" in a)
    assert str(policy).startswith("default-src 'none'; style-src 'sha256-")


def test_what_is_hostile_is_text(text: str, tree: Tree) -> None:
    assert text.count("</script>") == 1 and "<b " not in text
    assert {tag for tag, _ in tree.tags} & {"b"} == set()
    assert tree.text.count(HOSTILE) > 5  # as a name, as an error, in a claim


def test_the_same_report_gives_the_same_bytes(report: Report, text: str) -> None:
    assert report_page(report) == text


def test_elements() -> None:
    made = elements.element("a", "<&", elements.element("path", d="M0"), href='"<', hidden=True)
    assert made == '<a href="&quot;&lt;" hidden>&lt;&amp;<path d="M0"/></a>'
    assert elements.element("input", checked=False, value=None) == "<input>"
    assert elements.element("rect", x=1.0, y=2.25, class_="p") == '<rect x="1" y="2.25" class="p"/>'
    assert elements.element("p", "a\0\ud800b", None) == "<p>a\ufffd\ufffdb</p>"
    assert elements.prose("run `a < b` now") == "run <code>a &lt; b</code> now"


# -- numbers --------------------------------------------------------------------------------------


def test_cells_are_those_of_the_tables(report: Report, tree: Tree) -> None:
    seen: Counter[str] = Counter()
    for section in report.sections:
        for name, table in section.tables.items():
            if name == "trades":  # on the first screen alone
                assert table.attrs["caption"] not in tree.rows
                continue
            shown = without_budget(display(name, table))
            caption = shown.attrs["caption"]
            label = caption + "'" * seen[caption]
            seen[caption] += 1
            (titles, *rows) = tree.rows[label]
            assert [text for _, text in titles] == list(shown.columns)
            assert [[text for _, text in row] for row in rows] == shown.to_numpy().tolist()


def test_numbers_are_sorted_as_numbers(report: Report, tree: Tree) -> None:
    table = report.sections[0].tables["accuracy"]
    (titles, *rows) = tree.rows["Accuracy: GRPO against PPO; budget smoke"]
    column = [text for _, text in titles].index("test success")
    values_of = [row[column][0]["data-value"] for row in rows]
    expected = ["" if math.isnan(x) else f"{x:.12g}" for x in table["test_success"]]
    assert values_of == expected and "" not in expected
    difference = [text for _, text in titles].index("difference to PPO")
    missing = [row[difference][0]["data-value"] for row in rows]
    assert [x == "" for x in missing] == list(table["difference"].isna())
    algo = [text for _, text in titles].index("algo")
    assert all("data-value" not in row[algo][0] for row in rows)


def test_the_first_screen_has_each_critic(report: Report, tree: Tree) -> None:
    (titles, *rows) = tree.rows["GRPO compared with each critic of PPO"]
    names = [text for _, text in titles]
    columns = [names.index(name) for name in ("task", "critic", "ok", "PPO ok", "speed ×")]
    assert [tuple(row[i][1] for i in columns) for row in rows] == [
        ("format", "separate", "3/3", "3/3", "3.00"),  # in every pair
        ("format", "shared trunk", "3/3", "3/3", "3.00"),
        ("vlm", "separate", "2/3", "3/3", "3.00"),
        ("vlm", "shared trunk", "2/3", "3/3", "3.00"),
    ]
    told = "main. Accuracy after equal transitions: GRPO is ahead in 2 of 4 comparisons; "
    assert f"{told}no clear difference in 2. " in tree.text  # on vlm: two pairs, no interval
    assert (
        "Compared with PPO, GRPO makes 3.00 times as many transitions per second; its process "
        "holds 0.50 times as much memory at its peak; policy, critic, reference, gradients and "
        "optimiser state together are 0."
    ) in tree.text


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["grpo better"], "GRPO is ahead"),
        (["ppo better", ""], "PPO is ahead"),
        (["cannot tell (needs 3)"], "no clear difference"),
        (["cannot tell"] * 2, "no clear difference in any of 2 comparisons"),
        (["ppo_shared better"] * 2, "PPO is ahead in 2 of 2 comparisons"),
        (
            ["grpo better", "ppo better", "ppo_shared better", "cannot tell"],
            "GRPO is ahead in 1 of 4 comparisons and PPO in 2; no clear difference in 1",
        ),
    ],
)
def test_verdicts_in_words(verdicts: list[str], expected: str) -> None:
    assert count_verdicts(pd.Series(verdicts)) == expected


def test_notes_stand_where_the_numbers_do(tmp_path: Path) -> None:
    """Of the first screen and of the section; rows of other records have no mark."""
    make_records(tmp_path)
    for seed in (1, 2):
        record(tmp_path / "noisy", "grpo", seed, values(0.5, 2000, 2e8), env="cards")
        record(tmp_path / "noisy", "ppo", seed, values(0.5, 1000, 2e8), env="cards", kind="ppo")
    (tmp_path / "noisy" / "notes.txt").write_text("Other work ran\nMade before", "utf-8")
    made = report_page(gather([tmp_path / "main", tmp_path / "noisy"]))
    tree = Tree(made)
    (_, *rows) = tree.rows["GRPO compared with each critic of PPO"]
    assert [row[0][1] for row in rows] == ["format"] * 2 + ["vlm"] * 2 + ["cards ¹"]
    assert "noisy¹. Accuracy" in tree.text and "main. Accuracy" in tree.text
    first, rest = made.split('<section id="claims">')
    assert "¹ noisy: Other work ran. Made before." in first
    assert ">cards ¹</text>" in rest
    section = rest.split('<section id="section-noisy">')[1]
    assert section.index("<li>Other work ran</li>") < section.index("<table")


def test_a_section_says_what_its_records_are_of(tree: Tree) -> None:
    assert "19 runs: 4 algorithms on format, vlm, 1 to 3 seeds each. " in tree.text
    assert "1 run: grpo on vlm, 1 seed each. " in tree.text


def test_budgets_stand_where_they_tell(tmp_path: Path) -> None:
    """In the caption where all rows share one, else beside environments that have several."""
    record(tmp_path / "main", "grpo", 1, values(0.5, 1000, 2e8), env="cards")
    for budget in ("short", "long"):
        record(tmp_path / "main", "grpo", 1, values(0.5, 1000, 2e8), budget=budget)
    tree = Tree(report_page(gather([tmp_path / "main"])))
    (caption,) = (name for name in tree.rows if name.startswith("Accuracy"))
    assert "budget" not in caption
    (titles, *rows) = tree.rows[caption]
    assert [text for _, text in titles][:3] == ["env", "algo", "ok"]
    assert sorted(row[0][1] for row in rows) == ["cards", "vlm, long", "vlm, short"]


def test_colour_repeats_the_verdict(tree: Tree) -> None:
    kinds = set()
    for name in ("Summary: GRPO against PPO", "Accuracy: GRPO against PPO"):
        caption = f"{name}; budget smoke"
        (titles, *rows) = tree.rows[caption]
        column = [text for _, text in titles].index("verdict")
        for row in rows:
            attributes, verdict = row[column]
            kinds.add((attributes["class"], verdict.partition("\n")[0]))
    assert ("better", "grpo better") in kinds
    for kind, verdict in kinds:
        assert (kind == "open") == (not verdict.endswith(" better"))


def test_colours_of_verdicts() -> None:
    for verdict, side in [
        ("grpo better", "better"),
        ("grpo better (of those ok)", "better"),
        ("ppo better (of those ok)", "worse"),
        ("cannot tell (needs 6)", "open"),
        ("reference", "open"),
    ]:
        assert _side(verdict, "grpo (lr=0.1)") == side


# -- where numbers come from ----------------------------------------------------------------------


def test_a_row_leads_to_its_runs(report: Report, text: str, tree: Tree) -> None:
    section = report.sections[0]
    (_, *rows) = tree.rows["Accuracy: GRPO against PPO; budget smoke"]
    assert len(rows) == len(section.groups)
    links = re.findall(r'<a href="#(runs-main-\d+)">(\d/\d)</a>', text)
    for i, group in enumerate(section.groups):
        assert (f"runs-main-{i}", f"{len(group.values)}/{len(group.runs)}") in links
        (block,) = re.findall(rf'<details id="runs-main-{i}" class="runs">.*?</tbody>', text)
        ids = re.findall(r'<tr id="([^"]+)">', block)
        assert ids == [panels.slug("run", "main", run) for run in group.runs["run"]]
    kinds = {row[2][1]: row[2][0]["class"] for row in rows}
    assert kinds == {"3/3": "n", "2/3": "n missing", "1/1": "n"}


def test_counts_of_ppo_lead_to_its_runs(report: Report, text: str) -> None:
    section = report.sections[0]
    (first,) = re.findall(r'id="all-trades".*?</table>', text)
    for row, trade in zip(
        re.findall(r"<tr><td.*?</tr>", first),
        section.tables["trades"].to_dict("records"),
        strict=True,
    ):
        places = [
            next(i for i, g in enumerate(section.groups) if (g.env, g.label) == (trade["env"], who))
            for who in (trade["algo"], trade["ppo"])
        ]
        assert re.findall(r'href="#([^"]*)"', row) == [f"runs-main-{i}" for i in places]


def test_a_run_that_failed_is_listed_with_its_reason(tree: Tree) -> None:
    (caption,) = (name for name in tree.rows if name.startswith("1 of 20 runs"))
    (_, row) = tree.rows[caption]
    cells = [text for _, text in row]
    assert cells[:6] == ["main", "vlm", "smoke", "grpo", "3", "failed"]
    assert cells[6] == f"ValueError: {HOSTILE}"
    assert cells[7].startswith("vlm/grpo/smoke-seed3-")
    ids = {attributes.get("id") for _, attributes in tree.tags}
    assert panels.slug("run", "main", cells[7]) in ids


def test_none_failed(tmp_path: Path) -> None:
    record(tmp_path / "only", "grpo", 1, values(0.5, 1000, 200e6))
    made = report_page(gather([tmp_path / "only"]))
    assert "None: all 1 runs ended ok." in made
    assert "These records have no runs of both grpo and ppo." in made
    Tree(made)


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    for seed in (1, 2):
        record(tmp_path / "main", "grpo", seed, values(0.5, 1000, 200e6))
    (broken,) = (tmp_path / "main" / "vlm" / "grpo").glob("smoke-seed2-*")
    (broken / "manifest.json").write_text("{")
    report = gather([tmp_path / "main"])
    (run,) = (
        r for g in report.sections[0].groups for r in g.runs.to_dict("records") if r["problem"]
    )
    assert run["reason"] == run["problem"] and "not JSON" in run["reason"]
    Tree(report_page(report))


def test_machines_and_code(tree: Tree) -> None:
    rows = tree.rows["Hardware, versions and commits of the runs"]
    assert [text for _, text in rows[1]] == [
        *("Processor_X 3 & 4 (2 cores)", "1", "2", "Linux, Python 3.11.7"),
        *("numpy 2.4.6, torch 2.13.0", "0123456789", "20\n19 of main, 1 of other"),
    ]


def test_claims_lead_to_their_tables(text: str, tree: Tree) -> None:
    (caption,) = (name for name in tree.rows if name.startswith("What the measurements say"))
    (_, *rows) = tree.rows[caption]
    results = [(row[1][1], row[5][1], row[6][1]) for row in rows]
    assert results[-1] == ("", "untested", "other/speed.csv")
    assert ("format", "passes", "main/tables/summary.csv") in results
    assert '<a href="#section-main-summary">main/tables/summary.csv</a>' in text
    assert ">holds only if</strong>" in text


def test_errors_of_folders(tmp_path: Path) -> None:
    record(tmp_path, "grpo", 1, values(0.5, 1000, 200e6), status="failed")
    (folder,) = tmp_path.glob("*/*/*")
    (folder / "error.txt").write_text("Traceback\n  line\nValueError: é\n \n", "utf-8")
    assert load_errors(tmp_path) == {folder.relative_to(tmp_path).as_posix(): "ValueError: é"}
    (tmp_path / "runs.parquet").write_text("no parquet")
    with pytest.raises(RecordError, match=r"runs\.parquet"):
        load_errors(tmp_path)


def test_folders_need_names_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of different names"):
        gather([tmp_path / "a" / "x", tmp_path / "b" / "x"])
    with pytest.raises(ValueError, match="expected one at least"):
        gather([])


# -- charts ---------------------------------------------------------------------------------------


def test_each_point_says_its_values_and_each_line_can_be_hidden(report: Report) -> None:
    section = report.sections[0]
    (panel, *_) = panels.curve_panels(section, "seconds")
    made = chart("name", "caption", "a & b", lambda axes: draw_curves(axes, panel, section.order))
    titles = re.findall(r"<title>([^<]*)</title></use>", made)
    rows = panel.curves.to_dict("records")
    assert titles == [panels.point_in_words(row, panel) for row in rows]
    assert 'aria-label="a &amp; b"' in made and "<figcaption>caption</figcaption>" in made
    places = [str(section.order[algo]) for algo in dict.fromkeys(panel.curves["algo"])]
    assert re.findall(r'class="s(\d)"', made) == places * 2  # bands below, lines above
    for place in places:
        assert f'stroke="var(--c{place})"' in made


def test_a_chart_follows_the_theme_and_needs_no_style(text: str, tree: Tree) -> None:
    colours = {
        value
        for tag, attributes in tree.tags
        for name, value in attributes.items()
        if name in ("fill", "stroke")
    }
    named = {f"var(--c{i})" for i in range(7)} | {f"var(--p{i})" for i in range(13)}
    assert {"currentColor", "none"} < colours <= named | {"currentColor", "none"}
    for colour in colours - {"currentColor", "none"}:
        assert f"{str(colour)[4:-1]}:light-dark(" in text
    charts = [attributes for tag, attributes in tree.tags if attributes.get("class") == "chart"]
    assert charts and all(attributes["aria-label"] for attributes in charts)
    assert all("viewbox" in attributes and "width" not in attributes for attributes in charts)


def test_no_interval_no_band() -> None:
    rows = pd.DataFrame({"algo": ["a"], "tau": [0.5], "share": [1.0]})
    for bound, bands in ((math.nan, 0), (0.5, 1)):
        some = rows.assign(low=bound, high=bound)
        made = chart("name", "", "", lambda axes, some=some: draw_profiles(axes, some, {"a": 0}))
        assert made.count("fill-opacity") == bands


def test_components_add_up_to_the_peak(report: Report) -> None:
    table = report.sections[0].tables["memory"]
    parts = recorded_parts(table)
    sums = parts.groupby(["env", "budget", "algo"])["bytes"].sum()
    for row in table.to_dict("records"):
        assert sums[row["env"], row["budget"], row["algo"]] == pytest.approx(row["peak_bytes"])
    mine = parts[(parts["env"] == "format") & (parts["algo"] == "ppo")]
    assert dict(zip(mine["component"], mine["bytes"], strict=True)) == {
        **{"policy": 10e3, "critic": 40e3, "gradients": 10e3, "optimiser": 20e3},
        REST: 402e6 - 80e3,
    }


def test_the_size_of_a_small_critic(text: str) -> None:
    assert (
        "The weights of a critic are 40.0 KB at most, and no process holds less than 402 MB: the "
        "interpreter and its libraries decide the peak here, not the critic."
    ) in text


def test_each_interval_says_its_numbers(report: Report, text: str) -> None:
    (part,) = re.findall(r'<section id="intervals">.*?</section>', text)
    rows = panels.interval_rows(panels.all_trades(report.sections))
    assert re.findall(r"<title>([^<]*)</title></use>", part) == [
        words
        for measure in panels.MEASURES
        for words in panels.intervals_in_words(rows[rows["measure"] == measure.title])
    ]


def test_no_interval_of_two_seeds() -> None:
    rows = pd.DataFrame(
        {"label": ["two", "ten"], "estimate": 2.0, "low": [math.nan, 1.0], "high": [math.nan, 3.0]}
    )
    assert panels.intervals_in_words(rows) == ["two: 2.00", "ten: 2.00 [1.00, 3.00]"]


def test_profiles_begin_where_they_differ() -> None:
    shares = pd.DataFrame({"tau": np.linspace(0, 1, 101), "share": 1.0})
    shares.loc[shares["tau"] > 0.625, "share"] = 0.5
    assert panels.from_first_difference(shares)["tau"].tolist() == pytest.approx(
        np.linspace(0.6, 1, 41)
    )
    shares["share"] = 0.5
    assert len(panels.from_first_difference(shares)) == 101
    shares["share"] = 1.0
    assert len(panels.from_first_difference(shares)) == 101


def test_memory_apart_from_the_records(tree: Tree) -> None:
    assert "vlm: the whole process" in tree.text
    told = "The weights of a critic are 49.0 KB at most, and no process holds less than 300 MB"
    assert told in tree.text
    assert "ppo: critic 49.0 KB" in tree.text and "grpo: interpreter 300 MB" in tree.text


# -- colours --------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Of WCAG 2, section 1.4.3."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Of WCAG 2: from 1 to 21."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_texts_and_lines(text: str) -> None:
    pairs = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", text))
    colours = {name: pair.split(", ") for name, pair in pairs.items()}
    assert colours["ground"][1] == palette.DARK_GROUND
    for name in ("ink", "faint", "link", "good", "bad", "partly"):
        for ground in ("ground", "raised"):
            for theme in (0, 1):
                assert contrast(colours[name][theme], colours[ground][theme]) >= 4.5, name
    for row, ground in ((palette.LIGHT, "#ffffff"), (palette.DARK, palette.DARK_GROUND)):
        assert min(contrast(colour, ground) for colour in row) >= 3


def test_an_algorithm_has_its_colour_in_every_section() -> None:
    first = {"grpo": 0, "rloo": 3, "ppo": 1}
    found = list(coloured([list(first), ["grpo", "ppo"], ["dapo", "rloo"], ["dapo", "loo"]]))
    assert found[:2] == [first, {"grpo": 0, "ppo": 1}]
    assert found[2] == {"dapo": 4, "rloo": 3}
    assert found[3] == {"dapo": 4, "loo": 3}  # as few colours as possible
    # Two that had the same one: the first of the section keeps it.
    assert list(coloured([["a"], ["b"], ["a", "b"]]))[2] == {"a": 3, "b": 4}


def test_lines_beyond_the_colours_are_dashed() -> None:
    n, owned = len(palette.LIGHT), len(OWNED)
    assert [palette.colour_and_dash(i) for i in (0, n - 1)] == [(0, ()), (n - 1, ())]
    assert palette.colour_and_dash(n) == (owned, palette.DASHES[0])  # no colour of GRPO or PPO
    count = n + (n - owned) * len(palette.DASHES)
    assert len({palette.colour_and_dash(i) for i in range(count)}) == count


# -- size -----------------------------------------------------------------------------------------


def test_a_thousand_runs_make_a_page_of_megabytes(report: Report) -> None:
    """10 environments, algorithms and seeds, with 20 evaluations on each axis."""
    section = report.sections[0]
    group = section.groups[0]
    groups = []
    for env in range(10):
        for algo in range(10):
            runs = pd.concat([group.runs.iloc[:1]] * 10, ignore_index=True)
            runs = runs.assign(
                run=[f"env{env}/algo{algo}/default-seed{s}-0a1b2c3d" for s in range(10)]
            )
            ends = pd.concat([group.values.iloc[:1]] * 10).set_axis(runs["run"])
            groups.append(
                dataclasses.replace(
                    group,
                    env=f"env{env}",
                    algo=f"algo{algo}",
                    label=f"algo{algo}",
                    runs=runs,
                    values=ends,
                )
            )
    tables = {}
    for name, table in section.tables.items():
        tables[name] = pd.concat([table.iloc[:1]] * 100, ignore_index=True).assign(
            env=[g.env for g in groups], algo=[g.label for g in groups]
        )
        if "ppo" in tables[name]:
            tables[name]["ppo"] = tables[name]["algo"]
        tables[name].attrs = table.attrs
    x = np.linspace(0, 1e6, 20)
    curves = pd.concat(
        [
            pd.DataFrame(
                {"x": x, "success": x / 1e6, "success_low": x / 2e6, "success_high": 1.0}
            ).assign(env=g.env, budget=g.budget, algo=g.label, axis=axis, n=10)
            for g in groups
            for axis in panels.AXES
        ]
    )
    profiles = section.profiles.iloc[:0]
    large = dataclasses.replace(
        section,
        groups=groups,
        tables=tables,
        curves=curves,
        profiles=profiles,
        order={f"algo{i}": i for i in range(10)},
    )
    made = report_page(Report("Large", [large], report.claims, None))
    assert len(made.encode()) < 5e6
