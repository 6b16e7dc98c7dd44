"""Figures: they name the numbers they show, and come out alike."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.pages import HOSTILE, make_records, make_report

from grpo_bench.report.contents import OWNED, Report
from grpo_bench.report.figures import palette
from grpo_bench.report.figures.drawing import draw_bars, draw_curves, draw_intervals
from grpo_bench.report.figures.files import expected_digests, figure_digest, figure_files
from grpo_bench.report.figures.panels import (
    IN_SUMMARY,
    MEASURES,
    CurvePanel,
    all_trades,
    curve_panels,
    interval_rows,
    slug,
)
from grpo_bench.report.figures.plans import figure_plans
from grpo_bench.report.text.writers import csv


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("figures")
    make_records(folder)
    return make_report(folder)


@pytest.fixture(scope="module")
def files(report: Report) -> dict[str, bytes]:
    return figure_files(report)


def test_names(files: dict[str, bytes]) -> None:
    names = [
        *("main-curves-format", "main-curves-vlm", "main-memory", "main-profiles", "main-summary"),
        *("other-curves-vlm", "other-memory", "memory"),
    ]
    assert list(files) == [f"{name}.{form}" for name in names for form in ("png", "svg")]


def test_formats(files: dict[str, bytes]) -> None:
    for name, data in files.items():
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG\r\n\x1a\n")
        else:
            root = ElementTree.fromstring(data)
            assert root.tag.endswith("svg")


def test_a_file_names_the_numbers_it_shows(report: Report, files: dict[str, bytes]) -> None:
    assert {name: figure_digest(data) for name, data in files.items()} == expected_digests(report)
    (plan,) = (p for p in figure_plans(report) if p.name == "main-summary")
    rows = interval_rows(all_trades(report.sections[:1]))
    data = rows[rows["measure"].isin(IN_SUMMARY)]
    assert plan.digest == hashlib.sha256(csv(data).encode()).hexdigest()
    assert figure_digest(b"another file") is None


def test_other_numbers_have_another_digest(report: Report) -> None:
    section = report.sections[0]
    curves = section.curves.copy()
    place = curves.index[(curves["env"] == "vlm") & (curves["axis"] == "seconds")][0]
    curves.loc[place, "success"] += 1e-9
    changed = dataclasses.replace(section, curves=curves)
    before = expected_digests(report)
    after = expected_digests(dataclasses.replace(report, sections=[changed, report.sections[1]]))
    differing = {name for name in before if before[name] != after[name]}
    assert differing == {"main-curves-vlm.png", "main-curves-vlm.svg"}


def test_the_same_report_gives_the_same_bytes(report: Report, files: dict[str, bytes]) -> None:
    only = dataclasses.replace(report, sections=report.sections[1:], memory=None)
    again = figure_files(only)
    assert again == {name: files[name] for name in again}


def test_no_clock_no_version(files: dict[str, bytes]) -> None:
    for data in files.values():
        assert b"Matplotlib" not in data and b"dc:date" not in data and b"tIME" not in data


def test_each_algorithm_has_its_own_colour(report: Report, files: dict[str, bytes]) -> None:
    svg = files["main-curves-vlm.svg"].decode()
    order = report.sections[0].order
    assert {label: order[label] for label in OWNED} == OWNED
    for label, place in order.items():
        assert palette.LIGHT[place] in svg, label


def test_texts_are_legible_in_a_column_of_900_pixels(files: dict[str, bytes]) -> None:
    """As wide as a README, in which nothing is wider than itself."""
    for name, data in files.items():
        if name.endswith(".svg"):
            width = float(str(ElementTree.fromstring(data).get("width")).removesuffix("pt"))
            sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", data.decode())}
            assert sizes and min(sizes) * min(4 / 3, 900 / width) >= 9, name


def test_a_row_of_the_summary_is_named_in_two_lines(files: dict[str, bytes]) -> None:
    texts = list(ElementTree.fromstring(files["main-summary.svg"]).itertext())
    assert texts.count("separate critic") == texts.count("shared trunk critic") == 2
    assert "format, separate critic" not in texts


def test_hostile_names_stay_text(files: dict[str, bytes]) -> None:
    svg = files["main-curves-vlm.svg"].decode()
    assert "<b " not in svg
    texts = "".join(ElementTree.fromstring(svg).itertext())
    assert HOSTILE in texts


def test_names_of_files() -> None:
    assert slug("default", "curves", "ALE/Pong v5") == "default-curves-ALE-Pong-v5"


def test_a_summary_names_its_ratio_and_the_line_of_equality(files: dict[str, bytes]) -> None:
    texts = list(ElementTree.fromstring(files["main-summary.svg"]).itertext())
    assert any(text.startswith("GRPO ÷ PPO") for text in texts)
    assert "success: GRPO − PPO" in texts
    assert texts.count("equal") == len(IN_SUMMARY)


def test_words_of_a_panel(report: Report) -> None:
    (panel, *_) = curve_panels(report.sections[0], "seconds")
    assert (panel.title, panel.label, panel.unit) == ("format", "seconds of training", 1)
    start = "format: success on validation over seconds of training. At the end: grpo 0.87"
    assert panel.summary.startswith(start)


def panel_of(axis: str, low: float) -> CurvePanel:
    """Two evaluations of one algorithm, whose interval goes beyond 0 and 1."""
    rows = [("a", 1e6, 3, 0.0, low, 0.5), ("a", 2e6, 3, 1.0, 0.5, 2.0)]
    columns = ["algo", "x", "n", "success", "success_low", "success_high"]
    curves = pd.DataFrame(rows, columns=columns)
    return CurvePanel("e", "b", axis, curves, "e", "words", "label", 1e6)


def test_curves_are_drawn_in_their_unit_and_bands_within_the_axes() -> None:
    axes = Figure().subplots()
    band, line = draw_curves(axes, panel_of("seconds", -1.0), {"a": 0})
    assert axes.lines[0].get_xydata().tolist() == [[1, 0], [2, 1]]
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0, 1)
    assert line.says == [
        "a: 0 [-1.00, 0.500] at 1.00 label, 3 seeds",
        "a: 1.00 [0.500, 2.00] at 2.00 label, 3 seeds",
    ]
    assert (band.row, line.row) == (0, 0)


def test_only_the_axis_of_bytes_starts_where_its_curves_do() -> None:
    for axis, starts_at_zero in (("seconds", True), ("peak_bytes", False)):
        axes = Figure().subplots()
        draw_curves(axes, panel_of(axis, 0.0), {"a": 0})
        assert (axes.get_xlim()[0] == 0) == starts_at_zero


def test_bars_are_as_long_as_their_bytes() -> None:
    rows = [("a", "policy", 1e3), ("b", "policy", 1e3), ("b", "critic", 3e3)]
    parts = pd.DataFrame(rows, columns=["algo", "component", "bytes"])
    axes = Figure().subplots()
    marks = draw_bars(axes, parts, {"policy": 0, "critic": 1})
    boxes = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert boxes == [(0, 1), (0, 1), (1, 0), (1, 3)]  # in KB
    assert [mark.says for mark in marks][3] == ["b: critic 3.00 KB"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 12, ["1×", "2×", "5×", "10×"]),
        (0.5, 1, ["0.5×", "0.7×", "1×"]),
        (0.83, 1.02, ["0.9×", "1×"]),
    ],
)
def test_ratios_have_round_ticks(low: float, high: float, expected: list[str]) -> None:
    rows = pd.DataFrame({"label": ["a, b"], "estimate": [1.0], "low": [low], "high": [high]})
    figure = Figure()
    axes = figure.subplots()
    draw_intervals(axes, rows, MEASURES[0])
    figure.draw_without_rendering()
    least, most = axes.get_xlim()
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    assert [text.get_text() for x, text in ticks if least <= x <= most] == expected


def test_files_can_be_written(files: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert len(list(tmp_path.iterdir())) == len(files)
