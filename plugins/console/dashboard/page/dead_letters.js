"use strict";
// The view of dead letters: what a sink did not take, why, and the commands to retry or discard it.
{
  let asked = null; // the newest request

  const tell = (text) => tellIn("dead-letters-told", text);

  function refuse(text) {
    at("dead-letters-form").hidden = false; // its button asks again
    tell(text);
  }

  function ask(sink, before) {
    const parameters = (asked = new URLSearchParams());
    if (sink) parameters.set("sink", sink);
    if (before) parameters.set("before", before);
    const isWanted = () => asked === parameters;
    askFor(`dead-letters.json?${parameters}`, { patience: PATIENCE, isWanted, show: (page) => show(page, before), refuse });
  }

  function show({ sinks, sink, letters, next, missing }, before) {
    fillRows(at("dead-letters-sinks"), {
      caption: "Sinks",
      hideCaption: true,
      columns: [{ title: "Sink" }, { title: "Dead letters", num: true }],
      rows: sinks.map((each) => [
        { text: each.sink, sub: each.type },
        { text: count(each.deadLetters), tone: each.deadLetters ? "warn" : "" },
      ]),
      nothing: "No sinks are configured.",
    });
    fillSelect(at("dead-letters-sink"), sinks.map((each) => ({ title: each.sink, value: each.sink })), sink);
    at("dead-letters-form").hidden = !sinks.length;
    const chosen = sinks.find((each) => each.sink === sink);
    const dead = chosen?.deadLetters ?? 0;
    const shown = letters.length ? `; ${range(letters)} below` : "";
    const lacking = missing ? ` Out of reach: partition ${foreign(Object.keys(missing).join(", "))}.` : "";
    tell(chosen ? `${foreign(sink)} has ${dead ? plural(dead, "dead letter") : "no dead letters"}${shown}.${lacking}` : lacking);
    at("dead-letters-all").replaceChildren();
    if (dead) {
      const details = child(at("dead-letters-all"), "details", "");
      child(details, "summary", "", `Commands for all dead letters of ${foreign(sink)}`);
      const all = child(details, "div", "");
      command(all, "Retry all", chosen.commands.retry);
      command(all, "Discard all", chosen.commands.discard);
      command(all, "List all", chosen.commands.list);
    }
    const list = at("dead-letters-list");
    if (!before) list.replaceChildren();
    list.append(...letters.map(letterItem));
    const older = at("dead-letters-older");
    older.hidden = next === null;
    older.onclick = () => ask(sink, next);
  }

  // The partitions of a store count their letters separately.
  function range(letters) {
    if (letters[0].partition) return `${letters.length} of them`;
    return `numbers ${letters.at(-1).number} to ${letters[0].number}`;
  }

  function letterItem({ partition, number, at: then, type, key, recordId, receivedAt, attempts, bytes, reason, commands }) {
    const item = make("li", "");
    item.value = number;
    const name = partition ? `${foreign(partition)}:${number}` : number;
    child(item, "h3", "", `Dead letter ${name}: ${foreign(key ?? type)}`);
    child(item, "p", "reason", foreign(reason, 2000));
    const told = [`given up ${dayAndTime(then)} UTC after ${plural(attempts, "attempt")}`, `received ${dayAndTime(receivedAt)} UTC`, type, size(bytes)];
    child(item, "p", "sub", [...told, recordId ? `record ${recordId}` : "without an id"].join(", "));
    const details = child(item, "details", "");
    child(details, "summary", "", `Commands for dead letter ${name}`);
    const host = child(details, "div", "");
    command(host, "Show", commands.show);
    command(host, "Retry", commands.retry);
    command(host, "Discard", commands.discard);
    return item;
  }

  function command(host, title, text) {
    const line = child(host, "p", "command");
    child(line, "span", "", title);
    const code = child(line, "code", "", text);
    const button = line.appendChild(makeButton("", "Copy", () => copy(code, title)));
    button.setAttribute("aria-label", `Copy the command: ${title}`);
  }

  // A browser offers its clipboard to pages of this machine and to HTTPS only. Otherwise the text gets selected.
  async function copy(code, title) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      say(`${title}: the command is copied.`);
    } catch {
      getSelection().selectAllChildren(code);
      say(`${title}: the command is selected.`);
    }
  }

  function choose() {
    const sink = at("dead-letters-sink").value;
    setParameters(sink ? { sink } : {});
    ask(sink);
  }

  at("dead-letters-form").addEventListener("submit", (event) => {
    event.preventDefault();
    choose();
  });
  at("dead-letters-sink").addEventListener("change", choose);
  addView("dead-letters", { title: "Dead letters", enter: (parameters) => ask(parameters.get("sink")) });
}
