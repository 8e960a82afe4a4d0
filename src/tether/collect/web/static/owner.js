// Personal links.
"use strict";

import { ask } from "./api.js";

const $ = (id) => document.getElementById(id);

async function invite(name) {
  $("problem").textContent = "";
  try {
    const made = await ask("/api/links", { name });
    $("made-name").textContent = made.name;
    $("made-link").textContent = $("made-link").href = made.link;
    $("copy").textContent = "Copy";
    $("made").hidden = false;
    $("made").scrollIntoView({ block: "nearest" });
  } catch (error) {
    $("problem").textContent = error.status ? error.message : "The server cannot be reached. Try again.";
  }
}

$("invite").addEventListener("submit", (event) => {
  event.preventDefault();
  invite($("name").value);
});
$("invite").querySelector("[type=submit]").disabled = false;  // before, the form would send itself
for (const button of document.querySelectorAll("[data-name]")) button.addEventListener("click", () => invite(button.dataset.name));
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText($("made-link").textContent);
    $("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren($("made-link"));  // without a clipboard: marked, to be copied by hand
  }
});
