// The page of an annotator: asks for an item, takes the choice, sends it, asks for the next.
"use strict";

import { ask, freshId, LATER, Outbox, Refused } from "./api.js";
import { Clock } from "./clock.js";
import { bindKeys } from "./keys.js";
import { renderMarkdown } from "./markdown.js";
import { letter, Ranking } from "./rank.js";
import { Screen } from "./screen.js";

const SETTLE_MS = 400;  // nobody has read a new item by then: what is pressed was meant for the one before
const REASONS = ["I cannot judge it", "The prompt is unclear", "A text is cut off", "It is disturbing"];
const $ = (id) => document.getElementById(id);
const choices = [...document.querySelectorAll("[data-choice]")];
const strengths = [...document.querySelectorAll("[data-strength]")];

const say = (text) => { $("live").textContent = text; };
const clock = new Clock();
const screen = new Screen($("prompt"), $("answers"), { differences: $("differences"), together: $("together"), raw: $("raw") }, say);
const ranking = new Ranking($("ranks"), (complete, said) => {
  if (said) { choice = "ranked"; say(said); }
  if (!complete && choice === "ranked") choice = null;
  refresh();
});

let session, outbox, settling, item = null, last = null, choice = null, strength = null, busy = false, view = "";

function state(text, waiting) {
  $("state").textContent = text;
  $("state").classList.toggle("waiting", waiting);
}

const panels = { guidelines: $("guidelines"), done: $("done"), compare: $("compare") };

function show(name) {
  view = name;
  for (const [key, panel] of Object.entries(panels)) panel.hidden = key !== name;
  $("dock").hidden = name !== "compare";
  $("show-guidelines").setAttribute("aria-expanded", String(name === "guidelines"));
  clock.hold(name !== "compare");
  $({ guidelines: "guidelines-title", done: "done-title", compare: "question" }[name]).focus({ preventScroll: true });
}

// Asks the server until it answers, and says that it does. Raises Refused where asking again is of no use.
async function insist(path, body) {
  for (let pause = 1000; ; pause = Math.min(2 * pause, 15_000)) {
    try {
      const answer = await ask(path, body, session?.page);
      if (!outbox?.waiting.length) state("", false);
      return answer;
    } catch (error) {
      if (error instanceof Refused && !LATER.has(error.status)) { state("The server refused: " + error.message, true); throw error; }
      const signedOut = error instanceof Refused && error.status === 401;
      const why = error instanceof Refused ? error.message : "The server cannot be reached; it is tried again.";
      state(signedOut ? "You are signed out. Open the newest link in this browser." : why, true);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

async function load(said = "") {
  busy = true;
  try {
    const refused = await outbox.flush().then(() => null, (error) => error);
    display(await insist("/api/next", {}), refused ? "" : said);
    if (refused) state("The server did not take a judgement: " + refused.message, true);
  } finally {
    busy = false;
    refresh();
  }
}

function display(answer, said) {
  busy = false;
  ({ item, last } = answer);
  const { judged, skipped, share } = answer.progress;
  $("progress").value = share;
  $("count").textContent = `${judged} judged` + (skipped ? `, ${skipped} skipped` : "");
  choice = strength = null;
  settle();
  $("note").value = $("reason").value = "";
  clock.restart();
  suggestBreak();
  if (!item) { show("done"); say(said + "Nothing is left."); return; }
  const many = item.answers.length > 2;
  $("ranking").hidden = !many;
  $("choices").hidden = many;
  screen.show(item);
  ranking.start(many ? item.answers.length : 0);
  show("compare");
  refresh();
  say(`${said}${many ? item.answers.length + " answers to rank." : "Two answers to compare."}`);
}

// A third stroke of a key, or the second of a double click, comes after the next item is there: it must not judge that one.
function settle() {
  clearTimeout(settling);
  $("dock").setAttribute("aria-busy", "true");
  settling = setTimeout(() => $("dock").setAttribute("aria-busy", "false"), SETTLE_MS);
}

const settled = () => $("dock").getAttribute("aria-busy") === "false";

function suggestBreak() {
  const minutes = session.break_after_minutes;
  const due = minutes && clock.minutesAtWork() >= minutes;
  $("break").hidden = !due;
  if (due) $("break-minutes").textContent = String(Math.round(clock.minutesAtWork()));
}

function refresh() {
  const preference = choice === "left" || choice === "right";
  for (const button of choices) button.setAttribute("aria-pressed", String(button.dataset.choice === choice));
  if (!preference) strength = null;
  for (const button of strengths) {
    button.disabled = !preference;
    button.setAttribute("aria-pressed", String(button.dataset.strength === strength));
  }
  const skipping = choice === "skip";
  $("dock").classList.toggle("idle", choice === null);
  $("dock").classList.toggle("skipping", skipping);
  $("skip").setAttribute("aria-pressed", String(skipping));
  $("reasons").hidden = !skipping;
  $("strength").hidden = skipping || !session?.strengths || !item || item.answers.length > 2;
  $("note-field").hidden = !session?.comments || skipping;
  screen.choose(choice === "left" ? [0] : choice === "right" ? [1] : []);
  $("save").disabled = busy || !(skipping ? $("reason").value.trim() : choice === "ranked" ? ranking.complete : choice);
}

// The same choice twice is a save: two strokes of one key are a judgement.
function choose(name) {
  if (busy || !item || !settled()) return;
  if (choice === name && name !== "skip") { save(); return; }
  choice = choice === name ? null : name;  // skip, pressed again, is taken back
  refresh();
  if (choice !== "skip") return;
  // A finger picks one of the reasons; a text box in focus would bring the keyboard over them.
  (matchMedia("(pointer: coarse)").matches ? $("reason-buttons").firstElementChild : $("reason")).focus();
}

function takeBack() {
  choice = null;
  ranking.start(ranking.order.length);
  refresh();
  $("question").focus();
}

// While a reason is asked for, letters are its text; a digit picks one of ours, but where somebody has begun to write.
const ownWords = () => $("reason").value !== "" && !REASONS.includes($("reason").value);
const isReason = (key) => key >= "1" && key <= String(REASONS.length) && key.length === 1;

function reasonBox(key) {
  if (view !== "compare" || choice !== "skip" || key.length !== 1 || key === " " || (isReason(key) && !ownWords())) return null;
  if (!ownWords()) $("reason").select();  // one of ours is written over
  return $("reason");
}

function give(reason) {
  $("reason").value = reason;
  refresh();
  $("save").focus();
}

async function save() {
  refresh();
  if ($("save").disabled || busy || !settled()) return;
  busy = true;
  const judgement = {
    judgement_id: freshId(), item: item.item, shown: item.shown, choice, strength, seconds: clock.seconds(),
    ranking: choice === "ranked" ? ranking.tiers().map((tier) => tier.map((place) => item.shown[place])) : [],
    reason: choice === "skip" ? $("reason").value.trim() : "", comment: choice === "skip" ? "" : $("note").value.trim(),
  };
  outbox.add(judgement);
  refresh();
  await load("Saved. ");
}

async function undo() {
  if (busy && outbox?.waiting.length) { state("The last judgement is not saved yet, so it cannot be undone: press U when it is.", true); return; }
  if (busy) return;
  if (!last) { state("There is nothing to undo.", false); return; }
  busy = true;
  try {
    display(await insist("/api/undo", { judgement_id: last }), "Undone: the last judgement is open again. ");
    state("Undone.", false);
  } finally {
    busy = false;
    refresh();
  }
}

function guidelines() {
  if (view !== "guidelines") { show("guidelines"); return; }
  if (item) show("compare");
  else look();
}

// Asked for by hand. One answer is waited for: a second one would clear what has been chosen meanwhile.
function look() {
  if (!busy && outbox) load();
}

function mayScroll(part) {
  return (event) => (event.target === document.body || event.target.matches("h1, li") ? screen.scrollBy(part) : false);
}

const comparing = () => view === "compare";
const pair = () => comparing() && item.answers.length === 2;
const list = () => comparing() && item.answers.length > 2;
const showKeys = bindKeys([
  ["A", "A is better; twice to save", () => choose("left"), pair],
  ["B", "B is better; twice to save", () => choose("right"), pair],
  ["T", "equally good", () => choose("tie"), pair],
  ["X", "both bad", () => choose("both_bad"), pair],
  ["1", "slightly better", () => strengths[0].click(), () => pair() && session.strengths && choice !== "skip"],
  ["2", "much better", () => strengths[1].click(), () => pair() && session.strengths && choice !== "skip"],
  ...[...Array(6).keys()].map((place) => [letter(place), place < 3 ? `answer ${letter(place)} is next best` : "", () => { if (settled()) ranking.take(place); }, list]),
  ["=", "tied with the one above", () => ranking.tie(), list],
  ["Backspace", "take the last rank back", () => ranking.back(), list],
  ...REASONS.map((reason, at) => [String(at + 1), `because: ${reason}`, () => give(reason), () => comparing() && choice === "skip"]),
  ["K", "skip, with a reason", () => choose("skip"), () => comparing() && choice !== "skip"],
  ["Enter", "save", () => save(), comparing],
  ["Enter", "begin", () => guidelines(), () => view === "guidelines"],
  ["Enter", "look again", () => look(), () => view === "done"],
  ["N", "write a note; Esc leaves it, Ctrl-Enter saves", () => { if (!$("note-field").hidden) $("note").focus(); }, comparing],
  ["U", "undo the last judgement", () => undo()],
  ["M", "mark differences", () => screen.toggle("differences"), comparing],
  ["S", "scroll together", () => screen.toggle("together"), comparing],
  ["R", "raw text", () => screen.toggle("raw"), comparing],
  ["G", "guidelines", () => guidelines()],
  ["L", "light or dark", () => window.tetherTheme()],
  ["Escape", "take the choice back", takeBack, comparing],
  ["ArrowDown", "scroll the answers", mayScroll(0.15), comparing],
  ["ArrowUp", "", mayScroll(-0.15), comparing],
  ["PageDown", "", mayScroll(0.9), comparing],
  ["PageUp", "", mayScroll(-0.9), comparing],
  ["?", "these keys", () => showKeys()],
], $("keys"), reasonBox);

for (const button of choices) button.addEventListener("click", () => { if (choice !== button.dataset.choice) choose(button.dataset.choice); });
for (const button of strengths) {
  button.addEventListener("click", () => { strength = strength === button.dataset.strength ? null : button.dataset.strength; refresh(); });
}
for (const [at, reason] of REASONS.entries()) {
  const button = document.createElement("button");
  button.type = "button";
  const hint = document.createElement("kbd");
  hint.textContent = at + 1;
  button.append(hint, " " + reason);
  button.addEventListener("click", () => give(reason));
  $("reason-buttons").append(button);
}
$("reason").addEventListener("input", refresh);
$("reason").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.key === "Escape") { event.preventDefault(); takeBack(); return; }
  if ($("reason").value) return;
  if (event.repeat && event.key.length === 1) event.preventDefault();  // the key that opened the panel is held
  else if (isReason(event.key) && $("letters").checked) { event.preventDefault(); give(REASONS[event.key - 1]); }
});
$("dock").addEventListener("submit", (event) => { event.preventDefault(); save(); });
$("skip").addEventListener("click", () => choose("skip"));
$("undo").addEventListener("click", undo);
$("show-guidelines").addEventListener("click", guidelines);
$("begin").addEventListener("click", guidelines);
$("again").addEventListener("click", look);
$("show-keys").addEventListener("click", showKeys);
$("rested").addEventListener("click", () => { clock.rested(); $("break").hidden = true; });

session = await insist("/api/session");
outbox = new Outbox(session.page, state);
$("question").textContent = session.question;
renderMarkdown($("guidelines-text"), session.guidelines || "The owner has written none.");
if (session.guidelines && session.first) show("guidelines");
else load();
