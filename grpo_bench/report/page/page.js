"use strict";

// Tables: a click on a heading sorts by it, a second click reverses the order, a third restores the
// first order. Numbers are in data-value; missing values always come last.
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

// Legends of four algorithms or more: a button for all of them.
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

// A link into a folded part opens it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", reveal);
if (location.hash) reveal();
