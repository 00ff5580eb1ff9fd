"""Who reads what, and when: the groups that share reshards, and the values that own bytes with the life of each.

In: a graph, its fold, what may be recomputed, which chooser makes and wants what. Out: `Group`s and `Owner`s of a `Problem`, by the laws of
`graph.partition` (who shares a reshard) and `graph.liveness` (how long bytes are held). Time is that of the graph in which all copies stand.

A value that may be recomputed has three forms, each with a port of its chooser: as the forward pass made it, as kept from the start of the
backward pass on, as made again there. Who reads it in the backward pass is an endpoint of both of the last two.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import GraphError
from ..graph.graph import Graph, phase_table, producer_table, value_table
from ..graph.liveness import is_view, storage_bases
from ..graph.node import Phase
from ..graph.repeats import Fold
from ..graph.small_reductions import share_meetings
from ..graph.turns import GROWN, count_microbatches, loop_span, times_of
from ..graph.view_strides import find_copied
from .again import Again
from .problem import AFTER, BRING, MOMENTS, RUN, STORAGE, WHOLE, Chooser, Endpoint, Group, Hold, Life, Owner


class Form(enum.Enum):
    """How a value is there."""

    __hash__ = object.__hash__  # enum's own is Python's, and these are in most keys

    MADE = "made"
    KEPT = "kept"
    AGAIN = "again"


Item = tuple[str, Form]  # a value of the graph in one of its forms


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the decisions of a node class are: its chooser, and the first port of each kind in it.

    Args:
        outputs, inputs: as made in the forward pass; all there is for most nodes.
        kept, again: outputs as kept for the backward pass and as made again; again_inputs: what the copy reads. Of what may be
            recomputed; -1 for the rest.
    """

    chooser: int
    outputs: int
    inputs: int
    kept: int = -1
    again: int = -1
    again_inputs: int = -1


class Lanes:
    """A graph beside its copies: which node and value each one is, and which chooser decides. Built once per problem."""

    def __init__(self, graph: Graph, fold: Fold, again: Again, of_input: Mapping[str, int], of_node: Mapping[int, Ports], turn_weight: float | None = None) -> None:
        self.graph, self.fold, self.of_input, self.of_node = graph, fold, of_input, of_node
        self.found, self.plus = again.found, again.found.graph
        self.copies = set(again.found.original_values.values())
        self.index = {node.name: i for i, node in enumerate(graph.nodes)}
        self.ports = [of_node[fold.node_class[self.index[again.found.original.get(node.name, node.name)]]] for node in self.plus.nodes]
        self.num_turns = count_microbatches(self.plus)
        self.turn_weight = self.num_turns if turn_weight is None else turn_weight
        span = loop_span(self.plus)
        self.loop = (0, -1) if span is None else (MOMENTS * span[0], MOMENTS * span[1] + AFTER)  # first and last moment of the turns
        backward = next((i for i, node in enumerate(self.plus.nodes) if node.phase is Phase.BACKWARD), len(self.plus.nodes))
        self.turn = MOMENTS * backward  # the first moment of the backward pass

    def is_copy(self, node: str) -> bool:
        return node in self.found.original

    def leaves(self, moment: int) -> int:
        """When what is made at a moment is brought to where the update or the end of the step wants it."""
        return self.loop[1] if self.loop[0] <= moment <= self.loop[1] else _after(moment)

    def held_until(self, made: int, last: int) -> int:
        """Until when a value is held that is last read at `last`: what comes from before the turns stays for all of them."""
        return self.loop[1] if made < self.loop[0] <= last <= self.loop[1] else last

    def class_of(self, item: Item) -> Item:
        return self.fold.value_class[item[0]], item[1]

    def forms_of(self, name: str) -> tuple[Item, ...]:
        """What a reader of this value of the graph with copies reads."""
        original = self.found.original_values.get(name)
        if original is None:
            return ((name, Form.MADE),)
        return (original, Form.KEPT), (original, Form.AGAIN)


def list_sources(lanes: Lanes) -> dict[Item, tuple[int, int]]:
    """For each value in each form: (chooser, output) that makes it."""
    found = {(name, Form.MADE): (lanes.of_input[lanes.fold.value_class[name]], 0) for name in lanes.graph.inputs}
    for i, node in enumerate(lanes.graph.nodes):
        ports = lanes.of_node[lanes.fold.node_class[i]]
        for k, out in enumerate(o for o in node.outputs if o):
            found[out, Form.MADE] = (ports.chooser, ports.outputs + k)
            if out in lanes.copies:
                found[out, Form.KEPT] = (ports.chooser, ports.kept + k)
                found[out, Form.AGAIN] = (ports.chooser, ports.again + k)
    return found


def _held_until(graph: Graph) -> list[int]:
    """For each node: until when a copy of its first input is held (longer than the node itself where it makes views of it that are no copies)."""
    until, copied = list(range(len(graph.nodes))), find_copied(graph)
    reach = {name: len(graph.nodes) for name in (*graph.outputs, graph.loss) if name}  # what leaves the step is held to its end
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if is_view(node.op):
            until[i] = max([i, *(reach.get(o, i) for o in node.outputs if o and o not in copied)])
        for k, name in enumerate(node.inputs):
            reach[name] = max(reach.get(name, i), until[i] if k == 0 else i)
    return until


@dataclass(frozen=True, slots=True)
class Reads:
    """Who reads what: per (value in a form, phase) the endpoints, each with the span in which a copy for it is held.

    `made`: when it comes to be. `optional`: endpoints that may read nothing.
    """

    made: dict[Item, int]
    ends: dict[tuple[Item, Phase], dict[Endpoint, tuple[int, int]]]
    optional: set[Endpoint]

    def add(self, item: Item, phase: Phase, endpoint: Endpoint, first: int, last: int) -> None:
        """One more read; reads by the same endpoint join."""
        here = self.ends.setdefault((item, phase), {})
        low, high = here.get(endpoint, (first, last))
        here[endpoint] = (min(low, first), max(high, last))


def list_reads(lanes: Lanes) -> Reads:
    """By the law of `partition`: a final gradient that the update reads, a new state and what leaves are brought where they are made."""
    graph, plus = lanes.graph, lanes.plus
    end = MOMENTS * len(plus.nodes)
    until = _held_until(plus)
    reads = Reads(_list_made(lanes), {}, set())
    grads = {g for _, g in graph.grads}
    last_read: dict[str, int] = {}
    for i, node in enumerate(plus.nodes):
        ports = lanes.ports[i]
        again, view = lanes.is_copy(node.name), is_view(node.op)
        for k, name in enumerate(node.inputs):
            last = lanes.held_until(MOMENTS * i, MOMENTS * (until[i] if k == 0 else i) + RUN)
            last_read[name] = max(last_read.get(name, -1), last)
            forms = lanes.forms_of(name)
            tied = again and view and len(forms) > 1  # the copy of a view is there exactly where its base is made again
            endpoint = Endpoint(ports.chooser, (ports.again_inputs if again else ports.inputs) + k, tied=tied)
            if again:
                reads.optional.add(endpoint)
            for item in forms[-1:] if tied else forms:
                early = name in grads and node.phase is Phase.UPDATE and lanes.num_turns == 1
                first = _after(reads.made[item]) if early else MOMENTS * i + BRING
                reads.add(item, node.phase, endpoint, first, last)
    for old, new in graph.updates:
        at = lanes.leaves(reads.made[new, Form.MADE])
        storage = Endpoint(lanes.of_input[lanes.fold.value_class[old]], STORAGE)
        reads.add((new, Form.MADE), Phase.UPDATE, storage, at, max(at, lanes.leaves(last_read.get(old, -1))))
    for name in dict.fromkeys((*([graph.loss] if graph.loss else []), *graph.outputs)):
        reads.add((name, Form.MADE), Phase.UPDATE, Endpoint(WHOLE, 0), lanes.leaves(reads.made[name, Form.MADE]), end)
    return reads


def _list_made(lanes: Lanes) -> dict[Item, int]:
    """When each value comes to be, in each form."""
    made: dict[Item, int] = {(name, Form.MADE): -1 for name in lanes.graph.inputs}
    for name, (i, _) in producer_table(lanes.plus).items():
        original = lanes.found.original_values.get(name)
        if original is None:
            made[name, Form.MADE] = MOMENTS * i + RUN
        else:
            made[original, Form.AGAIN] = MOMENTS * i + RUN
            made[original, Form.KEPT] = lanes.turn
    return made


def _after(moment: int) -> int:
    """The moment right after a node ran (of what enters: the first moment)."""
    return moment - RUN + AFTER if moment >= 0 else 0


def build_groups(lanes: Lanes, sources: Mapping[Item, tuple[int, int]], reads: Reads) -> tuple[tuple[Group, ...], dict[Item, list[tuple[int, int]]]]:
    """The groups, and for each value where its reads are: (group, instance) pairs."""
    values, phases = value_table(lanes.graph), phase_table(lanes.graph)
    shares = share_meetings(lanes.graph.nodes, {name: value.shape for name, value in values.items()}, lanes.graph.sequences)
    groups: dict[tuple, list[tuple[Item, tuple[tuple[int, int], ...]]]] = {}
    for (item, phase), ends in reads.ends.items():
        order = tuple(sorted(ends, key=lambda e: (e.chooser, e.position)))
        share = 1.0 if item[1] is Form.AGAIN else shares.get((item[0], phase), 1.0)
        groups.setdefault((lanes.class_of(item), phase, order, share), []).append((item, tuple(ends[e] for e in order)))
    found = []
    places: dict[Item, list[tuple[int, int]]] = defaultdict(list)
    for number, (((root, form), phase, order, share), instances) in enumerate(groups.items()):
        source = {sources[item] for item, _ in instances}
        if len(source) != 1:
            raise GraphError(f"{lanes.graph.name}: values of class {root} are made by different choosers: the fold is not consistent")
        found.append(Group(values[root], source.pop(), phase, order, tuple(spans for _, spans in instances), share * times_of(phase, lanes.turn_weight), tuple(item[0] for item, _ in instances), Phase.BACKWARD if form is Form.AGAIN else phases.get(root)))
        for k, (item, _) in enumerate(instances):
            places[item].append((number, k))
    return tuple(found), places


def build_owners(
    lanes: Lanes,
    choosers: tuple[Chooser, ...],
    sources: Mapping[Item, tuple[int, int]],
    reads: Reads,
    groups: tuple[Group, ...],
    places: Mapping[Item, list[tuple[int, int]]],
) -> tuple[Owner, ...]:
    """Every value with bytes of its own, in each of its forms."""
    values = value_table(lanes.graph)
    base = storage_bases(lanes.graph, copied=find_copied(lanes.graph))
    lives: dict[tuple[Item, tuple[int, int]], list[Life]] = defaultdict(list)
    end = MOMENTS * len(lanes.plus.nodes)
    vias = _list_vias(lanes, choosers)
    sums = {node.outputs[0] for node in lanes.graph.nodes if node.op in GROWN}

    def note(item: Item, life: Life) -> None:
        lives[lanes.class_of(item), sources[item]].append(life)

    def spans_of(item: Item) -> list[tuple[int, int, int, int]]:
        return [(g, e, *groups[g].spans[k][e]) for g, k in places.get(item, ()) for e in range(len(groups[g].endpoints))]

    for name in values:
        if base.get(name) != name:
            continue
        item = name, Form.MADE
        made = reads.made[item]
        if made < 0:
            note(item, Life(-1, end, ()))
            continue
        spans = spans_of(item)
        surely = [first for g, e, first, _ in spans if groups[g].endpoints[e] not in reads.optional]
        certain = lanes.held_until(made, max([made, *surely]))
        holds = _holds(groups, [(g, e, first, lanes.held_until(made, last)) for g, e, first, last in spans], reads.optional, certain)
        if name in lanes.copies:
            at, later, again = reads.made[name, Form.AGAIN], [], []
            for viewed, via in ((name, ()), *vias.get(name, {}).items()):
                kept = spans_of((viewed, Form.KEPT))
                holds += [Hold(g, e, lanes.turn - 1, False, via) for g, e, _, _ in kept]
                later += _holds(groups, kept, None, lanes.turn - 1, via)
                again += _holds(groups, spans_of((viewed, Form.AGAIN)), None, at, via)
            note((name, Form.KEPT), Life(lanes.turn, lanes.turn - 1, tuple(later)))
            note((name, Form.AGAIN), Life(at, at, tuple(again)))
        note(item, Life(lanes.loop[0] if name in sums else made, certain, tuple(holds)))
    return tuple(Owner(values[root], source, tuple(found)) for ((root, _), source), found in lives.items())


def _holds(
    groups: tuple[Group, ...], spans: list[tuple[int, int, int, int]], optional: set[Endpoint] | None, certain: int, via: tuple[tuple[int, int], ...] = ()
) -> list[Hold]:
    """What holds a value longer than it is held for certain: who takes it as it was made, and who may read it at all.

    Args:
        optional: endpoints that may read nothing; None: all.
        via: how the view that they read follows what it views; () where they read the value itself.
    """
    holds = []
    for g, e, first, last in spans:
        endpoint = groups[g].endpoints[e]
        if last > certain and not endpoint.tied:  # the copy of a view holds it for those who read the view
            holds.append(Hold(g, e, last, True, via))
        if first > certain and (optional is None or endpoint in optional):
            holds.append(Hold(g, e, first, False, via))
    return holds


def _list_vias(lanes: Lanes, choosers: tuple[Chooser, ...]) -> dict[str, dict[str, tuple[tuple[int, int], ...]]]:
    """For each value with copies the views of it that have copies, but for those that own bytes: pairs of (its sharding, theirs), as the views' strategies have them."""
    own = find_copied(lanes.graph)
    found: dict[str, dict[str, tuple[tuple[int, int], ...]]] = defaultdict(dict)
    roots: dict[str, str] = {}
    for node in lanes.graph.nodes:
        if node.phase is not Phase.FORWARD or not is_view(node.op) or not node.inputs or node.inputs[0] not in lanes.copies:
            continue
        ports = lanes.of_node[lanes.fold.node_class[lanes.index[node.name]]]
        chooser, viewed = choosers[ports.chooser], node.inputs[0]
        root = roots.get(viewed, viewed)
        for k, out in enumerate(o for o in node.outputs if o):
            if out not in lanes.copies or out in own:
                continue
            step = set(zip(chooser.wants[ports.inputs].tolist(), chooser.makes[ports.outputs + k].tolist()))
            before = found[root].get(viewed)
            pairs = step if before is None else {(a, c) for a, b in before for b2, c in step if b == b2}
            roots[out], found[root][out] = root, tuple(sorted(pairs))
    return found
