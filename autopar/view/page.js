// The page of a plan: cards and tabs. Everything starts here.

function cards(plan, show) {
  const { head, params, text } = plan, { cost, solve, cluster, mesh, labels } = head;
  const numParams = sum(params.shape_t.map((_, i) => text(params.shape_t, i).reduce((p, q) => p * q, 1)));
  const stages = mesh.num_stages, compute = sum(plan.nodes.seconds) / stages, comm = sum(plan.comms.seconds) / stages, peak = sum(Object.values(cost.holders)), limit = cluster.memory_bytes;
  const card = (id, title, value, print, note, tab, extra = null) => el("button", { class: "card", "data-card": id, "data-value": value, on: { click: () => show(tab) } },
    el("span", { class: "name" }, title), el("b", {}, print), el("span", { class: "sub" }, note), extra);
  const bar = el("span", { class: peak > limit ? "bar over" : "bar" }, el("i"));
  bar.firstChild.style.width = `${Math.min(100, 100 * peak / limit)}%`;
  const rates = [cost.tokens_per_s === null ? "" : `${short(cost.tokens_per_s)} ${head.counted}/s`, cost.mfu === null ? "" : `MFU ${percent(cost.mfu)}`].filter(Boolean).join(" · ");
  return [
    card("num_params", head.model.name, numParams, `${short(numParams)} parameters`, `${head.model.precision} on ${cluster.spec}`, "Parameters"),
    card("mesh", "mesh", stages, `${stages > 1 ? `${stages} stages of ` : ""}${mesh.axes.map((a) => `${a.name} ${a.size}`).join(" × ") || "1 rank"}`, Object.entries(labels).map(([axis, names]) => `${axis}: ${names.join(" + ")}`).join(" · ") || "nothing is split", stages > 1 ? "Stages" : "Graph"),
    card("step_s", "step, predicted", compute + cost.exposed_comm_s + cost.bubble_s, ms(compute + cost.exposed_comm_s + cost.bubble_s), rates || "compute + exposed + bubble", "Graph"),
    card("compute_s", stages > 1 ? "compute, average stage" : "compute", compute, ms(compute), `${whole(plan.nodes.name.length)} nodes${head.num_microbatches > 1 ? `, ${head.num_microbatches} microbatches` : ""}`, "Graph"),
    card("exposed_comm_s", "exposed communication", cost.exposed_comm_s, ms(cost.exposed_comm_s), `of ${ms(comm)} in all${cost.bubble_s ? ` · bubble ${ms(cost.bubble_s)}` : ""}`, "Communication"),
    card("peak_bytes", "peak memory per device", peak, `${bytes(peak)} of ${bytes(limit)}`, "", "Memory", bar),
    card("gap", "certificate", solve.gap, solve.gap <= 1e-6 ? "optimal" : `within ${percent(solve.gap)}`, `bound ${ms(solve.lower_bound_s)}`, "Certificate"),
  ];
}

// What the graph says of a plan.
function planWords(plan) {
  const { nodes, tensors, text } = plan;
  return {
    axis: "axis", axisTitle: (axis) => `${axis.size} ranks, ${axis.link === "across" ? "across hosts" : "inside a host"}`,
    costOf: (i) => nodes.seconds[i], cost: ms, shown: (comms) => comms, marked: () => false,
    below: (i) => { const out = nodes.outputs[i][0]; return out === undefined ? "" : text(tensors.sharding_t, out) === "-" ? "whole" : text(tensors.sharding_t, out); },
  };
}

async function start() {
  const plan = await unpackPlan();
  plan.words = planWords(plan);
  const graph = graphTab(plan, DETAILS), goTo = (i) => { show("Graph"); graph.goTo(i); };
  const show = showTabs(graph, { Graph: () => graph.section, ...(plan.head.mesh.num_stages > 1 ? { Stages: () => stagesTab(plan) } : {}), Memory: () => memoryTab(plan), Parameters: () => parametersTab(plan), Communication: () => communicationTab(plan, goTo), Certificate: () => certificateTab(plan) });
  document.getElementById("cards").append(...cards(plan, show), el("p", { class: "summary" }, plan.head.summary));
  show("Graph");
}

startPage(start);
