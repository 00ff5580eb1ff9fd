"""Totals as text: a kernel of the update that makes one number of one of each parameter (`graph.totals`), and what follows of that number.

In: such a kernel. Out: the lines of its function, whose first argument is a list: in plain torch the numbers are stacked; the Triton function, of one program, adds up what the launches that made these
numbers have left in parts (`runtime.totals`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...graph.graph import Graph
from ...graph.kernel import KINDS, Kernel, joined_numbers
from ...graph.liveness import is_view
from ...graph.node import Node, packet_of
from ...graph.tensor import Value
from .index import Index
from .literals import HALVES, TYPES, identity_of
from .partials import Partial, Running
from .reductions import UnsupportedError
from .torch_text import print_torch
from .triton_text import Printer

LIST = "numbers"  # the argument that is a list


@dataclass(frozen=True, slots=True)
class Total:
    """A kernel taken apart.

    Args:
        kernel: the same with the numbers as one value, beside each other.
        node: what makes one number of all.
        rest: what follows, as a kernel that is given this number; its graph has no nodes where nothing follows.
        shaped: some of the numbers have dims (those that another pipeline stage has sent).
    """

    kernel: Kernel
    node: Node
    rest: Kernel
    shaped: bool

    @property
    def made(self) -> Value:
        """The one number."""
        return next(v for v in self.kernel.graph.values if v.name == self.node.outputs[0])

    @property
    def partial(self) -> Partial:
        """As programs leave its parts."""
        return Partial(0, 1, self.made.dtype, KINDS[packet_of(self.node.op)])

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the function's arguments."""
        return (LIST, *self.kernel.graph.inputs[1:])


def take_apart(kernel: Kernel) -> Total:
    """A kernel that makes one number of a list of them."""
    graph, listed = kernel.graph, joined_numbers(kernel)
    values = {v.name: v for v in graph.values}
    views = {out: node.inputs[0] for node in graph.nodes if is_view(node.op) for out in node.outputs}
    own = {name for name in views if _root(views, name) in listed}
    nodes = [node for node in graph.nodes if not own.issuperset(node.outputs)]
    join = next(node for node in nodes if any(_root(views, name) in listed for name in node.inputs))
    nodes.remove(join)
    others, beside = graph.inputs[len(listed) :], join.outputs[0]
    into = tuple((o, i - len(listed) + 1) for o, i in kernel.into)
    node = next(node for node in nodes if beside in node.inputs)
    later = tuple(n for n in nodes if n is not node)
    kept = {*others, *(out for n in nodes for out in n.outputs)}
    rest = Graph("", tuple(v for v in graph.values if v.name in kept), later, (node.outputs[0], *others), outputs=graph.outputs)
    whole = Graph("", tuple(v for v in graph.values if v.name in kept | {beside}), tuple(nodes), (beside, *others), outputs=graph.outputs)
    assert values[node.outputs[0]].shape == ()
    return Total(replace(kernel, graph=whole, into=into), node, replace(kernel, graph=rest, into=into), any(values[name].shape for name in listed))


def without_rest(total: Total) -> Total:
    """What makes the number of all, and nothing of it."""
    kernel, made = total.kernel, total.made
    graph = replace(kernel.graph, nodes=(total.node,), inputs=kernel.graph.inputs[:1], outputs=(made.name,))
    return Total(replace(kernel, graph=graph, into=()), total.node, replace(total.rest, graph=replace(total.rest.graph, nodes=()), into=()), total.shaped)


def _root(views: dict[str, str], name: str) -> str:
    while name in views:
        name = views[name]
    return name


def print_plain(total: Total) -> list[str]:
    """The lines in plain torch."""
    beside = f"torch.cat([x.reshape(1) for x in {LIST}])" if total.shaped else f"torch.stack({LIST})"
    return [f"{total.kernel.graph.inputs[0]} = {beside}", *print_torch(total.kernel)]


def print_total(total: Total) -> tuple[list[str], str]:
    """The Triton function, and the line that says what it takes and makes.

    Raises:
        UnsupportedError: it has no Triton text.
    """
    kernel, made, into = total.kernel, total.made, dict(total.kernel.into)
    values = {v.name: v for v in kernel.graph.values}
    if made.dtype not in TYPES:
        raise UnsupportedError(f"{made.dtype} values")
    outs = [name for k, name in enumerate(kernel.graph.outputs) if k not in into]
    kept, kind = total.partial.kept, total.partial.kind
    found = f'totals.add_all(parts_ptr, COUNT, COLS, "{kind}", {identity_of(kind, made.dtype)})'
    found = found if TYPES[made.dtype] == f"tl.{kept}" else f"{found}.to({TYPES[made.dtype]})"
    body = _RestPrinter(total).lines() if total.rest.graph.nodes else [f"tl.store({made.name}_out, {f'{made.name}.to(tl.{made.dtype})' if made.dtype in HALVES else made.name})"]
    arguments = ["parts_ptr", *(f"{name}_ptr" for name in kernel.graph.inputs[1:]), *(f"{name}_out" for name in outs), "COUNT", "COLS: tl.constexpr", "WAITS: tl.constexpr"]
    lines = ["@fused.jit", f"def {kernel.name}_kernel({', '.join(arguments)}):", "    if WAITS:", "        tl.extra.cuda.gdc_wait()", f"    {made.name} = {found}", *(f"    {line}" for line in body)]
    results = ", ".join(f"torch.{values[name].dtype}" for name in outs)
    return lines, f'{kernel.name}_total = totals.Total({kernel.name}_kernel, torch.{kept}, made=[{results}])'


class _RestPrinter(Printer):
    """Prints what follows of a number that is there."""

    def __init__(self, total: Total) -> None:
        super().__init__(total.rest)
        name = total.made.name
        self.used.add(name)
        self.outer.names[name, Index(), ""] = name

    def lines(self) -> list[str]:
        """The function's body."""
        return list(self.text().lines)

    def _of_many(self, body: list[str], outs: list[str], accumulated: list[Running], finals: list[str]) -> list[str]:
        return body
