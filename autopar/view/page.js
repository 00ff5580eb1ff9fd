// The page: cards, tabs, the graph's tools. Everything starts here.

function cards(plan, show) {
  const { head, params, text } = plan, { cost, solve, cluster, mesh, labels } = head;
  const numParams = sum(params.shape_t.map((_, i) => text(params.shape_t, i).reduce((p, q) => p * q, 1)));
  const compute = sum(plan.nodes.seconds), comm = sum(plan.comms.seconds), peak = sum(Object.values(cost.holders)), limit = cluster.memory_bytes;
  const card = (id, title, value, print, note, tab, extra = null) => el("button", { class: "card", "data-card": id, "data-value": value, on: { click: () => show(tab) } },
    el("span", { class: "name" }, title), el("b", {}, print), el("span", { class: "sub" }, note), extra);
  const bar = el("span", { class: peak > limit ? "bar over" : "bar" }, el("i"));
  bar.firstChild.style.width = `${Math.min(100, 100 * peak / limit)}%`;
  const rates = [cost.tokens_per_s === null ? "" : `${short(cost.tokens_per_s)} tokens/s`, cost.mfu === null ? "" : `MFU ${percent(cost.mfu)}`].filter(Boolean).join(" · ");
  return [
    card("num_params", head.model.name, numParams, `${short(numParams)} parameters`, `${head.model.precision} on ${cluster.spec}`, "Parameters"),
    card("mesh", "mesh", mesh.num_stages, mesh.axes.map((a) => `${a.name} ${a.size}`).join(" × ") || "1 rank", Object.entries(labels).map(([axis, names]) => `${axis}: ${names.join(" + ")}`).join(" · ") || "nothing is split", "Graph"),
    card("step_s", "step, predicted", compute + cost.exposed_comm_s + cost.bubble_s, ms(compute + cost.exposed_comm_s + cost.bubble_s), rates || "compute + exposed + bubble", "Graph"),
    card("compute_s", "compute", compute, ms(compute), `${whole(plan.nodes.name.length)} nodes`, "Graph"),
    card("exposed_comm_s", "exposed communication", cost.exposed_comm_s, ms(cost.exposed_comm_s), `of ${ms(comm)} in all${cost.bubble_s ? ` · bubble ${ms(cost.bubble_s)}` : ""}`, "Communication"),
    card("peak_bytes", "peak memory per device", peak, `${bytes(peak)} of ${bytes(limit)}`, "", "Memory", bar),
    card("gap", "certificate", solve.gap, solve.gap <= 1e-6 ? "optimal" : `within ${percent(solve.gap)}`, `bound ${ms(solve.lower_bound_s)}`, "Certificate"),
  ];
}

function graphTab(plan) {
  const tree = buildTree(plan);
  let graph;
  const goTo = (i) => graph.reveal(tree.leafOf.get(plan.rep[i]), plan.blockOf[i]);
  const details = buildDetails(plan, tree, goTo);
  graph = buildGraph(plan, tree, details.show);
  const legend = el("span", { class: "legend", "aria-label": "Colours" });
  const drawLegend = () => {
    const axis = plan.axes[graph.state.axis];
    const found = graph.shareOf(tree.root);
    legend.replaceChildren(...(axis ? found.map(([name, n]) => el("span", { class: `chip ${name}`, title: `${n} outputs` }, name[0] === "S" ? `dim ${name.slice(1)}${name === "S7" ? "+" : ""} split` : name === "R" ? "replicated" : "partial")) : ["one rank: nothing is split"]));
  };
  const segment = (label, entries) => entries.length ? el("span", { class: "segments", role: "group", "aria-label": label }, el("span", { class: "note" }, label), ...entries) : null;
  const axes = plan.axes.map((axis, k) => el("button", { "aria-pressed": k === graph.state.axis, "data-axis": axis.name, title: `${axis.size} ranks, ${axis.link === "across" ? "across hosts" : "inside a host"}`, on: { click: (e) => {
    for (const b of axes) b.setAttribute("aria-pressed", b === e.currentTarget);
    graph.setAxis(k); drawLegend();
  } } }, `${axis.name} (${axis.size})`));
  const phases = PHASES.filter((p) => tree.root.children.some((c) => c.phase === p)).map((phase) => el("button", { "aria-pressed": "true", "data-phase": phase, on: { click: (e) => {
    const on = e.currentTarget.getAttribute("aria-pressed") !== "true";
    e.currentTarget.setAttribute("aria-pressed", on);
    graph.setPhase(phase, on);
  } } }, phase));
  const chips = el("button", { "aria-pressed": "true", title: "Parameters, states and batch tensors as small boxes beside their readers", on: { click: (e) => {
    const on = e.currentTarget.getAttribute("aria-pressed") !== "true";
    e.currentTarget.setAttribute("aria-pressed", on);
    graph.setChips(on);
  } } }, "inputs");
  const button = (name, title, act) => el("button", { title, on: { click: act } }, name);
  const tools = el("div", { class: "tools" }, searchBox(plan, tree, graph, goTo), segment("colour by axis", axes), legend, segment("show", [...phases, chips]),
    el("span", { class: "segments" }, button("Expand all", "Open groups until about 2,000 boxes are shown", graph.expandAll), button("Collapse all", "Close all groups", graph.collapseAll), button("Fit", "Show everything", () => graph.fit()), button("+", "Nearer", () => graph.zoom(1.3)), button("−", "Farther", () => graph.zoom(1 / 1.3))));
  const section = el("section", { class: "graph" }, tools, el("div", { class: "stage" }, graph.canvas, graph.notice, details.panel));
  let started = false;
  const start = () => {
    if (started) return;
    started = true;
    for (const phase of tree.root.children) graph.state.open.add(phase);
    graph.render(); graph.fit(tree.root); drawLegend();
  };
  return { section, start, goTo, graph };
}

function searchBox(plan, tree, graph, goTo) {
  const { nodes, tensors, text } = plan;
  let entries = null; // made on the first key
  const list = el("ul", { class: "hits", role: "listbox" });
  const build = () => [
    ...[...tree.all.values()].filter((g) => g.path && g.parent?.children.includes(g)).map((g) => ({ text: `${g.path} ${g.phase}`.toLowerCase(), name: g.title ?? g.name, note: `${g.phase} · ${g.path}`, act: () => graph.reveal(g) })),
    ...nodes.name.map((name, i) => ({ text: `${name} ${text(nodes.op_t, i)} ${text(nodes.path_t, i)} ${PHASES[nodes.phase[i]]}`.toLowerCase(), name, note: `${PHASES[nodes.phase[i]]} · ${text(nodes.path_t, i)}`, act: () => goTo(i) })),
    ...tensors.name.map((name, t) => ({ text: name.toLowerCase(), name, note: `tensor, ${text(tensors.kind_t, t)}`, reader: plan.producer[t] >= 0 ? plan.producer[t] : plan.consumers[t][0] })).filter((e) => e.reader !== undefined && e.name.includes("@")).map((e) => ({ ...e, act: () => goTo(e.reader) })),
  ];
  const update = () => {
    entries ??= build();
    const words = input.value.toLowerCase().split(/[\s/]+/).filter(Boolean);
    const typed = words.join(" "), far = (e) => (e.name.toLowerCase().includes(typed) ? e.name.length : 1e6); // shortest name that has it all comes first
    const hits = words.length ? entries.filter((e) => words.every((w) => e.text.includes(w))).sort((p, q) => far(p) - far(q)) : [];
    list.replaceChildren(...hits.slice(0, 40).map((hit) => el("li", { role: "option", on: { pointerdown: (e) => { e.preventDefault(); choose(hit); } } }, el("b", {}, hit.name), el("span", { class: "note" }, ` ${hit.note}`))),
      ...(words.length ? [el("li", { class: "note" }, hits.length > 40 ? `the first 40 of ${whole(hits.length)}` : `${hits.length} found`)] : []));
    list.first = hits[0];
    list.classList.toggle("shown", words.length > 0);
  };
  const choose = (hit) => { list.classList.remove("shown"); hit.act(); };
  const input = el("input", { type: "search", id: "search", placeholder: "Search modules, nodes, ops, tensors", "aria-label": "Search", on: {
    input: update, focus: () => input.value && update(), blur: () => list.classList.remove("shown"),
    keydown: (e) => { if (e.key === "Enter" && list.first) choose(list.first); if (e.key === "Escape") list.classList.remove("shown"); },
  } });
  return el("span", { class: "search" }, input, list);
}

async function start() {
  const plan = await unpackPlan();
  const main = document.getElementById("main"), tabs = document.getElementById("tabs");
  const graph = graphTab(plan);
  const goTo = (i) => { show("Graph"); graph.goTo(i); };
  const pages = { Graph: () => graph.section, Memory: () => memoryTab(plan), Parameters: () => parametersTab(plan), Communication: () => communicationTab(plan, goTo), Certificate: () => certificateTab(plan) };
  const made = new Map();
  function show(name) {
    if (!made.has(name)) { made.set(name, pages[name]()); main.append(made.get(name)); }
    for (const [key, section] of made) section.hidden = key !== name;
    for (const tab of tabs.children) tab.setAttribute("aria-selected", tab.dataset.tab === name);
    if (name === "Graph") graph.start();
  }
  document.getElementById("cards").append(...cards(plan, show), el("p", { class: "summary" }, plan.head.summary));
  tabs.append(...Object.keys(pages).map((name) => el("button", { role: "tab", "data-tab": name, on: { click: () => show(name) } }, name)));
  main.replaceChildren();
  show("Graph");
  document.documentElement.dataset.ready = Math.round(performance.now());
}

start().catch((error) => {
  document.getElementById("main").textContent = `This page could not be shown: ${error.message}. A browser of 2023 or later is needed.`;
  throw error;
});
