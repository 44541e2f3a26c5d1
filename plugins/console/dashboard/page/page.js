"use strict";
// The overview. Fetches status.json every two seconds while the page is visible, and shows it.

const EVERY = 2000;
const PATIENCE = 8000;
const MOST_KEYS = 10;
const MOST_BESIDE = 3; // columns that fit a phone

const told = { state: null, failed: null }; // the last messages for screen readers

// The parts of the page

function showState(status) {
  const state = status.ready ? (status.problem ? `Ready, but ${status.problem}` : "Ready") : `Not ready: ${status.problem}`;
  setText(at("state"), state);
  at("state").className = `state ${status.ready ? "good" : "bad"}`;
  showTitle(status.ready ? "" : "Not ready");
  setText(at("about"), `${status.version}, up ${age(status.uptimeSeconds)}, ${status.time.slice(11, 19)} UTC`);
  if (told.state !== null && told.state !== state) say(state);
  told.state = state;
}

function showFigures(status) {
  const { now, sinks, journal } = status;
  const wrong = now.refusedPerSecond + now.failedPerSecond;
  const slowest = status.latency.reduce((most, each) => Math.max(most, each.p99Seconds ?? 0), 0);
  const pending = sinks.reduce((sum, each) => sum + each.pending, 0);
  const oldest = Math.max(0, ...sinks.map((each) => each.oldestPendingSeconds));
  const failing = sinks.filter((each) => each.state === "failing").map((each) => each.sink);
  const dead = sinks.reduce((sum, each) => sum + each.deadLetters, 0);
  const figures = [
    { name: "Accepted", value: rate(now.acceptedPerSecond), unit: "a second", more: `${count(status.events.lastMinute)} events in the last minute` },
    {
      name: "Refused or failed",
      value: rate(wrong),
      unit: "a second",
      more: now.failedPerSecond ? `${rate(now.failedPerSecond)} of them failed` : "none failed",
      tone: now.failedPerSecond ? "bad" : "",
    },
    { name: "99 % answered in", value: slowest ? milliseconds(slowest) : "–", more: slowest ? "in the last minute" : "none in the last minute" },
    { name: "New sessions", value: rate(now.sessionsPerMinute), unit: "a minute", more: `${count(status.sessions.total)} since the start` },
    {
      name: "Oldest record waits",
      value: pending ? age(oldest) : "0 s",
      more: failing.length ? `${failing.join(", ")} failing` : `${count(pending)} records; journal ${size(journal.bytes)}`,
      tone: failing.length ? "bad" : late(oldest),
    },
    { name: "Dead letters", value: count(dead), more: dead ? "see the sinks below" : "no sink has any", tone: dead ? "warn" : "" },
  ];
  fillFigures(at("figures"), figures);
}

const GROUPS = [
  ["accepted", "Accepted"],
  ["skipped", "Duplicate, dropped"],
  ["refused", "Refused"],
  ["failed", "Failed"],
];
const FAILED = new Set(["unavailable", "failed"]);
const words = (name) => name.replaceAll("_", " ");

let allKeys = false;

function showEvents({ events }) {
  const most = Math.max(1, ...events.byKey.map((each) => each.lastMinute));
  const keys = events.byKey.map((each) => {
    const others = Object.entries(each.byOutcome).filter(([outcome]) => outcome !== "accepted");
    const sub = others.map(([outcome, { total }]) => `${count(total)} ${words(outcome)}`).join(", ");
    const name = each.key || "No known key";
    return [{ text: name, sub }, { text: count(each.lastMinute), bar: each.lastMinute / most }, count(each.total)];
  });
  const columns = [{ title: "Event" }, { title: "Last minute", num: true }, { title: "In all", num: true }];
  const nothing = "No event has come since the start.";
  fillRows(at("keys"), { caption: "By key", columns, rows: allKeys ? keys : keys.slice(0, MOST_KEYS), nothing });
  showMoreKeys(keys.length);
  const outcomes = Object.entries(events.byOutcome).sort(([, one], [, other]) => other.total - one.total);
  fillRows(at("outcomes"), {
    caption: "By outcome",
    columns: [{ title: "Outcome" }, ...columns.slice(1)],
    rows: outcomes.map(([outcome, each]) => [
      words(outcome),
      { text: count(each.lastMinute), tone: FAILED.has(outcome) && each.lastMinute ? "bad" : "" },
      count(each.total),
    ]),
    nothing,
  });
}

function showMoreKeys(many) {
  const button = at("more-keys");
  button.hidden = many <= MOST_KEYS;
  button.setAttribute("aria-expanded", String(allKeys));
  setText(button, allKeys ? `Only the first ${MOST_KEYS} keys` : `All ${many} keys`);
}

at("more-keys").addEventListener("click", () => {
  allKeys = !allKeys;
  showEvents(latest);
});

const OPERATIONS = { track: "Track", "customer-events": "Customer events", identify: "Identify", "server-identify": "Identify (server)" };

function operation(name) {
  const single = name.replace(/-batch$/, "");
  return `${OPERATIONS[single] ?? single}${single === name ? "" : ", batch"}`;
}

function showLatency({ latency }) {
  fillRows(at("latency"), {
    caption: "In the last minute",
    columns: [{ title: "Requests to" }, { title: "Median", num: true }, { title: "99 % in", num: true }],
    rows: latency.map((each) => [
      { text: operation(each.operation), sub: `${count(each.lastMinute)} requests` },
      milliseconds(each.p50Seconds),
      milliseconds(each.p99Seconds),
    ]),
    nothing: "No request has come since the start.",
  });
}

function showRefusals({ refusals, time }) {
  fillRows(at("refusals"), {
    caption: "Refused, by reason",
    hideCaption: true,
    stacks: true,
    columns: [
      { title: "Event" },
      { title: "Location", all: true },
      { title: "Reason" },
      { title: "Last minute", num: true },
      { title: "In all", num: true },
      { title: "Last seen, UTC" },
    ],
    rows: refusals.map((each) => [
      { text: each.endpoint.includes("identify") ? "Identify request" : each.key || "No known key", sub: operation(each.endpoint) },
      each.pointer || "–",
      words(each.reason),
      count(each.lastMinute),
      count(each.total),
      moment(each.lastAt, time),
    ]),
    nothing: "Nothing has been refused since the start.",
  });
}

const late = (seconds) => (seconds > 300 ? "bad" : seconds > 30 ? "warn" : "");
const TONES = { running: "good", failing: "bad", paused: "warn" };

function showSinks({ sinks, consumers }) {
  const columns = [
    { title: "Name" },
    { title: "State", all: true },
    { title: "Pending", num: true },
    { title: "Oldest waits", num: true },
    { title: "Dead letters", num: true },
    { title: "Delivered, last minute", num: true },
    { title: "Delivered in all", num: true },
  ];
  const dead = ({ deadLetters, lastDeadLetterReason, deadLettersCommand }) => {
    if (!deadLetters) return "";
    const reason = lastDeadLetterReason ? `last dead letter: ${lastDeadLetterReason}; ` : "dead letters: ";
    return `${reason}${deadLettersCommand}`;
  };
  const state = (each) => ({ text: each.state, sub: [each.lastError, dead(each)].filter(Boolean).join(" · "), tone: TONES[each.state] });
  const old = (each) => ({ text: age(each.oldestPendingSeconds), tone: late(each.oldestPendingSeconds) });
  fillRows(at("sinks"), {
    caption: "Sinks and other consumers of the journal",
    hideCaption: true,
    stacks: true,
    columns,
    rows: [
      ...sinks.map((each) => [
        { text: each.sink, sub: each.type },
        state(each),
        count(each.pending),
        old(each),
        { text: count(each.deadLetters), tone: each.deadLetters ? "warn" : "" },
        count(each.delivered.lastMinute),
        count(each.delivered.total),
      ]),
      ...consumers.map((each) => [{ text: each.consumer, sub: "plugin" }, state(each), count(each.pending), old(each), "", "", ""]),
    ],
    nothing: "No sinks are configured: events stay in the journal.",
  });
}

// Panels of plugins. The page's address holds their filters and the choice of their tables.

function select(parameter, value) {
  const address = new URL(location.href);
  if (value) address.searchParams.set(parameter, value);
  else address.searchParams.delete(parameter);
  history.replaceState(null, "", address);
}

const selected = (parameter) => new URLSearchParams(location.search).get(parameter);

function showPanels({ panels }) {
  const host = at("panels");
  while (host.children.length > panels.length) host.lastChild.remove();
  panels.forEach((panel, index) => {
    const section = host.children[index] || host.appendChild(makePanel(index));
    const [title, note, controls, tables] = section.children;
    setText(title, panel.title);
    const choice = choiceOf(panel);
    const told = panel.notes[choice.chosen] ?? panel.note;
    setText(note, told);
    note.hidden = !told;
    showControls(controls, index, panel, choice);
    const seen = panel.tables.filter((each) => each.choice === null || each.choice === choice.chosen);
    while (tables.children.length > seen.length) tables.lastChild.remove();
    seen.forEach((table, place) => showPanelTable(tables.children[place] || tables.appendChild(make("div")), table));
    if (!seen.length) setText(note, told ? `${told} There are none yet.` : "");
  });
}

function makePanel(index) {
  const section = make("section");
  const title = make("h2");
  title.id = `panel-${index}`;
  section.setAttribute("aria-labelledby", title.id);
  section.append(title, make("p", "note"), make("form", "choice"), make("div", "several"));
  return section;
}

// The choice of a panel's tables: a filter that the page applies.

function choiceOf(panel) {
  const values = [...new Set(panel.tables.map((each) => each.choice).filter((each) => each !== null))];
  const name = (panel.choose || "show").toLowerCase();
  const wanted = selected(name);
  const chosen = values.includes(wanted) ? wanted : panel.chosen ?? values[0] ?? null;
  return { name, title: panel.choose || "Show", options: values.map((value) => ({ value, title: words(value) })), chosen };
}

function showControls(host, index, panel, choice) {
  const filters = [...panel.filters.map((each) => ({ ...each, asks: true })), choice].filter((each) => each.options.length > 1);
  host.hidden = !filters.length;
  while (host.children.length > filters.length) host.lastChild.remove();
  filters.forEach((filter, place) => showControl(host.children[place] || host.appendChild(makeControl(`panel-${index}-${place}`)), filter));
}

function makeControl(id) {
  const control = make("span");
  const label = control.appendChild(make("label"));
  const box = control.appendChild(make("select"));
  box.id = label.htmlFor = id;
  return control;
}

function showControl(control, { name, title, options, chosen, asks }) {
  const [label, box] = control.children;
  setText(label, title);
  fillSelect(box, options, chosen ?? null);
  box.onchange = () => {
    select(name, box.value);
    if (asks) askAnew(`${title}: ${box.selectedOptions[0].text}.`);
    else if (latest) showPanels(latest);
  };
}

function showPanelTable(host, { title, columns, rows, total }) {
  const most = columns.map((column, place) => (column.bar ? column.whole ?? Math.max(...rows.map((row) => row[place] ?? 0), 0) : 0));
  const cells = (row, bars) =>
    row.map((value, place) => {
      if (typeof value !== "number") return value ?? "";
      const text = money(value, columns[place].digits ?? 0);
      return bars && most[place] > 0 ? { text, bar: value / most[place] } : { text };
    });
  fillRows(host, {
    caption: title,
    stacks: columns.length > MOST_BESIDE,
    columns: columns.map((column) => ({ title: column.title, num: column.digits !== null })),
    rows: rows.map((row) => cells(row, true)),
    total: total ? cells(total, false) : null,
  });
}

// A reference to the newest line of a kind in the log: its request, its record or its time.
function example({ requestId, recordId, at: time, times }) {
  const id = requestId ? `request ${requestId}` : recordId ? `record ${recordId}` : `in the log at ${time}`;
  return times === 1 ? id : `newest: ${id}`;
}

function showErrors({ errors, time }) {
  fillRows(at("errors"), {
    caption: "Warnings and errors",
    hideCaption: true,
    stacks: true,
    columns: [{ title: "When, UTC" }, { title: "Level" }, { title: "Count" }, { title: "Message", all: true }],
    rows: errors.map((each) => [
      moment(each.at, time),
      { text: each.level, tone: each.level === "warning" ? "warn" : "bad" },
      each.times === 1 ? "once" : `${count(each.times)} times`,
      {
        text: each.error ? `${each.message} (${each.error})` : each.message,
        sub: `${each.logger}, ${example(each)}`,
      },
    ]),
    nothing: "No warnings or errors since the start.",
  });
  const newest = errors.find((each) => each.level !== "warning");
  const mark = newest ? `${newest.at} ${newest.message}` : "";
  if (told.failed !== null && told.failed !== mark && newest) say(`An error: ${newest.message}`);
  told.failed = mark;
}

const drawEvents = makeChart(at("events-chart"), {
  title: "Events",
  unit: "a second",
  series: GROUPS.map(([colour, label]) => ({ label, colour })),
  stacked: true,
  height: 210,
  format: rate,
});
const drawLatency = makeChart(at("latency-chart"), {
  title: "Latency",
  unit: "of answers",
  series: [
    { label: "Median", colour: "p50" },
    { label: "99 % in", colour: "p99", dash: [5, 3] },
  ],
  height: 150,
  format: milliseconds,
});
const drawSessions = makeChart(at("sessions-chart"), {
  title: "New sessions",
  unit: "a minute",
  series: [{ label: "New a minute", colour: "sessions" }],
  height: 120,
  format: rate,
});

function showCharts({ history }) {
  drawEvents(history.time, GROUPS.map(([group]) => history[group]));
  drawLatency(history.time, [history.p50, history.p99]);
  drawSessions(history.time, [history.sessions]);
}

// Requests

let latest = null;
let timer = null;
let asking = false;
let done = ""; // the message for screen readers once the answer to an operator's choice is shown

async function ask() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const address = location.search;
  try {
    const answer = await askDaemon(`status.json${address}`, { signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const status = await answer.json();
    if (address === location.search) show(status);
  } catch {
    showStale();
  }
  asking = false;
  if (address !== location.search) {
    ask(); // the operator has made another choice
    return;
  }
  if (!document.hidden) timer = setTimeout(ask, EVERY);
}

function askAnew(text) {
  done = text;
  ask();
}

function show(status) {
  latest = status;
  if (!at("stale").hidden) say("The daemon answers again.");
  at("stale").hidden = true;
  document.body.classList.remove("old");
  showState(status);
  showErrors(status); // says a new error in every view
  if (present === "overview") showOverview(status);
  if (done) say(done);
  done = "";
}

function showOverview(status) {
  for (const part of [showFigures, showEvents, showRefusals, showLatency, showSinks, showPanels, showCharts]) part(status);
}

function showStale() {
  const since = latest ? ` The figures are from ${latest.time.slice(11, 19)} UTC.` : "";
  if (at("stale").hidden) say("The daemon does not answer.");
  at("stale").hidden = false;
  setText(at("stale"), `The daemon does not answer.${since}`);
  setText(at("state"), "No answer");
  at("state").className = "state bad";
  document.body.classList.add("old");
}

addView("overview", { title: "", enter: () => latest && showOverview(latest) });
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) ask();
});
ask();
