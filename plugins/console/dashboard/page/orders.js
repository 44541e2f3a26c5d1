"use strict";
// A table of orders, each of which leads to its journey: the last ones, and those of a row of the sales.

/* exported fillOrders */
function fillOrders(host, { orders, leftOut }, caption) {
  host.replaceChildren();
  fillRows(child(host, "div"), {
    caption,
    hideCaption: true,
    stacks: true,
    columns: [{ title: "Received, UTC" }, { title: "Order" }, { title: "Net revenue", num: true }, { title: "Touchpoints with a share", all: true }],
    rows: orders.map(({ at: then, tenant, order, journey, currency, net, reversed, share, campaigns }) => [
      dayAndTime(then),
      {
        text: foreign(order ?? "without an id"),
        href: journey === null ? "" : `#journey?${new URLSearchParams({ order: journey, tenant })}`,
        sub: foreign(tenant),
      },
      {
        text: `${money(net, 2)} ${foreign(currency ?? "")}`,
        sub: [reversed ? `${money(reversed, 2)} reversed` : "", share < 1 ? `share ${(100 * share).toFixed(0)} %` : ""].filter(Boolean).join(", "),
      },
      campaigns.map((fields) => foreign(fields.filter((each) => each && each !== "(direct)").join(" / "), 120)).join("; "),
    ]),
    nothing: "No orders were found.",
  });
  if (leftOut) child(host, "p", "note", `${plural(leftOut, "earlier order")} not listed.`);
}
