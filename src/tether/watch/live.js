function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(document.importNode(fresh, true)); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue; return; }
  if (old.nodeName === "INPUT" || old.nodeName === "OUTPUT") return;  // what the reader typed
  attributes(old, fresh);
  children(old, fresh);
}
function attributes(old, fresh) {
  const kept = new Set(["open", "hidden"]);  // what the reader unfolded and searched
  for (const { name, value } of fresh.attributes) if (!kept.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!kept.has(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
}
function children(old, fresh) {
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const same = wanted.id ? [...old.children].find((child) => child.id === wanted.id) : null;
    if (same && same !== place) old.insertBefore(same, place);
    const found = same || (place && place.id ? null : place);  // a part with a name is only ever matched by its name
    if (found) {
      place = found.nextSibling;
      morph(found, wanted);
    } else {
      old.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) { const next = place.nextSibling; place.remove(); place = next; }
}
const line = document.getElementById("live");
const report = document.getElementById("report");
let version = "";
function say(text, lost) { if (line.textContent !== text) line.textContent = text; line.classList.toggle("lost", lost); }
async function update() {
  const answer = await fetch("/content?have=" + encodeURIComponent(version), { cache: "no-store" });
  if (answer.status === 204) return;
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const typing = document.activeElement;
  children(report, fresh.body);
  if (typing && typing !== document.activeElement && document.contains(typing)) typing.focus({ preventScroll: true });
  version = answer.headers.get("X-Tether-Version");
  say(decodeURIComponent(answer.headers.get("X-Tether-State")), false);
  prepare();
}
let wait = 1000;
async function again() {
  try { await update(); wait = 2000; }
  catch { say("The connection to tether watch is lost; this is the last state it sent. It is tried again.", true); wait = Math.min(2 * wait, 30000); }
  setTimeout(again, document.hidden ? Math.max(wait, 10000) : wait);
}
again();
