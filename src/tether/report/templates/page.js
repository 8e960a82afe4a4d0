"use strict";
function search(box) {
  const rows = [...document.getElementsByClassName(box.dataset.rows)];
  const wanted = box.value.trim().toLowerCase();
  let count = 0;
  for (const row of rows) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
    count += row.hidden ? 0 : 1;
    const folded = row.closest("details");
    if (wanted && folded && !row.hidden) folded.open = true;
  }
  box.parentElement.querySelector("output").textContent = wanted ? count + " of " + rows.length + " shown" : rows.length + " shown";
}
function prepare() {
  for (const box of document.querySelectorAll("input[data-rows]")) {
    box.parentElement.hidden = false;
    if (box.value) search(box);
  }
}
document.addEventListener("input", (event) => { if (event.target.dataset.rows) search(event.target); });
prepare();
