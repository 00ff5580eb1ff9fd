"""Parts: the Triton functions of a kernel, one where one can be.

In: a `Kernel`. Out: its `Part`s in the order in which they run, each a kernel of some of its results, with its text. A group whose results do not fit one function (results of
several sizes, reductions along rows of several kinds, a sum over rows that is read again) is cut: a part ends at a reduction that another part reads, or has the results
that fit one function together. What is pointwise is made again in each part that needs it, but for what is compared with its own extremes, which is handed on beside them.
Invariant: one after the other the parts make the kernel's results.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ...graph.graph import Graph, producer_table
from ...graph.kernel import Kernel
from ...graph.node import packet_of
from .pointwise import COMPARISONS
from .reductions import EXTREMES, REDUCING, UnsupportedError, keeps_numbers
from .triton_text import TritonText, print_triton


@dataclass(frozen=True, slots=True)
class Part:
    """Some results of a kernel, with the Triton function that makes them."""

    kernel: Kernel
    text: TritonText


def print_parts(kernel: Kernel) -> tuple[Part, ...]:
    """The Triton functions of a kernel.

    Raises:
        UnsupportedError: there are none; it names the op that has no text, or why the group cannot be cut.
    """
    try:
        return (Part(kernel, print_triton(kernel)),)
    except UnsupportedError:
        if kernel.into or len(kernel.graph.nodes) == 1:
            raise
    ends = _find_ends(kernel)
    order = {out: k for k, node in enumerate(kernel.graph.nodes) for out in node.outputs}
    parts: list[list[str]] = []
    for name in sorted(ends, key=lambda n: order[n]):
        if not any(_join(kernel, parts, place, name) for place in range(len(parts))):
            parts.append([name])
    found = []
    for number, names in enumerate(parts):
        part = _cut(kernel, names, {n for before in parts[:number] for n in before}, f"{kernel.name}_part_{number + 1}")
        found.append(Part(part, print_triton(part)))
    return tuple(found)


def _find_ends(kernel: Kernel) -> set[str]:
    """The kernel's results, and the reductions between them that have to be made before others: each has a text when it reads these.

    Raises:
        UnsupportedError: one has none.
    """
    makers = producer_table(kernel.graph)
    ends, known, todo = set(kernel.graph.outputs), set[str](), list(kernel.graph.outputs)
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
    return replace(kernel, name=name, graph=inner, any_shape=kernel.any_shape and any(v.shape for v in own))
