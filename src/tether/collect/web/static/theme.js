// Light, dark, or as the system says. Loaded before the page is drawn, so that it does not flash.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let stored = null;
  try { stored = localStorage.getItem("tether-theme"); } catch { /* a browser without storage */ }
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  window.tetherTheme = () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try { localStorage.setItem("tether-theme", root.dataset.theme); } catch { /* kept for this page */ }
    return root.dataset.theme;
  };
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme")?.addEventListener("click", () => window.tetherTheme());
  });
})();
