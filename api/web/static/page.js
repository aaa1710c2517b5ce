// Keeps the page live: when something happens, the page is fetched again and what changed of its
// live parts is replaced. Without this script the page works as well; reloading shows what is new.
"use strict";

const GATHER = 150; // events come in bursts
const main = document.getElementById("main");
const refreshEvery = Number(main.dataset.every); // labs of commands, and of other hosts, make no events here
const shown = new WeakMap(); // live part -> its content as the service sent it
let stream = null;
let gathering = null;
let asking = false;
let again = false;
let over = false;

function say(text) {
  document.getElementById("said").textContent = text;
}

function states(root) {
  const all = [...root.querySelectorAll("[data-said]")];
  return new Map(all.map((one) => [one.dataset.said, one.textContent.trim()]));
}

function announce(before, after) {
  const news = [...after].filter(([key, state]) => before.get(key) !== state);
  const gone = [...before.keys()].filter((key) => !after.has(key));
  const lines = [...news.map((one) => one.join(": ")), ...gone.map((key) => `${key}: removed`)];
  if (lines.length) say(lines.slice(0, 5).join(", "));
}

// A user selects its text, to copy it: it is not swapped until that ends.
function inUse(part) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(part, true);
}

// Swap the content of a live part; open details, the focus and the place in a log stay. What is
// typed into is no live part.
function swap(part, fresh) {
  const text = fresh.innerHTML;
  if (shown.get(part) === text || inUse(part)) return;
  shown.set(part, text);
  const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
  const focused = part.contains(document.activeElement) ? document.activeElement.id : null;
  const atEnd = part.scrollHeight - part.scrollTop - part.clientHeight < 8;
  part.replaceChildren(...document.importNode(fresh, true).childNodes);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  enable(part);
  if (atEnd) part.scrollTop = part.scrollHeight;
  if (focused !== null) (document.getElementById(focused) ?? part).focus({ preventScroll: true });
}

function update(text, ok) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  if (!ok) {
    // What the page was about is gone, and the answer says so.
    over = true;
    closeStream();
    main.replaceChildren(...document.importNode(fresh.getElementById("main"), true).childNodes);
    document.title = fresh.title;
    main.focus();
    say(main.querySelector("h1").textContent);
    return;
  }
  const before = states(document);
  for (const part of document.querySelectorAll("[data-live]")) {
    const found = fresh.getElementById(part.id);
    if (found) swap(part, found);
  }
  announce(before, states(document));
}

// What is shown is no longer known to be so, until the next answer.
function old(is) {
  if (main.classList.contains("old") === is) return;
  main.classList.toggle("old", is);
  say(is ? "No answer: what is shown is as it was known last" : "Up to date again");
}

async function refresh() {
  if (over || asking) {
    again = asking;
    return;
  }
  asking = true;
  try {
    const answer = await fetch(main.dataset.at, { cache: "no-store" });
    if (answer.redirected) location.assign(main.dataset.at); // it leads to the sign-in
    else if (answer.ok || answer.status === 404) {
      update(await answer.text(), answer.ok);
      old(false);
    } else old(true); // the host that has it does not answer: what is shown was so before
  } catch {
    old(true); // The service is away; a later refresh may find it.
  } finally {
    asking = false;
  }
  if (again) {
    again = false;
    refreshSoon();
  }
}

function refreshSoon() {
  gathering ??= setTimeout(() => {
    gathering = null;
    refresh();
  }, GATHER);
}

// Only pages that are seen hold a connection: a browser has few of them for a service.
function listen() {
  if (document.hidden || stream || over) return;
  stream = new EventSource(`${main.dataset.base}/live`);
  stream.onopen = refreshSoon; // what happened meanwhile
  stream.onmessage = refreshSoon;
  stream.onerror = () => {
    if (stream?.readyState === EventSource.CLOSED) closeStream(); // refused; else it tries again itself
    refreshSoon();
  };
}

function closeStream() {
  stream?.close();
  stream = null;
}

async function copy(button) {
  const from = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(from.textContent);
  } catch {
    // Browsers have no clipboard for pages that came without TLS: the old way.
    getSelection().selectAllChildren(from);
    document.execCommand("copy");
    getSelection().removeAllRanges();
  }
  say(`${button.dataset.name} copied`);
}

// Elements that need this script are hidden until it runs.
function enable(root) {
  for (const one of root.querySelectorAll("[data-copy]")) one.hidden = false;
}

for (const part of document.querySelectorAll("[data-live]")) {
  shown.set(part, part.innerHTML);
  if (part.matches("pre")) part.scrollTop = part.scrollHeight;
}
enable(document);
try {
  localStorage.setItem("place", main.dataset.base); // for enter.js
} catch {
  // the browser keeps nothing: one signs in again
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
document.addEventListener("visibilitychange", () => (document.hidden ? closeStream() : listen()));
addEventListener("pagehide", closeStream);
setInterval(() => {
  if (document.hidden) return;
  listen();
  refresh();
}, refreshEvery);
listen();
