// The ranking of three or more answers: by dragging, by keys, by buttons. Ties share a tier.
"use strict";

export class Ranking {
  // `list`: the <ol>. `onChange(complete, said)` after every change.
  constructor(list, onChange) {
    this.list = list;
    this.onChange = onChange;
    this.order = [];
    list.addEventListener("pointerdown", (event) => this.grab(event));
    list.addEventListener("keydown", (event) => this.key(event));
  }

  start(count) {
    this.order = [...Array(count).keys()];  // places of the answers on the screen
    this.placed = 0;  // the first so many of the order are ranked
    this.tied = new Set();  // answers that share the tier of the one above
    this.draw();
  }

  get complete() { return this.order.length > 0 && this.placed === this.order.length; }

  tiers() {
    const found = [];
    for (const answer of this.order) {
      if (this.tied.has(answer) && found.length) found.at(-1).push(answer);
      else found.push([answer]);
    }
    return found;
  }

  // Puts an answer at a place of the order; beyond the ranked ones it becomes the last ranked one. Ties are between those that were tied: one
  // that goes leaves the others tied with each other, one that is put among tied ones is tied with them.
  move(answer, place) {
    const from = this.order.indexOf(answer);
    const ranked = from < this.placed;
    const at = Math.max(0, Math.min(place, this.placed - (ranked ? 1 : 0)));
    if (ranked && at === from) { this.draw(answer); return; }
    if (!this.tied.delete(answer)) this.tied.delete(this.order[from + 1]);  // the first of a tier goes: the next one is its first
    this.order.splice(from, 1);
    this.order.splice(at, 0, answer);
    this.placed += ranked ? 0 : 1;
    if (this.placed === this.order.length - 1) this.placed += 1;  // the last one has one place left
    if (this.tied.has(this.order[at + 1])) this.tied.add(answer);
    this.draw(answer);
  }

  // By its letter: the next rank.
  take(answer) {
    if (answer < this.order.length && this.order.indexOf(answer) >= this.placed) this.move(answer, this.placed);
  }

  back() {
    if (this.placed) this.placed -= this.placed === this.order.length && this.placed > 1 ? 2 : 1;
    for (const answer of this.order.slice(this.placed)) this.tied.delete(answer);
    this.draw();
  }

  tie(answer = this.order[this.placed - 1]) {
    const at = this.order.indexOf(answer);
    if (at < 1 || at >= this.placed) return;
    if (!this.tied.delete(answer)) this.tied.add(answer);
    this.draw(answer);
  }

  key(event) {
    const item = event.target.closest("li");
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    const answer = Number(item.dataset.answer);
    const at = this.order.indexOf(answer);
    if (event.key === "ArrowUp" || event.key === "ArrowLeft") this.move(answer, at - 1);
    else if (event.key === "ArrowDown" || event.key === "ArrowRight") this.move(answer, at + 1);
    else if (event.key === "=") this.tie(answer);
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.list.querySelector(`[data-answer="${answer}"]`)?.focus();
  }

  grab(event) {
    const item = event.target.closest("li");
    if (!item || event.target.closest("button") || event.button) return;
    const answer = Number(item.dataset.answer);
    item.classList.add("held");
    item.setPointerCapture(event.pointerId);
    const follow = (move) => {
      const others = [...this.list.children].filter((other) => other !== item);
      const after = others.find((other) => before(move, other.getBoundingClientRect()));
      this.list.insertBefore(item, after || null);
    };
    const drop = (up) => {
      item.removeEventListener("pointermove", follow);
      item.removeEventListener("pointerup", drop);
      item.removeEventListener("pointercancel", drop);
      item.classList.remove("held");
      if (up.type === "pointerup") this.move(answer, [...this.list.children].indexOf(item));
      else this.draw();
    };
    item.addEventListener("pointermove", follow);
    item.addEventListener("pointerup", drop);
    item.addEventListener("pointercancel", drop);
  }

  draw(moved) {
    const focus = this.focused();
    let tier = 0;
    this.list.replaceChildren(...this.order.map((answer, at) => {
      const open = at >= this.placed;
      if (!open && !this.tied.has(answer)) tier = at + 1;
      return this.row(answer, at, open, tier);
    }));
    if (focus) this.focus(focus);
    const name = moved === undefined ? "" : letter(moved);
    const rank = moved === undefined ? "" : this.list.querySelector(`[data-answer="${moved}"] .rank`).textContent;
    this.onChange(this.complete, name && `${name} is ${rank}`);
  }

  // What had the focus is made anew; who works by keyboard must not be thrown out of the list.
  focused() {
    const item = document.activeElement?.closest("li");
    return item && this.list.contains(item) ? { answer: item.dataset.answer, button: document.activeElement.dataset.does } : null;
  }

  focus({ answer, button }) {
    const item = this.list.querySelector(`[data-answer="${answer}"]`);
    (item?.querySelector(`[data-does="${button}"]`) || item)?.focus({ preventScroll: true });
  }

  row(answer, at, open, tier) {
    const item = document.createElement("li");
    item.dataset.answer = answer;
    item.tabIndex = 0;
    item.classList.toggle("open", open);
    const rank = document.createElement("span");
    rank.className = "rank";
    rank.textContent = open ? "open" : this.tied.has(answer) ? `= ${tier}.` : `${tier}.`;
    const name = document.createElement("b");
    name.textContent = letter(answer);
    item.setAttribute("aria-label", `Answer ${letter(answer)}, ${open ? "not ranked yet" : "rank " + rank.textContent}`);
    item.append(rank, name, this.button("↑", `Move ${letter(answer)} up`, () => this.move(answer, at - 1)));
    if (!open && at > 0) {
      const tie = this.button("=", `Tie ${letter(answer)} with the one above`, () => this.tie(answer));
      tie.setAttribute("aria-pressed", String(this.tied.has(answer)));
      item.append(tie);
    }
    return item;
  }

  button(text, label, act) {
    const node = document.createElement("button");
    node.type = "button";
    node.textContent = text;
    node.dataset.does = text === "=" ? "tie" : "up";
    node.setAttribute("aria-label", label);
    node.addEventListener("click", act);
    return node;
  }
}

function before(pointer, box) {
  if (pointer.clientY < box.top) return true;
  return pointer.clientY <= box.bottom && pointer.clientX < box.left + box.width / 2;
}

export function letter(answer) {
  return String.fromCharCode(65 + answer);
}
