// One item on the screen: the prompt, the answers side by side, and how they are looked at.
"use strict";

import { markDifferences } from "./diff.js";
import { renderMarkdown, renderPlain } from "./markdown.js";
import { letter } from "./rank.js";

export class Screen {
  // `say(text)`: tells the live region.
  constructor(prompt, answers, buttons, say) {
    Object.assign(this, { prompt, answers, buttons, say });
    this.following = new Set();  // panes that scroll because another one does
    this.view = { raw: false, differences: false, together: true };
    for (const name of Object.keys(buttons)) buttons[name].addEventListener("click", () => this.toggle(name));
    // Scrolling does not bubble; it is caught on its way down.
    answers.addEventListener("scroll", (event) => this.follow(event.target), { capture: true, passive: true });
  }

  show(item) {
    this.item = item;
    this.view.differences = false;
    this.panes = [];
    this.answers.classList.toggle("many", item.answers.length > 3);
    this.answers.classList.toggle("four", item.answers.length === 4);
    this.answers.replaceChildren(...item.answers.map((_, place) => this.card(place)));
    this.draw();
    for (const pane of [...this.panes, this.prompt, this.answers]) pane.scrollTop = 0;
  }

  card(place) {
    const card = document.createElement("section");
    card.className = "answer";
    const heading = document.createElement("h2");
    heading.id = "answer-" + place;
    heading.textContent = "Answer " + letter(place);
    const pane = document.createElement("div");
    pane.className = "pane";
    pane.tabIndex = 0;
    pane.setAttribute("role", "region");
    pane.setAttribute("aria-labelledby", heading.id);
    this.panes.push(pane);
    card.append(heading, pane);
    return card;
  }

  draw() {
    const render = this.view.raw ? renderPlain : renderMarkdown;
    this.prompt.replaceChildren(...this.item.prompt.map(({ role, text }) => turn(role, text, render, this.item.prompt.length > 1 || role === "system")));
    this.texts = this.panes.map((pane, place) => {
      const box = textBox();
      render(box, this.item.answers[place]);
      pane.replaceChildren(box);
      return box;
    });
    if (this.view.differences) this.mark();
    for (const name of Object.keys(this.buttons)) this.buttons[name].setAttribute("aria-pressed", String(this.view[name]));
  }

  // Two answers against each other. Of more, each against the first.
  mark() {
    const done = this.texts.slice(1).every((box, k) => {
      if (k === 0) return markDifferences(this.texts[0], box);
      const first = textBox();  // a copy without the marks of the comparison before
      (this.view.raw ? renderPlain : renderMarkdown)(first, this.item.answers[0]);
      return markDifferences(first, box);
    });
    if (done) return;
    this.say("These answers are too long to compare word by word.");
    this.view.differences = false;
    this.draw();  // without the marks of those that were compared
  }

  toggle(name) {
    if (!this.item) return;
    this.view[name] = !this.view[name];
    if (name === "together") this.buttons[name].setAttribute("aria-pressed", String(this.view[name]));
    else this.draw();
  }

  choose(places) {
    [...this.answers.children].forEach((card, place) => card.classList.toggle("chosen", places.includes(place)));
  }

  // The same share of each text is seen. What follows does not lead.
  follow(leader) {
    if (!this.view.together || !this.panes.includes(leader) || this.following.has(leader)) return;
    const room = leader.scrollHeight - leader.clientHeight;
    const share = room > 0 ? leader.scrollTop / room : 0;
    for (const pane of this.panes) if (pane !== leader) this.bring(pane, share);
  }

  bring(pane, share) {
    const wanted = Math.round(share * (pane.scrollHeight - pane.clientHeight));
    if (Math.abs(pane.scrollTop - wanted) < 2) return;
    this.following.add(pane);
    pane.scrollTop = wanted;
    requestAnimationFrame(() => requestAnimationFrame(() => this.following.delete(pane)));
  }

  // Keys that scroll, while nothing is in focus that scrolls by itself. True where something moved.
  scrollBy(part) {
    const pane = this.panes?.find((one) => one.scrollHeight > one.clientHeight + 1);
    if (!pane) return false;
    for (const one of this.panes) one.scrollBy({ top: part * one.clientHeight });
    return true;
  }
}

function textBox() {
  const box = document.createElement("div");
  box.className = "text";
  box.dir = "auto";
  return box;
}

function turn(role, text, render, named) {
  const node = document.createElement("div");
  node.className = "turn";
  if (named) {
    const who = document.createElement("span");
    who.className = "role";
    who.textContent = { user: "User", assistant: "Assistant", system: "System", tool: "Tool" }[role] || role;
    node.append(who);
  }
  const box = textBox();
  render(box, text);
  node.append(box);
  return node;
}
