// Active time: only while the page is seen and somebody is there.
"use strict";

const IDLE_MS = 120_000;  // nothing touched for so long: reading has stopped
const BREAK_MS = 300_000;  // away for so long: that was a break

export class Clock {
  // `onState(active)` is called when time starts or stops to count.
  constructor(onState = () => {}) {
    this.onState = onState;
    this.item = 0;  // ms on this item
    this.sitting = 0;  // ms since the last break
    this.since = null;  // counting since, or null
    this.held = false;  // by a panel that hides the item
    this.stopped = performance.now();
    for (const name of ["keydown", "pointerdown", "pointermove", "wheel", "scroll", "touchstart"]) {
      document.addEventListener(name, () => this.touched(), { passive: true, capture: true });
    }
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.touched()));
    this.touched();
  }

  touched() {
    if (document.hidden || this.held) return;
    const now = performance.now();
    if (this.since === null) {
      if (now - this.stopped > BREAK_MS) this.sitting = 0;
      this.since = now;
      this.onState(true);
    }
    this.latest = now;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.stop(this.latest + IDLE_MS), IDLE_MS);
  }

  stop(at = performance.now()) {
    if (this.since === null) return;
    clearTimeout(this.timer);
    this.add(Math.min(at, this.latest + IDLE_MS));  // a machine that slept does not count
    this.since = null;
    this.stopped = performance.now();
    this.onState(false);
  }

  add(until) {
    const passed = Math.max(0, until - this.since);
    this.item += passed;
    this.sitting += passed;
    this.since = until;
  }

  hold(held) {
    this.held = held;
    if (held) this.stop();
    else this.touched();
  }

  // Seconds on this item so far.
  seconds() {
    if (this.since !== null) this.add(Math.min(performance.now(), this.latest + IDLE_MS));
    return Math.round(this.item / 10) / 100;
  }

  restart() {
    this.seconds();
    this.item = 0;
  }

  minutesAtWork() {
    this.seconds();
    return this.sitting / 60_000;
  }

  rested() {
    this.sitting = 0;
  }
}
