// The page of a step's opportunities: cards and tabs. Everything starts here.

// What the graph says: a box is filled by how its output lies if the chosen factor alone is split; what is on the longest chain is framed.
function traceWords(plan) {
  const { nodes, tensors, comms, text } = plan;
  return {
    axis: "factor", axisTitle: (axis) => `${axis.size}, starts at ${axis.start}`,
    costOf: (i) => nodes.flops[i], cost: (flops) => flopsText(flops), shown: (list, axis) => list.filter((c) => comms.axis[c] === axis),
    marked: (i) => nodes.critical[i] === 1,
    below: (i) => { const out = nodes.outputs[i][0]; return out === undefined ? "" : shapeText(text(tensors.dtype_t, out), text(tensors.shape_t, out)); },
  };
}

const total = (plan) => ({ flops: sum(plan.nodes.flops), bytes: sum(plan.nodes.bytes) });

function traceCards(plan, show) {
  const { head, factors, paths, split, widths } = plan, all = total(plan), flops = paths[0];
  const card = (id, title, value, print, note, tab) => el("button", { class: "card", "data-card": id, "data-value": value, on: { click: () => show(tab) } },
    el("span", { class: "name" }, title), el("b", {}, print), el("span", { class: "sub" }, note));
  const most = factors[0];
  return [
    card("num_params", head.model.name, head.model.num_params, `${short(head.model.num_params)} parameters`, `${head.model.precision}, ${whole(plan.nodes.name.length)} nodes`, "Graph"),
    card("flops", "work of one step", all.flops, flopsText(all.flops), `${bytes(all.bytes)} read and written`, "Graph"),
    most ? card("factor", "the factor that runs farthest", most.flops, most.axis || most.name, `divides ${percent(most.flops / (all.flops || 1))} of FLOPs`, "Factors") : null,
    card("split", `on ${split.num_ranks} ranks`, split.flops_share, `${percent(split.flops_share)} of FLOPs`, `and ${percent(split.bytes_share)} of bytes can be divided`, "Factors"),
    card("parallelism", "ops that could run at once", flops.length ? flops.total / flops.length : 1, flops.length ? digits(flops.total / flops.length) : "1", "all FLOPs over the longest chain's", "Waiting"),
    card("depth", "longest chain", widths.length, `${whole(widths.length)} nodes`, `up to ${whole(Math.max(0, ...widths))} side by side`, "Waiting"),
    card("rewrites", "rewritten", sum(plan.rewrites.map((r) => r.count)), `${whole(sum(plan.rewrites.map((r) => r.count)))} storages`, bytes(sum(plan.rewrites.map((r) => r.bytes))), "Rewrites"),
  ].filter(Boolean);
}

async function start() {
  const plan = await unpackPlan();
  plan.words = traceWords(plan);
  const graph = graphTab(plan, TRACE_DETAILS), goTo = (i) => { show("Graph"); graph.goTo(i); };
  const colour = (axis) => { show("Graph"); document.querySelector(`[data-axis="${CSS.escape(axis)}"]`).click(); };
  const show = showTabs(graph, { Factors: () => factorsTab(plan, colour), Graph: () => graph.section, Waiting: () => waitingTab(plan), Rewrites: () => rewritesTab(plan, goTo) });
  const missing = plan.head.unknown.length ? el("p", { class: "summary" }, `No rule for ${plan.head.unknown.join(", ")}: kept whole, FLOPs counted as 0.`) : null;
  document.getElementById("cards").append(...traceCards(plan, show), ...(missing ? [missing] : []));
  show("Factors");
}

startPage(start);
