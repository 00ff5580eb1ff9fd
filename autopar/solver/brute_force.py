"""Every assignment of a tiny graph, one after another: the truth that the solver is tested against.

It shares with the solver the options of each chooser and nothing else: seconds and bytes are added up here again, over the whole graph,
by the law of `graph.partition`.
"""

from __future__ import annotations

from itertools import product

from ..graph.graph import Graph, use_table, value_table
from ..graph.liveness import is_view, storage_bases
from ..graph.node import Phase
from ..graph.sharding import Sharding, local_shape, replicated
from ..graph.strategy import Strategy
from ..graph.tensor import DTYPE_BYTES, Value, num_elements
from .prices import Prices
from .problem import Problem
from .transients import transient_bytes

Choice = dict[str, Strategy | Sharding]  # by node or input name


def search_all(problem: Problem, prices: Prices, sizes: tuple[int, ...], limit_bytes: float | None) -> tuple[float, float]:
    """(fewest seconds within the limit, fewest bytes at the peak); infinity where nothing fits."""
    fastest = smallest = float("inf")
    for options in product(*(range(len(c.seconds)) for c in problem.choosers)):
        chosen: Choice = {name: p.options[o] for c, o in zip(problem.choosers, options) for p in c.parts for name in p.members}
        seconds = add_seconds(problem.graph, prices, sizes, chosen)
        if seconds == float("inf"):
            continue
        peak = add_bytes(problem.graph, sizes, chosen)
        smallest = min(smallest, peak)
        if limit_bytes is None or peak <= limit_bytes:
            fastest = min(fastest, seconds)
    return fastest, smallest


def _demands(graph: Graph, num_axes: int, chosen: Choice) -> tuple[dict[str, Sharding], dict[tuple[str, Phase], list[tuple[Sharding, float, float]]]]:
    """How each value is made, and per (value, phase) what is wanted with the span in which a copy for it is held."""
    made = {name: chosen[name] for name in graph.inputs}
    wanted: dict[tuple[str, Phase], list[tuple[Sharding, float, float]]] = {}
    until = _view_ends(graph)
    at: dict[str, float] = {}
    last_read: dict[str, int] = {}
    grads = {g for _, g in graph.grads}
    for i, node in enumerate(graph.nodes):
        strategy = chosen[node.name]
        for k, (name, sharding) in enumerate(zip(node.inputs, strategy.inputs)):
            last = (until[i] if k == 0 else i) + 0.3
            last_read[name] = max(last, last_read.get(name, -1))
            first = at[name] + 0.3 if name in grads and node.phase is Phase.UPDATE else i
            wanted.setdefault((name, node.phase), []).append((sharding, first, last))
        for name, sharding in zip((o for o in node.outputs if o), strategy.outputs):
            made[name], at[name] = sharding, i + 0.3
    end = len(graph.nodes)
    for old, new in graph.updates:
        i = at[new] + 0.3
        wanted.setdefault((new, Phase.UPDATE), []).append((chosen[old], i, max(i, last_read.get(old, -1) + 0.3)))
    for name in (graph.loss, *graph.outputs):
        if name:
            wanted.setdefault((name, Phase.UPDATE), []).append((replicated(num_axes), at.get(name, -0.3) + 0.3, end))
    return made, wanted


def _view_ends(graph: Graph) -> list[int]:
    """For each node: the last read of the views that it makes of its first input, through further views."""
    uses = use_table(graph)

    def last(index: int) -> int:
        node = graph.nodes[index]
        ends = [index]
        if is_view(node.op):
            for out in (o for o in node.outputs if o):
                ends += [last(i) if k == 0 else i for i, k in uses[out]]
        return max(ends)

    return [last(i) for i in range(len(graph.nodes))]


def add_seconds(graph: Graph, prices: Prices, sizes: tuple[int, ...], chosen: Choice) -> float:
    """Seconds of one assignment: every node, and one reshard per (value, phase, wanted sharding)."""
    total = sum(prices.node_seconds(i, [chosen[n.name]])[0] for i, n in enumerate(graph.nodes))
    values = value_table(graph)
    total += sum(prices.write_seconds(values[old], chosen[old]) for old, new in graph.updates if new != old)
    made, wanted = _demands(graph, len(sizes), chosen)
    for (name, _), demands in wanted.items():
        for target in {d[0] for d in demands} - {made[name]}:
            total += prices.reshard_seconds(values[name], made[name], target)
    return total


def add_bytes(graph: Graph, sizes: tuple[int, ...], chosen: Choice) -> int:
    """Bytes at the peak of one assignment."""
    values = value_table(graph)
    made, wanted = _demands(graph, len(sizes), chosen)
    # a node's inputs are brought at i, it runs at i + 0.3, what leaves is brought at i + 0.6
    held = {round(i + part, 1): 0 for i in range(max(1, len(graph.nodes))) for part in (0, 0.3, 0.6)}

    def hold(value: Value, sharding: Sharding, first: float, last: float) -> None:
        size = num_elements(local_shape(value.shape, sharding, sizes)) * DTYPE_BYTES[value.dtype]
        for t in held:
            if first - 0.1 <= t <= last + 0.1:
                held[t] += size

    base = storage_bases(graph)
    first_of = {out: i + 0.3 for i, node in enumerate(graph.nodes) for out in node.outputs}
    for name in (n for n, owner in base.items() if n == owner):
        if name in graph.inputs:
            hold(values[name], made[name], 0, len(held))
            continue
        mine = [d for (of, _), demands in wanted.items() if of == name for d in demands]
        certain = max([first_of[name], *(first for _, first, _ in mine)])
        hold(values[name], made[name], first_of[name], max([certain, *(last for target, _, last in mine if target == made[name])]))
    for (name, _), demands in wanted.items():
        for target in {d[0] for d in demands} - {made[name]}:
            mine = [d for d in demands if d[0] == target]
            hold(values[name], target, min(d[1] for d in mine), max(d[2] for d in mine))
            for first in {round(d[1], 1) for d in mine}:
                held[min(first, max(held))] += transient_bytes(values[name], made[name], target, sizes)
    return max(held.values())


