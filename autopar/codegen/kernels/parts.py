"""Parts: the functions of a kernel, one Triton function where one can be.

In: a `Kernel`. Out: its `Part`s in the order in which they run, each a kernel of some of its results, with its text. A group whose results do not fit one function (results of
several sizes, reductions along rows of several kinds, a sum over rows that is read again) is cut: a part ends at a reduction that another part reads, or has the results
that fit one function together; an op that has no Triton text is a part of its own, which is plain torch. What is pointwise is made again in each part that needs it, but for what is compared with its
own extremes, which is handed on beside them. Invariant: one after the other the parts make the kernel's results, and of what is between them only what one of them reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ...graph.graph import Graph, producer_table
from ...graph.liveness import is_view
from ...graph.kernel import Kernel, takes_lists
from ...graph.node import Node, packet_of
from .pointwise import COMPARISONS
from .reductions import EXTREMES, REDUCING, UnsupportedError, keeps_numbers
from .triton_text import TritonText, print_triton


@dataclass(frozen=True, slots=True)
class Part:
    """Some results of a kernel, with the Triton function that makes them; None: plain torch, one op that has no text."""

    kernel: Kernel
    text: TritonText | None


def print_parts(kernel: Kernel) -> tuple[Part, ...]:
    """The functions of a kernel, in order.

    Raises:
        UnsupportedError: none of them is Triton's; it names the op that has no text, or why the group cannot be cut.
    """
    try:
        return (Part(kernel, print_triton(kernel)),)
    except UnsupportedError:
        nodes = [node for node in kernel.graph.nodes if not is_view(node.op)]
        plain = [] if takes_lists(kernel) else [node for node in nodes if not _has_text(kernel, node)]
        if kernel.into or len(plain) == len(nodes):
            raise
    ends = _find_ends(kernel, plain)
    order = {out: k for k, node in enumerate(kernel.graph.nodes) for out in node.outputs}
    apart = {name: _outputs(node) for node in plain for name in _outputs(node)}
    parts: list[list[str]] = []
    for name in sorted(ends, key=lambda n: order[n]):
        if name in apart:
            parts += [list(apart[name])] if name == apart[name][0] else []
        elif not any(_join(kernel, parts, place, name) for place in range(len(parts)) if parts[place][0] not in apart):
            parts.append([name])
    found: list[Part] = []
    read = {*kernel.graph.outputs}
    for number in reversed(range(len(parts))):  # the last first: of each only what the kernel returns or those after it read
        names = parts[number] if parts[number][0] in apart else [name for name in parts[number] if name in read]
        if not names:
            continue
        part = _cut(kernel, names, {n for before in parts[:number] for n in before}, f"{kernel.name}_part_{number + 1}")
        if not part.graph.inputs:
            raise UnsupportedError("a part that reads nothing")
        read.update(part.graph.inputs)
        found.append(Part(part, None if names[0] in apart else print_triton(part)))
    return tuple(found[::-1])


def _has_text(kernel: Kernel, node: Node) -> bool:
    """False for what is plain torch even alone."""
    try:
        print_triton(_cut(kernel, _outputs(node), node.inputs, "part"))
    except UnsupportedError:
        return False
    return True


def _outputs(node: Node) -> tuple[str, ...]:
    return tuple(out for out in node.outputs if out)


def _find_ends(kernel: Kernel, plain: Sequence[Node]) -> set[str]:
    """The kernel's results, what nodes that are `plain` torch read and make, and the reductions between them that have to be made before others: each has a text when it reads these.

    Raises:
        UnsupportedError: one has none.
    """
    makers = producer_table(kernel.graph)
    apart, bare = {out for node in plain for out in _outputs(node)}, _made_of_nothing(kernel.graph)
    known = apart | {root for node in plain for name in node.inputs if (root := _seen_through_views(kernel.graph, makers, name)) in makers} - bare
    ends = known | set(kernel.graph.outputs)
    todo = [name for name in ends if name not in apart]
    while todo:
        name = todo.pop()
        new = set[str]()
        try:
            print_triton(_cut(kernel, [name], known - {name}, "part"))
        except UnsupportedError:
            new = _nearest_reductions(kernel.graph, makers, name, known)
            if not new:
                raise
            todo.append(name)
        new |= set() if todo else _compared(kernel.graph, makers, ends | known | new) - known
        known |= new
        todo += [n for n in new if n not in ends]
        ends |= new
    return ends


def _made_of_nothing(graph: Graph) -> set[str]:
    """What is made of numbers alone: who reads it makes it again, for a function has an argument."""
    found = set[str]()
    for node in graph.nodes:
        found |= set(node.outputs) if found.issuperset(node.inputs) else set()
    return found


def _compared(graph: Graph, makers: dict[str, tuple[int, int]], known: Collection[str]) -> set[str]:
    """The values that are compared with their own known extremes: made again in another part they might be a rounding away from each of them."""
    found = set()
    for node in graph.nodes:
        roots = {_root(graph, makers, name) for name in node.inputs} if node.op in COMPARISONS else set()
        for name in roots.intersection(known):
            extreme = graph.nodes[makers[name][0]]
            if packet_of(extreme.op) in EXTREMES:
                found |= roots & {_root(graph, makers, extreme.inputs[0])} & makers.keys()
    return found


def _seen_through_views(graph: Graph, makers: dict[str, tuple[int, int]], name: str) -> str:
    """The value whose bytes these are."""
    while name in makers and is_view((node := graph.nodes[makers[name][0]]).op):
        name = node.inputs[0]
    return name


def _root(graph: Graph, makers: dict[str, tuple[int, int]], name: str) -> str:
    """The value whose elements these are, where they were first made."""
    while name in makers and keeps_numbers(node := graph.nodes[makers[name][0]]):
        name = node.inputs[0]
    return name


def _nearest_reductions(graph: Graph, makers: dict[str, tuple[int, int]], name: str, known: Collection[str]) -> set[str]:
    """What a value is made of that reducing nodes made, none of it through another such node or through what is known."""
    found: set[str] = set()
    todo, seen = [n for n in graph.nodes[makers[name][0]].inputs], set[str]()
    while todo:
        here = todo.pop()
        if here in seen or here in known or here not in makers:
            continue
        seen.add(here)
        node = graph.nodes[makers[here][0]]
        if packet_of(node.op) in REDUCING:
            found.add(here)
        else:
            todo += node.inputs
    return found


def _join(kernel: Kernel, parts: list[list[str]], place: int, name: str) -> bool:
    """Put a value into a part, if its function can make it, too."""
    before = {n for part in parts[:place] for n in part}
    try:
        print_triton(_cut(kernel, [*parts[place], name], before, "part"))
    except UnsupportedError:
        return False
    parts[place].append(name)
    return True


def _cut(kernel: Kernel, results: Sequence[str], given: Collection[str], name: str) -> Kernel:
    """The part of a kernel that makes some of its values from its inputs and from values that are given."""
    graph = kernel.graph
    needed, nodes = set(results), []
    for node in reversed(graph.nodes):
        if any(out in needed and (out not in given or out in results) for out in node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    nodes.reverse()
    made = {out for node in nodes for out in node.outputs}
    taken = tuple(n for n in dict.fromkeys((*graph.inputs, *(n for node in nodes for n in node.inputs))) if n in needed and n not in made)
    own = tuple(v for v in graph.values if v.name in made or v.name in taken)
    inner = Graph("", own, tuple(nodes), taken, outputs=tuple(results))
    return replace(kernel, name=name, graph=inner, any_shape=kernel.any_shape and any(v.shape for v in own), given_up=())
