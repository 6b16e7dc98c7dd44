"""Figures: they name the numbers they show, and come out alike."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.pages import HOSTILE, make_records, make_report

from grpo_bench.report.contents import Report
from grpo_bench.report.figures import palette
from grpo_bench.report.figures.plots import Panel, name_of, panels, trade_rows, trades_of
from grpo_bench.report.figures.render import expected_digests, figure_digest, figures, plans
from grpo_bench.report.text.writers import csv


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("figures")
    make_records(folder)
    return make_report(folder)


@pytest.fixture(scope="module")
def files(report: Report) -> dict[str, bytes]:
    return figures(report)


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
    (plan,) = (p for p in plans(report) if p.name == "main-summary")
    data = trade_rows(trades_of(report.sections[:1]))
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
    again = figures(only)
    assert again == {name: files[name] for name in again}


def test_no_clock_no_version(files: dict[str, bytes]) -> None:
    for data in files.values():
        assert b"Matplotlib" not in data and b"dc:date" not in data and b"tIME" not in data


def test_colours_are_those_of_the_page(report: Report, files: dict[str, bytes]) -> None:
    svg = files["main-curves-vlm.svg"].decode()
    for i, label in enumerate(report.sections[0].order):
        assert palette.LIGHT[i] in svg, label


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
    assert name_of("default", "curves", "ALE/Pong v5") == "default-curves-ALE-Pong-v5"


def test_a_panel_of_bytes_begins_where_its_curves_do(report: Report) -> None:
    (panel, *_) = panels(report.sections[0], "seconds")
    assert isinstance(panel, Panel) and panel.range == (0.0, 1.0)
    assert (panel.title, panel.label, panel.unit) == ("format", "seconds of training", 1)


def test_files_can_be_written(files: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert len(list(tmp_path.iterdir())) == len(files)
