"use strict";
// A table of orders, each of which leads to its journey: the last ones, and those of a row of the sales.

/* exported fillOrders */
function fillOrders(host, { orders, leftOut }, caption) {
  host.replaceChildren();
  if (!orders.length) {
    child(host, "p", "nothing", "No orders were found.");
    return;
  }
  const add = (parent, tag, role, names = "", text = "") => {
    const made = parent.appendChild(make(tag, names, role));
    made.textContent = text;
    return made;
  };
  const table = add(host, "table", "table", "stacks orders");
  child(table, "caption", "aside", caption);
  const heads = add(add(table, "thead", "rowgroup"), "tr", "row");
  for (const [title, names] of [["Received, UTC", ""], ["Order", ""], ["Net revenue", "num"], ["Touchpoints with a share", ""]]) {
    add(heads, "th", "columnheader", names, title).scope = "col";
  }
  const body = add(table, "tbody", "rowgroup");
  for (const { at: then, tenant, order, journey, currency, net, reversed, share, campaigns } of orders) {
    const line = add(body, "tr", "row");
    add(line, "th", "rowheader", "", dayAndTime(then)).scope = "row";
    const named = add(line, "td", "cell");
    const text = foreign(order ?? "without an id");
    if (journey === null) named.append(text);
    else child(named, "a", "", text).href = `#journey?${new URLSearchParams({ order: journey, tenant })}`;
    child(named, "span", "sub", foreign(tenant));
    const amount = add(line, "td", "cell", "num", `${money(net, 2)} ${foreign(currency ?? "")}`);
    amount.dataset.title = "Net revenue";
    const more = [reversed ? `${money(reversed, 2)} reversed` : "", share < 1 ? `share ${(100 * share).toFixed(0)} %` : ""].filter(Boolean);
    if (more.length) child(amount, "span", "sub", more.join(", "));
    add(line, "td", "cell", "all", campaigns.map((fields) => foreign(fields.filter((each) => each && each !== "(direct)").join(" / "), 120)).join("; "));
  }
  if (leftOut) child(host, "p", "note", `${plural(leftOut, "earlier order")} not listed.`);
}
