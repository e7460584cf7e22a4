// Search in the index: rows of versions that do not match are hidden, and datasets without a match.
"use strict";

const searchField = document.getElementById("search");
const versions = [...document.querySelectorAll("tr.version")];
const count = document.getElementById("count");

function search() {
  const words = searchField.value.toLowerCase().split(/\s+/).filter(Boolean);
  let matches = 0;
  for (const version of versions) {
    version.hidden = !words.every((word) => version.dataset.text.includes(word));
    if (!version.hidden) matches += 1;
  }
  for (const dataset of document.querySelectorAll("section.dataset")) {
    dataset.hidden = !dataset.querySelector("tr.version:not([hidden])");
    // A match may be among the older versions, which are folded.
    const older = dataset.querySelector("details");
    if (older) older.open = words.length > 0 && older.querySelector("tr.version:not([hidden])") !== null;
  }
  count.textContent = words.length ? `${matches} of ${versions.length} versions` : "";
}

if (searchField) searchField.addEventListener("input", search);
