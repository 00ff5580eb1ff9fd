// The tab of a pipeline: what each stage does and holds, and its schedule over time.

const ACTIONS = { F: ["forward", "#8db8f5"], B: ["backward", "#f7b27a"], I: ["backward for the input", "#f7b27a"], W: ["backward for the weights", "#8fd3a8"], P: ["before the microbatches", "#d3d7de"], U: ["update", "#c9b3f0"] };

function stagesTab(plan) {
  const { head, stages } = plan, { num_microbatches: microbatches, schedule, cost } = head, { rows, boxes } = stages;
  const box = el("section", { class: "page" }, el("h2", {}, `${schedule}, ${microbatches} microbatch${microbatches > 1 ? "es" : ""}`));
  if (boxes.length) {
    const kinds = ["P", ...new Set(boxes.flatMap((b) => b.kind)), "U"].filter((k) => k !== "P" || rows.some((r) => r.prepare_s));
    box.append(el("div", { class: "legend" }, ...kinds.map((k) => el("span", {}, swatch(ACTIONS[k][1]), ACTIONS[k][0]))), scheduleChart(rows, boxes, cost.step_s, stages.chunks));
  } else box.append(el("p", { class: "note" }, "The schedule has too many actions to be drawn."));
  box.append(el("h2", {}, "Stages"), buildTable({ id: "stages", rows, note: "Forward and backward are of one microbatch, update and what comes before the microbatches of a step. Bytes are of one device of the stage.", columns: [
    { title: "stage", of: (r) => r.number }, { title: "modules", align: "left", of: (r) => r.modules }, { title: "parameters", of: (r) => r.num_params, print: whole },
    { title: "before", of: (r) => r.prepare_s, print: ms }, { title: "forward", of: (r) => r.forward_s, print: ms }, { title: "backward", of: (r) => r.backward_s, print: ms }, { title: "update", of: (r) => r.update_s, print: ms },
    { title: "busy", of: (r) => r.busy, print: percent, hint: "share of the step" }, { title: "in flight", of: (r) => r.in_flight, print: digits, hint: "microbatches between their forward and backward, at most" },
    { title: "peak", of: (r) => r.peak_bytes, print: bytes }, { title: "states", of: (r) => r.state_bytes, print: bytes }, { title: "activations", of: (r) => r.activation_bytes, print: bytes },
  ] }));
  return box;
}

// A row per stage, a box per action, as wide as it takes.
function scheduleChart(rows, boxes, step, chunks) {
  const W = 1240, L = 64, T = 8, ROW = 34, B = 26, H = T + ROW * rows.length + B, x = (s) => L + (W - L - 10) * s / (step || 1);
  const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "memory schedule", role: "img", "aria-label": "Schedule over time" });
  for (let k = 0; k <= 4; k++) root.append(svg("line", { x1: x(step * k / 4), x2: x(step * k / 4), y1: T, y2: H - B + 4, class: "grid" }), svg("text", { x: x(step * k / 4), y: H - 8, class: k === 4 ? "small end" : "small mid" }, ms(step * k / 4)));
  const draw = (row, kind, from, to, label, told) => {
    const y = T + ROW * row + 3, wide = x(to) - x(from);
    if (to <= from) return;
    root.append(svg("rect", { x: x(from), y, width: wide, height: ROW - 6, fill: ACTIONS[kind][1], class: "action", "data-kind": kind }, svg("title", {}, `stage ${row}: ${ACTIONS[kind][0]}${told}, ${ms(from)} to ${ms(to)}`)));
    if (wide > 7 * label.length + 3) root.append(svg("text", { x: x(from) + wide / 2, y: y + ROW / 2 + 1, class: "small mid" }, label));
  };
  rows.forEach((row, r) => {
    root.append(svg("text", { x: L - 8, y: T + ROW * r + ROW / 2 + 4, class: "end" }, `stage ${r}`));
    draw(r, "P", 0, row.prepare_s, "", "");
    const b = boxes[r];
    b.kind.forEach((kind, k) => draw(r, kind, b.start_s[k], b.end_s[k], chunks > 1 ? `${b.chunk[k]}·${b.microbatch[k]}` : `${b.microbatch[k]}`, ` of microbatch ${b.microbatch[k]}${chunks > 1 ? ` on chunk ${b.chunk[k]}` : ""}`));
    draw(r, "U", b.end_s.at(-1), b.end_s.at(-1) + row.update_s, "update", "");
  });
  return el("div", { class: "chartbox" }, root, el("p", { class: "note" }, `Time from left to right, as predicted; white is waiting. In a box: ${chunks > 1 ? "chunk of the model · " : ""}the microbatch.`));
}
