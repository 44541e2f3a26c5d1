"use strict";
// The parts that all views share: texts, numbers, times, messages for screen readers, and the navigation.

const at = (id) => document.getElementById(id);
const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

// Asks the daemon. A page of another site cannot send this header, so only this page may take up what the daemon has little of.
const askDaemon = (address, options) => fetch(address, { cache: "no-store", headers: { "X-Ingestd-Page": "1" }, ...options });

// Asks for data of a view. `show` gets them, or `refuse` the reason, unless the view has asked for others meanwhile.
async function askFor(address, { patience, isWanted, show, refuse }) {
  const [isShown, given] = await askDaemon(address, { signal: AbortSignal.timeout(patience) })
    .then(async (answer) => [answer.ok, await answer.json()])
    .catch(() => [false, { error: "The daemon does not answer." }]);
  if (!isWanted()) return;
  if (isShown) show(given);
  else refuse(foreign(given.error, 400));
}

// Numbers and times

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (value) => grouped.format(value);
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const rate = (value) => (value >= 1000 ? short : value >= 100 ? grouped : tenth).format(value);
const money = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const value = seconds * 1000;
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return `${value >= 10 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1)} ms`;
}

function age(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// The time of day, with the date if it differs from the date of `now`.
function moment(then, now) {
  const day = then.slice(0, 10);
  return day === now.slice(0, 10) ? then.slice(11, 19) : `${day} ${then.slice(11, 19)}`;
}

const dayAndTime = (then) => `${then.slice(0, 10)} ${then.slice(11, 19)}`;
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; bytes >= 1024 && place < units.length - 1; place += 1) bytes /= 1024;
  return `${place ? bytes.toFixed(1) : bytes} ${units[place]}`;
}

// Elements

function make(tag, names, role) {
  const made = document.createElement(tag);
  if (names) made.className = names;
  if (role) made.setAttribute("role", role);
  return made;
}

// A new element at the end of another one.
function child(host, tag, names, text) {
  const made = host.appendChild(make(tag, names));
  if (text !== undefined) made.textContent = text;
  return made;
}

function makeButton(names, text, click) {
  const button = make("button", names);
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", click);
  return button;
}

// A new part of a drawing, at the end of another one.
function drawn(host, tag, attributes) {
  const made = host.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

// Sets the options of a list. It stays open while they are the same.
function fillSelect(box, options, chosen) {
  const shape = JSON.stringify(options);
  if (box.dataset.shape !== shape) {
    box.dataset.shape = shape;
    box.replaceChildren(...options.map(({ title, value }) => new Option(title, value)));
  }
  if (box.value !== chosen) box.value = chosen; // null selects no option
}

// Messages for screen readers: a new state, a new error or an operator's choice, but not every update.

function say(text) {
  setText(at("said"), text);
}

// A message of a view.
function tellIn(id, text) {
  setText(at(id), text);
  say(text);
}

// Callers' texts

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

// A text of a caller in one line: cut, and with escapes for controls and invisible characters, also those of bidi.
function foreign(text, most = 80) {
  const start = [...text.slice(0, 2 * most + 2)];
  const cut = start.length > most ? `${start.slice(0, most - 1).join("")}…` : text;
  return visible(cut.replaceAll("\n", "\\u000a"));
}

// A text with such escapes, which keeps its lines.
function visible(text) {
  return text.replace(INVISIBLE, (each) => (each === "\n" ? each : `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`));
}

// Views. One is visible at a time, and the address names it: `#events`, or `#journey?order=1` with parameters.

const views = new Map();
let present = ""; // the name of the visible view

// `title` is for the title of the document. `enter` gets the parameters of the address, whenever they change.
function addView(name, { title, enter = () => {}, leave = () => {} }) {
  views.set(name, { title, enter, leave });
}

function address() {
  const [name, parameters] = location.hash.slice(1).split("?", 2);
  return [document.getElementById(`view-${name}`) ? name : "overview", new URLSearchParams(parameters)];
}

// Replace the parameters of the visible view in the address. The view knows them already, so it is not entered again.
function setParameters(parameters) {
  const text = new URLSearchParams(parameters).toString();
  history.replaceState(null, "", `${location.pathname}${location.search}#${present}${text ? `?${text}` : ""}`);
}

function showView() {
  const [name, parameters] = address();
  if (name !== present) {
    const before = present;
    present = name;
    for (const view of document.querySelectorAll(".view")) view.hidden = view.id !== `view-${name}`;
    for (const link of document.querySelectorAll(".views a")) {
      if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (before) {
      views.get(before)?.leave();
      scrollTo(0, 0);
      at(`view-${name}`).focus({ preventScroll: true }); // a screen reader reads its name
    }
  }
  showTitle();
  views.get(name)?.enter(parameters);
}

let warning = ""; // the first words of the title, while the daemon is not ready

function showTitle(words = warning) {
  warning = words;
  document.title = [warning, views.get(present)?.title, "ingestd"].filter(Boolean).join(" – ");
}

addEventListener("hashchange", showView);
document.addEventListener("DOMContentLoaded", showView);
