"""Small reductions: sums of a few numbers that a rank waits for, such as those of the loss and of its tokens. What they cost is that ranks meet, not their bytes.

In: a program as `graph.partition` builds it, the section of each node. Out: the program in which what was reduced in one phase is not reduced again in a later one (`reduce_once`),
and runs of such reductions which nothing between them needs, for `graph.overlap` to send as one (`find_meetings`). The partition brings a value once in each phase, as what is
large should not be held from one to the other; `SMALL_BYTES` is nothing to hold. What a plan is priced by before there is a program of it says `share_meetings`, of a whole graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from .chains import find_chain
from .graph import use_table, value_table
from .node import Node, Phase, get_arg
from .program import Program
from .repeats import block_of
from .sections import WEIGHT, Section
from .tensor import size_bytes
from .turns import LOOP

SMALL_BYTES = 4096  # gloo and nccl take as long for one number (`cost.collectives`: latency)
AGAIN = 1e-6  # of the price of a sum that is there already: it decides between ways that cost the same
_OP = "comm.all_reduce"


def reduce_once(program: Program, sections: Sequence[Section], places: Sequence[tuple]) -> tuple[Program, tuple[Section, ...]]:
    """The program without the all-reduces of forward and backward whose result is there already.

    Args:
        places: of each node its section and block, or the run of nodes in no block (`overlap`); what is in a block stays, as equal blocks stay equal.
    Returns:
        the program, and the section of each of its nodes.
    """
    graph, values = program.graph, value_table(program.graph)
    leaving = {graph.loss, *graph.outputs, *(new for _, new in graph.updates), *(grad for _, grad in graph.grads)}
    made: dict[tuple, str] = {}
    same: dict[str, str] = {}
    kept: list[int] = []
    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        inputs = tuple(same.get(name, name) for name in node.inputs)
        if node.op == _OP and places[i][1] is None and node.phase in LOOP and size_bytes(values[node.outputs[0]]) <= SMALL_BYTES:
            key, late = (inputs, get_arg(node, "axis"), get_arg(node, "op"), sections[i].chunk), sections[i].part == WEIGHT
            first = made.get((*key, False)) or made.setdefault((*key, late), node.outputs[0])  # what is made for the weights may come after what leads to another stage
            if first != node.outputs[0] and node.outputs[0] not in leaving:
                same[node.outputs[0]] = first
                continue
        kept.append(i)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    if not same:
        return program, tuple(sections)
    local = replace(graph, values=tuple(v for v in graph.values if v.name not in same), nodes=tuple(nodes))
    rows = tuple(row for row in program.shardings if row[0] not in same)
    return replace(program, graph=local, origins=tuple(program.origins[i] for i in kept), shardings=rows), tuple(sections[i] for i in kept)


def find_meetings(program: Program, places: Sequence[tuple]) -> list[list[tuple[tuple[int, ...], int]]]:
    """Runs of small all-reduces in forward and backward that may go as one: each as its chain (`chains`) and the index of its first reader, which comes after the last of the run.

    Args:
        places: as of `reduce_once`.
    """
    graph, values, uses = program.graph, value_table(program.graph), use_table(program.graph)
    leaving = {graph.loss, *graph.outputs, *(new for _, new in graph.updates), *(grad for _, grad in graph.grads)}
    runs: dict[tuple, list[list[tuple[tuple[int, ...], int]]]] = {}
    taken: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if i in taken or node.op != _OP or places[i][1] is not None or node.phase not in LOOP:
            continue
        chain = find_chain(graph, uses, i, places)
        value = values[graph.nodes[chain[-1]].outputs[0]]
        readers = [k for k, _ in uses[value.name]]
        if not readers or value.name in leaving or size_bytes(value) > SMALL_BYTES or places[min(readers)] != places[i]:
            continue
        taken.update(chain)
        axes = tuple(get_arg(graph.nodes[k], "axis") for k in chain)
        alike = runs.setdefault((places[i], axes, get_arg(node, "op"), value.dtype), [])
        if not alike or min(reader for _, reader in alike[-1]) <= i:
            alike.append([])
        alike[-1].append((chain, min(readers)))
    return [run for found in runs.values() for run in found if len(run) > 1 or len(run[0][0]) > 1]


def share_meetings(nodes: Sequence[Node], shapes: Mapping[str, tuple[int, ...]], sequences: Collection[str]) -> dict[tuple[str, Phase], float]:
    """(number of the forward pass, phase of its readers) -> of the price of bringing it there alone, what it costs beside others; of what is not there all.

    Those whose first reader is the same node meet together: the sum of a loss and its number of tokens, which it is divided by. What the forward pass has
    summed up is there in the backward pass. Not of what is read in a block, as equal blocks stay equal.

    Args:
        nodes: of a whole graph, in order, with or without copies for the backward pass.
        shapes: of what they make.
        sequences: of the graph.
    """
    sums: set[str] = set()  # numbers that come of larger tensors, so that ranks may each have a part
    first: dict[str, int] = {}
    for i, node in enumerate(nodes):
        if node.phase is not Phase.FORWARD:
            continue
        for name in sums.intersection(node.inputs) if block_of(node.path, sequences) is None else ():
            first.setdefault(name, i)
        if any(shapes.get(name) != () or name in sums for name in node.inputs):
            sums.update(out for out in node.outputs if out and shapes.get(out) == ())
    together: dict[int, list[str]] = defaultdict(list)
    for name, i in first.items():
        together[i].append(name)
    shares = {(name, Phase.FORWARD): 1 / len(names) for names in together.values() for name in names if len(names) > 1}
    return shares | {(name, Phase.BACKWARD): AGAIN for name in first}
