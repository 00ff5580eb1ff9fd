"""A training step made by hand that has what matters of a transformer: an embedding, equal residual blocks `h.K`, a head (tied or not), a
loss, the whole backward pass, and SGD with or without momentum; skips from early to late blocks."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.graph.case import Case, build_case
from autopar.graph.graph import Graph, check_graph
from autopar.graph.node import Arg, Node, Phase, Ref
from autopar.graph.tensor import Kind, Value

_NAMES = {"aten.mm.default": ("self", "mat2"), "aten.threshold_backward.default": ("grad_output", "self")}


class _Step:
    """Builds the graph call by call; every call returns the name of the value made."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.phase = Phase.FORWARD

    def enter(self, name: str, shape: tuple[int, ...], kind: Kind) -> str:
        self.values[name] = Value(name, name.partition("@")[0], 0, shape, "float32", kind)
        self.inputs.append(name)
        return name

    def call(self, op: str, *inputs: str, path: str, name: str = "", kind: Kind = Kind.ACTIVATION, **attributes: Arg) -> str:
        shapes = [self.values[i].shape for i in inputs]
        shape = {"aten.mm.default": lambda: (shapes[0][0], shapes[1][1]), "aten.t.default": lambda: shapes[0][::-1], "aten.sum.default": lambda: ()}
        out = name or f"{op.split('.')[1]}_{len(self.nodes)}"
        names = _NAMES.get(op, ("self", "other"))
        args = (*((names[k], Ref(k)) for k in range(len(inputs))), *attributes.items())
        self.nodes.append(Node(f"n{len(self.nodes)}" if name else out, op, inputs, args, (out,), self.phase, path))
        storage, _, version = out.partition("@")
        self.values[out] = Value(out, storage, int(version or 0), shape.get(op, lambda: shapes[0])(), "float32", kind)
        return out

    def product(self, a: str, b: str, path: str, turn: str = "", kind: Kind = Kind.ACTIVATION) -> str:
        """a @ b; `turn` says which of the two is transposed before."""
        a = self.call("aten.t.default", a, path=path) if turn == "a" else a
        b = self.call("aten.t.default", b, path=path) if turn == "b" else b
        return self.call("aten.mm.default", a, b, path=path, kind=kind)


def build_blocks(
    blocks: int = 4, width: int = 8, hidden: int | Sequence[int] = 16, batch: int = 8, vocab: int = 16,
    tied: bool = False, momentum: bool = False, skips: Sequence[tuple[int, int]] = (), table: int = 0, named: bool = False, sequence: bool = False,
) -> Graph:  # fmt: skip
    """x @ embed -> blocks of up, relu, down, residual -> @ head -> sum of squares, and all that follows from it.

    Args:
        hidden: several: the blocks take turns.
        tied: the head is the embedding's transpose.
        skips: (early block, late block): what comes out of one is added to what goes into the other.
        table: of so many steps a table is made that every block adds to its weight.
        named: the modules of the blocks have names (`body.a`), not numbers.
        sequence: `h` is a container whose entries are no blocks, and each of them begins with a relu.
    """
    s, path_of = _Step(), [f"body.{chr(97 + k)}" if named else f"h.{k}" for k in range(blocks)]
    embed = s.enter("embed.weight@0", (vocab, width), Kind.PARAM)
    head = embed if tied else s.enter("head.weight@0", (width, vocab), Kind.PARAM)
    turns = [hidden] if isinstance(hidden, int) else hidden
    wide = [turns[k % len(turns)] for k in range(blocks)]
    ups = [s.enter(f"h.{k}.up@0", (width, wide[k]), Kind.PARAM) for k in range(blocks)]
    downs = [s.enter(f"h.{k}.down@0", (wide[k], width), Kind.PARAM) for k in range(blocks)]
    params = [embed, *([] if tied else [head]), *(p for pair in zip(ups, downs) for p in pair)]
    states = {p: s.enter(f"m:{p}", s.values[p].shape, Kind.OPTIM) for p in params} if momentum else {}
    x = s.enter("x", (batch, vocab), Kind.BATCH)
    if table:
        made = s.enter("table@0", (width, wide[0]), Kind.BUFFER)
        for _ in range(table):
            made = s.call("aten.relu.default", made, path="embed")
    weights = list(ups)

    flow = s.product(x, embed, "embed")
    read, acts, outs = [], [], []
    for k in range(blocks):
        for early, _ in (pair for pair in skips if pair[1] == k):
            flow = s.call("aten.add.Tensor", flow, outs[early], path=path_of[k])
        read.append(s.call("aten.relu.default", flow, path=path_of[k]) if sequence else flow)
        ups[k] = s.call("aten.add.Tensor", ups[k], made, path=path_of[k]) if table else ups[k]
        acts.append(s.call("aten.relu.default", s.product(read[k], ups[k], path_of[k]), path=path_of[k]))
        flow = s.call("aten.add.Tensor", flow, s.product(acts[k], downs[k], path_of[k]), path=path_of[k])
        outs.append(flow)
    y = s.product(flow, head, "head", "b" if tied else "")
    loss = s.call("aten.sum.default", s.call("aten.mul.Tensor", y, y, path="head"), path="head", name="loss", kind=Kind.LOSS)

    s.phase, grads = Phase.BACKWARD, {}
    dy = s.call("aten.add.Tensor", y, y, path="head")
    grads[head] = s.product(dy, flow, "head", "a", Kind.GRAD) if tied else s.product(flow, dy, "head", "a", Kind.GRAD)
    flow = s.product(dy, head, "head", "" if tied else "b")
    waiting: dict[int, str] = {}  # block -> gradient that comes to its output from a later one
    for k in reversed(range(blocks)):
        path = path_of[k]
        if k in waiting:
            flow = s.call("aten.add.Tensor", flow, waiting.pop(k), path=path)
        grads[downs[k]] = s.product(acts[k], flow, path, "a", Kind.GRAD)
        inner = s.call("aten.threshold_backward.default", s.product(flow, downs[k], path, "b"), acts[k], path=path, threshold=0)
        grads[weights[k]] = s.product(read[k], inner, path, "a", Kind.GRAD)
        inner = s.product(inner, ups[k], path, "b")
        inner = s.call("aten.threshold_backward.default", inner, read[k], path=path, threshold=0) if sequence else inner
        flow = s.call("aten.add.Tensor", flow, inner, path=path)
        for early, _ in (pair for pair in skips if pair[1] == k):
            waiting[early] = flow if early not in waiting else s.call("aten.add.Tensor", waiting[early], flow, path=path)
    last = s.product(x, flow, "embed", "a", Kind.GRAD)
    grads[embed] = s.call("aten.add.Tensor", grads[embed], last, path="embed", kind=Kind.GRAD) if tied else last

    s.phase, updates = Phase.UPDATE, []
    for p in params:
        path, step = p.rpartition(".")[0], grads[p]
        if momentum:
            step = s.call("aten.add.Tensor", states[p], grads[p], path=path, name=f"m:{p[:-1]}1", kind=Kind.OPTIM)
            updates.append((states[p], step))
        updates.append((p, s.call("aten.sub.Tensor", p, step, path=path, name=f"{p[:-1]}1", kind=Kind.PARAM, alpha=0.1)))
    graph = Graph("blocks", tuple(s.values.values()), tuple(s.nodes), tuple(s.inputs), tuple(updates), loss, (), tuple((p, grads[p]) for p in params), ("h",) if sequence else ())
    check_graph(graph)
    return graph


def build_block_case(**shape: object) -> Case:
    """`build_blocks` with rules, cuts and fold."""
    return build_case(build_blocks(**shape))  # type: ignore[arg-type]
