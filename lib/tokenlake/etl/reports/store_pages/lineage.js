// Emphasis in the graph: a line under the pointer, or the line that the address names, with all that it was made from
// and all that was made from it. A search emphasizes the lines that match, each with its relatives.
"use strict";

const graph = document.querySelector(".graph");
const searchField = document.getElementById("search");
const count = document.getElementById("count");
const lines = [...document.querySelectorAll(".line")];
const arrows = [...document.querySelectorAll(".arrows path")];

/** Return keys, and all keys that are reached from them by arrows, along or against their direction. */
function reached(keys, from, to) {
  const seen = new Set(keys);
  const pending = [...keys];
  while (pending.length) {
    const key = pending.pop();
    for (const arrow of arrows) {
      const next = arrow.dataset[to];
      if (arrow.dataset[from] === key && !seen.has(next)) {
        seen.add(next);
        pending.push(next);
      }
    }
  }
  return seen;
}

/** Emphasize lines and their relatives; nothing for no keys. */
function emphasize(keys) {
  graph.classList.toggle("has-emphasis", keys.length > 0);
  const origins = reached(keys, "to", "from");
  const results = reached(keys, "from", "to");
  for (const line of lines) {
    const key = line.dataset.key;
    line.classList.toggle("related", origins.has(key) || results.has(key));
    line.classList.toggle("emphasis", keys.includes(key));
  }
  for (const arrow of arrows) {
    const { from, to } = arrow.dataset;
    const isBefore = origins.has(from) && origins.has(to);
    const isAfter = results.has(from) && results.has(to);
    arrow.classList.toggle("related", isBefore || isAfter);
  }
}

/** Keys that stay emphasized: those that match the search, otherwise the one in the address. */
function lastingKeys() {
  const words = searchField.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) {
    const matches = lines.filter((line) => words.every((word) => line.dataset.text.includes(word)));
    count.textContent = `${matches.length} of ${lines.length} lines`;
    return matches.map((line) => line.dataset.key);
  }
  count.textContent = "";
  const wanted = decodeURIComponent(location.hash.slice(1));
  return lines.some((line) => line.dataset.key === wanted) ? [wanted] : [];
}

/** Emphasize what stays emphasized, and show the first of it. */
function update() {
  const keys = lastingKeys();
  emphasize(keys);
  const first = lines.find((line) => keys.includes(line.dataset.key));
  if (first) first.scrollIntoView({ block: "center", inline: "nearest" });
}

if (graph) {
  for (const line of lines) {
    line.addEventListener("pointerenter", () => emphasize([line.dataset.key]));
    line.addEventListener("pointerleave", () => emphasize(lastingKeys()));
    line.addEventListener("focusin", () => emphasize([line.dataset.key]));
  }
  searchField.addEventListener("input", update);
  window.addEventListener("hashchange", update);
  update();
}
