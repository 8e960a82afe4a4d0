// Typing a name.
"use strict";

import { ask } from "./api.js";

const form = document.getElementById("join");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const problem = document.getElementById("problem");
  problem.textContent = "";
  try {
    await ask("/api/join", { name: document.getElementById("name").value });
    location.assign("/");
  } catch (error) {
    problem.textContent = error.status ? error.message : "The server cannot be reached. Try again.";
  }
});
form.querySelector("[type=submit]").disabled = false;  // before, the form would send itself
document.getElementById("name").focus();
