"use strict";
// The view of marketers: revenue, orders and sessions of a period, over time and by channel, source and campaign.
{
  const PATIENCE_FOR_SALES = 300000; // a large journal takes its time, and events go first
  const MOST_ROWS = 50; // of one level: callers choose the names of campaigns
  const HEIGHT = 160; // pixels of the chart

  let asked = ""; // the parameters of the answer that is shown or awaited
  let sales = null; // the newest answer
  let currency = null; // null until one is chosen, and "" for orders without a currency
  const opened = new Set(); // the keys of the rows that are open

  // Requests

  function enter(parameters) {
    const since = parameters.get("since");
    at("sales-days").value = since ? "" : parameters.get("days") ?? "7";
    if (since) [at("sales-since").value, at("sales-until").value] = [since, parameters.get("until") ?? ""];
    at("sales-compare").checked = parameters.get("compare") !== "0";
    currency = parameters.get("currency") ?? currency;
    showDates();
    ask(parameters.get("tenant") ?? "");
  }

  function wanted(tenant) {
    const days = at("sales-days").value;
    const parameters = new URLSearchParams(days ? { days } : { since: at("sales-since").value, until: at("sales-until").value });
    if (!at("sales-compare").checked) parameters.set("compare", "0");
    if (tenant) parameters.set("tenant", tenant);
    return parameters;
  }

  function ask(tenant = at("sales-tenant").value) {
    const text = (asked = wanted(tenant).toString());
    tell("Reading the journal …");
    at("view-sales").setAttribute("aria-busy", "true");
    askFor(`sales.json?${text}`, { patience: PATIENCE_FOR_SALES, isWanted: () => asked === text, show: answered, refuse });
  }

  function answered(given) {
    at("view-sales").removeAttribute("aria-busy");
    sales = given;
    show();
  }

  function refuse(text) {
    at("view-sales").removeAttribute("aria-busy");
    at("sales-result").hidden = at("sales-nothing").hidden = true;
    at("sales-figures").replaceChildren();
    at("sales-notes").replaceChildren();
    tell(text);
  }

  const tell = (text) => tellIn("sales-told", text);

  function choose() {
    keepInAddress(wanted(at("sales-tenant").value));
    ask();
  }

  function keepInAddress(parameters) {
    if (currency !== null) parameters.set("currency", currency);
    setParameters(parameters);
  }

  // Sums. Amounts are added up in cents.

  const cents = (amount) => Math.round((amount ?? 0) * 100);
  const currencies = () => [...new Set(sales.rows.map((each) => each.currency ?? ""))];
  const inCurrency = () => sales.rows.filter((each) => (each.currency ?? "") === currency);

  function sum(rows, everywhere) {
    const add = (some, name) => some.reduce((all, each) => all + cents(each[name]), 0) / 100;
    const sums = (ending) => {
      const [net, orders] = [add(rows, `net${ending}`), add(rows, `orders${ending}`)];
      const [sessions, all] = [add(everywhere, `sessions${ending}`), add(everywhere, `orders${ending}`)];
      const cost = costsIn(rows, ending).length ? add(rows, `cost${ending}`) : null;
      return {
        net, orders, sessions, cost, average: orders ? net / orders : null, conversion: sessions ? all / sessions : null,
        roas: cost ? net / cost : null, perOrder: cost !== null && orders ? cost / orders : null,
      };
    };
    return { ...sums(""), before: sales.isCompared ? sums("_before") : null };
  }

  // The rows that have imported costs.
  const costsIn = (rows, ending = "") => rows.filter((each) => (each[`cost${ending}`] ?? null) !== null);
  const hasCosts = (rows) => costsIn(rows).length + costsIn(rows, "_before").length > 0;

  // The rows of channels, of their sources, and of the campaigns of these.
  function tree() {
    const root = { children: new Map(), rows: [], everywhere: [] };
    for (const row of sales.rows) {
      let node = root;
      let key = "";
      for (const [depth, { name, sub }] of path(row).entries()) {
        key += `/${JSON.stringify([name, sub])}`;
        if (!node.children.has(key)) node.children.set(key, { key, name, sub, columns: columnsOf(row, depth), children: new Map(), rows: [], everywhere: [] });
        node = node.children.get(key);
        node.everywhere.push(row);
        if ((row.currency ?? "") === currency) node.rows.push(row);
      }
    }
    return root;
  }

  // The columns of the report that a row of this depth stands for.
  function columnsOf(row, depth) {
    const names = [["channel"], ["source"], ["medium", "name"]].slice(0, depth + 1).flat();
    return Object.fromEntries(names.map((name) => [name, row[name] ?? ""]));
  }

  function path({ kind, channel, source, medium, name }) {
    const first = { name: channel ?? "(no channel)", sub: "" };
    if (kind !== "campaign") return [first];
    const found = [first, { name: source ?? "(no source)", sub: "" }];
    if (name !== null || medium !== null) found.push({ name: name ?? "(no name)", sub: medium ?? "" });
    return found;
  }

  // What is shown

  const amountOf = (value) => (value === null ? "–" : `${money(value, 2)}${currency ? ` ${foreign(currency)}` : ""}`);
  const ordersOf = (value) => money(value, Number.isInteger(value) ? 0 : 2);
  const ratio = (value) => (value === null ? "–" : money(value, 2));
  const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

  function changeOf(now, before) {
    if (!before) return "";
    const change = (100 * (now - before)) / Math.abs(before);
    return `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(change > -10 && change < 10 ? 1 : 0)} %`;
  }

  function show() {
    showChoices();
    const { since, until, zone, before, notes, tenant, command } = sales;
    sales.isCompared = before !== null && sales.rows.some((each) => each.orders_before || each.sessions_before || each.cost_before);
    const span = ([first, last]) => (first === last ? first : `${first} to ${last}`);
    const told = [`${span([since, until])}, ${zone}${tenant ? `, ${foreign(tenant)}` : ""}${sales.isCompared ? `, compared with ${span(before)}` : ""}.`];
    if (until === sales.today) told.push("Today is not over.");
    if (before && sales.rows.length && !sales.isCompared) told.push(`There is nothing to compare with from ${span(before)}.`);
    tell(told.join(" "));
    at("sales-notes").replaceChildren();
    for (const note of notes) child(at("sales-notes"), "li", "", foreign(note, 300));
    at("sales-orders").hidden = true;
    showFigures();
    showCourse();
    showTable();
    at("sales-command").replaceChildren();
    for (const word of visible(command).split(" ")) at("sales-command").append(child(at("sales-command"), "span", "", word), " ");
    at("sales-result").hidden = !sales.rows.length;
    at("sales-nothing").hidden = sales.rows.length > 0;
  }

  function showChoices() {
    const known = currencies();
    if (!known.includes(currency)) currency = sales.rows.find((each) => each.sessions !== null)?.currency ?? known[0] ?? "";
    fillChoice("sales-currency", known.map((each) => ({ title: foreign(each || "No currency"), value: each })), currency, known.length > 1);
    const { tenants, tenant } = sales;
    const listed = tenant && !tenants.includes(tenant) ? [...tenants, tenant] : tenants;
    const choices = listed.map((each) => ({ title: foreign(each), value: each }));
    fillChoice("sales-tenant", [{ title: "All tenants", value: "" }, ...choices], tenant ?? "", listed.length > 1);
    at("sales-later").disabled = sales.until === sales.today;
    for (const name of ["since", "until"]) {
      at(`sales-${name}`).max = sales.today;
      if (at("sales-days").value) at(`sales-${name}`).value = sales[name];
    }
  }

  function fillChoice(id, options, chosen, isUseful) {
    fillSelect(at(id), options, chosen);
    at(id).parentElement.hidden = !isUseful;
  }

  function showFigures() {
    const all = sum(inCurrency(), sales.rows);
    const { before } = all;
    const further = (name, isShown) => currencies().filter((each) => each !== currency)
      .map((each) => [each, sum(sales.rows.filter((row) => (row.currency ?? "") === each), [])])
      .filter(([, sums]) => isShown(sums))
      .map(([each, sums]) => `and ${money(sums[name], 2)} ${foreign(each || "without currency")}`);
    const others = further("net", (sums) => sums.orders || sums.net);
    const costs = [
      ["Cost", all.cost === null ? "–" : money(all.cost, 2), foreign(currency), [changeOf(all.cost ?? 0, before?.cost), ...further("cost", (sums) => sums.cost !== null)]],
      ["ROAS", ratio(all.roas), "", [changeOf(all.roas ?? 0, before?.roas), all.perOrder === null ? "" : `${amountOf(all.perOrder)} an order`]],
    ];
    const figures = [
      ["Net revenue", money(all.net, 2), foreign(currency), [changeOf(all.net, before?.net), ...others]],
      ["Orders", ordersOf(all.orders), others.length ? `in ${foreign(currency || "no currency")}` : "", [changeOf(all.orders, before?.orders)]],
      [`Average order${currency ? `, ${foreign(currency)}` : ""}`, all.average === null ? "–" : money(all.average, 2), "", [changeOf(all.average ?? 0, before?.average)]],
      ...(hasCosts(inCurrency()) ? costs : []),
      ["Conversion", percent(all.conversion), "", [changeOf(all.conversion ?? 0, before?.conversion)]],
      ["Sessions", count(all.sessions), "", [changeOf(all.sessions, before?.sessions)]],
      ["Visitors", count(sales.visitors), "", []],
    ];
    fillFigures(at("sales-figures"), figures.map(([name, value, unit, more]) => ({ name, value, unit, more: more.filter(Boolean).join(", ") })));
  }

  const COLUMNS = [
    ["Net revenue", (each) => money(each.net, 2), (each) => changeOf(each.net, each.before?.net)],
    ["Orders", (each) => ordersOf(each.orders), (each) => changeOf(each.orders, each.before?.orders)],
    ["Average order", (each) => ratio(each.average), () => ""],
    ["Sessions", (each) => count(each.sessions), (each) => changeOf(each.sessions, each.before?.sessions)],
    ["Conversion", (each) => percent(each.conversion), () => ""],
  ];
  const COST_COLUMNS = [
    ["Cost", (each) => ratio(each.cost), (each) => changeOf(each.cost ?? 0, each.before?.cost)],
    ["ROAS", (each) => ratio(each.roas), () => ""],
    ["Cost per order", (each) => ratio(each.perOrder), () => ""],
  ];
  const columnsShown = () => (hasCosts(inCurrency()) ? [...COLUMNS, ...COST_COLUMNS] : COLUMNS);

  function showTable() {
    const { tHead: head, tBodies: [body], tFoot: foot } = at("sales-table");
    at("sales-table").classList.toggle("costs", hasCosts(inCurrency()));
    head.rows[0].replaceChildren();
    for (const title of [`Channel${currency ? `, ${foreign(currency)}` : ""}`, ...columnsShown().map(([each]) => each)]) {
      const cell = head.rows[0].appendChild(make("th", title.startsWith("Channel") ? "" : "num", "columnheader"));
      cell.scope = "col";
      cell.textContent = title;
    }
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    body.replaceChildren();
    const whole = tree();
    const most = Math.max(0, ...[...whole.children.values()].map((each) => sum(each.rows, each.everywhere).net));
    addRows(body, whole, 0, most);
    foot.replaceChildren();
    addCells(foot.appendChild(make("tr", "", "row")), "Total", "", sum(inCurrency(), sales.rows), 0);
    showCostNote();
    if (focused !== null) body.querySelector(`button[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function showCostNote() {
    const others = [...new Set(costsIn(sales.rows).map((each) => each.currency))].filter((each) => each !== currency);
    const notes = hasCosts(inCurrency())
      ? ["Costs are those that were imported: – means that a row has none, and the total counts all revenue. ROAS is net revenue divided by cost."]
      : [];
    if (others.length) notes.push(`Costs in ${foreign(others.join(", "))} are shown with that currency alone.`);
    at("sales-costs").hidden = !notes.length;
    setText(at("sales-costs"), notes.join(" "));
  }

  function addRows(body, node, level, most) {
    const rows = [...node.children.values()].map((each) => [each, sum(each.rows, each.everywhere)])
      .filter(([each, sums]) => each.rows.length || sums.sessions || sums.before?.sessions);
    rows.sort(([, one], [, other]) => other.net - one.net || other.orders - one.orders || other.sessions - one.sessions);
    const all = `all of ${node.key ?? ""}`;
    const shown = opened.has(all) ? rows : rows.slice(0, MOST_ROWS);
    for (const [each, sums] of shown) {
      const line = body.appendChild(make("tr", `level-${level}`, "row"));
      line.dataset.key = each.key;
      const head = addCells(line, foreign(each.name), foreign(each.sub), sums, most);
      if (sums.orders) addOrdersButton(line.cells[2], each);
      if (!each.children.size) continue;
      const isOpen = opened.has(each.key);
      const button = makeButton("opens", "", () => {
        if (!opened.delete(each.key)) opened.add(each.key);
        showTable();
      });
      button.dataset.key = each.key;
      button.setAttribute("aria-expanded", String(isOpen));
      button.append(...head.childNodes);
      head.append(button);
      if (isOpen) addRows(body, each, level + 1, most);
    }
    const hidden = rows.length - shown.length;
    if (hidden) {
      const cell = body.appendChild(make("tr", `level-${level}`, "row")).appendChild(make("th", "", "rowheader"));
      cell.scope = "row";
      cell.colSpan = columnsShown().length + 1;
      cell.append(makeButton("lists", `Show ${plural(hidden, "further row")}, with less revenue`, () => {
        opened.add(all);
        showTable();
        const first = body.querySelector(`tr[data-key="${CSS.escape(rows[shown.length][0].key)}"] th`);
        first.tabIndex = -1;
        first.focus();
      }));
    }
  }

  function addCells(line, name, sub, sums, most) {
    const head = line.appendChild(make("th", "", "rowheader"));
    head.scope = "row";
    head.append(name);
    if (sub) child(head, "span", "sub", sub);
    columnsShown().forEach(([title, text, change], place) => {
      const cell = line.appendChild(make("td", "", "cell"));
      cell.dataset.title = title;
      const bar = place || most <= 0 ? undefined : sums.net / most;
      fillCell(cell, { num: true }, { text: text(sums), sub: sums.before ? change(sums) : "", bar });
    });
    return head;
  }

  // The table as a file. A link could not send the header of this page.
  async function download() {
    const { since, until } = sales;
    try {
      const answer = await askDaemon(`sales.csv?${asked}`, { signal: AbortSignal.timeout(PATIENCE_FOR_SALES) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const link = make("a", "");
      link.href = URL.createObjectURL(await answer.blob());
      link.download = `sales-${since}-${until}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    } catch {
      tell("The download has failed.");
    }
  }

  // The orders of a row

  function addOrdersButton(cell, { key, name, sub, columns }) {
    const title = `Orders of ${foreign(name)}${sub ? `, ${foreign(sub)}` : ""}`;
    const button = makeButton("lists", "", () => listOrders(title, columns));
    button.dataset.key = `orders of ${key}`;
    button.setAttribute("aria-label", `${cell.firstChild.data} orders of ${foreign(name)}: list them`);
    button.append(cell.firstChild);
    cell.prepend(button);
  }

  function listOrders(title, columns) {
    const parameters = new URLSearchParams(asked);
    for (const [name, value] of Object.entries({ ...columns, currency })) parameters.set(name, value);
    setText(at("sales-orders-title"), title);
    at("sales-orders-list").replaceChildren();
    at("sales-orders").hidden = false;
    at("sales-orders").focus();
    askFor(`orders.json?${parameters}`, {
      patience: PATIENCE_FOR_SALES,
      isWanted: () => at("sales-orders-title").textContent === title,
      show: (orders) => fillOrders(at("sales-orders-list"), orders, title),
      refuse: (text) => child(at("sales-orders-list"), "p", "nothing", text),
    });
  }

  // The chart: a bar for each day or hour, and a mark for the same one of the time before.

  function showCourse() {
    const { course } = sales;
    const measure = at("sales-measure").value;
    const host = measure === "sessions" ? course : course.currencies[currency] ?? {};
    const now = host[measure] ?? course.labels.map(() => 0);
    const before = sales.isCompared ? host[`${measure}_before`] ?? course.labels.map(() => 0) : null;
    const format = measure === "net" ? amountOf : measure === "orders" ? ordersOf : count;
    const top = Math.max(...now, ...(before ?? [0]));
    const box = at("sales-course");
    box.replaceChildren();
    child(box, "p", "scale", top ? format(top) : "");
    const title = at("sales-measure").selectedOptions[0].text;
    const label = `${title} by ${course.unit}. A table is below.`;
    const drawing = drawn(box, "svg", { width: "100%", height: HEIGHT, role: "img", "aria-label": label });
    drawn(drawing, "line", { x1: 0, x2: "100%", y1: 0.5, y2: 0.5 });
    drawn(drawing, "line", { x1: 0, x2: "100%", y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 });
    const width = 100 / now.length;
    const height = (value) => (top > 0 ? (Math.max(0, value) / top) * (HEIGHT - 2) : 0);
    now.forEach((value, index) => {
      const group = drawn(drawing, "g", {});
      const earlier = before ? `; before: ${format(before[index])}` : "";
      drawn(group, "title", {}).textContent = `${course.labels[index]}: ${format(value)}${earlier}`;
      drawn(group, "rect", { class: "all", x: `${width * index}%`, width: `${width}%`, y: 0, height: HEIGHT });
      drawn(group, "rect", { class: "now", x: `${width * (index + 0.12)}%`, width: `${width * 0.76}%`, y: HEIGHT - 1 - height(value), height: height(value) });
      if (before?.[index]) drawn(group, "rect", { class: "before", x: `${width * (index + 0.04)}%`, width: `${width * 0.92}%`, y: HEIGHT - 2 - height(before[index]), height: 2 });
    });
    const ends = child(box, "p", "ends");
    child(ends, "span", "", course.labels[0]);
    child(ends, "span", "", course.labels.at(-1));
    if (before) child(box, "p", "ends", "A line is the same time before.");
    showCourseTable();
  }

  function showCourseTable() {
    if (!at("sales-course-details").open) return;
    const { course } = sales;
    const host = course.currencies[currency] ?? {};
    const value = (list, index, format) => format(list?.[index] ?? 0);
    fillRows(at("sales-course-table"), {
      caption: "Over time",
      hideCaption: true,
      columns: [{ title: course.unit === "hour" ? "Hour" : "Day" }, ...["Net revenue", "Orders", "Sessions"].map((title) => ({ title, num: true }))],
      rows: course.labels.map((label, index) => [label, value(host.net, index, amountOf), value(host.orders, index, ordersOf), value(course.sessions, index, count)]),
    });
  }

  // Choices

  function showDates() {
    for (const each of document.querySelectorAll(".sales-dates")) each.hidden = at("sales-days").value !== "";
  }

  // Shows the period of the same length before or after the present one.
  function move(direction) {
    const [since, until] = [sales.since, sales.until].map((each) => Date.parse(each) / 86400000);
    const by = direction * (until - since + 1);
    const last = Math.min(until + by, Date.parse(sales.today) / 86400000);
    const text = (day) => new Date(day * 86400000).toISOString().slice(0, 10);
    [at("sales-days").value, at("sales-since").value, at("sales-until").value] = ["", text(last - until + since), text(last)];
    showDates();
    choose();
  }

  at("sales-earlier").addEventListener("click", () => sales && move(-1));
  at("sales-later").addEventListener("click", () => sales && move(1));
  at("sales-download").addEventListener("click", download);
  at("sales-days").addEventListener("change", () => {
    showDates();
    if (at("sales-days").value) choose();
    else at("sales-since").focus();
  });
  at("sales-form").addEventListener("submit", (event) => {
    event.preventDefault();
    choose();
  });
  at("sales-tenant").addEventListener("change", choose);
  at("sales-compare").addEventListener("change", choose);
  at("sales-currency").addEventListener("change", () => {
    currency = at("sales-currency").value;
    keepInAddress(new URLSearchParams(asked));
    show();
  });
  at("sales-measure").addEventListener("change", () => sales && showCourse());
  at("sales-course-details").addEventListener("toggle", () => sales && showCourseTable());
  addView("sales", { title: "Sales", enter });
}
