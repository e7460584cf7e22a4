// The browser of rows. Its data is JSON in the page; all texts are set as text, never as markup.
"use strict";

const rows = JSON.parse(document.getElementById("page-data").textContent).rows;
const searchField = document.getElementById("search");
const splitMenu = document.getElementById("split"); // null if there is one split
const sourceMenu = document.getElementById("source"); // null if there is one source
const list = document.getElementById("list");
const detail = document.getElementById("row");
const count = document.getElementById("count");

let shown = rows; // rows that match the search
let selected = rows[0];

/** Return a new element with a class and a text. */
function element(name, className, text) {
  const created = document.createElement(name);
  if (className) created.className = className;
  if (text !== undefined) created.textContent = text;
  return created;
}

/** Name of a row in the address of the page: #train-12. */
function anchorOf(row) {
  return `${row.split}-${row.row}`;
}

/** Everything in a row that a search without a field looks at. */
function searchedText(row) {
  const parts = [row.split, String(row.row), row.shard];
  for (const [name, value] of Object.entries(row.kept)) parts.push(name, value);
  for (const entry of row.documents) {
    parts.push(entry.origin, entry.place);
    for (const [text] of entry.runs) parts.push(text);
  }
  return parts.join("\n").toLowerCase();
}

const textOfRow = new Map(rows.map((row) => [row, searchedText(row)]));

/** Values of a field of a row, or null if rows have no such field. */
function valuesOf(row, field) {
  if (field === "row") return [String(row.row)];
  if (field === "split") return [row.split];
  if (field === "source") return row.documents.map((entry) => entry.source);
  if (field === "file") return row.documents.map((entry) => entry.origin.split("  ").slice(1).join("  "));
  for (const [name, value] of Object.entries(row.kept)) {
    if (name.toLowerCase() === field) return [value];
  }
  return null;
}

/** Whether a row has a word: field:value compares a field from its beginning, anything else is searched everywhere. */
function hasWord(row, word) {
  const colon = word.indexOf(":");
  if (colon > 0) {
    const field = word.slice(0, colon);
    const values = valuesOf(row, field);
    if (values !== null) {
      const wanted = word.slice(colon + 1);
      if (field === "row") return values[0] === wanted;
      return values.some((value) => value.toLowerCase().startsWith(wanted));
    }
  }
  return textOfRow.get(row).includes(word);
}

/** Whether a row matches the search and the menus. */
function matches(row) {
  if (splitMenu && splitMenu.value && row.split !== splitMenu.value) return false;
  if (sourceMenu && sourceMenu.value && !row.documents.some((entry) => entry.source === sourceMenu.value)) return false;
  const words = searchField.value.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => hasWord(row, word));
}

/** Return the entry of a row in the list. */
function listEntry(row) {
  const button = element("button", row === selected ? "selected" : "");
  button.append(element("b", "", `${row.split} row ${row.row.toLocaleString("en")}`));
  const kept = Object.entries(row.kept).slice(0, 2).map(([name, value]) => `${name} ${value}`);
  const origin = row.documents.length ? row.documents[0].origin : "";
  button.append(element("span", "dim", kept.length ? kept.join(", ") : origin));
  button.addEventListener("click", () => select(row));
  return button;
}

/** Return a document with its border, origin and text. */
function documentPart(entry, index) {
  const part = element("div", `document b${index % 7}`);
  const heading = element("p", "dim");
  heading.append(element("b", "", entry.origin), `  ${entry.place}`);
  const text = element("pre");
  for (const [run, mark] of entry.runs) {
    text.append(mark === null ? run : element("span", mark ? "on" : "off", run));
  }
  part.append(heading, text);
  if (entry.hidden) part.append(element("p", "dim", entry.hidden));
  return part;
}

/** Show the selected row: a heading, kept fields and documents. */
function showRow() {
  detail.replaceChildren();
  if (!selected) return;
  const place = shown.indexOf(selected);
  const heading = element("h2", "", `${selected.split} row ${selected.row.toLocaleString("en")}`);
  const steps = element("p", "steps");
  for (const [label, target] of [["Previous", shown[place - 1]], ["Next", shown[place + 1]]]) {
    const button = element("button", "", label);
    button.disabled = target === undefined;
    button.addEventListener("click", () => select(target));
    steps.append(button, " ");
  }
  detail.append(heading, element("p", "dim", `${selected.content}; ${selected.shard}`), steps);
  for (const [name, value] of Object.entries(selected.kept)) {
    const line = element("p", "kept");
    line.append(element("b", "", name), ` ${value}`);
    detail.append(line);
  }
  selected.documents.forEach((entry, index) => detail.append(documentPart(entry, index)));
  if (selected.hidden) detail.append(element("p", "dim", selected.hidden));
}

/** Select a row, and keep it in the address, so that a link to it can be sent. */
function select(row) {
  selected = row;
  location.replace(`#${encodeURIComponent(anchorOf(row))}`);
  showList();
  showRow();
}

/** Show the rows that match. */
function showList() {
  list.replaceChildren(...shown.map(listEntry));
  const marked = list.querySelector(".selected");
  if (marked) marked.scrollIntoView({ block: "nearest" });
  count.textContent = `${shown.length} of ${rows.length} rows`;
}

/** Search again; the selected row stays if it still matches. */
function search() {
  shown = rows.filter(matches);
  if (!shown.includes(selected)) selected = shown[0];
  showList();
  showRow();
}

searchField.addEventListener("input", search);
if (splitMenu) splitMenu.addEventListener("change", search);
if (sourceMenu) sourceMenu.addEventListener("change", search);

const wantedAnchor = decodeURIComponent(location.hash.slice(1));
selected = rows.find((row) => anchorOf(row) === wantedAnchor) || rows[0];
search();
