"""The page in headless Chromium: sorting, switches, links, narrow screens, print, no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.pages import make_records, make_report

from grpo_bench.report.page import report_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
    "--virtual-time-budget=3000",  # what a page has put off for so many milliseconds is done
]
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} is installed")

# What the appended script finds goes into an attribute, which --dump-dom shows.
REPORTING = """
const found = {};
document.addEventListener("securitypolicyviolation", (event) => {
  found.violation = event.violatedDirective;
});
const titled = (table, title) =>
  Array.from(table.tHead.rows[0].cells).find((cell) => cell.textContent === title);
const column = (table, head) =>
  Array.from(table.tBodies[0].rows, (row) => row.cells[head.cellIndex]);
const numbers = (table, head) =>
  column(table, head).map((cell) => (cell.dataset.value ? Number(cell.dataset.value) : null));
const texts = (table, head) => column(table, head).map((cell) => cell.textContent);
const shown = (node) => getComputedStyle(node).display !== "none";
function report() {
  found.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
  document.documentElement.dataset.found = JSON.stringify(found);
}
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    make_records(folder)
    return report_page(make_report(folder))


def browse(folder: Path, text: str, *options: str) -> str:
    """What Chromium prints about a page that lies alone in a folder."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [str(BROWSER), *FLAGS, profile, *options, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(folder: Path, text: str, script: str) -> dict[str, Any]:
    """What a script finds in the page; it runs last, and the page's policy is told its digest."""
    script = REPORTING + script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = html.escape("script-src '")
    changed = text.replace(policy, policy + html.escape(f"sha256-{digest}' '"), 1)
    assert changed != text
    changed = changed.replace("</body>", f"<script>{script}</script></body>")
    found: dict[str, Any] = read(browse(folder, changed, "--window-size=1200,900", "--dump-dom"))
    return found


def read(dumped: str) -> Any:
    """What a script has found, of the page that --dump-dom shows."""
    (found,) = re.findall(r'data-found="([^"]*)"', dumped)
    return json.loads(html.unescape(found))


SORTING = """
const table = document.querySelector("#section-main-speed table");
const head = titled(table, "k transitions/s");
const button = head.querySelector("button");
found.first = numbers(table, head);
button.focus();
found.reached = document.activeElement === button;
button.click();
[found.up, found.upSaid] = [numbers(table, head), head.getAttribute("aria-sort")];
button.click();
[found.down, found.downSaid] = [numbers(table, head), head.getAttribute("aria-sort")];
button.click();
[found.again, found.againSaid] = [numbers(table, head), head.getAttribute("aria-sort")];
const ratio = titled(table, "ratio to PPO");
ratio.querySelector("button").click();
[found.missing, found.left] = [numbers(table, ratio), head.getAttribute("aria-sort")];
const algo = titled(table, "algo");
algo.querySelector("button").click();
found.names = texts(table, algo);
report();
"""


def test_sorting(tmp_path: Path, text: str) -> None:
    found = ask(tmp_path, text, SORTING)
    assert found["reached"]
    assert (found["upSaid"], found["downSaid"], found["left"]) == ("ascending", "descending", None)
    # As texts, 12.0 would stand before 3.30.
    assert found["up"] == sorted(found["up"]) and max(found["up"]) == 12000
    assert found["down"] == found["up"][::-1]
    assert (found["again"], found["againSaid"]) == (found["first"], None)
    assert found["first"] not in (found["up"], found["down"])
    there = [x for x in found["missing"] if x is not None]
    assert there == sorted(there) and found["missing"][len(there) :] == [None, None]
    assert found["names"][1:] == ["grpo", "grpo", "ppo", "ppo", "ppo_shared", "ppo_shared"]
    assert found["resources"] == [] and "violation" not in found


SWITCHES = """
const plots = document.querySelector(".plots");
const axes = () =>
  Array.from(plots.querySelectorAll(".axis")).filter(shown).map((axis) => axis.dataset.axis);
found.first = axes();
plots.querySelector("[value=seconds]").click();
found.then = axes();
const charts = plots.querySelectorAll("[data-axis=seconds] svg.chart");
found.title = charts[0].querySelector(".s0 use title").textContent;
const painted = () => getComputedStyle(charts[0].querySelector(".s0 use")).fill;
plots.querySelector(".k0").click();
found.rows = [".s0", ".s1"].map((name) => shown(plots.querySelector(name)));
plots.querySelector(".legend button").click();
found.none = [".s0", ".s1"].map((name) => shown(plots.querySelector(name)));
const ground = () => getComputedStyle(document.body).backgroundColor;
document.querySelector("#theme-dark").click();
found.dark = [ground(), painted()];
document.querySelector("#theme-light").click();
found.light = [ground(), painted()];
location.hash = document.querySelector("#failures tbody a[href^='#run-']").hash;
setTimeout(() => {
  const folded = document.querySelector(location.hash.replaceAll(".", "\\.")).closest("details");
  found.open = [folded.open, document.querySelectorAll("details[open]").length];
  report();
}, 500);
"""


def test_switches(tmp_path: Path, text: str) -> None:
    found = ask(tmp_path, text, SWITCHES)
    assert (found["first"], found["then"]) == (["transitions"], ["seconds"])
    assert found["title"].startswith("grpo: 0.250 ")
    assert "at 0 seconds of training, 3 seeds" in found["title"]
    assert found["rows"] == [False, True] and found["none"] == [False, False]
    assert found["dark"] == ["rgb(21, 24, 29)", "rgb(91, 140, 255)"]  # the ground, GRPO's colour
    assert found["light"] == ["rgb(255, 255, 255)", "rgb(20, 80, 200)"]
    assert found["open"] == [True, 1]
    assert found["resources"] == [] and "violation" not in found


# A window is never narrower than 500 pixels; a frame in it may be.
NARROW = """
<iframe style="border: 0; width: 390px; height: 800px" srcdoc="{page}"></iframe>
<script>
addEventListener("load", () => {{
  const inner = document.querySelector("iframe").contentWindow;
  const parts = inner.document.querySelectorAll("svg.chart, p, figcaption, h1, h2, h3, fieldset");
  const rights = Array.from(parts, (part) => part.getBoundingClientRect().right);
  const named = inner.document.querySelector(".named").closest(".scroll");
  named.scrollLeft = 1000;
  const lefts = Array.from(named.querySelectorAll("tr"), (row) =>
    Array.from(row.cells, (cell) => cell.getBoundingClientRect().left));
  const found = [inner.innerWidth, inner.document.documentElement.scrollWidth, Math.max(...rights),
    named.scrollLeft, named.getBoundingClientRect().left, lefts];
  document.documentElement.dataset.found = JSON.stringify(found);
}});
</script>
"""


def test_no_sideways_scrolling_on_a_phone(tmp_path: Path, text: str) -> None:
    dumped = browse(tmp_path, NARROW.format(page=html.escape(text)), "--dump-dom")
    width, whole, rightmost, scrolled, left, cells = read(dumped)
    assert (width, whole) == (390, 390)
    assert 300 < rightmost <= 390
    assert scrolled > 100
    for first, second, third, *_ in cells:  # what names a row stays, the rest goes
        assert first == left < second < 200 and third < 0


def test_print(tmp_path: Path, text: str) -> None:
    out = tmp_path / "page.pdf"
    browse(tmp_path, text, "--no-pdf-header-footer", f"--print-to-pdf={out}")
    data = out.read_bytes()
    assert data.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", data)) >= 2
