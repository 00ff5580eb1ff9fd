// Tables: sortable columns, a filter, and a last row with the sums of ALL rows. Cells carry their raw number in data-value.

const MAX_ROWS = 400;

// columns: [{title, of: row -> value, print: value -> text or element, total: "sum" | undefined, align: "left" | "right", hint}]
function buildTable({ id, columns, rows, sortBy = null, descending = true, onRow = null, searchable = false, note = "" }) {
  const body = el("tbody"), foot = el("tfoot"), more = el("div", { class: "more" });
  const state = { sortBy, descending, filter: "", limit: MAX_ROWS };
  const heads = columns.map((column, k) => el("th", {
    class: column.align === "left" ? "" : "number", title: column.hint, "aria-sort": "none", tabindex: 0,
    on: { click: () => sortOn(k), keydown: (e) => { if (e.key === "Enter") sortOn(k); } },
  }, column.title));

  function sortOn(k) {
    state.descending = state.sortBy === k ? !state.descending : columns[k].align !== "left";
    state.sortBy = k;
    fill();
  }

  function fill() {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = rows.filter((row) => words.every((word) => columns.some((c) => c.align === "left" && String(c.of(row)).toLowerCase().includes(word))));
    if (state.sortBy !== null) {
      const of = columns[state.sortBy].of, sign = state.descending ? -1 : 1;
      shown = [...shown].sort((p, q) => { const x = of(p), y = of(q); return sign * (x < y ? -1 : x > y ? 1 : 0); });
    }
    heads.forEach((head, k) => head.setAttribute("aria-sort", k !== state.sortBy ? "none" : state.descending ? "descending" : "ascending"));
    body.replaceChildren(...shown.slice(0, state.limit).map((row) => el("tr", onRow ? { class: "link", on: { click: () => onRow(row) } } : {}, ...columns.map((c) => cell(c, row)))));
    const totals = columns.map((c) => (c.total ? sum(shown.map(c.of)) : null));
    foot.replaceChildren(...(totals.some((t) => t !== null) ? [el("tr", {}, ...columns.map((c, k) => (totals[k] === null
      ? el("td", {}, k === 0 ? `sum of ${whole(shown.length)} rows` : "")
      : el("td", { class: "number", "data-value": totals[k] }, c.print ? c.print(totals[k], null) : String(totals[k])))))] : []));
    more.replaceChildren(...(shown.length > state.limit
      ? [`The first ${whole(state.limit)} of ${whole(shown.length)} rows; the sums count all. `, el("button", { on: { click: () => { state.limit = Infinity; fill(); } } }, "Show all")]
      : []));
  }

  function cell(column, row) {
    const value = column.of(row), printed = column.print ? column.print(value, row) : String(value);
    return el("td", { class: column.align === "left" ? "" : "number", "data-value": typeof value === "number" ? value : undefined }, printed);
  }

  fill();
  const search = searchable ? el("input", {
    type: "search", placeholder: "Filter", "aria-label": "Filter rows", on: { input: (e) => { state.filter = e.target.value; state.limit = MAX_ROWS; fill(); } },
  }) : null;
  return el("div", { class: "table", id }, search || note ? el("div", { class: "tools" }, search, note ? el("span", { class: "note" }, note) : null) : null,
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body, foot)), more);
}

// A sharding as small coloured pieces, one per mesh axis.
function shardingChips(plan, text) {
  if (text === null || text === undefined) return "none";
  if (text === "-") return "whole";
  return el("span", { class: "sharding" }, ...text.split(",").map((p, k) => el("span", {
    class: `chip ${category(p)}`, title: `axis ${plan.axes[k]?.name}: ${placementWords(p)}`,
  }, p)));
}

// Two-column list of facts.
function factList(facts) {
  return el("table", { class: "facts" }, el("tbody", {}, ...facts.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([key, value]) => el("tr", {}, el("th", {}, key), el("td", {}, value)))));
}
