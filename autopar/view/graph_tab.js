// The graph's tab: its tools, the search, and the panel beside it.

function graphTab(plan, makers) {
  const tree = buildTree(plan);
  let graph;
  const goTo = (i) => graph.reveal(tree.leafOf.get(plan.rep[i]), plan.blockOf[i]);
  const details = buildDetails(plan, tree, goTo, makers);
  graph = buildGraph(plan, tree, details.show);
  const legend = el("span", { class: "legend", "aria-label": "Colours" });
  const drawLegend = () => {
    const axis = plan.axes[graph.state.axis];
    const found = graph.shareOf(tree.root);
    legend.replaceChildren(...(axis ? found.map(([name, n]) => el("span", { class: `chip ${name}`, title: `${n} outputs` }, name[0] === "S" ? `dim ${name.slice(1)}${name === "S7" ? "+" : ""} split` : name === "R" ? "replicated" : "partial")) : ["one rank: nothing is split"]));
  };
  const segment = (label, entries) => entries.length ? el("span", { class: "segments", role: "group", "aria-label": label }, el("span", { class: "note" }, label), ...entries) : null;
  const axes = plan.axes.map((axis, k) => el("button", { "aria-pressed": k === graph.state.axis, "data-axis": axis.name, title: plan.words.axisTitle(axis), on: { click: (e) => {
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
  const tools = el("div", { class: "tools" }, searchBox(plan, tree, graph, goTo), segment(`colour by ${plan.words.axis}`, axes), legend, segment("show", [...phases, chips]),
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
