// The layout of ONE group: its children in layers, data flowing down. Children are boxes of known size; nothing here knows of plans.

const GAP_X = 22, GAP_Y = 26, LABEL_H = 14, ROW_W = 1100;

// items: [{w, h, order}], edges: [{a, b, lines: [text]}] with indices. Returns {w, h, at: [{x, y}], routes: [{points, label, back}]}.
function layoutLayers(items, edges) {
  const forward = edges.map((e) => items[e.a].order < items[e.b].order);
  const linked = new Set(edges.flatMap((e, k) => (forward[k] ? [e.a, e.b] : [])));
  const layer = assignLayers(items, edges, forward);
  const cells = items.map((item, i) => ({ w: item.w, h: item.h, layer: layer[i], order: item.order, up: [], down: [] }));
  const chains = edges.map((e, k) => (forward[k] ? addChain(cells, e, layer) : null));
  const layers = [];
  cells.forEach((cell, i) => { if (i >= items.length || linked.has(i)) (layers[cell.layer] ??= []).push(i); });
  for (let l = 0; l < layers.length; l++) layers[l] ??= [];
  orderLayers(cells, layers);
  placeAcross(cells, layers);
  return finishLayout(items, edges, cells, layers, chains, linked);
}

function assignLayers(items, edges, forward) {
  const layer = new Array(items.length).fill(0);
  const out = items.map(() => []), hasInput = new Array(items.length).fill(false);
  edges.forEach((e, k) => { if (forward[k]) { out[e.a].push(e.b); hasInput[e.b] = true; } });
  const inOrder = items.map((_, i) => i).sort((x, y) => items[x].order - items[y].order);
  for (const i of inOrder) for (const j of out[i]) layer[j] = Math.max(layer[j], layer[i] + 1);
  for (const i of inOrder) if (!hasInput[i] && out[i].length) layer[i] = Math.min(...out[i].map((j) => layer[j])) - 1;
  return layer;
}

// An edge over several layers goes through one narrow cell in each, so that boxes make way for it.
function addChain(cells, edge, layer) {
  const chain = [edge.a];
  if (layer[edge.b] - layer[edge.a] <= 40)
    for (let l = layer[edge.a] + 1; l < layer[edge.b]; l++) {
      cells.push({ w: 8, h: 0, layer: l, order: cells[edge.a].order + 0.1, up: [], down: [] });
      chain.push(cells.length - 1);
    }
  chain.push(edge.b);
  for (let k = 1; k < chain.length; k++) { cells[chain[k - 1]].down.push(chain[k]); cells[chain[k]].up.push(chain[k - 1]); }
  return chain;
}

function orderLayers(cells, layers) {
  const spot = new Array(cells.length).fill(0);
  const number = (row) => row.forEach((i, k) => { spot[i] = k; });
  layers.forEach((row) => { row.sort((x, y) => cells[x].order - cells[y].order); number(row); });
  const sweep = (row, side) => {
    const wanted = new Map(row.map((i) => [i, cells[i][side].length ? sum(cells[i][side].map((j) => spot[j])) / cells[i][side].length : spot[i]]));
    row.sort((x, y) => wanted.get(x) - wanted.get(y) || spot[x] - spot[y]);
    number(row);
  };
  for (let round = 0; round < 4; round++) {
    for (let l = 1; l < layers.length; l++) sweep(layers[l], "up");
    for (let l = layers.length - 2; l >= 0; l--) sweep(layers[l], "down");
  }
}

// Each row moves its cells as near as they can to their neighbours' middles: least squares under "keep the order and the distance".
function placeAcross(cells, layers) {
  for (const row of layers) {
    let x = 0;
    for (const i of row) { cells[i].x = x + cells[i].w / 2; x += cells[i].w + GAP_X; }
    for (const i of row) cells[i].x -= x / 2;
  }
  const pull = (row, sides) => {
    const offsets = [], wanted = [];
    row.forEach((i, k) => {
      const before = row[k - 1];
      offsets.push(k ? offsets[k - 1] + cells[before].w / 2 + cells[i].w / 2 + GAP_X : 0);
      const near = sides.flatMap((side) => cells[i][side]);
      wanted.push((near.length ? sum(near.map((j) => cells[j].x)) / near.length : cells[i].x) - offsets[k]);
    });
    const blocks = [];
    wanted.forEach((x) => {
      blocks.push({ total: x, size: 1 });
      while (blocks.length > 1 && blocks.at(-2).total / blocks.at(-2).size > blocks.at(-1).total / blocks.at(-1).size) {
        const last = blocks.pop();
        blocks.at(-1).total += last.total; blocks.at(-1).size += last.size;
      }
    });
    let k = 0;
    for (const block of blocks) for (let n = 0; n < block.size; n++, k++) cells[row[k]].x = block.total / block.size + offsets[k];
  };
  for (let round = 0; round < 6; round++) {
    for (let l = 1; l < layers.length; l++) pull(layers[l], ["up"]);
    for (let l = layers.length - 2; l >= 0; l--) pull(layers[l], ["down"]);
  }
  for (const row of layers) pull(row, ["up", "down"]);
}

function finishLayout(items, edges, cells, layers, chains, linked) {
  const labels = placeLabels(edges, cells, chains);
  const rowsIn = new Array(layers.length + 1).fill(0); // label rows in the gap above each layer
  for (const label of labels) if (label) rowsIn[label.layer] = Math.max(rowsIn[label.layer], label.row + label.lines);
  let y = 0;
  layers.forEach((row, l) => {
    if (l) y += GAP_Y + rowsIn[l] * LABEL_H;
    const height = Math.max(0, ...row.map((i) => cells[i].h));
    for (const i of row) { cells[i].y = y + (cells[i].up.length ? (height - cells[i].h) / 2 : height - cells[i].h); cells[i].rowTop = y; cells[i].rowBottom = y + height; }
    y += height;
  });
  const used = layers.flat();
  let left = Math.min(0, ...used.map((i) => cells[i].x - cells[i].w / 2)), right = Math.max(0, ...used.map((i) => cells[i].x + cells[i].w / 2));
  for (const label of labels) if (label) { left = Math.min(left, label.x - label.w / 2); right = Math.max(right, label.x + label.w / 2); }
  const at = items.map((item, i) => (linked.has(i) ? { x: cells[i].x - cells[i].w / 2 - left, y: cells[i].y } : null));
  const size = placeLoose(items, at, right - left, y);
  const routes = edges.map((e, k) => route(items, e, at, chains[k], cells, labels[k], left, size));
  return { ...size, at, routes };
}

// Labels stand in the gap above the edge's end; two that would touch stand in different rows.
function placeLabels(edges, cells, chains) {
  const labels = edges.map((e, k) => {
    if (!e.lines?.length || !chains[k]) return null;
    const end = cells[chains[k].at(-1)], before = cells[chains[k].at(-2)];
    return { layer: end.layer, x: (end.x + before.x) / 2, w: Math.max(...e.lines.map((line) => line.length)) * 6 + 12, lines: e.lines.length, row: 0 };
  });
  const byLayer = new Map();
  for (const label of labels) if (label) push(byLayer, label.layer, label);
  for (const list of byLayer.values()) {
    list.sort((p, q) => p.x - q.x);
    const placed = [];
    for (const label of list) {
      const touching = placed.filter((other) => Math.abs(other.x - label.x) < (other.w + label.w) / 2);
      while (touching.some((other) => label.row < other.row + other.lines && other.row < label.row + label.lines)) label.row++;
      placed.push(label);
    }
  }
  return labels;
}

// Children without edges among them stand in rows below, in order.
function placeLoose(items, at, width, height) {
  const loose = items.map((_, i) => i).filter((i) => !at[i]).sort((x, y) => items[x].order - items[y].order);
  const area = sum(loose.map((i) => (items[i].w + GAP_X) * (items[i].h + GAP_Y)));
  const limit = Math.max(width, Math.min(Math.max(ROW_W, Math.sqrt(area) * 1.2), Math.sqrt(area) * 2), ...loose.map((i) => items[i].w));
  let x = 0, y = height ? height + GAP_Y : 0, rowHeight = 0;
  for (const i of loose) {
    if (x && x + items[i].w > limit) { x = 0; y += rowHeight + GAP_Y / 1.5; rowHeight = 0; }
    at[i] = { x, y };
    x += items[i].w + GAP_X;
    rowHeight = Math.max(rowHeight, items[i].h);
    width = Math.max(width, x - GAP_X);
  }
  return { w: width, h: loose.length ? y + rowHeight : height };
}

function route(items, e, at, chain, cells, label, left, size) {
  const from = items[e.a], to = items[e.b], a = at[e.a], b = at[e.b];
  if (!chain) { // against the order: a dashed line along the right side
    const x = Math.max(a.x + from.w, b.x + to.w) + 14;
    const points = [[a.x + from.w, a.y + from.h / 2], [x, a.y + from.h / 2], [x, b.y + to.h / 2], [b.x + to.w, b.y + to.h / 2]];
    return { points, back: true, label: e.lines?.length ? { x: Math.min(x, size.w), y: (a.y + b.y) / 2 } : null };
  }
  const points = [[a.x + from.w / 2, a.y + from.h]];
  for (const i of chain.slice(1, -1)) points.push([cells[i].x - left, cells[i].rowTop], [cells[i].x - left, cells[i].rowBottom]);
  points.push([b.x + to.w / 2, b.y]);
  if (!label) return { points, back: false, label: null };
  return { points, back: false, label: { x: label.x - left, y: cells[chain.at(-1)].rowTop - 9 - (label.row + label.lines - 1) * LABEL_H } };
}

// The phases of a step stand side by side: edges run from each to the next along the top, over what lies between.
function layoutColumns(items, edges) {
  const inOrder = items.map((_, i) => i).sort((p, q) => items[p].order - items[q].order), rankOf = new Map(inOrder.map((i, k) => [i, k]));
  const near = (e) => rankOf.get(e.b) === rankOf.get(e.a) + 1;
  const width = (e) => Math.max(...e.lines.map((line) => line.length), 4) * 6 + 24;
  const far = edges.filter((e) => !near(e)), top = far.length * 22 + sum(far.map((e) => e.lines.length * LABEL_H));
  const at = [];
  let x = 0;
  for (const i of inOrder) {
    at[i] = { x, y: top };
    const next = edges.filter((e) => e.a === i && near(e));
    x += items[i].w + Math.max(50, ...next.map(width));
  }
  const last = inOrder.at(-1);
  let y = top;
  const routes = edges.map((e) => {
    const from = [at[e.a].x + items[e.a].w, top + 16], to = [at[e.b].x, top + 16], middle = (from[0] + to[0]) / 2;
    if (near(e)) return { points: [from, to], back: true, solid: true, label: e.lines.length ? { x: middle, y: top + 10 - (e.lines.length - 1) * LABEL_H } : null };
    y -= 8 + e.lines.length * LABEL_H;
    const label = { x: (at[e.a].x + items[e.a].w + at[e.b].x) / 2, y: y - 4 - (e.lines.length - 1) * LABEL_H };
    const out = at[e.a].x + items[e.a].w - 30, into = at[e.b].x + 30, over = y;
    y -= 6;
    return { points: [[out, top], [out, over], [into, over], [into, top]], back: true, solid: true, label: e.lines.length ? label : null };
  });
  return { w: last === undefined ? 0 : at[last].x + items[last].w, h: top + Math.max(0, ...items.map((item) => item.h)), at, routes };
}

function routePath(points, back) {
  let d = `M${points[0][0].toFixed(1)},${points[0][1].toFixed(1)}`;
  if (back) return d + points.slice(1).map((p) => `L${p[0].toFixed(1)},${p[1].toFixed(1)}`).join("");
  for (let k = 1; k < points.length; k++) {
    const [x0, y0] = points[k - 1], [x1, y1] = points[k], bend = (y1 - y0) / 2;
    d += `C${x0.toFixed(1)},${(y0 + bend).toFixed(1)} ${x1.toFixed(1)},${(y1 - bend).toFixed(1)} ${x1.toFixed(1)},${y1.toFixed(1)}`;
  }
  return d;
}
