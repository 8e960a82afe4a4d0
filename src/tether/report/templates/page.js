"use strict";
for (const box of document.querySelectorAll("input[data-rows]")) {
  const rows = [...document.getElementsByClassName(box.dataset.rows)];
  const shown = box.parentElement.querySelector("output");
  box.parentElement.hidden = false;
  box.addEventListener("input", () => {
    const wanted = box.value.trim().toLowerCase();
    let count = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      count += row.hidden ? 0 : 1;
      const folded = row.closest("details");
      if (wanted && folded && !row.hidden) folded.open = true;
    }
    shown.textContent = count + " of " + rows.length + " shown";
  });
}
