"""The order of an update: which parameters are updated together, and what travels for them together, as the emitted program does it.

In: a program whose collectives were started ahead (`graph.overlap`). Out: groups of equal parts in the order in which they run; of a group for which something is started, the functions that are
called for a lot of its parts after the other: what one of them starts goes as one message (`codegen.parcels`, `runtime.parcels`). The law of memory (`graph.update_memory`), the order by which communication is
replayed (`cost.program_order`) and the plan's own account (`graph.sendings`) all take it from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .graph import Graph, entering_values, producer_table, use_table, value_table
from .program import STARTS, WAIT, Program
from .tensor import Kind, num_elements
from .update_lots import alike_parts, in_order, list_lots, parcel_bytes, waits_for_others
from .update_parts import Part, is_shared, split_part, update_layers, update_parts


def list_update(program: Program) -> list[list[Part]]:
    """The update in the order in which it runs: groups of equal parts; what is nobody's own is a part without a parameter."""
    graph = program.graph
    parts, rest = update_parts(graph)
    found: list[list[Part]] = []
    for layer in update_layers(graph, rest, _owners(graph, rest)):
        found += [*alike_parts(graph, layer.parts), *([Part("", (i,))] for i in layer.rest)]
    return [*found, *alike_parts(graph, parts)]


def _owners(graph: Graph, rest: Sequence[int]) -> dict[str, str]:
    """Value that an earlier phase made and these nodes read -> the parameter whose gradient it is: the one whose states are rewritten with what element by element comes of it.

    A program does not say whose gradient a value is; what prints one is told by the whole graph (`codegen.body`). Of a gradient that is read in two shardings (whole by a norm, in pieces by the
    update) it knows both, this only the one of which states are made.
    """
    inside, uses, makers, values = {*rest}, use_table(graph), producer_table(graph), value_table(graph)
    params = {value.storage for value in graph.values if value.kind is Kind.PARAM}
    states = {value.name: value.storage.partition(":")[2] or value.storage for value in entering_values(graph) if not is_shared(value.storage, value.shape)}
    found = {}
    for name in dict.fromkeys(name for i in rest for name in graph.nodes[i].inputs if name in makers and makers[name][0] not in inside):
        whose, seen, ahead = set(), {name}, [name]
        while ahead:
            here = ahead.pop()
            for node in (graph.nodes[k] for k, _ in uses[here] if k in inside):
                whose.update(states[other] for other in node.inputs if states.get(other) in params)
                sent = node.op.startswith("comm.")
                on = [out for out in node.outputs if out and out not in seen and (sent or num_elements(values[out].shape) == num_elements(values[here].shape))]
                seen.update(on)
                ahead += on
        if len(whose) == 1:
            found[name] = whose.pop()
    return found


def sends_in_lots(graph: Graph, group: Sequence[Part]) -> bool:
    """True of equal parts for which something is started in the update."""
    return len(group) > 1 and any(graph.nodes[i].op in STARTS for part in group for i in part.nodes)


def list_calls(graph: Graph, makers: Mapping[str, tuple[int, int]], group: Sequence[Part]) -> Iterator[list[tuple[int, ...]]]:
    """The functions that update a group that sends in lots, call by call: of each the nodes of every part that it is called for, which correspond.

    The reductions of the next lot start before a lot is updated, and the gathers of the last one are waited for, part by part, after it.

    Args:
        makers: `producer_table` of the graph.
    """
    parcels = list_lots(graph, as_they_come(graph, makers, group), parcel_bytes(graph, group))
    lots = [[split_part(graph, part) for part in parcel] for parcel in parcels]
    for ahead, here, before in zip([*lots, [], []], [[], *lots, []], [[], [], *lots]):
        yield [split.starts for split in ahead]
        yield [split.update for split in here]
        yield from ([split.finish] for split in before)
        yield [split.gathers for split in here]


def list_steps(graph: Graph, call: Sequence[Sequence[int]]) -> list[list[int]]:
    """The nodes of a call in order: those that start together as one step, else each alone, part by part."""
    together = any(graph.nodes[i].op in STARTS for column in call[:1] for i in column)
    return [[*row] for row in zip(*call)] if together else [[i] for column in call for i in column]


def as_they_come(graph: Graph, makers: Mapping[str, tuple[int, int]], group: Sequence[Part]) -> Sequence[Part]:
    """Equal parts in the order of their names or, where they wait for what was started before the update, in that."""

    def begun(part: Part) -> tuple[int, int]:
        made_by = (makers[graph.nodes[i].inputs[0]] for i in part.nodes if graph.nodes[i].op == WAIT)
        return max(place for place in made_by if place[0] not in part.nodes)

    named = in_order(group, graph.sequences)
    return sorted(named, key=begun) if waits_for_others(graph, group[0]) else named
