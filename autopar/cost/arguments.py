"""Arguments: what a program holds because groups run as kernels, where the law of memory (`graph.liveness`) knows their ops one by one.

In: a program, the section of each node, bytes held over time. Out: bytes held over time. A kernel's arguments are its caller's until it returns, on every device. What its ops make for each other
a GPU never holds; on a CPU, whose kernels are ops of plain torch, an op writes over what it is the last to read (`kernel.list_replaceable`). A kernel runs where `graph.fuse` puts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from ..graph.cuts import resolve_known
from ..graph.fusion import find_groups
from ..graph.graph import Graph, value_table
from ..graph.held_longer import HeldLonger
from ..graph.kernel import list_replaceable
from ..graph.liveness import held_bases, is_view, list_readers, live_ranges
from ..graph.node import Phase, Ref, get_arg
from ..graph.program import Program
from ..graph.rule import Rule
from ..graph.rules import RULES
from ..graph.sections import Section
from ..graph.tensor import Value, size_bytes

_NEAR = 0.7  # of the peak: groups whose nodes hold less are not looked for, as none holds so much for its arguments that it would pass the peak
_Lives = Mapping[str, tuple[int, int]]


def with_arguments(program: Program, sections: Sequence[Section], held: Sequence[int], on_cpu: bool, rules: Mapping[str, Rule] = RULES) -> list[int]:
    """Bytes held while each node runs, as the kernels of forward and backward hold them. Those of the update rewrite what they are given, as the law says.

    Args:
        sections: of each node.
        held: by the law, and whatever else is held.
        on_cpu: whether kernels are ops of plain torch, one after the other.
    """
    graph = program.graph
    least = _NEAR * max(held, default=0)
    near = {i for i, size in enumerate(held) if size >= least and graph.nodes[i].phase is not Phase.UPDATE}
    if not near:
        return list(held)
    lives, base, values = live_ranges(graph), held_bases(graph), value_table(graph)
    readers, longer = list_readers(graph, base), HeldLonger(graph)
    viewed = {base[node.inputs[0]] for node in graph.nodes if node.inputs and is_view(node.op)}
    change = [0] * (len(held) + 1)
    for members in find_groups(graph, *resolve_known(graph, rules), near, sections):
        if graph.nodes[members[0]].phase is Phase.UPDATE:
            continue
        found = longer.place(members)
        inside = set(members)
        made = {out for i in members for out in graph.nodes[i].outputs if out in lives}
        others = (i - 1 for name in made for i in readers.get(name, ()) if i not in inside)
        place = min((members[-1] if found is None else found, *others))  # who reads what it makes comes after it
        read = {base[name] for i in members for name in graph.nodes[i].inputs} & lives.keys() - made
        own = {name for name in made if inside.issuperset(readers.get(name, ())) and lives[name][1] <= members[-1]}
        rows = [(lives[name][1] + 1, place, size_bytes(values[name])) for name in read if members[0] <= lives[name][1] < place]
        rows += [(place + 1, lives[name][1], -size_bytes(values[name])) for name in read if place < lives[name][1] <= members[-1] and inside.issuperset(i for i in readers[name] if i > place)]
        rows += [(place, lives[name][0] - 1, size_bytes(values[name])) for name in made - own if place < lives[name][0]]
        rows += _replaced(graph, values, lives, members, own - viewed) if on_cpu else [(*lives[name], -size_bytes(values[name])) for name in own]
        for first, last, size in rows:
            change[first] += size
            change[last + 1] -= size
    return [size + more for size, more in zip(held, accumulate(change))]


def _replaced(graph: Graph, values: Mapping[str, Value], lives: _Lives, members: Sequence[int], own: set[str]) -> Iterator[tuple[int, int, int]]:
    """(node, node, minus bytes) of what a group's ops write over."""
    for i in members:
        node = graph.nodes[i]
        for operand in (get_arg(node, key) for key in list_replaceable(node)):
            old = node.inputs[operand.index] if isinstance(operand, Ref) else ""
            if old in own and lives[old][1] == i and node.inputs.count(old) == 1 and (values[old].shape, values[old].dtype) == (values[node.outputs[0]].shape, values[node.outputs[0]].dtype):
                yield i, i, -size_bytes(values[old])
                break
