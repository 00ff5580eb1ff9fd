// The other tabs: memory, parameters, communication, certificate.

const HOLDER_COLORS = {
  parameters: "#5b9bf3", optimizer: "#35c491", gradients: "#f5b92e", activations: "#f37272", gathered: "#a78bfa", temporaries: "#9aa3af", buffers: "#4fb3c8", batch: "#c58b5b", reserve: "#d3d7de",
};
const HOLDER_ORDER = ["reserve", "parameters", "buffers", "optimizer", "batch", "gradients", "activations", "gathered", "temporaries"];
const MESSAGE_HINT = "of each communication the larger of what one rank puts in and gets out; all microbatches together";
const holderColor = (name) => HOLDER_COLORS[name] ?? "#b08968";

function memoryTab(plan) {
  const { head } = plan, limit = head.cluster.memory_bytes, holders = Object.entries(head.cost.holders), peak = sum(holders.map(([, n]) => n));
  const box = el("section", { class: "page" }, el("h2", {}, head.mesh.num_stages > 1 ? `Memory of one device of stage ${head.cost.peak_bytes.indexOf(Math.max(...head.cost.peak_bytes))}, which holds most, over one step` : "Memory of one device over one step"));
  const names = Object.keys(plan.moments.holders).sort((p, q) => rank(p) - rank(q));
  const chart = el("div", { class: "chart" });
  const draw = (toLimit) => chart.replaceChildren(memoryChart(plan, names, limit, peak, toLimit));
  if (plan.moments.node_t.length) {
    const near = peak > 0.4 * limit;
    const choice = el("label", { class: "switch" }, el("input", { type: "checkbox", checked: near, on: { change: (e) => draw(e.target.checked) } }), " scale up to the device's limit");
    box.append(el("div", { class: "legend" }, ...names.map((name) => el("span", {}, swatch(holderColor(name)), name)), choice), chart);
    draw(near);
  } else box.append(el("p", { class: "note" }, "This plan has no record of memory over time."));
  box.append(el("h2", {}, "Who holds it at the peak"), buildTable({
    id: "holders", rows: holders.sort((p, q) => q[1] - p[1]), columns: [
      { title: "holder", align: "left", of: ([name]) => name, print: (name) => el("span", {}, swatch(holderColor(name)), name) },
      { title: "bytes", of: ([, n]) => n, print: bytes, total: "sum" },
      { title: "of the peak", of: ([, n]) => (peak ? n / peak : 0), print: percent, total: "sum" },
      { title: "of the limit", of: ([, n]) => n / limit, print: percent, total: "sum" },
    ],
  }));
  box.append(el("p", { class: "note" }, `Limit ${bytes(limit)} per device; ${peak <= limit ? `${bytes(limit - peak)} stay free` : `${bytes(peak - limit)} too much`}. Not counted: scratch space inside kernels, fragmentation, and what other programs hold${holders.some(([n]) => n === "reserve") ? "" : "; no reserve is set"}.`));
  return box;
}

const rank = (name) => { const k = HOLDER_ORDER.indexOf(name); return k < 0 ? 99 : k; };
const swatch = (color) => { const s = el("i", { class: "swatch" }); s.style.background = color; return s; };

// Step areas: each moment is a column as wide as every other; of many moments in one pixel the highest is shown.
function memoryChart(plan, names, limit, peak, toLimit) {
  const { moments, texts } = plan, W = 1240, H = 380, L = 78, T = 26, B = 40, num = moments.node_t.length;
  const totals = moments.node_t.map((_, i) => sum(names.map((name) => moments.holders[name][i])));
  const top = (toLimit ? Math.max(limit, peak) : peak * 1.08) || 1, y = (n) => T + (H - T - B) * (1 - n / top);
  const columns = Math.min(num, 1000), pick = Array.from({ length: columns }, (_, c) => {
    const from = Math.floor(c * num / columns), to = Math.max(from + 1, Math.floor((c + 1) * num / columns));
    let best = from;
    for (let i = from; i < to; i++) if (totals[i] > totals[best]) best = i;
    return best;
  });
  const x = (c) => L + (W - L - 10) * c / columns, root = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "memory", role: "img", "aria-label": "Memory over the step" });
  for (let k = 0; k <= 4; k++) root.append(svg("line", { x1: L, x2: W - 10, y1: y(top * k / 4), y2: y(top * k / 4), class: "grid" }), svg("text", { x: L - 8, y: y(top * k / 4) + 4, class: "small end" }, bytes(top * k / 4)));
  const base = new Array(columns).fill(0);
  for (const name of names) {
    let up = "", down = "";
    pick.forEach((i, c) => {
      const low = base[c], high = low + moments.holders[name][i];
      up += `${c ? "L" : "M"}${x(c).toFixed(1)},${y(high).toFixed(1)}H${x(c + 1).toFixed(1)}`;
      down = `L${x(c + 1).toFixed(1)},${y(low).toFixed(1)}H${x(c).toFixed(1)}` + down;
      base[c] = high;
    });
    root.append(svg("path", { d: up + down + "Z", fill: holderColor(name), "data-holder": name }));
  }
  PHASES.forEach((phase, p) => {
    const first = pick.findIndex((i) => moments.phase[i] === p);
    if (first < 0) return;
    const last = pick.findLastIndex((i) => moments.phase[i] === p);
    root.append(svg("line", { x1: x(first), x2: x(first), y1: T, y2: H - B + 6, class: "phase" }), svg("text", { x: (x(first) + x(last + 1)) / 2, y: H - 14, class: "mid" }, phase));
  });
  if (limit <= top) root.append(svg("line", { x1: L, x2: W - 10, y1: y(limit), y2: y(limit), class: "limit" }), svg("text", { x: W - 14, y: y(limit) - 6, class: "limit end" }, `device limit ${bytes(limit)}`));
  else root.append(svg("text", { x: W - 14, y: 14, class: "limit end" }, `device limit ${bytes(limit)}, far above this picture`));
  const most = pick.reduce((best, i, c) => (totals[i] > totals[pick[best]] ? c : best), 0), mx = (x(most) + x(most + 1)) / 2;
  root.append(svg("circle", { cx: mx, cy: y(totals[pick[most]]), r: 4 }), svg("text", { x: mx > W - 160 ? mx - 9 : mx + 9, y: y(totals[pick[most]]) + 4, class: mx > W - 160 ? "end peak" : "peak" }, `peak ${bytes(totals[pick[most]])}`));
  const cursor = svg("line", { y1: T, y2: H - B, class: "cursor", x1: -9, x2: -9 }), tip = el("div", { class: "tip" });
  root.append(cursor);
  root.addEventListener("pointermove", (e) => {
    const box = root.getBoundingClientRect(), px = (e.clientX - box.left) * W / box.width, c = Math.min(columns - 1, Math.max(0, Math.floor((px - L) / (W - L - 10) * columns))), i = pick[c];
    for (const k of ["x1", "x2"]) cursor.setAttribute(k, x(c + 0.5));
    tip.replaceChildren(el("b", {}, `${texts[moments.node_t[i]]}, ${PHASES[moments.phase[i]]}: ${bytes(totals[i])}`), ...[...names].reverse().filter((n) => moments.holders[n][i]).map((n) => el("div", {}, swatch(holderColor(n)), `${n} ${bytes(moments.holders[n][i])}`)));
    tip.style.left = `${Math.min(box.width - 230, (e.clientX - box.left) + 14)}px`;
    tip.style.display = "block";
  });
  root.addEventListener("pointerleave", () => { tip.style.display = "none"; cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9); });
  return el("div", { class: "chartbox" }, root, tip, el("p", { class: "note" }, `From left to right in the order of execution, not proportional to time; ${num > columns ? `each column is the highest of about ${Math.round(num / columns)} nodes` : "one column per node of the program"}.`));
}

function parametersTab(plan) {
  const { params, param_folds: folds, text } = plan, stages = plan.head.mesh.num_stages, section = el("section", { class: "page" });
  const rowsOf = (folded) => (folded ? folds : params.name.map((name, i) => ({ name, members: [i] }))).map((fold) => ({ ...fold, i: fold.members[0], n: fold.members.length, of: (column) => sum(fold.members.map((m) => params[column][m])) }));
  const chips = (column) => ({ align: "left", of: (r) => text(params[column], r.i) ?? "none", print: (_, r) => shardingChips(plan, text(params[column], r.i)) });
  const size = (r) => r.n * text(params.shape_t, r.i).reduce((p, q) => p * q, 1);
  const amount = (column) => ({ of: (r) => r.of(column), print: (n, r) => (r && r.n > 1 ? el("span", {}, bytes(n), el("span", { class: "note each" }, `${bytes(params[column][r.i])} each`)) : bytes(n)), total: "sum", hint: "on one rank, in its own sharding" });
  const draw = (folded) => {
    section.replaceChildren(el("h2", {}, "Parameters, their gradients and optimizer states"),
      el("label", { class: "switch" }, el("input", { type: "checkbox", checked: folded, on: { change: (e) => draw(e.target.checked) } }), " fold equal rows (a folded row shows the sum of its members, and each)"),
      buildTable({ id: "params", rows: rowsOf(folded), sortBy: null, searchable: true, note: `Bytes on one rank${stages > 1 ? " of each stage, sums over all stages" : ""}. Gradients count as if all were held at once; what is held when is on the memory page.`, columns: [
        { title: "name", align: "left", of: (r) => r.name, print: (name) => el("code", {}, name) },
        ...(stages > 1 ? [{ title: "stage", align: "left", of: (r) => [...new Set(r.members.map((m) => params.stage[m]))].sort((p, q) => p - q).join(", ") }] : []),
        { title: "count", of: (r) => r.n, print: (n, r) => (r ? `×${n}` : whole(n)), total: "sum" },
        { title: "shape", align: "left", of: (r) => text(params.shape_t, r.i).join(" × "), print: (s) => s || "scalar" },
        { title: "elements", of: size, print: whole, total: "sum" },
        { title: "param", ...chips("param_t") }, { title: "grad", ...chips("grad_t") }, { title: "optim", ...chips("optim_t") },
        { title: "param bytes", ...amount("param_bytes") }, { title: "grad bytes", ...amount("grad_bytes") }, { title: "optim bytes", ...amount("optim_bytes") },
      ] }));
  };
  draw(true);
  return section;
}

function communicationTab(plan, goTo) {
  const { comms, text, nodes } = plan, all = comms.name.map((_, c) => c), section = el("section", { class: "page" });
  const total = sum(comms.seconds), hidden = sum(comms.hidden_s), stages = plan.head.mesh.num_stages, microbatches = plan.head.num_microbatches;
  const moduleOf = (c) => (comms.reader[c] < 0 ? "end of the step" : text(nodes.place_t, comms.reader[c]).slice(0, 3).join(".") || "the model itself");
  const groupings = { "kind and axis": (c) => `${text(comms.kind_t, c)} along ${text(comms.axis_t, c)}`, axis: (c) => `axis ${text(comms.axis_t, c)}`, kind: (c) => text(comms.kind_t, c), phase: (c) => PHASES[comms.phase[c]], module: moduleOf };
  const holder = el("div");
  const draw = (by) => {
    const groups = new Map();
    for (const c of all) push(groups, groupings[by](c), c);
    holder.replaceChildren(buildTable({ id: "comm-groups", rows: [...groups].map(([name, list]) => ({ name, list })), sortBy: 4, columns: [
      { title: by, align: "left", of: (r) => r.name }, { title: "count", of: (r) => sum(r.list.map((c) => comms.times[c])), print: whole, total: "sum" },
      { title: "messages", of: (r) => sum(new Map(r.list.map((c) => [comms.message_t[c], comms.times[c]])).values()), print: whole, total: "sum" },
      { title: "message bytes", hint: MESSAGE_HINT, of: (r) => sum(r.list.map((c) => comms.bytes[c])), print: bytes, total: "sum" },
      { title: "time", of: (r) => sum(r.list.map((c) => comms.seconds[c])), print: ms, total: "sum" },
      { title: "share of time", of: (r) => (total ? sum(r.list.map((c) => comms.seconds[c])) / total : 0), print: percent, total: "sum" },
    ] }));
  };
  section.append(el("h2", {}, "Communication"), el("p", {}, `${ms(total)} in all${stages > 1 ? ` on ${stages} stages together` : ""}, of which ${ms(total - hidden)} ${stages > 1 ? "stick out" : "lengthen the step"} and ${ms(hidden)} hide behind compute.${microbatches > 1 ? ` Counts, bytes and times are of the whole step: what runs in each of ${microbatches} microbatches counts ${microbatches} times.` : ""}${stages > 1 ? " What stages send each other counts as compute of the stage that receives." : ""}`));
  if (!all.length) return section.append(el("p", { class: "note" }, "This plan communicates nothing.")), section;
  section.append(el("div", { class: "segments", role: "group", "aria-label": "Group by" }, "group by ", ...Object.keys(groupings).map((by, k) => el("button", { "aria-pressed": k === 0, on: { click: (e) => { for (const b of e.target.parentNode.querySelectorAll("button")) b.setAttribute("aria-pressed", b === e.target); draw(by); } } }, by))), holder);
  draw("kind and axis");
  const folded = new Map(); // equal communications of equal blocks: one row
  for (const c of all) {
    const r = comms.reader[c], key = r >= 0 && plan.foldOf[r] >= 0 ? `${plan.rep[r]} ${nodes.inputs[r].indexOf(comms.value[c])} ${text(comms.kind_t, c)} ${text(comms.axis_t, c)} ${text(comms.source_t, c)}` : `c${c}`;
    push(folded, key, c);
  }
  const each = (column, print) => ({ of: (r) => sum(r.list.map((c) => comms[column][c])), print: (n, r) => (r && r.list.length > 1 ? el("span", {}, print(n), el("span", { class: "note each" }, `${print(comms[column][r.c])} each`)) : print(n)), total: "sum" });
  section.append(el("h2", {}, "One by one"), buildTable({ id: "comms", searchable: true, sortBy: 8, rows: [...folded.values()].map((list) => ({ list, c: list[0] })), onRow: (r) => comms.reader[r.c] >= 0 && goTo(comms.reader[r.c]),
    note: "Message bytes: the larger of what one rank puts in and gets out. What travels along several axes as one collective has its time in the row of the axis that comes first. Equal communications of equal blocks are one row. Click a row to see its reader in the graph.", columns: [
      { title: "value", align: "left", of: (r) => plan.tensors.name[comms.value[r.c]], print: (name) => el("code", {}, name) }, { title: "count", of: (r) => sum(r.list.map((c) => comms.times[c])), print: (n, r) => (r ? `×${n}` : whole(n)), total: "sum" },
      { title: "kind", align: "left", of: (r) => text(comms.kind_t, r.c) }, { title: "axis", align: "left", of: (r) => text(comms.axis_t, r.c) }, { title: "dtype", align: "left", of: (r) => text(comms.dtype_t, r.c) },
      { title: "from", align: "left", of: (r) => text(comms.source_t, r.c), print: (s) => shardingChips(plan, s) }, { title: "to", align: "left", of: (r) => text(comms.target_t, r.c), print: (s) => shardingChips(plan, s) },
      { title: "message bytes", hint: MESSAGE_HINT, ...each("bytes", bytes) }, { title: "time", ...each("seconds", ms) }, { title: "of it hidden", ...each("hidden_s", ms) },
      { title: "for", align: "left", of: (r) => `${PHASES[comms.phase[r.c]]} ${moduleOf(r.c)}` },
    ] }));
  return section;
}

function certificateTab(plan) {
  const { solve, cost, cluster, model, schedule, num_microbatches: microbatches } = plan.head;
  const proof = solve.gap <= 1e-6 ? "Optimal: no plan of the search space is faster." : `Within ${percent(solve.gap)} of the best: no plan of the search space is faster than ${ms(solve.lower_bound_s)}.`;
  const bar = el("div", { class: "bound" }, el("i"), el("b"));
  bar.firstChild.style.width = `${solve.objective_s ? 100 * solve.lower_bound_s / solve.objective_s : 100}%`;
  return el("section", { class: "page" }, el("h2", {}, "How sure we are"), el("p", { class: "lead" }, proof), bar,
    factList([["this plan, as the solver adds it", ms(solve.objective_s)], ["proven lower bound", ms(solve.lower_bound_s)], ["gap", percent(solve.gap)], ["search space", solve.search_space], ["variables", whole(solve.num_variables)], ["search, by the clock", `${digits(solve.wall_s)} s`]]),
    el("p", { class: "note" }, "The proof is about the cost model and the search space named here, not about the machine: ", cost.relative_error === null ? `how far predictions are from measurements is not known: ${cost.error_source}.` : `the error of its seconds is ${percent(cost.relative_error)}: ${cost.error_source}.`),
    el("h2", {}, "Where the time went"), buildTable({ id: "phases", rows: Object.entries(solve.phases), columns: [{ title: "phase", align: "left", of: ([name]) => name.replace(/_s$/, "") }, { title: "seconds", of: ([, s]) => s, print: (s) => `${digits(s)} s`, total: "sum" }] }),
    el("h2", {}, "Not tried further"), solve.pruned.length ? buildTable({ id: "pruned", rows: solve.pruned, searchable: solve.pruned.length > 12, columns: [{ title: "what", align: "left", of: (r) => r.what }, { title: "why", align: "left", of: (r) => r.why }] }) : el("p", { class: "note" }, "Nothing was pruned."),
    ...(plan.head.rules.length ? [el("h2", {}, "Rules of ops that are not in the table"), buildTable({ id: "rules", rows: plan.head.rules, searchable: plan.head.rules.length > 12, columns: [
      { title: "op", align: "left", of: (r) => r.op, print: (name) => el("code", {}, name) }, { title: "rule", align: "left", of: (r) => r.text, print: (rule) => el("code", {}, rule) }, { title: "from", align: "left", of: (r) => r.origin }, { title: "nodes", of: (r) => r.nodes.length },
      { title: "trials", of: (r) => r.num_trials, print: (n) => (n ? whole(n) : "not checked") }, { title: "seconds", of: (r) => r.seconds, print: (s) => `${digits(s)} s` }, { title: "why whole", align: "left", of: (r) => r.why_whole },
    ] })] : []),
    el("h2", {}, "Model and cluster"), factList([
      ["model", `${model.name}${model.source ? ` from ${model.source}` : ""}`], ["arguments", Object.entries(model.args).map(([k, v]) => `${k}=${v}`).join(", ")], ["precision", model.precision], ["batch", model.batch], ["sequence", model.seq], ["graph", model.graph_hash],
      ["schedule", `${schedule}${plan.head.mesh.num_stages > 1 ? `, ${microbatches} microbatch${microbatches > 1 ? "es" : ""}` : ""}`], ["cluster", `${cluster.spec}: ${cluster.num_devices} × ${cluster.device} on ${cluster.num_hosts} host${cluster.num_hosts > 1 ? "s" : ""}`],
      ["device", `${bytes(cluster.memory_bytes)}, ${short(cluster.peak_flops)}FLOP/s, ${bytes(cluster.memory_bytes_per_s)}/s`], ["inside a host", `${bytes(cluster.inside_bytes_per_s)}/s, ${digits(cluster.inside_latency_s * 1e6)} µs`], ["across hosts", `${bytes(cluster.across_bytes_per_s)}/s, ${digits(cluster.across_latency_s * 1e6)} µs`], ["figures from", cluster.source],
    ]));
}
