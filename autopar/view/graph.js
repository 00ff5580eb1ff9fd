// The graph: modules as nested boxes, one phase beside the next, laid out group by group when they are opened.

const MAX_VISIBLE = 2000, PAD = 14, HEAD = 32;
const COLLECTIVE_COLORS = {
  all_gather: "#1d5fd1", reduce_scatter: "#c2410c", all_reduce: "#b4232f", all_to_all: "#0f766e", slice: "#6b7280", keep: "#6b7280", send: "#6d28d9", recv: "#6d28d9",
};

function buildGraph(plan, tree, onSelect) {
  const state = { open: new Set([tree.root]), axis: 0, phases: new Set(PHASES), chips: true, selected: null, view: { x: 0, y: 0, k: 1 }, boxes: new Map() };
  const canvas = svg("svg", { class: "canvas", role: "img", "aria-label": "Graph of the step" });
  const world = svg("g");
  canvas.append(svg("defs", {}, ...["arrow", ...Object.keys(COLLECTIVE_COLORS)].map((name) => svg("marker", {
    id: `head-${name}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto", markerUnits: "userSpaceOnUse",
  }, svg("path", { d: "M0,0L8,4L0,8Z", fill: COLLECTIVE_COLORS[name] ?? "#8b93a1" })))), world);
  const notice = el("div", { class: "notice", role: "status" });
  const shares = new Map(); // `${group.id} ${axis}` -> [[category, count]]

  const visibleChildren = (group) => group.children.filter((c) => (c.kind !== "chip" || state.chips) && (group.parent || state.phases.has(c.phase)));
  const countVisible = () => { let n = 0; const visit = (item) => { n++; if (state.open.has(item)) visibleChildren(item).forEach(visit); }; visit(tree.root); return n; };

  function shareOf(item) {
    const key = `${item.id} ${state.axis}`;
    if (shares.has(key)) return shares.get(key);
    const found = new Map();
    const add = (name, n) => found.set(name, (found.get(name) ?? 0) + n);
    if (item.kind === "node") for (const t of plan.nodes.outputs[item.node].slice(0, 1)) add(category(plan.placement(t, state.axis)), item.mult);
    else for (const child of item.children) if (child.kind !== "chip") for (const [name, n] of shareOf(child)) add(name, n);
    const list = [...found].sort();
    shares.set(key, list);
    return list;
  }

  function measure(item) {
    const wide = (text, size) => text.length * size * 0.6;
    if (item.kind === "node") {
      item.second = plan.words.below(item.node);
      return { w: Math.max(84, wide(item.name, 11.5) + 18, wide(item.second, 10) + 18), h: 36 };
    }
    if (item.kind === "chip") return { w: Math.max(46, wide(item.name, 10) + 18), h: 20 };
    item.title = item.mult > 1 && item.parent.mult === 1 ? `${item.name} ×${item.mult}` : item.name;
    item.caption = groupCaption(item);
    const head = Math.max(130, wide(item.title, 12.5) + 46);
    if (!state.open.has(item)) return { w: Math.max(head, wide(item.caption, 10) + 24), h: 56 };
    const children = visibleChildren(item), sizes = children.map(measure), index = new Map(children.map((c, k) => [c, k]));
    const edges = [...item.edges.values()].filter((e) => index.has(e.a) && index.has(e.b));
    const lines = edges.map((e) => edgeLines(plan, plan.words.shown(e.comms, state.axis), item.mult));
    const layout = item.parent ? layoutLayers : layoutColumns;
    const laid = layout(children.map((c, k) => ({ ...sizes[k], order: c.order })), edges.map((e, k) => ({ a: index.get(e.a), b: index.get(e.b), lines: lines[k].map((l) => l.text) })));
    item.laid = { children, sizes, edges, lines, ...laid };
    if (!item.parent) return { w: laid.w, h: laid.h };
    const w = Math.max(laid.w, head + wide(item.caption, 10) + 20, 150);
    item.laid.shift = (w - laid.w) / 2;
    return { w: w + 2 * PAD, h: HEAD + laid.h + PAD };
  }

  function groupCaption(item) {
    const per = item.mult > 1 ? " per layer" : "";
    return `${whole(item.numNodes / item.mult)} nodes, ${plan.words.cost(item.cost / item.mult)}${per}`;
  }

  function drawItem(item, x, y, size) {
    state.boxes.set(item, { x, y, ...size });
    if (item.kind === "node") return drawNode(item, x, y, size);
    if (item.kind === "chip") {
      const g = svg("g", { class: "chipbox", transform: `translate(${x},${y})`, "data-item": item.id },
        svg("rect", { width: size.w, height: size.h, rx: 10, class: `fill-${category(plan.placement(item.tensor, state.axis))}` }),
        svg("text", { x: size.w / 2, y: 14, class: "small mid" }, item.name));
      g.addEventListener("click", (e) => { e.stopPropagation(); select(item); });
      return g;
    }
    return drawGroup(item, x, y, size);
  }

  function drawNode(item, x, y, size) {
    const out = plan.nodes.outputs[item.node][0];
    const kind = out === undefined ? "R" : category(plan.placement(out, state.axis));
    const g = svg("g", { class: plan.words.marked(item.node) ? "node marked" : "node", transform: `translate(${x},${y})`, "data-item": item.id, "data-node": plan.nodes.name[item.node], "data-category": kind },
      svg("rect", { width: size.w, height: size.h, rx: 6, class: `fill-${kind}` }),
      svg("text", { x: size.w / 2, y: 15, class: "mid" }, item.name),
      svg("text", { x: size.w / 2, y: 29, class: "small mid" }, item.second),
      svg("title", {}, plan.nodes.name[item.node]));
    g.addEventListener("click", (e) => { e.stopPropagation(); select(item); });
    return g;
  }

  function drawGroup(item, x, y, size) {
    const isOpen = state.open.has(item);
    const g = svg("g", { class: isOpen ? "group open" : "group", transform: `translate(${x},${y})`, "data-item": item.id, "data-group": `${item.phase ?? ""}/${item.path}` });
    if (item.parent) g.append(svg("rect", { width: size.w, height: size.h, rx: 8, class: `box depth${item.depth % 4}` }));
    if (!isOpen && item.mult > 1 && item.parent.mult === 1) g.prepend(svg("rect", { x: 5, y: 5, width: size.w, height: size.h, rx: 8, class: "box behind" }));
    if (item.parent) {
      const button = svg("g", { class: "toggle", role: "button", tabindex: 0, "aria-label": `${isOpen ? "Close" : "Open"} ${item.name}` },
        svg("rect", { x: 9, y: 8, width: 16, height: 16, rx: 3 }), svg("path", { d: isOpen ? "M13,16H21" : "M13,16H21M17,12V20" }));
      const act = (e) => { e.stopPropagation(); toggle(item); };
      button.addEventListener("click", act);
      button.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); act(e); } });
      g.append(button, svg("text", { x: 32, y: 20.5, class: "title" }, item.title));
      g.append(isOpen ? svg("text", { x: size.w - 12, y: 20, class: "small end" }, item.caption) : svg("text", { x: 12, y: 39, class: "small" }, item.caption));
    }
    if (!isOpen) {
      const parts = shareOf(item), total = sum(parts.map(([, n]) => n)) || 1;
      let left = 0;
      for (const [name, n] of parts) {
        const w = (size.w - 2) * (n / total);
        g.append(svg("rect", { x: 1 + left, y: size.h - 9, width: w, height: 8, class: `fill-${name}` }, svg("title", {}, `${name}: ${n} of ${total} outputs`)));
        left += w;
      }
    } else drawInside(item, g, x, y);
    g.addEventListener("click", (e) => { e.stopPropagation(); if (item.parent) select(item); });
    g.addEventListener("dblclick", (e) => { e.stopPropagation(); if (item.parent) toggle(item); });
    return g;
  }

  function drawInside(item, g, x, y) {
    const { children, sizes, edges, lines, at, routes, shift } = item.laid;
    const dx = item.parent ? PAD + shift : 0, dy = item.parent ? HEAD : 0;
    const lineLayer = svg("g", { transform: `translate(${dx},${dy})` }), labelLayer = svg("g", { transform: `translate(${dx},${dy})` });
    routes.forEach((r, k) => {
      const kind = lines[k][0]?.kind, color = kind ? COLLECTIVE_COLORS[kind] ?? "#6d28d9" : "#8b93a1";
      const path = svg("path", { d: routePath(r.points, r.back), class: kind ? "edge comm" : "edge", stroke: color, "marker-end": `url(#head-${kind in COLLECTIVE_COLORS ? kind : "arrow"})` });
      if (r.back && !r.solid) path.setAttribute("stroke-dasharray", "4 3");
      lineLayer.append(path);
      if (r.label) lines[k].forEach((line, n) => {
        const label = svg("text", { x: r.label.x, y: r.label.y + n * LABEL_H, class: "label", fill: COLLECTIVE_COLORS[line.kind] ?? "#6d28d9", "data-comm": line.kind }, line.text);
        label.addEventListener("click", (e) => { e.stopPropagation(); onSelect({ kind: "edge", edge: edges[k], mult: item.mult }); });
        labelLayer.append(label);
      });
    });
    g.append(lineLayer);
    children.forEach((child, k) => g.append(drawItem(child, dx + at[k].x, dy + at[k].y, sizes[k])));
    g.append(labelLayer);
  }

  function render() {
    state.boxes.clear();
    const size = measure(tree.root);
    world.replaceChildren(drawItem(tree.root, 0, 0, size));
    mark();
    move();
  }

  const place = (item) => { let x = 0, y = 0; for (let up = item; up; up = up.parent) { const box = state.boxes.get(up); if (!box) return null; x += box.x; y += box.y; } return { x, y, w: state.boxes.get(item).w, h: state.boxes.get(item).h }; };
  const shownFor = (item) => { let shown = item; for (let up = item; up; up = up.parent) if (!state.boxes.has(up)) shown = up.parent; return shown; };

  // The selected box is framed, and lines lead to its true producers and consumers, wherever they are shown.
  function mark() {
    for (const old of world.querySelectorAll(".mark")) old.remove();
    if (!state.selected || !state.boxes.has(state.selected)) return;
    const here = place(state.selected);
    const lines = svg("g", { class: "mark" });
    if (state.selected.kind === "node") {
      const n = state.selected.node;
      const link = (other, into) => {
        const box = place(shownFor(tree.leafOf.get(plan.rep[other])));
        if (!box || shownFor(tree.leafOf.get(plan.rep[other])).kind === "group" && inside(here, box)) return;
        const [from, to] = into ? [box, here] : [here, box];
        lines.append(svg("path", { d: routePath([[from.x + from.w / 2, from.y + from.h], [to.x + to.w / 2, to.y]], false), class: into ? "from" : "to" }));
      };
      new Set(plan.nodes.inputs[n].map((t) => plan.producer[t]).filter((p) => p >= 0)).forEach((p) => link(p, true));
      [...new Set(plan.nodes.outputs[n].flatMap((t) => plan.consumers[t]))].slice(0, 40).forEach((c) => link(c, false));
    }
    lines.append(svg("rect", { x: here.x - 2, y: here.y - 2, width: here.w + 4, height: here.h + 4, rx: 8, class: "frame" }));
    world.append(lines);
  }
  const inside = (a, b) => a.x >= b.x && a.y >= b.y && a.x + a.w <= b.x + b.w && a.y + a.h <= b.y + b.h;

  function select(item, block = 0) {
    state.selected = item;
    mark();
    onSelect(item.kind === "node" ? { kind: "node", item, block } : { kind: item.kind, item });
  }

  function toggle(item) {
    const before = place(item);
    if (state.open.has(item)) state.open.delete(item);
    else {
      state.open.add(item);
      if (countVisible() > MAX_VISIBLE) {
        state.open.delete(item);
        return tell(`Opening ${item.name} would show more than ${whole(MAX_VISIBLE)} boxes at once. Close other groups first.`);
      }
    }
    tell("");
    render();
    const after = place(item);
    if (before && after) { state.view.x += (before.x - after.x) * state.view.k; state.view.y += (before.y - after.y) * state.view.k; move(); }
  }

  function expandAll() {
    const queue = [tree.root];
    let shown = countVisible(), left = 0;
    while (queue.length) {
      const group = queue.shift();
      if (!state.open.has(group)) {
        const more = visibleChildren(group).length;
        if (shown + more > MAX_VISIBLE) { left++; continue; }
        state.open.add(group);
        shown += more;
      }
      queue.push(...visibleChildren(group).filter((c) => c.kind === "group"));
    }
    render(); fit(tree.root, 0.1);
    tell(left ? `${whole(shown)} boxes are shown; ${whole(left)} groups stay closed, to keep this page readable. Open them one by one.` : "");
  }

  function collapseAll() { state.open = new Set([tree.root, ...tree.root.children]); render(); fit(); tell(""); }
  function tell(text) { notice.textContent = text; }
  function move() { world.setAttribute("transform", `translate(${state.view.x},${state.view.y}) scale(${state.view.k})`); }

  function fit(item = tree.root, least = item === tree.root ? 0.02 : 0.35) {
    const box = place(item), w = canvas.clientWidth || 900, h = canvas.clientHeight || 600;
    if (!box) return;
    const fitted = Math.min((w - 40) / box.w, (h - 80) / box.h), k = Math.min(1.25, Math.max(fitted, least));
    const tall = box.h * k > h - 60, broad = box.w * k > w;
    state.view = { k, x: (broad ? 20 : (w - box.w * k) / 2) - box.x * k, y: tall ? 56 - box.y * k : Math.max(52, (h - box.h * k) / 2) - box.y * k };
    move();
  }

  function reveal(item, block = 0) {
    for (let up = item.parent; up; up = up.parent) state.open.add(up);
    if (!state.phases.has(item.phase)) state.phases.add(item.phase);
    render();
    const box = place(item), k = Math.max(0.9, Math.min(1.1, state.view.k));
    if (box) state.view = { k, x: canvas.clientWidth / 2 - (box.x + box.w / 2) * k, y: canvas.clientHeight / 2 - (box.y + box.h / 2) * k };
    move();
    select(item, block);
  }

  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const k = Math.min(3, Math.max(0.02, state.view.k * factor)), real = k / state.view.k;
    state.view = { k, x: x - (x - state.view.x) * real, y: y - (y - state.view.y) * real };
    move();
  }

  canvas.addEventListener("wheel", (e) => { e.preventDefault(); zoom(Math.exp(-e.deltaY * 0.0015), e.offsetX, e.offsetY); }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => { drag = { x: e.clientX - state.view.x, y: e.clientY - state.view.y, id: e.pointerId, moved: false }; });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag) return;
    const x = e.clientX - drag.x, y = e.clientY - drag.y;
    if (!drag.moved && Math.hypot(x - state.view.x, y - state.view.y) < 4) return;
    if (!drag.moved) { drag.moved = true; canvas.setPointerCapture(drag.id); }
    Object.assign(state.view, { x, y });
    move();
  });
  canvas.addEventListener("pointerup", () => { drag = null; });

  return {
    canvas, notice, state, render, fit, zoom, toggle, expandAll, collapseAll, reveal, select, shareOf,
    setAxis(axis) { state.axis = axis; render(); },
    setPhase(phase, on) { if (on) state.phases.add(phase); else state.phases.delete(phase); render(); fit(); },
    setChips(on) { state.chips = on; render(); },
  };
}
