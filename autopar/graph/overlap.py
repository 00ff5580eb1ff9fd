"""Overlap: a program whose collectives are started as early as the law allows and waited for where their result is read.

In: a program as `graph.partition` builds it. Out: the same program in which what may hide is two nodes, several tensors may share the first one, and
everything else blocks as before:

    comm.start_all_gather(x, axis, dim, stride)    comm.start_reduce_scatter(x, axis, dim, stride, op, alone)    comm.start_all_reduce(x, axis, op, own)
        of several tensors, each with its own dim and stride (and `short`, of gathers where any has padding); makes for each a value under way, of the shape that it will have. Along several axes at once
        (`axis`, and each dim and stride, are tuples then, in the order in which the collectives stood): one collective of all their ranks
        `own`: the places in x of tensors whose sum may lie where they do (`graph.own`)
    comm.wait(x, of)                               the value itself; it shares the bytes of what was under way

The law is the one by which plans are priced (`graph.transfer`, `cost.streams`):

    prefetch   the gather of a state, in forward and backward: starts where its reader's block begins to run, or the block before if there is one;
               is waited for where it stood. So the gathered states of one block at most are held ahead. A run of nodes in no block that gathers more than
               a little is cut into pieces, which are as blocks here (`graph.run_pieces`).
    trailing   the reduction of what only the update reads: starts where it stands, is waited for in the update. What a reduce-scatter reads is held
               until it is done, so it goes alone: the one before is finished first.
    sunk       the reduction of what ops in the same block (or run) alone read whose result only the update, or a sum over the turns, needs: starts where it stands;
               the wait and these ops go to the end of the block.
    turn       the reduction of what is summed up over the turns: starts where it stands, is waited for at the end of the equal block, or of the piece, that runs next (where there
               is none, of its own), where the sum then is made.
    early      what a node of the same block waits for, though what moves was there before: the gather of what the forward pass has kept for a weight's gradient, the reduction of what a matmul sends back while
               another makes a weight's gradient. Starts before the first op of a library (a matmul, a convolution, attention) that it can run beside; along one axis in the order in which they stand.
    meeting    small reductions of numbers (`small_reductions`), along one axis or several, that stand one after the other, before the first reader of any: they start where the last
               one stands, and are waited for where they are read. What an earlier phase has reduced is not reduced again.
    update     in the update the reduction of a sum over the turns, and the gather of a new state that is only written: both stand
               where they stood. As the updates of equal parameters are one function called in a loop, codegen puts the loop around them (`codegen.parcels`):
               the reductions of the next parameters start first, the gathers of these are waited for after the next.

Buckets: collectives of one kind, axis, reduction and dtype that start in one block (or in one run of nodes that are in none, or piece of it) go as one, up to
`BUCKET_BYTES` (of several axes as of one with all their ranks); what is larger goes alone, unpacked. All blocks that are equal stay equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from .chains import find_chain
from .graph import Graph, producer_table, use_table, value_table
from .messages import BUCKET_BYTES
from .node import Arg, Node, Phase, Ref, get_arg, packet_of
from .own import find_overwritten, find_own
from .program import CUTS, WAIT, Origin, Program
from .repeats import blocks_in_step
from .run_pieces import cut_runs, is_piece, piece_before
from .sections import Section
from .small_reductions import find_meetings, reduce_once
from .tensor import STATE_KINDS, Value, size_bytes
from .turns import ACCUMULATE, LOOP

_LEAST_REST = 1 / 3  # of a bucket; a smaller rest goes with the one before it
_REDUCES = ("comm.all_reduce", "comm.reduce_scatter")
_BLOCKS = (*_REDUCES, "comm.all_gather", "comm.all_to_all")
_LIBRARY = frozenset((
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "autopar.linear", "autopar.linear_input_grad", "autopar.linear_weight_grad", "autopar.attention", "autopar.attention_backward",
    "aten.convolution", "aten.convolution_backward",
))  # fmt: skip  what computes long enough for a message to run beside it


@dataclass(frozen=True, slots=True)
class _Hiding:
    """A collective that may hide, or several of one kind along different axes that nothing stands between: they go as one.

    Args:
        chain: their indices.
        start: the index before which they may start.
        wait: that before which they are waited for.
        group: kind and place; what shares both may share a bucket.
        cuts: local cuts before them that nobody else reads: they move with the start.
        late: what reads it and moves with the wait.
    """

    chain: tuple[int, ...]
    start: int
    wait: int
    group: tuple
    cuts: tuple[int, ...] = ()
    late: tuple[int, ...] = ()

    @property
    def node(self) -> int:
        return self.chain[0]

    @property
    def first(self) -> int:
        return self.cuts[0] if self.cuts else self.node


def overlap_program(program: Program, sections: Sequence[Section], prefetches: bool = True, lags: bool = True) -> tuple[Program, tuple[Section, ...]]:
    """The program with its communication overlapped.

    Args:
        sections: of each node.
        prefetches: whether to gather ahead.
        lags: whether what is summed up over the turns may wait for the next block.
    Returns:
        the program, and the section of each of its nodes.
    """
    program, sections = reduce_once(program, sections, list_places(program.graph, sections))
    graph = program.graph
    values = value_table(graph)
    places = list_places(graph, sections)
    gathers = _list_gathers(graph, values, sections, places)
    pieces = cut_runs(graph, places, [(one.first, one.wait, size_bytes(values[graph.nodes[one.wait].outputs[0]])) for one in gathers]) if prefetches else places
    early = _prefetches(gathers, pieces) if prefetches else []
    hiding = [*early, *_trailing(graph, values, sections, pieces, lags), *_in_updates(graph, places)]
    taken = {i for one in hiding for i in (*one.chain, *one.late)}
    meetings = [run for run in find_meetings(program, places) if not taken.intersection(i for chain, _ in run for i in chain)]
    hiding += [_Hiding(chain, chain[0], reader, ("meeting", places[chain[0]], run[0][0])) for run in meetings for chain, reader in run]
    hiding += _early(graph, places, {i for one in hiding for i in (*one.chain, *one.cuts, *one.late)}) if prefetches else []
    buckets = _fill_buckets(graph, values, hiding)
    return _rebuild(program, sections, values, [b for b in buckets if _gains(b)])


def _gains(bucket: Sequence[_Hiding]) -> bool:
    """False of a single gather in no block that would be waited for as soon as it is started. (In a block, too, that is so of the first, but equal blocks stay
    equal; and of a run's first piece, which must start before the second does.)"""
    (kind, place, *_), one = bucket[0].group, bucket[0]
    return kind == "update" or place[1] is not None or is_piece(place) or len(bucket) > 1 or len(one.chain) > 1 or one.start != one.node or one.wait != one.node


def list_places(graph: Graph, sections: Sequence[Section]) -> list[tuple]:
    """For each node its section and block; where it is in no block, the run of such nodes that it is in."""
    found: list[tuple] = []
    for i, (block, section) in enumerate(zip(blocks_in_step(graph), sections)):
        if block is not None:
            found.append((section, *block))
        elif found and found[-1][0] == section and found[-1][1] is None:
            found.append(found[-1])
        else:
            found.append((section, None, i))
    return found


def _list_gathers(graph: Graph, values: Mapping[str, Value], sections: Sequence[Section], places: Sequence[tuple]) -> list[_Hiding]:
    """Of states that nobody rewrites before the update, each where it stands."""
    written = {n.inputs[0] for n in graph.nodes if n.op == "state.write" and n.phase is not Phase.UPDATE}
    stored = {n for n in graph.inputs if values[n].kind in STATE_KINDS} - written
    makers, uses = producer_table(graph), use_table(graph)
    found = []
    for i, node in enumerate(graph.nodes):
        if node.op == "comm.all_gather" and sections[i].phase in LOOP:
            source, cuts = _before_cuts(graph, makers, uses, node.inputs[0], places[i], places)
            if source in stored:
                chain = find_chain(graph, uses, i, places)
                found.append(_Hiding(chain, i, chain[-1], ("prefetch", places[i]), cuts))
    return found


def _prefetches(gathers: Sequence[_Hiding], places: Sequence[tuple]) -> list[_Hiding]:
    """Such gathers, started ahead."""
    first: dict[tuple, int] = {}
    for i, place in enumerate(places):
        first.setdefault(place, i)
    before: dict[tuple, int] = {}  # block -> where the block before it in its section begins; piece of a run -> where the piece before it does
    last: dict[Section, tuple] = {}
    for place, i in first.items():
        if place[1] is not None:
            before[place] = first[last[place[0]]] if place[0] in last else i
            last[place[0]] = place
        elif (piece := piece_before(place)) is not None:
            before[place] = first[piece]
    found = []
    for one in gathers:
        place = places[one.node]
        found.append(replace(one, start=before.get(place, first[place]), group=("prefetch", place)))
    return found


def _early(graph: Graph, places: Sequence[tuple], taken: Collection[int]) -> list[_Hiding]:
    """Collectives of forward and backward that block though what they bring was there before, each alone.

    Args:
        taken: nodes that hide already.
    """
    makers, found = producer_table(graph), []
    begins: dict[tuple, int] = {}
    behind: dict[object, int] = {}  # axis -> where the next collective along it may start
    for i, node in enumerate(graph.nodes):
        begin = begins.setdefault(places[i], i)
        if node.op not in _BLOCKS or node.phase not in LOOP or i in taken:
            continue
        axis, [read] = get_arg(node, "axis"), node.inputs
        begin = max(begin, makers[read][0] + 1 if read in makers else 0, behind.get(axis, 0))
        start = next((k for k in range(begin, i) if packet_of(graph.nodes[k].op) in _LIBRARY), i)
        behind[axis] = start
        if start < i and node.op != "comm.all_to_all":
            found.append(_Hiding((i,), start, i, ("early", places[i], i)))
    return found


def _before_cuts(
    graph: Graph, makers: Mapping[str, tuple[int, int]], uses: Mapping[str, Sequence[tuple[int, int]]], name: str, place: tuple, places: Sequence[tuple]
) -> tuple[str, tuple[int, ...]]:
    """(the value that is cut, the cuts in order): through the local cuts of which nobody else reads anything."""
    cuts: tuple[int, ...] = ()
    while name in makers and graph.nodes[makers[name][0]].op in CUTS and len(uses[name]) == 1 and places[makers[name][0]] == place:
        cuts = (makers[name][0], *cuts)
        name = graph.nodes[cuts[0]].inputs[0]
    return name, cuts


def _next_ends(places: Sequence[tuple], ends: Mapping[tuple, int]) -> dict[tuple, int]:
    """Block -> where the neighbour of its family that runs next in its section ends; none of a block that runs again after it. Piece of a run -> where the next one ends."""
    order = list(dict.fromkeys(places))
    blocks = [place for place in order if place[1] is not None]
    later = {one: ends[after] for one, after in zip(blocks, blocks[1:]) if one[:2] == after[:2] and abs(one[2] - after[2]) == 1 and ends[after] > ends[one]}
    return later | {piece: ends[place] for place in order if (piece := piece_before(place)) is not None}


def _trailing(graph: Graph, values: Mapping[str, Value], sections: Sequence[Section], places: Sequence[tuple], lags: bool) -> list[_Hiding]:
    """Reductions in forward and backward of what one parameter's update, or a sum over the turns, alone reads. Of two kinds after one another (pieces along one
    axis, then their sum along another) the second starts at the end of the block, or is left to the update."""
    uses, ends = use_table(graph), {place: i + 1 for i, place in enumerate(places)}
    later = _next_ends(places, ends) if lags else {}
    found: list[_Hiding] = []
    taken: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if node.op not in _REDUCES or sections[i].phase not in LOOP or i in taken:
            continue
        chain, end = find_chain(graph, uses, i, places), ends[places[i]]
        hiding = _waits_late(graph, uses, places, chain, chain[-1], end, later.get(places[i]))
        after = [k for k, _ in uses[graph.nodes[chain[-1]].outputs[0]]]
        if hiding is not None:
            found.append(hiding)
        elif len(after) == 1 and graph.nodes[after[0]].op in _REDUCES and places[after[0]] == places[i] and after[0] not in taken:
            second = _waits_late(graph, uses, places, find_chain(graph, uses, after[0], places), end, end)
            if second is not None and second.group[0] == "trailing":
                found.append(replace(second, chain=chain, start=chain[-1], late=second.chain))
            elif second is not None:
                found += [_Hiding(chain, chain[-1], end - 1, ("turn", places[i])), second]
        else:
            late = _only_for_later(graph, values, uses, places, chain[-1])
            if late and not taken.intersection(late) and chain[-1] + len(late) + 1 < end:
                found.append(_Hiding(chain, chain[-1], end, ("sunk", places[i]), late=late))
        taken.update(k for one in found[-2:] for k in (*one.chain, *one.late))
    return found


def _only_for_later(
    graph: Graph, values: Mapping[str, Value], uses: Mapping[str, Sequence[tuple[int, int]]], places: Sequence[tuple], first: int
) -> tuple[int, ...]:
    """The ops in the place of node `first`, one reading the other, that lead from its result to the update or to a sum over the turns (which is the last of them);
    none where anything else needs what is on the way, or where they read more beside than the result itself has, which would be held for them."""
    late: list[int] = []
    i, room = first, size_bytes(values[graph.nodes[first].outputs[0]])
    while True:
        outs = [out for out in graph.nodes[i].outputs if out]
        readers = [k for k, _ in uses[outs[0]]] if len(outs) == 1 and outs[0] not in (graph.loss, *graph.outputs) else []
        if readers and all(graph.nodes[k].phase is Phase.UPDATE for k in readers):
            return tuple(late)
        if len(readers) != 1 or places[readers[0]] != places[first] or graph.nodes[readers[0]].op.startswith("comm."):
            return ()
        late.append(readers[0])
        room -= sum(size_bytes(values[name]) for name in graph.nodes[readers[0]].inputs if name != outs[0])
        if room < 0:
            return ()
        if graph.nodes[readers[0]].op == ACCUMULATE:
            return tuple(late)
        i = readers[0]


def _waits_late(
    graph: Graph, uses: Mapping[str, Sequence[tuple[int, int]]], places: Sequence[tuple], chain: tuple[int, ...], start: int, end: int, later: int | None = None
) -> _Hiding | None:
    """The hiding of a reduction that nobody needs before the update, or before the end of its block; None where somebody does.

    Args:
        end, later: of its block; of the one that runs next, if it may wait so long.
    """
    out = graph.nodes[chain[-1]].outputs[0]
    after = [k for k, _ in uses[out]]
    readers = [graph.nodes[k] for k in after]
    if not readers or out in (graph.loss, *graph.outputs):
        return None
    if all(r.phase is Phase.UPDATE for r in readers) and len({r.path for r in readers}) == 1:
        return _Hiding(chain, start, after[0], ("trailing", places[chain[0]]))
    if [r.op for r in readers] == [ACCUMULATE] and places[after[0]] == places[chain[0]]:
        kind, wait = ("turn", end) if later is None else ("lag", later)
        return _Hiding(chain, start, wait, (kind, places[chain[0]]), late=(after[0],))
    return None


def _in_updates(graph: Graph, places: Sequence[tuple]) -> list[_Hiding]:
    """Reductions of what earlier phases made, and gathers of what is only written."""
    uses, leaving = use_table(graph), {graph.loss, *graph.outputs}
    apart = set(leaving)  # what the user gets comes first
    late = [i for i, node in enumerate(graph.nodes) if node.phase is Phase.UPDATE]
    for i in reversed(late):
        if apart.intersection(graph.nodes[i].outputs):
            apart.update(graph.nodes[i].inputs)
    made = {out for i in late for out in graph.nodes[i].outputs}
    found: list[_Hiding] = []
    taken: set[int] = set()
    for i in late:
        node = graph.nodes[i]
        if i in taken or node.op not in (*_REDUCES, "comm.all_gather") or apart.intersection(node.outputs):
            continue
        chain = find_chain(graph, uses, i, places)
        out = graph.nodes[chain[-1]].outputs[0]
        written = out not in leaving and [graph.nodes[k].op for k, _ in uses[out]] == ["state.write"]
        if node.inputs[0] not in made if node.op in _REDUCES else node.inputs[0] in made and written:
            found.append(_Hiding(chain, chain[-1], chain[-1], ("update", i)))
            taken.update(chain)
    return found


def _fill_buckets(graph: Graph, values: Mapping[str, Value], hiding: Sequence[_Hiding]) -> list[tuple[_Hiding, ...]]:
    """What goes together, in order."""
    full: list[list[_Hiding]] = []
    filling: dict[tuple, list[_Hiding]] = {}
    before: dict[tuple, list[_Hiding]] = {}  # the full bucket that was filled last
    held: dict[tuple, int] = {}
    for one in hiding:
        node = graph.nodes[one.node]
        value = values[node.inputs[0]]
        size = _sent_bytes(graph, values, one)
        key = (one.group, node.op, tuple(get_arg(graph.nodes[i], "axis") for i in one.chain), get_arg(node, "op", ""), value.dtype)
        most = _most_bytes(one.group)
        if size >= most:
            full.append([one])
        elif key in filling and held[key] + size <= most:
            filling[key].append(one)
            held[key] += size
        else:
            if key in filling:
                before[key] = filling[key]
            filling[key] = [one]
            full.append(filling[key])
            held[key] = size
    for key, bucket in before.items():  # a small rest goes with what is full: a message of its own would cost more than it carries
        if held[key] < _LEAST_REST * _most_bytes(key[0]):
            bucket += filling[key]
            filling[key].clear()
    return [tuple(bucket) for bucket in full if bucket]


def _most_bytes(group: tuple) -> int:
    """Of a bucket of this kind and place; what ends with its block goes in parts, the first while the block still works."""
    return BUCKET_BYTES // (4 if group[0] == "turn" else 1)


def _sent_bytes(graph: Graph, values: Mapping[str, Value], one: _Hiding) -> int:
    """What fills a bucket: the larger of what goes in and what comes out, however many axes it goes along."""
    nodes = graph.nodes
    return max(size_bytes(values[nodes[one.chain[0]].inputs[0]]), size_bytes(values[nodes[one.chain[-1]].outputs[0]]))


def _rebuild(
    program: Program, sections: Sequence[Section], values: Mapping[str, Value], buckets: Sequence[tuple[_Hiding, ...]]
) -> tuple[Program, tuple[Section, ...]]:
    graph = program.graph
    sharding = {local: (whole, held) for local, whole, held in program.shardings}
    before: dict[int, list[tuple[Node, Origin, Section]]] = {}
    gone: set[int] = set()
    more: dict[str, Value] = {}
    rows = list(program.shardings)
    waits: dict[int, list[tuple[Node, Origin, Section]]] = {}
    own, over = find_own(graph), find_overwritten(graph)
    for bucket in buckets:
        start = _start_node(graph, bucket, own)
        origin = program.origins[bucket[0].chain[-1]]
        reason = origin.reason if len(bucket) == 1 else f"{len(bucket)} tensors as one"
        early = before.setdefault(max(one.start for one in bucket), [])
        early += [(graph.nodes[i], program.origins[i], sections[i]) for one in bucket for i in one.cuts]
        early.append((start, replace(origin, reason=reason), sections[bucket[0].node]))
        for one, pending in zip(bucket, start.outputs):
            node = graph.nodes[one.chain[-1]]
            value = values[node.outputs[0]]
            more[pending] = replace(value, name=pending, storage=pending)
            rows.append((pending, *sharding[value.name]))
            gone.update((*one.chain, *one.cuts, *one.late))
            where = one.late[0] if one.group[0] in ("turn", "lag", "sunk") and one.late else one.wait
            reader = graph.nodes[where]
            args: tuple[tuple[str, Arg], ...] = (("x", Ref(0)), ("of", node.op.removeprefix("comm.")))
            wait = Node(f"wait:{value.name}", WAIT, (pending,), args, node.outputs, reader.phase, reader.path, reader.source)
            moved = [(replace(graph.nodes[i], phase=reader.phase), program.origins[i], sections[where]) for i in one.late]
            waits.setdefault(one.wait, []).extend([(wait, program.origins[one.chain[-1]], sections[where]), *moved])
    made: list[tuple[Node, Origin, Section]] = []
    for i, row in enumerate(zip(graph.nodes, program.origins, sections)):
        made += [*before.get(i, ()), *waits.get(i, ()), *([] if i in gone else [(_over(row[0], over), *row[1:])])]
    made += waits.get(len(graph.nodes), ())
    known = {**values, **more}
    order = [*graph.inputs, *(name for node, _, _ in made for name in node.outputs if name)]
    local = replace(graph, values=tuple(known[name] for name in order), nodes=tuple(node for node, _, _ in made))
    there = set(order)
    rows = [row for row in rows if row[0] in there]
    return replace(program, graph=local, origins=tuple(o for _, o, _ in made), shardings=tuple(rows)), tuple(s for _, _, s in made)


def _start_node(graph: Graph, bucket: Sequence[_Hiding], free: frozenset[str]) -> Node:
    """One collective in place of several; `free`: what it may write over (`graph.own`)."""
    firsts, lasts = [graph.nodes[one.chain[0]] for one in bucket], [graph.nodes[one.chain[-1]] for one in bucket]
    own = firsts[-1] if bucket[0].group[0] == "trailing" else firsts[0]
    args: list[tuple[str, Arg]] = [("x", tuple(Ref(k) for k in range(len(firsts)))), ("axis", _along(graph, bucket[0].chain, "axis"))]
    args += [(name, tuple(_along(graph, one.chain, name) for one in bucket)) for name in ("dim", "stride") if get_arg(own, name) is not None]
    if any(get_arg(graph.nodes[i], "short") for one in bucket for i in one.chain):
        args.append(("short", tuple(_along(graph, one.chain, "short", 0) for one in bucket)))
    args += [("op", op) for op in [get_arg(own, "op")] if op is not None]
    args += [("alone", True)] if own.op == "comm.reduce_scatter" and own.phase in LOOP and bucket[0].group[0] != "early" else []
    places = tuple(k for k, node in enumerate(firsts) if own.op == "comm.all_reduce" and node.inputs[0] in free)
    args += [("own", places)] if places else []
    outputs = tuple(f"{n.outputs[0]}~started" for n in lasts)
    name = own.op.replace("comm.", "comm.start_")
    return Node(f"start:{lasts[0].outputs[0]}", name, tuple(n.inputs[0] for n in firsts), tuple(args), outputs, own.phase, own.path, own.source)


def write_over(program: Program) -> Program:
    """The program whose collectives that block know what they may write over."""
    over = find_overwritten(program.graph)
    return replace(program, graph=replace(program.graph, nodes=tuple(_over(node, over) for node in program.graph.nodes)))


def _over(node: Node, overwritten: Collection[str]) -> Node:
    """A collective that blocks, told that it may write over what it reads."""
    return replace(node, args=(*node.args, ("own", True))) if node.op == "comm.all_reduce" and node.inputs[0] in overwritten else node


def _along(graph: Graph, chain: Sequence[int], name: str, default: Arg = None) -> Arg:
    """An argument of the only collective, or of each as a tuple."""
    found = tuple(get_arg(graph.nodes[i], name, default) for i in chain)
    return found[0] if len(found) == 1 else found
