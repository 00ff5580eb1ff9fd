// What the panel beside a plan's graph says of the node, group, tensor or edge that was clicked.

const DETAILS = { node: nodeDetails, group: groupDetails, chip: chipDetails, edge: edgeDetails, hint: "Click a box for its shape, sharding, cost and reason." };

function nodeDetails(plan, tree, { item, block }, goTo, panel) {
  const { nodes, text, foldOf, folds, spot } = plan;
  const fold = foldOf[item.node] < 0 ? null : folds[foldOf[item.node]];
  const i = fold ? fold.blocks[block][spot[item.node]] : item.node;
  const choices = text(nodes.choices_t, i);
  const alternatives = text(nodes.alternatives_t, i), refused = text(nodes.refused_t, i);
  return [
    el("h2", { "data-detail": nodes.name[i] }, nodes.name[i]),
    el("p", { class: "path" }, `${PHASES[nodes.phase[i]]} · ${text(nodes.path_t, i) || "the model itself"}`),
    fold ? pickBlock(fold, block, "decided alike", (b) => panel.replaceChildren(...nodeDetails(plan, tree, { item, block: b }, goTo, panel))) : null,
    factList([
      ["op", text(nodes.op_t, i)], ["source", text(nodes.source_t, i) || "unknown"],
      ["split", choices.length ? el("span", {}, ...choices.map((c, k) => el("span", { class: "choice" }, `axis ${plan.axes[k].name}: ${choiceWords(c)}`))) : "one rank does it whole"],
      ["time", fold ? `${ms(nodes.seconds[i])} per layer, ${ms(nodes.seconds[i] * fold.blocks.length)} for ×${fold.blocks.length} summed` : ms(nodes.seconds[i])],
      ["work", nodes.flops[i] ? `${flopsText(nodes.flops[i])}, whole op` : ""],
    ]),
    el("h3", {}, "Why"), el("p", { class: "reason" }, text(nodes.reason_t, i) || "No reason was recorded."),
    el("h3", {}, "Makes"), ...nodes.outputs[i].map((t) => tensorFacts(plan, t)),
    el("h3", {}, "Read by"), readersOf(plan, nodes.outputs[i], goTo),
    el("h3", {}, "Reads"), ...nodes.inputs[i].map((t, slot) => inputFacts(plan, i, t, slot, goTo)),
    el("h3", {}, "Alternatives"), alternatives.length ? el("table", { class: "small" }, el("thead", {}, el("tr", {}, el("th", {}, "split"), el("th", { class: "number" }, "time"), el("th", { class: "number" }, "change"))),
      el("tbody", {}, ...alternatives.map(([c, s]) => el("tr", {}, el("td", {}, c.join(", ")), el("td", { class: "number" }, ms(s)), el("td", { class: "number" }, `${s >= nodes.seconds[i] ? "+" : "−"}${ms(Math.abs(s - nodes.seconds[i]))}`)))))
      : el("p", { class: "note" }, "None were recorded."),
    alternatives.length ? el("p", { class: "note" }, "Time of this node alone; communication with its neighbours would change too.") : null,
    refused.length ? el("h3", {}, "Refused") : null, refused.length ? el("ul", {}, ...refused.map((r) => el("li", {}, r))) : null,
  ].filter(Boolean);
}

function choiceWords(choice) {
  if (choice === "R") return "every rank does the same";
  if (choice.startsWith("P(")) return `${choice}: a part of the sum passes through`;
  return `splits factor ${choice}`;
}

function tensorFacts(plan, t) {
  const { tensors, text } = plan;
  return factList([
    ["tensor", tensors.name[t]], ["shape", shapeText(text(tensors.dtype_t, t), text(tensors.shape_t, t))], ["kind", text(tensors.kind_t, t)],
    ["sharding", shardingChips(plan, text(tensors.sharding_t, t))], ["on one rank", bytes(tensors.bytes[t])],
  ]);
}

function inputFacts(plan, i, t, slot, goTo) {
  const { tensors, comms, text, producer } = plan;
  const steps = (plan.commsOf.get(i) ?? []).filter((c) => comms.value[c] === t);
  const first = plan.nodes.inputs[i].indexOf(t) === slot;
  return factList([
    ["from", producer[t] < 0 ? `${tensors.name[t]} (${text(tensors.kind_t, t)} that enters the step)` : nodeLink(plan, producer[t], goTo)],
    ["shape", shapeText(text(tensors.dtype_t, t), text(tensors.shape_t, t))],
    ["made as", shardingChips(plan, text(tensors.sharding_t, t))],
    ...(first ? steps.map((c) => [text(comms.kind_t, c), el("span", {}, `along ${text(comms.axis_t, c)}, to `, shardingChips(plan, text(comms.target_t, c)), ` ${bytes(comms.bytes[c])}, ${ms(comms.seconds[c])}`)]) : []),
    ["on one rank", bytes(tensors.bytes[t])],
  ]);
}

function groupDetails(plan, tree, { item }, goTo) {
  const { nodes, comms } = plan, leaves = [];
  const visit = (x) => { if (x.kind === "node") leaves.push(x); x.children.forEach(visit); };
  visit(item);
  leaves.sort((p, q) => q.cost - p.cost);
  const commSeconds = sum(item.comms.map((c) => comms.seconds[c])), commBytes = sum(item.comms.map((c) => comms.bytes[c]));
  const both = (print, total) => (item.mult > 1 ? `${print(total / item.mult)} per layer, ${print(total)} for ×${item.mult} summed` : print(total));
  const inner = item.mult === 1 && leaves.some((leaf) => leaf.mult > 1);
  return [
    el("h2", { "data-detail": item.path || item.phase }, item.title ?? item.name),
    el("p", { class: "path" }, `${item.phase} · ${item.path || "the whole model"}`),
    factList([["nodes", both(whole, item.numNodes)], ["compute", both(ms, item.cost)], ["communication", both(ms, commSeconds)], ["message bytes", both(bytes, commBytes)]]),
    inner ? el("p", { class: "note" }, "Sums count every folded block.") : null,
    el("h3", {}, "Longest nodes"),
    el("table", { class: "small" }, el("tbody", {}, ...leaves.slice(0, 12).map((leaf) => el("tr", {}, el("td", {}, nodeLink(plan, leaf.node, goTo), leaf.mult > 1 ? el("span", { class: "note" }, ` ×${leaf.mult}`) : null),
      el("td", { class: "number" }, ms(nodes.seconds[leaf.node]), leaf.mult > 1 ? el("span", { class: "note" }, " each") : null))))),
    item.comms.length ? el("h3", {}, "Communication into these nodes") : null,
    item.comms.length ? commList(plan, item.comms, item.mult) : null,
  ].filter(Boolean);
}

function commList(plan, list, mult) {
  const { comms, text } = plan, rows = new Map();
  for (const c of list) push(rows, `${text(comms.kind_t, c)}\t${text(comms.axis_t, c)}`, c);
  return el("table", { class: "small" }, el("thead", {}, el("tr", {}, el("th", {}, "kind"), el("th", {}, "axis"), el("th", { class: "number" }, "count"), el("th", { class: "number" }, "bytes"), el("th", { class: "number" }, "time"))),
    el("tbody", {}, ...[...rows].map(([key, cs]) => el("tr", {}, ...key.split("\t").map((x) => el("td", {}, x)), el("td", { class: "number" }, whole(cs.length)),
      el("td", { class: "number" }, bytes(sum(cs.map((c) => comms.bytes[c])))), el("td", { class: "number" }, ms(sum(cs.map((c) => comms.seconds[c]))))))),
    mult > 1 ? el("caption", {}, `All ×${mult} blocks summed.`) : "");
}

function chipDetails(plan, tree, { item }, goTo) {
  const words = { input: "Enters the step", block: "Comes from the block that runs before this one", end: "Is brought into its stored sharding when the step ends" };
  return [
    el("h2", { "data-detail": plan.tensors.name[item.tensor] }, item.name), el("p", { class: "path" }, words[item.role]), tensorFacts(plan, item.tensor),
    el("h3", {}, "Read by"), readersOf(plan, [item.tensor], goTo),
  ];
}

function edgeDetails(plan, tree, { edge, mult }, goTo) {
  const { comms, text } = plan;
  return [
    el("h2", { "data-detail": "edge" }, `${edge.a.name} → ${edge.b.name}`), el("p", { class: "path" }, "Communication on this edge"), commList(plan, edge.comms, mult),
    el("h3", {}, "One by one"),
    el("ul", { class: "links" }, ...edge.comms.slice(0, 40).map((c) => el("li", {}, `${text(comms.kind_t, c)} along ${text(comms.axis_t, c)} of ${plan.tensors.name[comms.value[c]]}, `,
      shardingChips(plan, text(comms.source_t, c)), " to ", shardingChips(plan, text(comms.target_t, c)), `, ${bytes(comms.bytes[c])}, ${ms(comms.seconds[c])}`,
      comms.reader[c] >= 0 ? el("span", {}, ", for ", nodeLink(plan, comms.reader[c], goTo)) : ""))),
    edge.comms.length > 40 ? el("p", { class: "note" }, `The first 40 of ${edge.comms.length}.`) : null,
  ].filter(Boolean);
}
