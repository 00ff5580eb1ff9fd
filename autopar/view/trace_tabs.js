// The other tabs of a step's opportunities: how far each factor runs, what waits for what, what is rewritten.

const PHASE_COLORS = ["#a98bf0", "#5b9bf3", "#f5b92e", "#35c491"]; // prepare, forward, backward, update
const COLLECTIVE_WORDS = {
  all_reduce: "Each rank holds a part of a sum: all add up, and all get the whole sum.",
  reduce_scatter: "Each rank holds a part of a sum: all add up, and each keeps one piece.",
  all_gather: "Each rank holds a piece: all get the whole.",
  all_to_all: "Each rank holds a piece along one dim, and gets a piece along another.",
};

function factorsTab(plan, colour) {
  const all = total(plan), box = el("section", { class: "page" });
  box.append(el("h2", {}, "How far each factor runs, if it alone is split"),
    el("p", { class: "note" }, "A factor is one dim followed through the whole step: where an op can be divided along it the bar grows, where the ranks must talk to each other is listed below it. Shares overlap: a matmul counts for each factor that may divide it."),
    el("div", { class: "legend" }, ...phaseSwatches(plan), el("span", {}, el("i", { class: "swatch undivided" }), "not divided")),
    el("details", { class: "words" }, el("summary", {}, "What the words mean"), el("ul", {}, ...Object.entries(COLLECTIVE_WORDS).map(([kind, words]) => el("li", {}, el("span", { class: "kind", "data-comm": kind }, kind), ` ${words}`)), el("li", {}, "bytes: of the whole tensor, whatever the number of ranks"))));
  const large = plan.factors.filter((f) => f.axis), small = plan.factors.filter((f) => !f.axis);
  box.append(...large.map((f) => factorBlock(plan, f, all, colour)));
  if (small.length) box.append(el("details", { class: "factor" }, el("summary", {}, `${small.length} more that cover less`), ...small.map((f) => factorBlock(plan, f, all, null))));
  return box.append(...splitSection(plan)), box;
}

const swatch = (color) => { const s = el("i", { class: "swatch" }); s.style.background = color; return s; };

// The phases that the step has, each with its colour.
const phaseSwatches = (plan) => PHASES.flatMap((phase, p) => (plan.nodes.phase.includes(p) ? [el("span", {}, swatch(PHASE_COLORS[p]), phase)] : []));

// One bar of the whole step: what the factor divides, phase by phase, in the phase's colour; the rest stays grey.
function coverBar(plan, axis, column, whole, share) {
  const bar = el("div", { class: "cover", title: percent(share) }), divided = PHASES.map(() => 0), sums = PHASES.map(() => 0);
  plan.nodes.name.forEach((_, i) => {
    sums[plan.nodes.phase[i]] += plan.nodes[column][i];
    if (axis >= 0 && plan.text(plan.nodes.divided_t, i)[axis] === "1") divided[plan.nodes.phase[i]] += plan.nodes[column][i];
  });
  PHASES.forEach((phase, p) => {
    if (!sums[p]) return;
    const part = el("i", { title: `${phase}: ${percent(sums[p] ? divided[p] / sums[p] : 0)} of its ${column === "flops" ? "FLOPs" : "bytes"}` }), rest = el("i", { class: "rest", title: `${phase}, not divided` });
    part.style.cssText = `width:${100 * divided[p] / (whole || 1)}%;background:${PHASE_COLORS[p]}`;
    rest.style.width = `${100 * (sums[p] - divided[p]) / (whole || 1)}%`;
    bar.append(part, rest);
  });
  return bar;
}

function factorBlock(plan, factor, all, colour) {
  const axis = plan.axes.findIndex((a) => a.name === factor.axis), count = sum(factor.rows.map((r) => r.count)), moved = sum(factor.rows.map((r) => r.bytes));
  const line = (name, column, whole) => el("tr", {}, el("th", {}, name), el("td", { class: "number", "data-value": factor[column] / (whole || 1) }, percent(factor[column] / (whole || 1))),
    axis < 0 ? null : el("td", { class: "wide" }, coverBar(plan, axis, column, whole, factor[column] / (whole || 1))));
  const syncs = factor.rows.length ? el("details", { open: plan.factors.indexOf(factor) < 3 }, el("summary", {}, `synchronises at ${whole(count)} place${count > 1 ? "s" : ""}, ${bytes(moved)} in all`), buildTable({
    id: `syncs-${plan.factors.indexOf(factor)}`, rows: factor.rows, columns: [
      { title: "what is done", align: "left", of: (r) => r.kind, print: (kind) => el("span", { title: COLLECTIVE_WORDS[kind], class: "kind", "data-comm": kind }, kind) },
      { title: "to", align: "left", of: (r) => r.subject }, { title: "before", align: "left", of: (r) => r.phase || "the end" },
      { title: "count", of: (r) => r.count, print: whole, total: "sum" }, { title: "bytes", of: (r) => r.bytes, print: bytes, total: "sum" },
      { title: "where", align: "left", of: (r) => r.where, print: (where, r) => el("span", { class: "where" }, where, r?.modules ? el("span", { class: "note each" }, `in ${r.modules}`) : null) }, { title: "why", align: "left", of: (r) => r.reason, print: (why) => el("span", { class: "why" }, why) },
    ] })) : el("p", { class: "note" }, "runs through without any synchronisation");
  return el("div", { class: "factor", "data-factor": factor.axis || factor.name },
    el("h3", { class: "factorname" }, el("b", {}, factor.axis || factor.name), ` size ${factor.size} `, el("code", {}, factor.start), colour ? el("button", { class: "link", on: { click: () => colour(factor.axis) } }, "see it in the graph") : ""),
    el("table", { class: "covers" }, el("tbody", {}, line("FLOPs", "flops", all.flops), line("bytes", "bytes", all.bytes))), syncs);
}

function splitSection(plan) {
  const { split } = plan, told = `${percent(split.flops_share)} of FLOPs and ${percent(split.bytes_share)} of bytes are in ops that some strategy divides among ${split.num_ranks} ranks.`;
  return [el("h2", {}, `On ${split.num_ranks} ranks`), el("p", { class: "lead" }, told), split.kept.length ? buildTable({ id: "kept", rows: split.kept, columns: [
    { title: "kept whole", align: "left", of: (r) => r.op, print: (op) => el("code", {}, op) }, { title: "count", of: (r) => r.count, print: whole, total: "sum" }, { title: "at most", of: (r) => r.ranks, print: (n) => (n > 1 ? `${n} ranks` : "whole") },
    { title: "of FLOPs", of: (r) => r.flops_share, print: percent, total: "sum" }, { title: "of bytes", of: (r) => r.bytes_share, print: percent, total: "sum" },
    { title: "where", align: "left", of: (r) => r.source }, { title: "why", align: "left", of: (r) => r.reason, print: (why) => el("span", { class: "why" }, why) },
  ] }) : el("p", { class: "note" }, "No op that holds more than 1 % of either is kept whole.")];
}

function waitingTab(plan) {
  const { paths, chain, widths } = plan, box = el("section", { class: "page" });
  const names = { flops: "FLOPs", bytes: "bytes", nodes: "nodes" }, print = { flops: short, bytes, nodes: whole };
  box.append(el("h2", {}, "The longest chain against all work"), el("p", { class: "note" }, "A node waits for the nodes that make its inputs. If every op that waits for nothing ran at once, so many would run side by side on average: all over the longest chain. A small number says that the room is inside the tensors, not in the order of the ops."),
    buildTable({ id: "paths", rows: paths, columns: [
      { title: "measured in", align: "left", of: (r) => names[r.measure] }, { title: "all", of: (r) => r.total, print: (n, r) => print[r.measure](n) },
      { title: "longest chain", of: (r) => r.length, print: (n, r) => print[r.measure](n) }, { title: "at once", of: (r) => (r.length ? r.total / r.length : 1), print: digits },
    ] }),
    el("h2", {}, "How wide the graph is"), el("div", { class: "legend" }, ...phaseSwatches(plan)), widthChart(plan),
    el("p", { class: "note" }, `From left to right the ${whole(widths.length)} levels: a node's level is the number of nodes that must run before it, one after the other. The height is how many nodes have that level (logarithmic), ${digits(plan.nodes.name.length / (widths.length || 1))} on average. Work of the optimizer that waits for no gradient stands at the left.`),
    el("h2", {}, "The longest chain in FLOPs, by module"), buildTable({ id: "chain", rows: chain, sortBy: 3, searchable: chain.length > 12, columns: [
      { title: "module", align: "left", of: (r) => r.module, print: (name) => el("code", {}, name) }, { title: "phase", align: "left", of: (r) => r.phase },
      { title: "nodes", of: (r) => r.count, print: whole, total: "sum" }, { title: "FLOPs", of: (r) => r.flops, print: short, total: "sum" },
      { title: "of the chain", of: (r) => r.flops / (paths[0].length || 1), print: percent, total: "sum" }, { title: "bytes", of: (r) => r.bytes, print: bytes, total: "sum" },
    ] }), el("p", { class: "note" }, "In the graph its nodes have a thick frame."));
  return box;
}

// One bar per level, stacked by phase on a logarithmic height; of many levels in one pixel the widest is shown.
function widthChart(plan) {
  const { nodes, widths } = plan, W = 1240, H = 260, L = 46, T = 12, B = 24, num = widths.length;
  const counts = widths.map(() => PHASES.map(() => 0));
  nodes.level.forEach((level, i) => { counts[level][nodes.phase[i]]++; });
  const columns = Math.min(num, 1000) || 1, top = Math.log2(1 + Math.max(1, ...widths)), y = (n) => T + (H - T - B) * (1 - Math.log2(1 + n) / top), x = (c) => L + (W - L - 10) * c / columns;
  const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "memory", role: "img", "aria-label": "Nodes at each level" });
  for (let n = 1; n <= Math.max(1, ...widths); n = n === 1 ? 10 : n * 10) root.append(svg("line", { x1: L, x2: W - 10, y1: y(n), y2: y(n), class: "grid" }), svg("text", { x: L - 8, y: y(n) + 4, class: "small end" }, whole(n)));
  for (let c = 0; c < columns; c++) {
    const from = Math.floor(c * num / columns), to = Math.max(from + 1, Math.floor((c + 1) * num / columns));
    let best = from;
    for (let i = from; i < Math.min(to, num); i++) if (widths[i] > widths[best]) best = i;
    let base = 0;
    const label = `level ${best}: ${PHASES.map((p, k) => (counts[best]?.[k] ? `${counts[best][k]} ${p}` : "")).filter(Boolean).join(", ")}`;
    (counts[best] ?? []).forEach((n, p) => {
      if (n) root.append(svg("rect", { x: x(c).toFixed(1), width: Math.max(0.8, x(c + 1) - x(c) - 0.3).toFixed(1), y: y(base + n).toFixed(1), height: (y(base) - y(base + n)).toFixed(1), fill: PHASE_COLORS[p] }, svg("title", {}, label)));
      base += n;
    });
  }
  for (const share of [0, 0.25, 0.5, 0.75, 1]) root.append(svg("text", { x: x(columns * share), y: H - 8, class: share === 1 ? "small end" : share ? "small mid" : "small" }, whole(Math.max(0, num - 1) * share)));
  return el("div", { class: "chartbox" }, root);
}

function rewritesTab(plan, goTo) {
  return el("section", { class: "page" }, el("h2", {}, "Which storages are rewritten where"),
    el("p", { class: "note" }, "No write changes a value: it makes the next version of its storage, so nothing waits for it but who reads the new one. In place the write would also have to wait for the last read of the version before. Equal storages of equal layers are one row; click a row to see its node."),
    buildTable({ id: "rewrites", rows: plan.rewrites, searchable: true, onRow: (r) => goTo(r.node), columns: [
      { title: "storage", align: "left", of: (r) => r.storage, print: (name) => el("code", {}, name) }, { title: "count", of: (r) => r.count, print: (n, r) => (r ? `×${n}` : whole(n)), total: "sum" },
      { title: "kind", align: "left", of: (r) => r.kind }, { title: "versions", align: "left", of: (r) => (r.kind === "grad" && r.version === 1 ? "@1" : `@${r.version - 1} → @${r.version}`) },
      { title: "bytes", of: (r) => r.bytes, print: bytes, total: "sum" }, { title: "by", align: "left", of: (r) => opName(r.op) }, { title: "phase", align: "left", of: (r) => r.phase },
      { title: "where", align: "left", of: (r) => r.source || "no line known" }, { title: "last read before by", align: "left", of: (r) => (r.last ? opName(r.last) : "nothing") },
    ] }));
}
