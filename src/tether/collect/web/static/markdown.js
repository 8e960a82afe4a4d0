// A little Markdown to DOM nodes: paragraphs, lists, headings, quotes, bold, italic, inline and fenced code. Nothing else has a meaning here:
// links, images and HTML are shown as they were typed, so that no text can fetch, run or hide anything. Every character goes through
// appendText. Time is linear in the length of the text.
"use strict";

import { appendText } from "./visible.js";

const DEEPEST = 6;  // lists in lists, emphasis in emphasis

// Replaces what is in `box` by the rendered text.
export function renderMarkdown(box, text) {
  const parts = document.createDocumentFragment();
  blocks(parts, text.replaceAll("\r\n", "\n").split("\n"), 0);
  box.replaceChildren(text.trim() ? parts : nothing());
}

// Replaces what is in `box` by the text as it was typed.
export function renderPlain(box, text) {
  const pre = element("div", "plain");
  appendText(pre, text);
  box.replaceChildren(text.trim() ? pre : nothing());
}

function nothing() {
  const node = element("p", "quiet");
  node.textContent = "(empty)";
  return node;
}

function element(name, className) {
  const node = document.createElement(name);
  if (className) node.className = className;
  return node;
}

// What two parts of a pattern could both match is matched by one alone, and a rest takes anything ([^] is also U+2028): no quadratic time.
const FENCE = /^ {0,3}(?:(`{3,})([^`]*)|(~{3,})([^]*))$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+([^]*)$/;
const ITEM = /^( {0,12})(?:([-*+])|(\d{1,9})[.)])[ \t]+([^]*)$/;
const QUOTE = /^ {0,3}>[ \t]?([^]*)$/;
const RULE = /^ {0,3}(?:-{3,}|\*{3,}|_{3,})\s*$/;

function blocks(parent, lines, depth) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) at += 1;
    else if (FENCE.test(line)) at = fence(parent, lines, at);
    else if (HEADING.test(line)) at = heading(parent, lines, at);
    else if (RULE.test(line)) { parent.append(element("hr")); at += 1; }
    else if (depth < DEEPEST && QUOTE.test(line)) at = quote(parent, lines, at, depth);
    else if (depth < DEEPEST && ITEM.test(line)) at = list(parent, lines, at, depth);
    else at = paragraph(parent, lines, at, depth);
  }
}

function fence(parent, lines, at) {
  const found = lines[at].match(FENCE);
  const ticks = found[1] || found[3];
  const [language] = (found[2] || found[4] || "").trim().match(/^[\w+#.-]{0,20}/);
  const closing = (line) => { const bare = line.trim(); return bare.length >= ticks.length && bare === ticks[0].repeat(bare.length); };
  let end = at + 1;
  while (end < lines.length && !closing(lines[end])) end += 1;
  const box = element("div", "code");
  if (language) { const name = element("span", "language"); appendText(name, language); box.append(name); }
  const pre = element("pre");
  pre.tabIndex = 0;
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", "code");
  const code = element("code");
  appendText(code, lines.slice(at + 1, end).join("\n"));
  pre.append(code);
  box.append(pre);
  parent.append(box);
  return end + 1;
}

function heading(parent, lines, at) {
  const [, marks, text] = lines[at].match(HEADING);
  const node = element("div", "heading h" + marks.length);
  node.setAttribute("role", "heading");
  node.setAttribute("aria-level", String(Math.min(6, marks.length + 2)));
  inline(node, text.replace(/ #{1,6}$/, ""), 0);
  parent.append(node);
  return at + 1;
}

function quote(parent, lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const node = element("blockquote");
  blocks(node, lines.slice(at, end).map((line) => line.match(QUOTE)[1]), depth + 1);
  parent.append(node);
  return end;
}

// Lines that are indented by more than the item's mark belong to the item.
function list(parent, lines, at, depth) {
  const first = lines[at].match(ITEM);
  const ordered = first[3] !== undefined;
  const node = element(ordered ? "ol" : "ul");
  if (ordered) node.start = Number(first[3]);
  const indent = first[1].length;
  while (at < lines.length) {
    const found = lines[at].match(ITEM);
    if (!found || found[1].length > indent + 1 || (found[3] !== undefined) !== ordered || RULE.test(lines[at])) break;
    const inner = [found[4]];
    at += 1;
    while (at < lines.length && continues(lines, at, indent)) { inner.push(unindented(lines[at], indent)); at += 1; }
    const item = element("li");
    blocks(item, inner, depth + 1);
    node.append(item);
    while (at < lines.length && !lines[at].trim() && at + 1 < lines.length && ITEM.test(lines[at + 1])) at += 1;
  }
  parent.append(node);
  return at;
}

function continues(lines, at, indent) {
  const line = lines[at];
  if (line.trim()) return line.search(/\S/) > indent + 1;
  return at + 1 < lines.length && lines[at + 1].trim() !== "" && lines[at + 1].search(/\S/) > indent + 1;
}

function unindented(line, indent) {
  const room = line.search(/\S/);
  return room < 0 ? "" : line.slice(Math.min(room, indent + 2));
}

function paragraph(parent, lines, at, depth) {
  let end = at + 1;
  const starts = (line) => FENCE.test(line) || HEADING.test(line) || (depth < DEEPEST && (ITEM.test(line) || QUOTE.test(line)));
  while (end < lines.length && lines[end].trim() && !starts(lines[end])) end += 1;
  const node = element("p");
  inline(node, lines.slice(at, end).join("\n"), 0);
  parent.append(node);
  return end;
}

const MARKS = [["**", "strong"], ["__", "strong"], ["*", "em"], ["_", "em"]];

// Marks that were searched for once and have no partner further on are not searched for again: no quadratic time.
function inline(parent, text, depth) {
  const alone = new Set();
  let plain = 0;
  let at = 0;
  const flush = (end) => { if (end > plain) appendText(parent, text.slice(plain, end)); };
  while (at < text.length) {
    const char = text[at];
    if (char === "\\" && "\\`*_".includes(text[at + 1] || " ")) { flush(at); plain = at + 1; at += 2; continue; }
    const found = char === "`" ? code(text, at, alone) : char === "*" || char === "_" ? emphasis(text, at, depth, alone) : null;
    if (!found) { at += char === "`" ? run(text, at) : 1; continue; }
    flush(at);
    const node = element(found.name);
    if (found.name === "code") appendText(node, found.text);
    else inline(node, found.text, depth + 1);
    parent.append(node);
    at = plain = found.end;
  }
  flush(text.length);
}

function run(text, at) {
  let end = at;
  while (text[end] === "`") end += 1;
  return end - at;
}

function code(text, at, alone) {
  const ticks = "`".repeat(run(text, at));
  if (alone.has(ticks)) return null;
  let close = at + ticks.length;
  for (;;) {
    close = text.indexOf("`", close);
    if (close < 0) { alone.add(ticks); return null; }
    const length = run(text, close);
    if (length === ticks.length) break;
    close += length;
  }
  return { name: "code", text: text.slice(at + ticks.length, close), end: close + ticks.length };
}

const WORD = /[\p{L}\p{N}]/u;

function emphasis(text, at, depth, alone) {
  if (depth >= DEEPEST) return null;
  for (const [mark, name] of MARKS) {
    if (!text.startsWith(mark, at) || alone.has(mark)) continue;
    const start = at + mark.length;
    if (/^(\s|$)/.test(text[start] || "")) continue;
    if (mark[0] === "_" && at > 0 && WORD.test(text[at - 1])) continue;  // snake_case is no emphasis
    const close = closing(text, mark, start);
    if (close < 0) { alone.add(mark); continue; }
    return { name, text: text.slice(start, close), end: close + mark.length };
  }
  return null;
}

function closing(text, mark, start) {
  for (let close = text.indexOf(mark, start + 1); close >= 0; close = text.indexOf(mark, close + 1)) {
    const after = text[close + mark.length] || "";
    if (mark.length === 1 && after === mark) { close += 1; continue; }  // the first half of a double mark
    if (!/\s/.test(text[close - 1]) && !(mark[0] === "_" && WORD.test(after))) return close;
  }
  return -1;
}
