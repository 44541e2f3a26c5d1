"use strict";
// A chart: a legend with the newest values (or the values under the pointer), a drawing, and a table of its data.

/* exported makeChart */
function makeChart(host, { title, unit, series, stacked, height, format, rowFormat }) {
  const legend = make("ul", "legend");
  const values = series.map(({ label, colour }) => {
    const item = child(legend, "li");
    child(item, "i").style.background = `var(--${colour})`;
    item.append(label);
    return child(item, "b");
  });
  const drawing = make("div", "plot", "img");
  const waiting = child(drawing, "p", "waiting", "The first point appears in a few seconds.");
  const behind = make("details");
  child(behind, "summary", "", `${title} as a table`);
  const rows = child(behind, "div");
  rows.tabIndex = 0;
  rows.setAttribute("role", "region");
  rows.setAttribute("aria-label", `${title}, minute by minute`);
  host.append(legend, drawing, behind);

  let plot = null;
  let data = null; // times, then one list for each series

  const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const shown = (value) => (value === null || value === undefined ? "–" : format(value));

  function tell(index) {
    values.forEach((value, place) => {
      value.textContent = shown(data[place + 1].at(index));
    });
  }

  function stack() {
    if (!stacked) return data;
    const sums = [data[0]];
    let below = data[0].map(() => 0);
    for (const column of data.slice(1)) {
      below = column.map((value, index) => value + below[index]);
      sums.push(below);
    }
    return [sums[0], ...sums.slice(1).reverse()]; // the highest sum is painted first, behind the others
  }

  function draw() {
    if (plot !== null) plot.destroy();
    const muted = colourOf("muted");
    const axis = { stroke: muted, font: "12px system-ui, sans-serif", ticks: { show: false } };
    const lines = series.map(({ label, colour, dash }) => ({
      label,
      stroke: colourOf(colour),
      width: stacked ? 1 : 1.75,
      fill: stacked ? colourOf(colour) : undefined,
      dash,
      points: stacked ? { show: false } : { size: 4 },
    }));
    plot = new uPlot(
      {
        width: drawing.clientWidth,
        height,
        legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        scales: {
          x: { range: (self, first, last) => [Math.max(last - 900, Math.min(first, last - 120)), last] },
          y: { range: (self, least, most) => [0, most > 0 ? most * 1.1 : 1] },
        },
        axes: [
          { ...axis, grid: { show: false }, size: 26, gap: 6, space: 56, incrs: [60, 120, 300], values: (self, splits) => splits.map(clock) },
          { ...axis, grid: { stroke: colourOf("rule"), width: 1 }, size: 52, gap: 6, space: 34, values: (self, splits) => splits.map(format) },
        ],
        series: [{}, ...(stacked ? lines.reverse() : lines)],
        hooks: { setCursor: [(self) => data && tell(self.cursor.idx ?? -1)] },
      },
      stack(),
      drawing,
    );
  }

  function clock(seconds) {
    return new Date(seconds * 1000).toISOString().slice(11, 16);
  }

  function describe() {
    const newest = series.map(({ label }, place) => `${label} ${shown(data[place + 1].at(-1))}`).join(", ");
    const numbers = data.slice(1).flat().filter((value) => value !== null);
    const most = numbers.length ? `; the maximum was ${format(Math.max(...numbers))}` : "";
    drawing.setAttribute("aria-label", `${title}, ${unit}, in the last quarter of an hour: now ${newest}${most}. A table is below.`);
  }

  function minutes() {
    const found = new Map();
    data[0].forEach((time, index) => {
      const minute = clock(time);
      if (!found.has(minute)) found.set(minute, data.slice(1).map(() => []));
      data.slice(1).forEach((column, place) => {
        if (column[index] !== null) found.get(minute)[place].push(column[index]);
      });
    });
    const mean = (list) => (list.length ? list.reduce((sum, each) => sum + each, 0) / list.length : null);
    return [...found].reverse().map(([minute, lists]) => [minute, ...lists.map((list) => shown(mean(list)))]);
  }

  function fillTable() {
    if (!behind.open || data === null) return;
    const columns = [{ title: "UTC" }, ...series.map(({ label }) => ({ title: label, num: true }))];
    fillRows(rows, { caption: `Means, ${unit}`, columns, rows: minutes() });
  }

  behind.addEventListener("toggle", fillTable);
  new ResizeObserver(() => plot && drawing.clientWidth && plot.setSize({ width: drawing.clientWidth, height })).observe(drawing);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot && draw());
  drawing.setAttribute("aria-label", `${title}: no figures yet.`);

  return function update(times, columns) {
    data = [times, ...columns];
    if (times.length < 2) return;
    waiting.hidden = true;
    if (plot === null) draw();
    else plot.setData(stack());
    if (plot.cursor.idx === null || plot.cursor.idx === undefined) tell(-1);
    describe();
    fillTable();
  };
}

// Tables: existing rows change in place, so that a screen reader keeps its position and a selection stays.

/* exported fillRows */
function fillRows(host, { caption, hideCaption, columns, rows, total, stacks, nothing }) {
  const shape = JSON.stringify([caption, columns, Boolean(total)]);
  if (host.dataset.shape !== shape) {
    host.dataset.shape = shape;
    host.replaceChildren();
    const table = host.appendChild(make("table", stacks ? "stacks" : "", "table"));
    child(table, "caption", hideCaption ? "aside" : "", caption);
    const head = table.appendChild(make("thead", "", "rowgroup")).appendChild(make("tr", "", "row"));
    for (const column of columns) {
      const cell = head.appendChild(make("th", column.num ? "num" : "", "columnheader"));
      cell.scope = "col";
      cell.textContent = column.title;
    }
    table.appendChild(make("tbody", "", "rowgroup"));
    if (total) table.appendChild(make("tfoot", "", "rowgroup"));
    child(host, "p", "nothing", nothing || "Nothing yet.");
  }
  const [table, empty] = host.children;
  table.hidden = !rows.length;
  empty.hidden = Boolean(rows.length);
  fillBody(table.tBodies[0], columns, rows);
  if (total) fillBody(table.tFoot, columns, [total]);
}

function fillBody(body, columns, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, index) => {
    const line = body.rows[index] || body.appendChild(make("tr", "", "row"));
    columns.forEach((column, place) => {
      let cell = line.cells[place];
      if (!cell) {
        cell = line.appendChild(make(place ? "td" : "th", "", place ? "cell" : "rowheader"));
        if (place) cell.dataset.title = column.title;
        else cell.scope = "row";
      }
      fillCell(cell, column, row[place]);
    });
  });
}

function fillCell(cell, column, value) {
  const { text, href, sub, bar, tone } = value !== null && typeof value === "object" ? value : { text: value };
  const shape = JSON.stringify([text, href, sub, bar, tone]);
  if (cell.dataset.shape === shape) return;
  cell.dataset.shape = shape;
  cell.className = [column.num && "num", column.all && "all", tone].filter(Boolean).join(" ");
  cell.replaceChildren(href ? "" : text ?? "");
  if (href) child(cell, "a", "", text).href = href;
  if (sub) {
    cell.append(" "); // separates the two texts if they are in one line
    child(cell, "span", "sub", sub);
  }
  if (bar !== undefined) {
    const outer = child(cell, "span", "bar");
    outer.setAttribute("aria-hidden", "true");
    child(outer, "i").style.width = `${100 * Math.max(0, Math.min(1, bar))}%`;
  }
}

// Figures: each has a name, a value with its unit, and more in small letters. They change in place, too.

/* exported fillFigures */
function fillFigures(host, figures) {
  while (host.children.length > figures.length) host.lastChild.remove();
  figures.forEach(({ name, value, unit, more, tone }, index) => {
    let box = host.children[index];
    if (!box) {
      box = host.appendChild(make("div"));
      box.append(make("dt"), make("dd"), make("dd", "more"));
    }
    const [title, figure, small] = box.children;
    box.className = tone || "";
    setText(title, name);
    const shape = JSON.stringify([value, unit]);
    if (figure.dataset.shape !== shape) {
      figure.dataset.shape = shape;
      figure.replaceChildren(value);
      if (unit) child(figure, "small", "", unit);
    }
    setText(small, more);
    small.hidden = !more;
  });
}
