// The plan in the page: unpacked, with the tables that every view reads (who makes, who reads, who stands for whom), and the units.

const PHASES = ["prepare", "forward", "backward", "update"];

async function unpackPlan() {
  const packed = document.getElementById("plan-data").textContent.trim();
  const letters = atob(packed), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return buildTables(JSON.parse(await new Response(stream).text()));
}

function buildTables(raw) {
  const { nodes, tensors, comms, texts } = raw;
  const numNodes = nodes.name.length;
  const producer = new Int32Array(tensors.name.length).fill(-1);
  const consumers = tensors.name.map(() => []);
  for (let i = 0; i < numNodes; i++) {
    for (const t of nodes.outputs[i]) producer[t] = i;
    for (const t of nodes.inputs[i]) if (consumers[t].at(-1) !== i) consumers[t].push(i);
  }
  // A folded node is shown by its representative: the same place in the first block.
  const foldOf = new Int32Array(numNodes).fill(-1), blockOf = new Int32Array(numNodes), spot = new Int32Array(numNodes);
  const rep = Int32Array.from({ length: numNodes }, (_, i) => i);
  raw.folds.forEach((fold, f) => fold.blocks.forEach((block, b) => block.forEach((i, k) => {
    foldOf[i] = f; blockOf[i] = b; spot[i] = k; rep[i] = fold.blocks[0][k];
  })));
  const commsOf = new Map(); // reader -> its communications
  for (let c = 0; c < comms.name.length; c++) push(commsOf, comms.reader[c], c);
  const count = (i) => (foldOf[i] < 0 ? 1 : raw.folds[foldOf[i]].blocks.length);
  const text = (column, i) => texts[column[i]];
  const placement = (t, axis) => { const all = text(tensors.sharding_t, t); return all === "-" ? "R" : all.split(",")[axis]; };
  return { ...raw, axes: raw.head.mesh.axes, producer, consumers, foldOf, blockOf, spot, rep, commsOf, count, text, placement };
}

function push(map, key, entry) {
  const list = map.get(key);
  if (list) list.push(entry); else map.set(key, [entry]);
}

const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);

// Seconds and bytes inside, ms and MiB in print.
function digits(x) {
  const size = Math.abs(x);
  if (x === 0) return "0";
  if (size < 0.0001) return "<0.0001";
  const decimals = size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : size >= 0.01 ? 3 : 4;
  const [all, part] = x.toFixed(decimals).split(".");
  return all.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? "." + part : "");
}
const ms = (seconds) => `${digits(seconds * 1e3)} ms`;
function bytes(n) {
  if (n === 0) return "0";
  if (n >= 2 ** 30 / 2) return `${digits(n / 2 ** 30)} GiB`;
  if (n >= 2 ** 20 / 10) return `${digits(n / 2 ** 20)} MiB`;
  return n >= 1024 ? `${digits(n / 1024)} KiB` : `${n} B`;
}
const percent = (x) => (x > 0 && x < 1e-4 ? "<0.01 %" : `${digits(x * 100)} %`);
const whole = (n) => String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
function short(n) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (n >= size) return `${digits(n / size)} ${letter}`;
  return Number.isInteger(n) ? String(n) : digits(n);
}
const flopsText = (n) => short(n).replace(/^(\S+) ?(\S*)$/, "$1 $2FLOP");
const shapeText = (dtype, shape) => `${dtype}[${shape.join(", ")}]`;

// What a placement does, by the part of it that a colour can show: R, P, or the dim that is split.
const category = (placement) => (placement[0] === "S" ? "S" + Math.min(7, parseInt(placement.slice(1), 10)) : placement[0]);

function placementWords(placement) {
  if (placement === "R") return "the same on every rank";
  if (placement[0] === "P") return `each rank holds a part of the ${placement === "P" ? "sum" : placement.slice(1)}`;
  const [dim, stride] = placement.slice(1).split("/");
  return `dim ${dim} split, stride ${stride}`;
}

// Small DOM makers. Text only ever enters as text nodes.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (key.startsWith("aria-")) node.setAttribute(key, value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
