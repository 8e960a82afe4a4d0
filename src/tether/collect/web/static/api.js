// Requests to our own server, and judgements that wait until it has them.
"use strict";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The answer of a request as JSON; `page` says whose page asks. Raises Refused where the server said no, another error where there was no answer.
export async function ask(path, body, page) {
  const headers = { "X-Tether": "1", ...(page && { "X-Tether-Page": page }) };
  const options = body === undefined
    ? { headers }
    : { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, { ...options, cache: "no-store", credentials: "same-origin", redirect: "error", signal: AbortSignal.timeout(15_000) });
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).slice(0, 300));
  return answer.json();
}

export function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const LATER = new Set([401, 403, 408, 429, 500, 502, 503, 504, 507]);  // the judgement is fine; the moment is not

// Judgements leave in the order they were made. Each stays in the browser's storage until the server has acknowledged it,
// also over a reload, and carries an id that lets the server store it once however often it is sent. Each has a place of its own in the
// storage, so that two windows of one annotator do not write over each other's; those of other people and of other collections are not touched.
export class Outbox {
  // `page`: whose, in which collection. `onState(text, waiting)`: what to tell the annotator; an empty text where all is well.
  constructor(page, onState) {
    this.page = page;
    this.prefix = `tether-outbox-${page}-`;
    this.onState = onState;
    this.waiting = this.load();
    this.pause = 1000;
    this.sending = null;
    addEventListener("online", () => this.hurry());
  }

  load() {
    try {
      const keys = Object.keys(localStorage).filter((key) => key.startsWith(this.prefix));
      const found = keys.map((key) => JSON.parse(localStorage.getItem(key))).filter((kept) => kept);  // another window may have sent it just now
      return found.sort((one, other) => one.at - other.at).map((kept) => kept.judgement);
    } catch {
      return [];  // a browser without storage
    }
  }

  add(judgement) {
    this.waiting.push(judgement);
    try {
      localStorage.setItem(this.prefix + judgement.judgement_id, JSON.stringify({ at: Date.now(), judgement }));
    } catch {
      // A browser without storage, or a full one: it is kept for as long as the page is open.
    }
  }

  // Resolves when the server has everything; raises Refused, at the end, for what it will never take.
  flush() {
    this.sending ||= this.work().finally(() => { this.sending = null; });
    return this.sending;
  }

  async work() {
    let refused = null;
    while (this.waiting.length) {
      try {
        await ask("/api/judgements", this.waiting[0], this.page);
        this.drop();
      } catch (error) {
        if (error instanceof Refused && !LATER.has(error.status)) {
          this.drop();
          refused = error;
          continue;
        }
        this.onState(this.reason(error), true);
        await this.rest(error instanceof Refused && error.status === 429 ? 1000 : this.pause);
        this.pause = Math.min(2 * this.pause, 15_000);
      }
    }
    this.onState("", false);
    if (refused) throw refused;
  }

  drop() {
    const done = this.waiting.shift();
    try { localStorage.removeItem(this.prefix + done.judgement_id); } catch { /* it was never there */ }
    this.pause = 1000;
  }

  reason(error) {
    const kept = "Kept here, not saved yet. ";
    if (!(error instanceof Refused)) return kept + "The server cannot be reached; it is tried again.";
    if (error.status === 401) return kept + "You are signed out, perhaps because the server was started anew. Open the new link in this browser.";
    if (error.status === 507) return kept + "The server's disk is full. Tell the owner; it is tried again.";
    if (error.status === 403 || error.status === 503) return kept + error.message;
    return kept + "The server is busy; it is tried again.";
  }

  rest(ms) {
    return new Promise((resolve) => { this.wake = resolve; setTimeout(resolve, ms); });
  }

  hurry() {
    this.pause = 1000;
    this.wake?.();
  }
}
