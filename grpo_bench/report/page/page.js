"use strict";

// Tables: a click on a head sorts by it, a second one the other way round, a third one as it was at
// first. Numbers are in data-value; what is not there comes last either way.
const TURNS = { null: "ascending", ascending: "descending", descending: null };
for (const table of document.querySelectorAll("table.sortable")) {
  const first = Array.from(table.tBodies[0].rows);
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(table, head, first));
  }
}

function sort(table, head, first) {
  const turn = TURNS[head.getAttribute("aria-sort")];
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  if (!turn) return table.tBodies[0].append(...first);
  head.setAttribute("aria-sort", turn);
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [key(row.cells[head.cellIndex]), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    return turn === "ascending" ? order : -order;
  });
  body.append(...rows.map(([, row]) => row));
}

function key(cell) {
  const value = cell.dataset.value;
  if (value === undefined) return cell.textContent.trim() || null;
  return value === "" ? null : Number(value);
}

// Curves: the point nearest to the pointer, or the one that the arrow keys have come to, is told.
for (const panel of document.querySelectorAll(".readable")) {
  const chart = panel.querySelector("svg");
  const output = panel.appendChild(document.createElement("output"));
  panel.tabIndex = 0;

  const dots = () => Array.from(chart.querySelectorAll(".dot")).filter((dot) => dot.checkVisibility());
  const place = (dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value];

  function tell(dot) {
    chart.querySelector(".near")?.classList.remove("near");
    output.value = dot ? dot.querySelector("title").textContent : "";
    dot?.classList.add("near");
  }

  function nearest(x, y, candidates) {
    const away = (dot) => Math.hypot(place(dot)[0] - x, place(dot)[1] - y);
    return candidates.reduce((best, dot) => (best && away(best) <= away(dot) ? best : dot), null);
  }

  chart.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    tell(nearest(at.x, at.y, dots()));
  });
  panel.addEventListener("focus", () => tell(chart.querySelector(".near") ?? dots()[0]));
  panel.addEventListener("keydown", (event) => {
    const shown = dots();
    const now = chart.querySelector(".near") ?? shown[0];
    const lines = shown.map((dot) => dot.parentNode).filter((line, i, all) => all.indexOf(line) === i);
    if (!now) return;
    const siblings = shown.filter((dot) => dot.parentNode === now.parentNode);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step) tell(siblings[siblings.indexOf(now) + step] ?? now);
    if (turn) {
      const line = lines[(lines.indexOf(now.parentNode) + turn + lines.length) % lines.length];
      tell(nearest(...place(now), shown.filter((dot) => dot.parentNode === line)));
    }
    if (step || turn) event.preventDefault();
  });
}

// Legends of many rows: all of them off and on again.
for (const legend of document.querySelectorAll("div.legend")) {
  const boxes = Array.from(legend.querySelectorAll("input"));
  if (boxes.length < 4) continue;
  const button = legend.appendChild(document.createElement("button"));
  button.type = "button";
  button.className = "controls";
  button.textContent = "all or none";
  button.addEventListener("click", () => {
    const checked = !boxes.some((box) => box.checked);
    for (const box of boxes) box.checked = checked;
  });
}

// Links into something folded open it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", reveal);
if (location.hash) reveal();
