// One table of keys: it decides what a key does and is what the help shows.
"use strict";

// `actions`: [key, what it does in words, function, when it applies]. `field(key)`: the text box that a letter belongs to at the moment, if
// any; it goes there, wherever the focus is. Returns the function that shows the help.
export function bindKeys(actions, dialog, field) {
  const list = dialog.querySelector("dl");
  const letters = dialog.querySelector("#letters");
  const stored = (value) => { try { return value === undefined ? localStorage.getItem("tether-letters") : localStorage.setItem("tether-letters", value); } catch { return null; } };
  letters.checked = stored() !== "off";
  letters.addEventListener("change", () => stored(letters.checked ? "on" : "off"));
  dialog.querySelector("#close-keys").addEventListener("click", () => dialog.close());

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("textarea")) event.target.form.requestSubmit();
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || dialog.open) return;
    if (typing(event)) return;
    if (event.key.length === 1 && !letters.checked) return;
    const box = field(event.key);
    if (box) { if (!event.repeat) box.focus(); return; }
    const key = event.key.length === 1 ? event.key.toUpperCase() : event.key;
    const found = actions.find(([name, , , when]) => name === key && (!when || when()));
    if (!found || (event.repeat && !key.startsWith("Arrow") && !key.startsWith("Page"))) return;
    if (found[2](event) !== false) event.preventDefault();
  });

  return () => {
    list.replaceChildren(...actions.filter(([, words, , when]) => words && (!when || when())).flatMap(([key, words]) => {
      const name = document.createElement("dt");
      const hint = document.createElement("kbd");
      hint.textContent = { ArrowDown: "↓", Backspace: "⌫", Escape: "Esc" }[key] || key;
      name.append(hint);
      const meaning = document.createElement("dd");
      meaning.textContent = words;
      return [name, meaning];
    }));
    dialog.showModal();
  };
}

// Text boxes keep their keys, but for Escape, which leaves them; buttons and links keep Enter and Space.
function typing(event) {
  const target = event.target;
  if (target.matches("input:not([type=checkbox]), textarea")) {
    if (event.key === "Escape") { target.blur(); event.preventDefault(); return true; }
    return !(event.key === "Enter" && target.matches("input"));
  }
  return (event.key === "Enter" || event.key === " ") && target.closest("button, a, summary, [role=button]") !== null;
}
