"use strict";
// Live events. A table with fixed rows: a new event changes their texts, so nothing on the page moves.
// While somebody reads the list, it stands still, and new events wait.

const MOST_EVENTS = 300;
const HIDDEN_FOR = 300_000; // milliseconds in another tab, after which the stream ends
const RETRY = 1000;
const FULL_RETRY = 10_000;
const OUTCOMES = ["accepted", "duplicate", "dropped", "invalid", "unauthorized", "forbidden", "unknown_key", "too_large", "limited", "unavailable", "failed"];
const REFUSED = OUTCOMES.slice(3);
const WHAT = "Events and identify requests, newest first: the last 50 that were stored, then all kinds as they come; of many a second, some of each kind";
const OUTCOME_TONES = { accepted: "good", duplicate: "", dropped: "" };

const live = {
  source: null,
  again: null, // the timer of the next attempt
  asleep: null, // the timer of the end in a hidden tab
  query: "",
  lastId: "",
  showData: "",
  first: 0, // the number of the event before the first one
  came: 0,
  received: 0,
  events: [], // newest first
  waiting: [], // newest first, while the list stands still
  paused: false,
  connected: false,
};

// What the operator has chosen

function chosenEvents() {
  return Object.fromEntries([["event", at("live-key").value], ["outcome", at("live-outcome").value], ["visitor", at("live-visitor").value.trim()]].filter(([, value]) => value));
}

// The query for the daemon. The value of the first list is `key=…` or `type=…`.
function eventsQuery({ event, outcome, visitor }) {
  const query = new URLSearchParams(event);
  for (const each of outcome === "refused" ? REFUSED : outcome ? [outcome] : []) query.append("outcome", each);
  if (visitor) query.set("visitor", visitor);
  return query.toString();
}

function fillEventChoices(keys) {
  const box = at("live-key");
  const wanted = box.options.length ? box.value : live.wanted;
  const options = [["All", ""], ["Identify requests", "type=identify"], ["No known key", "type=event&key="]];
  for (const key of keys) options.push([key, new URLSearchParams({ key }).toString()]);
  box.replaceChildren(...options.map(([title, value]) => new Option(title, value)));
  if (![...box.options].some((each) => each.value === wanted)) box.add(new Option(foreign(new URLSearchParams(wanted).get("key") ?? wanted), wanted));
  box.value = wanted;
}

// The connection

// `EventSource` can send no header, so the stream of server-sent events is read here.
async function connect() {
  disconnect();
  const source = (live.source = new AbortController());
  const query = new URLSearchParams(live.query);
  query.set("earlier", "1");
  if (live.lastId) query.set("after", live.lastId);
  let reason = "The daemon does not answer.";
  let pause = FULL_RETRY;
  try {
    const answer = await askDaemon(`events?${query}`, { signal: source.signal });
    if (answer.ok) {
      reason = "The connection was lost.";
      pause = RETRY;
      await readMessages(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } else if (answer.status === 503) reason = "As many pages as possible show live events already, or the daemon is about to stop.";
    else if (answer.status === 400) reason = "The daemon does not take this selection.";
  } catch {
    // the daemon does not answer, or the connection was lost
  }
  if (live.source !== source) return;
  Object.assign(live, { source: null, connected: false });
  live.again = setTimeout(connect, pause);
  setText(at("live-count"), `${reason} This view tries again.`);
}

async function readMessages(reader) {
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const messages = (text + part.value).split("\n\n");
    text = messages.pop();
    messages.forEach(takeMessage);
  }
}

function takeMessage(message) {
  const fields = new Map(message.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
  if (fields.get("event") === "hello") greeted(JSON.parse(fields.get("data")));
  if (fields.get("event") === "earlier") showEarlier(JSON.parse(fields.get("data")));
  if (fields.get("event") === "rows") takeRows(JSON.parse(fields.get("data")));
  if (fields.has("id")) live.lastId = fields.get("id");
}

function disconnect() {
  live.source?.abort();
  Object.assign(live, { source: null, connected: false });
  clearTimeout(live.again);
}

function greeted({ continues, showData, keys }) {
  live.connected = true;
  if (!continues) Object.assign(live, { first: -1, came: 0, received: 0, events: [], waiting: [], lastId: "" });
  live.showData = showData;
  fillEventChoices(keys);
  at("live-visitor").disabled = showData === "none";
  setText(at("live-note"), {
    all: `${WHAT}.`,
    shape: `${WHAT}, with names and types but no values ([ops] show_data). A number stands for a visitor until the daemon restarts.`,
    none: `${WHAT}, without their data ([ops] show_data).`,
  }[showData]);
  showLive();
}

// The last events of the journal, before the view was open. They are not counted.
function showEarlier({ rows }) {
  live.events = rows.reverse();
  showLive();
}

function takeRows({ came, rows }) {
  if (live.first < 0) live.first = rows[0].number - 1;
  live.came = came - live.first;
  live.received += rows.length;
  rows.reverse();
  if (stands()) live.waiting = [...rows, ...live.waiting].slice(0, MOST_EVENTS);
  else live.events = [...rows, ...live.waiting, ...live.events].slice(0, MOST_EVENTS);
  if (!stands()) live.waiting = [];
  showLive();
}

// The list stands still while it is paused, scrolled, has the focus of the keyboard, or an event is open.
function stands() {
  return live.paused || at("live").scrollTop > 0 || at("live-detail").open || at("live-rows").contains(document.activeElement);
}

// Rows

function showLive() {
  const { events, waiting } = live;
  const body = at("live-rows");
  if (!stands() || !body.rows.length || !events.length) {
    while (body.rows.length > events.length) body.deleteRow(-1);
    events.forEach((event, index) => showEvent(body.rows[index] || makeEventRow(body), event));
  }
  at("live-nothing").hidden = events.length > 0;
  at("live-nothing").parentNode.querySelector("table").hidden = !events.length;
  showCount(waiting.length);
}

function showCount(waiting) {
  if (!live.connected) return;
  const left = Math.max(0, live.came - live.received);
  const parts = [`${count(live.came)} came`, left ? `${count(left)} left out` : "none left out"];
  const standing = stands();
  if (standing) parts.unshift(waiting ? `Stands still, ${count(waiting)} new` : "Stands still");
  setText(at("live-count"), `${parts.join(" · ")}`);
  setText(at("live-pause"), standing ? "Continue" : "Pause");
}

function makeEventRow(body) {
  const row = body.appendChild(make("tr", "", "row"));
  for (const names of ["when", "what", "outcome", "visitor", "why"]) {
    const cell = row.appendChild(make(names === "when" ? "th" : "td", names, names === "when" ? "rowheader" : "cell"));
    if (names === "when") cell.scope = "row";
  }
  row.cells[0].append(makeButton("open", "", (click) => openEvent(row.event, click)));
  return row;
}

function showEvent(row, event) {
  if (row.event === event) return;
  row.event = event;
  const [when, what, outcome, visitor, why] = row.cells;
  const name = nameOf(event);
  const button = when.firstChild;
  const time = event.at.slice(11, 23);
  setText(button, time);
  button.disabled = !event.detail;
  button.setAttribute("aria-label", `${time}, ${name}, ${words(event.outcome)}`);
  const place = event.index === undefined ? "" : `, event ${event.index + 1}`;
  setText(what, name);
  what.title = `${operation(event.endpoint)}${place}`;
  setText(outcome, words(event.outcome));
  outcome.className = `outcome ${OUTCOME_TONES[event.outcome] ?? (FAILED.has(event.outcome) ? "bad" : "warn")}`;
  setText(visitor, foreign(event.visitor ?? ""));
  const reason = reasonOf(event);
  setText(why, reason);
  why.title = reason;
}

function nameOf({ type, key, sentKey, events }) {
  if (events > 1) return `${count(events)} events`;
  return type === "identify" ? "Identify request" : key || foreign(sentKey ?? "") || "No known key";
}

function reasonOf({ pointer, message, reason, faults }) {
  if (!reason) return "";
  const more = faults > 1 ? ` (and ${faults - 1} more)` : "";
  return `${[pointer && foreign(pointer, 200), message ? foreign(message, 200) : words(reason)].filter(Boolean).join(": ")}${more}`;
}

// One event

function openEvent(event, click) {
  const place = event.index === undefined ? "" : `, event ${event.index + 1} of its batch`;
  setText(at("live-detail-title"), `${nameOf(event)}, ${words(event.outcome)}`);
  setText(at("live-detail-about"), `${event.at}, ${operation(event.endpoint)}${place}, request ${event.requestId}`);
  setText(at("live-detail-json"), visible(JSON.stringify(event.detail, null, 2)));
  const dialog = at("live-detail");
  dialog.showModal();
  dialog.scrollTop = 0;
  if (click.detail) dialog.addEventListener("close", () => document.activeElement.blur(), { once: true }); // opened by a pointer
  showCount(live.waiting.length);
}

// Controls

function goOn() {
  live.paused = false;
  at("live").scrollTop = 0;
  if (at("live-rows").contains(document.activeElement)) document.activeElement.blur();
  catchUp();
}

function catchUp() {
  if (!stands()) {
    live.events = [...live.waiting, ...live.events].slice(0, MOST_EVENTS);
    live.waiting = [];
  }
  showLive();
}

function selectEvents() {
  const chosen = chosenEvents();
  setParameters(chosen);
  const query = eventsQuery(chosen);
  if (query === live.query && live.source) return;
  Object.assign(live, { query, lastId: "" });
  setText(at("live-count"), "Connecting …");
  connect();
}

at("live-pause").addEventListener("click", () => {
  if (stands()) {
    goOn();
    say("The list continues.");
    return;
  }
  live.paused = true;
  showCount(0);
  say("The list stands still.");
});
at("live-filter").addEventListener("change", selectEvents);
at("live-filter").addEventListener("submit", (submit) => {
  submit.preventDefault();
  selectEvents();
});
at("live").addEventListener("scroll", () => (at("live").scrollTop ? showCount(live.waiting.length) : catchUp()));
at("live-rows").addEventListener("focusin", () => showCount(live.waiting.length));
at("live-rows").addEventListener("focusout", () => setTimeout(catchUp));
at("live-detail").addEventListener("close", () => setTimeout(catchUp));
at("live-outcome").replaceChildren(
  new Option("All", ""),
  new Option("Refused or failed", "refused"),
  ...OUTCOMES.map((each) => new Option(words(each), each)),
);

document.addEventListener("visibilitychange", () => {
  clearTimeout(live.asleep);
  if (present !== "events") return;
  if (document.hidden) live.asleep = setTimeout(disconnect, HIDDEN_FOR);
  else if (!live.source) connect();
});

addView("events", {
  title: "Live events",
  enter(parameters) {
    const wanted = Object.fromEntries(["event", "outcome", "visitor"].map((name) => [name, parameters.get(name) ?? ""]));
    live.wanted = wanted.event;
    at("live-outcome").value = wanted.outcome === "refused" || OUTCOMES.includes(wanted.outcome) ? wanted.outcome : "";
    at("live-visitor").value = wanted.visitor;
    at("live-key").replaceChildren();
    fillEventChoices([]);
    const query = eventsQuery({ ...wanted, outcome: at("live-outcome").value });
    if (query !== live.query) Object.assign(live, { query, lastId: "" });
    connect();
  },
  leave() {
    disconnect();
    at("live-detail").close();
  },
});
