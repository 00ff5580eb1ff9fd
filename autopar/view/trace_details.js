// What the panel beside the graph of a step's opportunities says of the node, group, tensor or edge that was clicked.

const TRACE_DETAILS = { node: traceNode, group: traceGroup, chip: traceChip, edge: traceEdge, hint: "Click a box for its work, its versions and what each factor does there. A thick frame: on the longest chain." };

const LIES = { R: "whole on every rank", P: "each rank holds a part of the sum" };
const liesWords = (text) => LIES[text] ?? (text[0] === "S" ? `split at dim ${text.slice(1)}` : `each rank holds the ${text.slice(1)} of its part`);

function traceNode(plan, tree, { item, block }, goTo, panel) {
  const { nodes, tensors, comms, text, foldOf, folds, spot, axes } = plan;
  const fold = foldOf[item.node] < 0 ? null : folds[foldOf[item.node]], i = fold ? fold.blocks[block][spot[item.node]] : item.node;
  const syncs = plan.commsOf.get(i) ?? [], out = nodes.outputs[i][0];
  const perFactor = (k) => {
    const here = syncs.filter((c) => comms.axis[c] === k), divides = text(nodes.divided_t, i)[k] === "1";
    return el("tr", {}, el("td", {}, axes[k].name), el("td", {}, divides ? "yes" : "no"), el("td", {}, out === undefined ? "" : liesWords(plan.placement(out, k)),
      ...here.map((c) => el("span", { class: "choice" }, el("span", { class: "kind", "data-comm": text(comms.kind_t, c) }, text(comms.kind_t, c)), ` of ${tensors.name[comms.value[c]]}, ${bytes(comms.bytes[c])}: ${text(comms.reason_t, c)}${text(comms.source_t, c) ? ` (${text(comms.source_t, c)})` : ""}`))));
  };
  return [
    el("h2", { "data-detail": nodes.name[i] }, nodes.name[i]), el("p", { class: "path" }, `${PHASES[nodes.phase[i]]} · ${text(nodes.path_t, i) || "the model itself"}`),
    fold ? pickBlock(fold, block, "alike in everything shown", (b) => panel.replaceChildren(...traceNode(plan, tree, { item, block: b }, goTo, panel))) : null,
    factList([["op", text(nodes.op_t, i)], ["source", text(nodes.source_t, i) || "unknown"], ["work", `${flopsText(nodes.flops[i])}, ${bytes(nodes.bytes[i])} read and written`],
      ["level", `${whole(nodes.level[i])} nodes must run before it, one after the other`], ["longest chain", nodes.critical[i] ? "it is on it" : "it is not on it"]]),
    axes.length ? el("h3", {}, "If one factor alone is split") : null,
    axes.length ? el("table", { class: "small lies" }, el("thead", {}, el("tr", {}, el("th", {}, "factor"), el("th", {}, "divided"), el("th", {}, "output, and what is needed before"))), el("tbody", {}, ...axes.map((_, k) => perFactor(k)))) : null,
    el("h3", {}, "Makes"), ...nodes.outputs[i].map((t) => traceTensor(plan, t, goTo)), el("h3", {}, "Read by"), readersOf(plan, nodes.outputs[i], goTo),
    el("h3", {}, "Reads"), ...nodes.inputs[i].map((t) => traceTensor(plan, t, goTo)),
  ].filter(Boolean);
}

function traceTensor(plan, t, goTo) {
  const { tensors, text, producer } = plan, version = tensors.version[t];
  return factList([
    ["tensor", tensors.name[t]], ["shape", shapeText(text(tensors.dtype_t, t), text(tensors.shape_t, t))], ["kind", text(tensors.kind_t, t)], ["bytes", bytes(tensors.bytes[t])],
    ["made by", producer[t] < 0 ? "it enters the step" : nodeLink(plan, producer[t], goTo)], ["version", version ? `${version} of ${text(tensors.storage_t, t)}` : ""],
  ]);
}

function traceGroup(plan, tree, { item }, goTo) {
  const { nodes, comms, axes, text } = plan, leaves = [];
  const visit = (x) => { if (x.kind === "node") leaves.push(x); x.children.forEach(visit); };
  visit(item);
  leaves.sort((p, q) => q.cost - p.cost);
  const flops = item.cost, moved = sum(leaves.map((leaf) => leaf.mult * nodes.bytes[leaf.node])), marked = sum(leaves.map((leaf) => leaf.mult * nodes.critical[leaf.node]));
  const both = (print, amount) => (item.mult > 1 ? `${print(amount / item.mult)} per layer, ${print(amount)} for ×${item.mult} summed` : print(amount));
  const row = (k) => {
    const share = sum(leaves.map((leaf) => (text(nodes.divided_t, leaf.node)[k] === "1" ? leaf.cost : 0))) / (flops || 1), here = item.comms.filter((c) => comms.axis[c] === k);
    const bar = el("div", { class: "cover" }, el("i"));
    bar.firstChild.style.cssText = `width:${100 * share}%;background:${PHASE_COLORS[PHASES.indexOf("forward")]}`;
    return el("tr", {}, el("td", {}, axes[k].name), el("td", { class: "wide" }, bar), el("td", { class: "number" }, percent(share)), el("td", { class: "number" }, here.length ? `${whole(here.length)}: ${bytes(sum(here.map((c) => comms.bytes[c])))}` : "none"));
  };
  return [
    el("h2", { "data-detail": item.path || item.phase }, item.title ?? item.name), el("p", { class: "path" }, `${item.phase} · ${item.path || "the whole model"}`),
    factList([["nodes", both(whole, item.numNodes)], ["FLOPs", both(short, flops)], ["bytes", both(bytes, moved)], ["on the longest chain", `${whole(marked)} nodes`]]),
    axes.length ? el("h3", {}, "What each factor divides here") : null,
    axes.length ? el("table", { class: "small covers" }, el("thead", {}, el("tr", {}, el("th", {}, "factor"), el("th", {}, ""), el("th", { class: "number" }, "of FLOPs"), el("th", { class: "number" }, "syncs"))), el("tbody", {}, ...axes.map((_, k) => row(k)))) : null,
    el("h3", {}, "Most work"), el("table", { class: "small" }, el("tbody", {}, ...leaves.slice(0, 12).map((leaf) => el("tr", {}, el("td", {}, nodeLink(plan, leaf.node, goTo), leaf.mult > 1 ? el("span", { class: "note" }, ` ×${leaf.mult}`) : null), el("td", { class: "number" }, `${flopsText(nodes.flops[leaf.node])}`, leaf.mult > 1 ? el("span", { class: "note" }, " each") : null))))),
  ].filter(Boolean);
}

function traceChip(plan, tree, { item }, goTo) {
  const words = { input: "Enters the step", block: "Comes from the block that runs before this one", end: "Must be in place when the step ends" };
  return [el("h2", { "data-detail": plan.tensors.name[item.tensor] }, item.name), el("p", { class: "path" }, words[item.role]), traceTensor(plan, item.tensor, goTo), el("h3", {}, "Read by"), readersOf(plan, [item.tensor], goTo)];
}

function traceEdge(plan, tree, { edge }, goTo) {
  const { comms, text, tensors } = plan;
  return [
    el("h2", { "data-detail": "edge" }, `${edge.a.name} → ${edge.b.name}`), el("p", { class: "path" }, "Where ranks must synchronise, for each factor that is split alone"),
    el("ul", { class: "links" }, ...edge.comms.slice(0, 40).map((c) => el("li", {}, el("b", {}, text(comms.axis_t, c)), ": ", el("span", { class: "kind", "data-comm": text(comms.kind_t, c) }, text(comms.kind_t, c)), ` of ${tensors.name[comms.value[c]]}, ${bytes(comms.bytes[c])}: ${text(comms.reason_t, c)}${text(comms.source_t, c) ? ` (${text(comms.source_t, c)})` : ""}`, comms.reader[c] >= 0 ? el("span", {}, ", for ", nodeLink(plan, comms.reader[c], goTo)) : ", for the end of the step"))),
    edge.comms.length > 40 ? el("p", { class: "note" }, `The first 40 of ${edge.comms.length}.`) : null,
  ].filter(Boolean);
}
