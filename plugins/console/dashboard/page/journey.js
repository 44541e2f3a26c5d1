"use strict";
// The view of a journey: asks for one order, user or visitor, and shows the answer as a list and as a drawing.
{
  const KINDS = ["order", "user", "visitor"];
  const PATIENCE_FOR_TURNS = 60000; // other journeys may be read first
  const MARKS = { order: "order", refund: "reversal", cancellation: "reversal" }; // other moments are touchpoints

  let asked = ""; // the parameters of the journey that is shown or awaited

  function enter(parameters) {
    const kind = KINDS.find((each) => parameters.get(each)) ?? null;
    at("journey-latest").hidden = kind !== null;
    if (kind === null) {
      showLatest();
      return;
    }
    at("journey-kind").value = kind;
    at("journey-id").value = parameters.get(kind);
    at("journey-tenant").value = parameters.get("tenant") ?? "";
    ask(wanted());
  }

  // The last orders, from which a journey starts.
  function showLatest() {
    at("journey-result").hidden = true;
    asked = at("journey-id").value = at("journey-tenant").value = "";
    tell("Type the id as the shop sends it, or open one of the last orders.");
    askFor("orders.json", {
      patience: PATIENCE_FOR_TURNS,
      isWanted: () => asked === "",
      show: (orders) => fillOrders(at("journey-latest-orders"), orders, "The last orders"),
      refuse: () => (at("journey-latest").hidden = true), // the page says elsewhere that the daemon does not answer
    });
  }

  function wanted() {
    const parameters = new URLSearchParams({ [at("journey-kind").value]: at("journey-id").value });
    if (at("journey-tenant").value) parameters.set("tenant", at("journey-tenant").value);
    return parameters;
  }

  function ask(parameters) {
    const text = (asked = parameters.toString());
    tell("Reading the journal …");
    at("journey-result").hidden = true;
    askFor(`journey.json?${text}`, {
      patience: PATIENCE_FOR_TURNS,
      isWanted: () => asked === text,
      show: (journey) => show(journey, parameters),
      refuse: tell,
    });
  }

  const tell = (text) => tellIn("journey-told", text);

  function show({ sessions, moments, orders, notes, searched, hidden }, parameters) {
    tell(`${plural(sessions.length, "session")}, ${plural(moments.length, "moment")}, ${plural(orders.length, "explained order")}.`);
    at("journey-notes").replaceChildren();
    for (const note of notes) child(at("journey-notes"), "li", "", foreign(note, 300));
    at("journey-orders").replaceChildren(...orders.map(explained));
    at("journey-line").replaceChildren(...items(sessions, moments, hidden));
    if (!at("journey-line").children.length) child(at("journey-line"), "li", "nothing", "No records were found.");
    draw(sessions, moments);
    showSearched(searched, parameters);
    at("journey-result").hidden = false;
  }

  function showSearched({ records, bytes, oldestAt, limit, next }, parameters) {
    const read = `${plural(records, "record")} (${size(bytes)}) were read${oldestAt ? `, back to ${dayAndTime(oldestAt)}` : ""}.`;
    setText(at("journey-searched"), limit ? `${read} The search ended at its limit of ${limit}, so older records may be missing.` : read);
    const older = at("journey-older");
    older.hidden = next === null;
    older.onclick = () => {
      const further = new URLSearchParams(parameters);
      further.set("before", next);
      ask(further);
    };
  }

  function explained({ title, facts, tables, notes }) {
    const section = make("section", "");
    child(section, "h3", "", foreign(title, 200));
    const list = child(section, "dl", "facts");
    for (const { name, value } of facts) {
      const pair = child(list, "div", "");
      child(pair, "dt", "", name);
      child(pair, "dd", "", foreign(value ?? "–", 200));
    }
    for (const table of tables) showPanelTable(child(section, "div", ""), table);
    const remarks = child(section, "ul", "remarks");
    for (const note of notes) child(remarks, "li", "", foreign(note, 300));
    return section;
  }

  // The list: sessions with their moments, and moments without a session.

  function items(sessions, moments, hidden) {
    const inSession = new Map();
    for (const session of sessions) for (const event of session.events) inSession.set(event.recordId, session);
    const alone = moments.filter((each) => !inSession.has(each.recordId));
    const found = [
      ...sessions.map((session) => [session.beganAt, sessionItem(session, moments.filter((each) => inSession.get(each.recordId) === session), hidden)]),
      ...alone.map((each) => [each.at, momentItem(each, hidden, true)]),
    ];
    return found.sort(([one], [other]) => (one < other ? -1 : Number(one > other))).map(([, item]) => item);
  }

  function sessionItem({ tenant, visitor, user, beganAt, endedAt, whole, events, leftOut }, moments, hidden) {
    const item = make("li", "session");
    const head = child(item, "p", "head");
    child(head, "time", "", dayAndTime(beganAt));
    head.append(" Session of ");
    person(head, "visitor", visitor ?? "a forgotten visitor", tenant, hidden);
    if (user !== null) {
      head.append(user.startsWith("user #") ? ", " : ", user ");
      person(head, "user", user, tenant, hidden);
    }
    head.append(`, ${foreign(tenant)}`);
    const lasted = (Date.parse(endedAt) - Date.parse(beganAt)) / 1000;
    const begun = whole ? "" : "; its beginning was not read";
    child(item, "p", "sub", `${plural(events.length + leftOut, "event")} in ${age(lasted)}${begun}`);
    if (moments.length) {
      const list = child(item, "ul", "");
      for (const each of moments) list.append(momentItem(each, hidden, false));
    }
    const details = child(item, "details", "");
    child(details, "summary", "", "Events of this session");
    const host = child(details, "div", "");
    host.tabIndex = 0; // long ones scroll
    host.setAttribute("role", "region");
    host.setAttribute("aria-label", "Events of this session");
    details.addEventListener("toggle", () => details.open && showEvents(host, events, leftOut));
    return item;
  }

  function showEvents(host, events, leftOut) {
    fillRows(host, {
      caption: leftOut ? `The first and last events; ${plural(leftOut, "event")} between them` : "Events",
      stacks: true,
      columns: [{ title: "When, UTC" }, { title: "Event" }, { title: "Record", all: true }],
      rows: events.map((each) => [
        dayAndTime(each.at),
        { text: each.key ? foreign(each.key) : `${each.type} request`, sub: each.linked ? "linked to the user" : operation(each.endpoint) },
        each.recordId,
      ]),
    });
  }

  function momentItem({ at: then, kind, title, detail, tenant, visitor, recordId, removed }, hidden, alone) {
    const item = make("li", `moment ${MARKS[kind] ?? "touchpoint"}`);
    child(item, "time", "", dayAndTime(then));
    child(item, "b", "", ` ${kind} `);
    item.append(foreign(title, 200));
    if (detail && kind in MARKS) {
      item.append(", ");
      person(item, "order", detail, tenant, hidden);
    } else if (detail) item.append(` (${foreign(detail, 200)})`);
    const more = [alone && visitor ? `${foreign(visitor)}, ${foreign(tenant)}` : "", recordId ? `record ${recordId}` : "", removed ? "removed from the journal" : ""];
    child(item, "span", "sub", more.filter(Boolean).join(", "));
    return item;
  }

  // An id that leads to its journey, or the name that replaces it.
  function person(host, kind, id, tenant, hidden) {
    if (hidden) {
      host.append(foreign(id));
      return;
    }
    const link = child(host, "a", "", foreign(id));
    link.href = `#journey?${new URLSearchParams({ [kind]: id, tenant })}`;
  }

  // The drawing: a lane for each visitor, a bar for each session, a mark for each moment. The list says the same.

  const LANE = 44;
  const EDGE = 9; // pixels at both ends of a lane, so that the first and the last mark are whole

  function draw(sessions, moments) {
    const host = at("journey-drawing");
    host.replaceChildren();
    const times = [...sessions.flatMap((each) => [each.beganAt, each.endedAt]), ...moments.map((each) => each.at)].map(Date.parse);
    if (times.length < 2) return;
    const [first, last] = [times.reduce((one, other) => Math.min(one, other)), times.reduce((one, other) => Math.max(one, other))];
    const place = (then) => (Date.parse(then) - first) / Math.max(last - first, 1);
    const across = (part) => `(100% - ${2 * EDGE}px) * ${part}`;
    const lanes = [...new Set([...sessions, ...moments].map((each) => each.visitor ?? "forgotten"))].slice(0, 12);
    const drawing = drawn(host, "svg", { width: "100%", height: LANE * lanes.length });
    lanes.forEach((lane, index) => {
      const middle = LANE * index + 30;
      drawn(drawing, "text", { x: 0, y: middle - 14 }).textContent = foreign(lane);
      drawn(drawing, "line", { x1: "0%", x2: "100%", y1: middle, y2: middle });
      for (const each of sessions.filter(({ visitor }) => (visitor ?? "forgotten") === lane)) {
        const [begin, end] = [place(each.beganAt), place(each.endedAt)];
        const { style } = drawn(drawing, "rect", { y: middle - 5, height: 10, rx: 2 });
        style.setProperty("x", `calc(${EDGE}px + ${across(begin)})`);
        style.setProperty("width", `max(4px, ${across(end - begin)})`);
      }
      for (const each of moments.filter(({ visitor }) => (visitor ?? "forgotten") === lane)) {
        const mark = drawn(drawing, "circle", { class: MARKS[each.kind] ?? "touchpoint", cy: middle, r: each.kind === "order" ? 7 : 5 });
        mark.style.setProperty("cx", `calc(${EDGE}px + ${across(place(each.at))})`);
      }
    });
    const ends = child(host, "p", "ends");
    child(ends, "span", "", dayAndTime(new Date(first).toISOString()));
    child(ends, "span", "", "Bars are sessions. Rings are touchpoints, large discs orders, small discs refunds and cancellations.");
    child(ends, "span", "", dayAndTime(new Date(last).toISOString()));
  }

  at("journey-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const parameters = wanted();
    setParameters(parameters);
    at("journey-latest").hidden = true;
    ask(parameters);
  });
  addView("journey", { title: "Journey", enter });
}
