// What pages do beyond HTML: fragments that change by themselves, ages and leases that run on, questions in a dialog.
// Every page works without it.
"use strict";

const now = () => performance.now() / 1000;

// ---- times

function duration(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} s`;
}

function localTime(element) {
  const at = new Date(element.dateTime);
  if (Number.isNaN(at.getTime())) return;
  const two = (number) => String(number).padStart(2, "0");
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}`;
  const isToday = at.toDateString() === new Date().toDateString();
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  element.textContent = isToday ? `${clock}:${two(at.getSeconds())}` : `${day} ${clock}`;
}

// Ages are the ledger's when they arrive; from then on this machine's clock counts on, whatever time it has.
function dress(root) {
  for (const element of root.querySelectorAll("[data-ago], [data-since], [data-left]")) element.dataset.at = now();
  for (const element of root.querySelectorAll("time")) localTime(element);
}

function tick() {
  for (const element of document.querySelectorAll("[data-at]")) {
    const passed = now() - Number(element.dataset.at);
    const { ago, since, left, of } = element.dataset;
    if (ago !== undefined) element.textContent = `${duration(Number(ago) + passed)} ago`;
    else if (since !== undefined) element.textContent = duration(Number(since) + passed);
    else if (left !== undefined) {
      const rest = Math.max(Number(left) - passed, 0);
      const share = Math.min(rest / Number(of), 1);
      element.querySelector(".fill").setAttribute("width", (share * 100).toFixed(1));
      element.querySelector(".left").textContent = rest > 0 ? duration(rest) : "over";
      element.classList.toggle("short", share < 0.34);
    }
  }
}

// ---- fragments

const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset.key || "" : "");

// Makes `old` like `wanted` and keeps what is the same: focus, selection, open details, places of scrolling.
function morph(old, wanted) {
  if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName || keyOf(old) !== keyOf(wanted)) {
    old.replaceWith(wanted);
    return;
  }
  if (old.nodeType !== 1) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!wanted.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const keyed = new Map();
  for (const child of old.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let place = old.firstChild;
  for (const child of [...wanted.childNodes]) {
    const key = keyOf(child);
    const known = key ? keyed.get(key) : place && !keyOf(place) ? place : null;
    if (!known) {
      old.insertBefore(child, place);
      continue;
    }
    if (known !== place) old.insertBefore(known, place);
    else place = place.nextSibling;
    morph(known, child);
  }
  while (place) {
    const following = place.nextSibling;
    place.remove();
    place = following;
  }
}

function showFragment({ id, html }) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  dress(holder.content);
  const old = document.getElementById(id);
  const wanted = holder.content.firstElementChild;
  if (old && wanted) morph(old, wanted);
  tick();
}

function say(text) {
  const link = document.getElementById("link");
  if (!link) return;
  link.textContent = text;
  link.hidden = !text;
}

function listen(address) {
  const source = new EventSource(address);
  source.addEventListener("open", () => say(""));
  source.addEventListener("fragment", (event) => showFragment(JSON.parse(event.data)));
  source.addEventListener("trouble", (event) => say(JSON.parse(event.data).html));
  source.addEventListener("bye", (event) => {
    if (event.data === "session") location.reload();
  });
  source.addEventListener("error", () => {
    say("not live: connecting again");
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(async () => {
      const answer = await fetch(address, { method: "HEAD" }).catch(() => null);
      if (answer && answer.status === 401) location.reload();
      else listen(address);
    }, 5000);
  });
}

// ---- questions

function ask(event) {
  const form = event.target;
  const dialog = document.getElementById("ask");
  if (!form.matches("form.ask") || !dialog) return;
  event.preventDefault();
  const question = dialog.querySelector("form");
  question.setAttribute("action", form.getAttribute("action"));
  question.elements.back.value = location.pathname + location.search;
  dialog.querySelector("h2").textContent = form.dataset.title;
  dialog.querySelector("p").textContent = form.dataset.text;
  dialog.querySelector(".primary").textContent = form.dataset.yes;
  dialog.showModal();
}

dress(document);
tick();
setInterval(tick, 1000);
document.addEventListener("submit", ask);
if (document.body.dataset.live) listen(document.body.dataset.live);
