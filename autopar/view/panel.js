// The panel beside the graph: who fills it (the makers of its page), and the links that all of them make.

function buildDetails(plan, tree, goTo, makers) {
  const panel = el("aside", { id: "details", "aria-label": "Details" });
  const empty = () => panel.replaceChildren(el("p", { class: "note" }, `${makers.hint} Double-click a group, or its + sign, to open it. Drag to move, scroll to zoom.`));
  empty();
  return { panel, empty, show: (what) => { panel.replaceChildren(...makers[what.kind](plan, tree, what, goTo, panel)); panel.scrollTop = 0; } };
}

const nodeLink = (plan, i, goTo) => el("button", { class: "link", on: { click: () => goTo(i) } }, `${plan.nodes.name[i]}`);

function readersOf(plan, outputs, goTo) {
  const readers = [...new Set(outputs.flatMap((t) => plan.consumers[t]))];
  if (!readers.length) return el("p", { class: "note" }, "No node: the step returns it, or keeps it.");
  const place = (i) => `${PHASES[plan.nodes.phase[i]]} · ${plan.text(plan.nodes.path_t, i) || "the model itself"}`;
  return el("ul", { class: "links" }, ...readers.slice(0, 30).map((i) => el("li", {}, nodeLink(plan, i, goTo), el("span", { class: "note" }, ` ${place(i)}`))), readers.length > 30 ? el("li", {}, `and ${readers.length - 30} more`) : "");
}

// Which of the equal blocks is told of.
function pickBlock(fold, block, alike, pick) {
  return el("p", { class: "fold" }, `One of ${fold.blocks.length} equal blocks, ${alike}. Block `,
    el("select", { "aria-label": "Block", on: { change: (e) => pick(Number(e.target.value)) } }, ...fold.numbers.map((n, b) => el("option", { value: b, selected: b === block }, n))));
}
