// The tree: phases, modules and folded blocks as nested groups, and at which level each edge and each communication is shown.

const MAX_CHILDREN = 120; // a group with more is cut into parts

function buildTree(plan) {
  const { nodes, text, rep, foldOf, count } = plan;
  let id = 0;
  const make = (kind, name, parent, more) => {
    const item = { id: id++, kind, name, parent, children: [], edges: new Map(), order: Infinity, mult: 1, chips: new Map(), ...more };
    parent?.children.push(item);
    return item;
  };
  const root = make("group", "step", null, { phase: null, path: "" });
  const groups = new Map(), leafOf = new Map(), groupAt = new Map();
  const findGroup = (i, phase, fold) => {
    let group = root, key = "";
    for (const part of [phase, ...text(nodes.place_t, i)]) {
      key += "/" + part;
      let next = groups.get(key);
      if (!next) {
        next = make("group", part, group, { phase, path: key.split("/").slice(2).join("."), fold: -1, mult: group.mult });
        if (fold >= 0 && group.mult === 1 && part === plan.folds[fold].label) Object.assign(next, { fold, mult: count(i) });
        groups.set(key, next);
      }
      group = next;
    }
    return group;
  };
  for (let i = 0; i < nodes.name.length; i++) {
    if (rep[i] !== i) continue;
    const phase = PHASES[nodes.phase[i]], fold = foldOf[i];
    const place = nodes.place_t[i] * PHASES.length + nodes.phase[i];
    if (!groupAt.has(place)) groupAt.set(place, findGroup(i, phase, fold));
    const group = groupAt.get(place);
    const op = opName(text(nodes.op_t, i));
    leafOf.set(i, make("node", op, group, { op, module: "", node: i, phase, order: i, mult: count(i) }));
  }
  simplify(root);
  const tree = { root, leafOf, make, all: groups };
  addEdges(plan, tree);
  split(root, make);
  finishTree(plan, tree);
  return tree;
}

const opName = (op) => op.split(".").slice(1, op.startsWith("aten.") ? 2 : undefined).join(".") || op;

const pairKey = (from, to) => from.id * 2 ** 26 + to.id;

// A module with a single op is that op; a module whose only child is a module shares its box.
function simplify(group) {
  for (const child of [...group.children]) if (child.kind === "group") simplify(child);
  if (!group.parent || group.children.length !== 1 || !group.parent.parent) return;
  const [only] = group.children, siblings = group.parent.children;
  if (group.fold >= 0) return;
  if (only.kind === "group") only.name = `${group.name}.${only.name}`;
  else {
    only.module = only.module ? `${group.name}.${only.module}` : group.name;
    only.name = `${only.module} · ${only.op}`;
  }
  only.parent = group.parent;
  siblings[siblings.indexOf(group)] = only;
}

// Edges run between what stands for producer and reader. What enters the step, or a block from the block before it, is a chip beside
// its reader. Every communication hangs on exactly one edge.
function addEdges(plan, tree) {
  const { nodes, tensors, producer, rep, foldOf, blockOf, comms, commsOf } = plan;
  const base = new Map();
  const chip = (group, key, more) => {
    if (!group.chips.has(key)) group.chips.set(key, tree.make("chip", "", group, { ...more, phase: group.phase, mult: group.mult }));
    return group.chips.get(key);
  };
  const join = (from, to) => {
    const key = pairKey(from, to);
    let edge = base.get(key);
    if (!edge) base.set(key, edge = { from, to, comms: [] });
    return edge;
  };
  const edgeInto = (n, slot) => {
    const reader = tree.leafOf.get(rep[n]), t = nodes.inputs[n][slot], made = producer[t], shown = nodes.inputs[rep[n]][slot];
    let from;
    if (made < 0) from = chip(reader.parent, shown, { role: "input", tensor: shown });
    else if (foldOf[made] >= 0 && foldOf[made] === foldOf[n] && blockOf[made] !== blockOf[n]) from = chip(reader.parent, `loop ${rep[made]}`, { role: "block", tensor: nodes.outputs[rep[made]][nodes.outputs[made].indexOf(t)], from: rep[made], after: blockOf[made] > blockOf[n] });
    else from = tree.leafOf.get(rep[made]);
    if (from.kind === "chip") from.order = Math.min(from.order, reader.order - 0.5);
    return join(from, reader);
  };
  for (let n = 0; n < nodes.name.length; n++) {
    const edges = nodes.inputs[n].map((_, slot) => edgeInto(n, slot)), brought = commsOf.get(n);
    if (brought) for (const c of brought) {
      const slot = nodes.inputs[n].indexOf(comms.value[c]);
      (slot >= 0 ? edges[slot] : join(sourceOf(comms.value[c], tree.leafOf.get(rep[n]).parent), tree.leafOf.get(rep[n]))).comms.push(c);
    }
  }
  function sourceOf(t, group) {
    return producer[t] >= 0 ? tree.leafOf.get(rep[producer[t]]) : chip(group, t, { role: "input", tensor: t, order: -1 });
  }
  for (const c of commsOf.get(-1) ?? []) { // brought into place when the step ends: no node reads it
    const made = producer[comms.value[c]];
    const from = made >= 0 ? tree.leafOf.get(rep[made]) : sourceOf(comms.value[c], tree.root.children.at(-1));
    const shown = made >= 0 ? nodes.outputs[rep[made]][Math.max(0, nodes.outputs[made].indexOf(comms.value[c]))] : comms.value[c];
    join(from, chip(from.parent, `end ${shown}`, { role: "end", tensor: shown, order: from.order + 0.5 })).comms.push(c);
  }
  for (const group of [tree.root, ...tree.all.values()]) for (const c of group.chips.values()) c.name = chipName(plan, c);
  tree.base = [...base.values()].filter((e) => e.from !== e.to);
}

function chipName(plan, chip) {
  const name = plan.tensors.name[chip.tensor];
  if (chip.role === "block") return `${chip.after ? "next" : "previous"} layer's ${plan.nodes.name[chip.from]}`;
  const [storage, version] = name.split("@");
  const isState = ["optim", "grad"].includes(plan.text(plan.tensors.kind_t, chip.tensor));
  const [state, of] = isState && storage.includes(":") ? storage.split(":") : ["", storage];
  const last = of.split(".").at(-1);
  if (chip.role === "end") return `kept: ${state ? state + " " : ""}${last}`;
  return state ? `${state} of ${last}` : version === undefined ? name : last;
}

// A group with very many children is cut into parts, in order.
function split(group, make) {
  for (const child of [...group.children]) split(child, make);
  if (group.children.length <= MAX_CHILDREN) return;
  const orderOf = (item) => (item.children.length ? Math.min(...item.children.map(orderOf)) : item.order);
  const items = group.children.map((item) => [orderOf(item), item]).sort((p, q) => p[0] - q[0]).map(([, item]) => item);
  const size = Math.max(Math.ceil(items.length / MAX_CHILDREN), 60);
  group.children = [];
  for (let k = 0; k < items.length; k += size) {
    const part = make("group", `${k + 1} to ${Math.min(k + size, items.length)} of ${items.length}`, group, { phase: group.phase, path: group.path, fold: -1, mult: group.mult });
    part.children = items.slice(k, k + size);
    for (const item of part.children) item.parent = part;
  }
}

// Depths, orders and sums; then each edge goes to the level where its two ends part.
function finishTree(plan, tree) {
  const visit = (item, depth) => {
    item.depth = depth;
    item.numNodes = item.kind === "node" ? item.mult : 0;
    item.cost = item.kind === "node" ? item.mult * plan.words.costOf(item.node) : 0;
    item.comms = [];
    for (const child of item.children) {
      visit(child, depth + 1);
      item.order = Math.min(item.order, child.order);
      item.numNodes += child.numNodes;
      item.cost += child.cost;
    }
  };
  visit(tree.root, 0);
  for (const edge of tree.base) {
    if (edge.comms.length) for (let up = edge.to; up; up = up.parent) up.comms.push(...edge.comms);
    let a = edge.from, b = edge.to;
    while (a.depth > b.depth) a = a.parent;
    while (b.depth > a.depth) b = b.parent;
    while (a.parent !== b.parent) { a = a.parent; b = b.parent; }
    if (a === b) continue;
    const key = pairKey(a, b), edges = a.parent.edges;
    let shown = edges.get(key);
    if (!shown) edges.set(key, shown = { a, b, comms: [] });
    if (edge.comms.length) shown.comms.push(...edge.comms);
  }
}

// Lines beside an edge: kind, axis and bytes, per block inside a folded block, summed outside.
function edgeLines(plan, comms, mult) {
  const byKind = new Map();
  for (const c of comms) push(byKind, `${plan.text(plan.comms.kind_t, c)} ${plan.text(plan.comms.axis_t, c)}`, c);
  const lines = [...byKind].map(([kind, list]) => {
    const total = sum(list.map((c) => plan.comms.bytes[c])), each = list.length / mult;
    const times = each > 1 ? `${Number.isInteger(each) ? whole(each) : digits(each)} × ` : "";
    return { kind: kind.split(" ")[0], total, text: `${times}${kind} ${bytes(total / mult)}${mult > 1 ? " per layer" : each > 1 ? " summed" : ""}` };
  });
  lines.sort((p, q) => q.total - p.total);
  return lines.length > 2 ? [...lines.slice(0, 2), { kind: lines[2].kind, text: `and ${lines.length - 2} more kinds` }] : lines;
}
