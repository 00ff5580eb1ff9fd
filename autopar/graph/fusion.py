"""Fusion: which nodes run as one kernel, and what each of them then still reads and writes.

In: a graph with its signatures. Out: groups of nodes, and per node its `Traffic`. Cost prices the groups that codegen emits, so both ask here.
The law:

* a group is of one run of nodes of one phase and one block (`h.3`), so a model may be cut between modules, and equal blocks have equal groups; in the update
  the nodes of a run need not stand together, as long as no way leads from one to another through other modules (a norm of all gradients), and one node is a group, too;
* its nodes read what others of it made, or a value that others of it read, none of which reads or makes anything larger (both gradients of a norm; rows of no more than `blocks.ROOMY` elements), or
  in the update, pointwise, a state or gradient that others of it read (Lion's momentum and its parameter), and work on the same rows: what some first dims of a value count, however the rest is laid out. A node may
  have a number per row (the mean of a norm), or other widths (the halves of a rotary embedding); a sum over the rows themselves, over runs of them (of each picture over its tokens: `blocks.may_group`), or of
  everything, may end a group;
* outside of the update it has no more than so many nodes (`MOST_NODES`), and so many values that it reads of others or leaves to them (`MOST_VALUES`): steps of a scan that a model
  writes one after the other are several kernels;
* of rows that a program just holds (wider than `blocks.ROOMY`, not walked along) it has the gradient of one layer norm: what a second one needs has no room in registers beside it;
* it can run at once: nothing outside lies on a way from one of its nodes to another (in the update of a stage, neither through another stage: what it receives may be made of what it sent before); and it holds no more for it, while others work, than its nodes one by one (`held_longer`);
* what only widens a value is of the kernel that reads it: the narrow one is what another leaves;
* what a mask's few ops (`_MASKING`) make of something smaller that is no sum, and only one group reads and expands, is of that group, whatever its rows: each element makes its own (positions compared
  for the scores of all heads); and outside of the update one such op that reads a number of the model's text is a group, too, for its kernel has the number in its own;
* a sum that a matmul adds up (`graph.in_place`) is in none, and moves what the matmul then reads;
* what the update makes of a number of each parameter by putting them beside each other and adding them up (a norm of all gradients; or their largest, or whether any is not 0) is a group,
  with the arithmetic of numbers that follows if nobody else reads the sum: the kernel reads those numbers, or what they are still to be added up of (`graph.totals`);
* pointwise ops, whatever operands broadcast, may be in a group; so may random numbers, and what knows only its own row: norms, softmax, sums over
  trailing dims, the loss of a row of logits. Matmuls, convolutions, attention and lookups are never in one.

A value is read once per group (what is expanded, as it is before), and written only if somebody outside reads it. A collective between two nodes of a group, if a plan has one there, parts
the group; that is not priced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .adam import find_adam
from .blocks import ROOMY, WIDEST_TILE, may_group
from .graph import Graph, value_table
from .held_longer import HeldLonger
from .in_place import find_products_onto
from .kernel import JOINS, is_number
from .liveness import is_view, list_readers, storage_bases
from .node import Node, Phase, packet_of
from .repeats import block_of, blocks_in_step
from .tensor import DTYPE_BYTES, num_elements
from .totals import is_total
from .turns import GROWN, RECEIVE, SEND, TAKE, list_sent_before

if TYPE_CHECKING:
    from .rule import Shape, Signature, Site

_ROWS = frozenset((
    "aten.native_layer_norm", "aten.native_layer_norm_backward", "aten._fused_rms_norm", "aten._fused_rms_norm_backward", "aten._softmax", "aten._safe_softmax",
    "aten._softmax_backward_data", "aten._log_softmax", "aten._log_softmax_backward_data",
))  # fmt: skip
_CLASSES = frozenset(("autopar.sum_exp", "autopar.pick", "autopar.unpick", "autopar.cross_entropy_backward"))  # each token's row of logits
_ALONE = frozenset(("autopar.cross_entropy_backward",))  # of several passes where it is no kernel: a group by itself
_MASKING = frozenset(
    f"aten.{packet}"
    for packet in (
        "_to_copy", "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "clamp", "clamp_max", "clamp_min", "eq", "ge", "gt", "le", "logical_and", "logical_not", "logical_or", "lt", "masked_fill",
        "maximum", "minimum", "mul", "ne", "neg", "rsub", "sub", "where",
    )
)  # fmt: skip  # an instruction or two of each element
_MOST_MASKING = 8  # of them, made again for each element that reads the last
_NEVER = frozenset((TAKE, SEND, RECEIVE, *GROWN))
_MOST_WIDE = 2**17  # elements of a row: one block of a kernel walks along it
MOST_NODES = 64  # the largest group of the zoo's transformers (a block of Gemma 3) has 39
MOST_VALUES = 40  # there 13; a function of 27 arguments and 18 results takes 15 s to compile (Triton 3.9, sm_90)
DRAWS = "autopar.uniform"  # numbers made from their positions: no memory is read for them


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a node of a group moves.

    Args:
        inputs: per input, how much of it is read from memory: 0, 1, or of what is expanded the share that is there.
        outputs: per output that somebody sees, whether it is written.
        starts: it starts the kernel of its group.
        one_pass: where groups do not run as one kernel, torch runs this node and others as one all the same (`graph.adam`).
    """

    inputs: tuple[float, ...]
    outputs: tuple[bool, ...]
    starts: bool
    one_pass: bool = False


@dataclass(frozen=True, slots=True)
class _Values:
    """What nodes read and make, but for numbers of the model's text.

    Args:
        read: by node, as (value, the value whose bytes it has).
        made: by node.
        readers: by value the nodes that read it, through views, too, and -1 where it leaves the graph.
        dtypes, shapes: by value.
    """

    read: Mapping[int, frozenset[tuple[str, str]]]
    made: Mapping[int, tuple[str, ...]]
    readers: Mapping[str, set[int]]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, Shape]

    def count(self, nodes: Sequence[int]) -> int:
        """Values that nodes read of others, or leave to others."""
        inside, made = set(nodes), {out for i in nodes for out in self.made[i]}
        read = {name for i in nodes for name, base in self.read[i] if base not in made}
        return len(read) + sum(not self.readers.get(name, inside) <= inside for name in made)


def _list_values(graph: Graph) -> _Values:
    base = storage_bases(graph)
    numbers = {out for node in graph.nodes if is_number(node) for out in node.outputs}
    readers = {name: set(nodes) for name, nodes in list_readers(graph, base).items()}
    for name in (*(new for _, new in graph.updates), graph.loss, *graph.outputs, *(g for _, g in graph.grads)):
        readers.setdefault(base.get(name, name), set()).add(-1)
    nodes = {i: node for i, node in enumerate(graph.nodes) if not is_view(node.op)}
    read = {i: frozenset((name, base[name]) for name in node.inputs if name not in numbers) for i, node in nodes.items()}
    return _Values(read, {i: tuple(filter(None, node.outputs)) for i, node in nodes.items()}, readers, {v.name: v.dtype for v in graph.values}, {v.name: v.shape for v in graph.values})


def find_groups(
    graph: Graph,
    sites: Sequence[Site],
    signatures: Sequence[Signature | None],
    wanted: Collection[int] | None = None,
    parts: Sequence[object] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """The groups, each in graph order: of more than one node, or of one that would take several passes by itself.

    Args:
        sites, signatures: of each node; a node without signature is in no group.
        wanted: nodes whose groups are asked for; None: all.
        parts: of each node, something that all nodes of a group have in common beside phase and module (what a schedule runs at once).
    """
    makers: dict[str, int] = {}  # value -> the node that makes its bytes, through views
    runs: list[list[int]] = []
    sent, blocks = list_sent_before(graph), blocks_in_step(graph)
    late: dict[int, frozenset[int]] = {}  # nodes of the update -> those of it that they read, or that were sent before
    key: object = None
    for i, node in enumerate(graph.nodes):
        if is_view(node.op) and node.inputs:
            if node.inputs[0] in makers:
                makers.update((out, makers[node.inputs[0]]) for out in node.outputs if out)
            continue
        makers.update((out, i) for out in node.outputs if out)
        here = (node.phase, blocks[i], None if parts is None else parts[i])
        if node.phase is Phase.UPDATE and node.op != "state.write":
            late[i] = (frozenset(makers[name] for name in node.inputs if makers.get(name, i) != i) & late.keys()) | sent.get(i, frozenset())
            key = None
            continue
        if here != key:
            key = here
            runs.append([])
        runs[-1].append(i)
    apart = find_products_onto(graph)
    held, values, updates = HeldLonger(graph), _list_values(graph), _update_runs(graph, late, parts)
    found: list[tuple[int, ...]] = []
    for nodes, weighed in (*((nodes, held) for nodes in runs), *((nodes, None) for nodes in updates)):
        if wanted is None or any(i in wanted for i in nodes):
            found += _Run(graph, sites, signatures, makers, nodes, weighed, values, apart, sent).groups()
    return tuple(found)


def _update_runs(graph: Graph, reads: Mapping[int, frozenset[int]], parts: Sequence[object] | None) -> list[list[int]]:
    """The runs of the update: of each module the nodes of one level, which says how often a way from a node to the end goes on in another module. All that is on a way that
    leaves a module and comes back has another level; else a node is as late as those that read it."""
    level: dict[int, int] = {}
    for i, before in reads.items():
        level[i] = max((level[k] + (_module(graph, k) != _module(graph, i)) for k in before), default=0)
    latest: dict[int, int] = {}
    for i in reversed(reads):  # type: ignore[call-overload]
        here = latest.setdefault(i, level[i])
        for k in reads[i]:
            latest[k] = min(latest.get(k, here), here - (_module(graph, k) != _module(graph, i)))
    runs: dict[object, list[int]] = {}
    for i in reads:
        runs.setdefault((_module(graph, i), latest[i], None if parts is None else parts[i]), []).append(i)
    return list(runs.values())


def _module(graph: Graph, i: int) -> object:
    """Of a node of the update: parameters of one module are updated together."""
    return block_of(graph.nodes[i].path, graph.sequences) or graph.nodes[i].path


class _Run:
    """Finds the groups of one run of nodes: units of nodes that grow by merging, as long as the units stay without circles."""

    def __init__(
        self, graph: Graph, sites: Sequence[Site], signatures: Sequence[Signature | None], makers: dict[str, int], nodes: list[int], held: HeldLonger | None, values: _Values,
        apart: Collection[int], sent: Mapping[int, frozenset[int]],
    ) -> None:
        self.graph, self.nodes, self.held, self.values = graph, nodes, held, values
        self.members = {i: [i] for i in nodes}
        self.ops = {i: graph.nodes[i].op for i in nodes}
        self.leader = {i: i for i in nodes}
        self.reads: dict[int, set[int]] = {i: {*(makers[n] for n in graph.nodes[i].inputs if n in makers), *sent.get(i, ())} & self.leader.keys() for i in nodes}
        self.alone = {i for i in nodes if graph.nodes[i].phase is Phase.UPDATE and signatures[i] and work_rows(sites[i], signatures[i]) is not None}  # type: ignore[arg-type]
        self.rows = {i: rows for i in nodes if (signature := signatures[i]) and (rows := work_rows(sites[i], signature)) is not None and i not in apart}
        self.taken = {i: _whole_inputs(graph.nodes[i].inputs, sites[i]) for i in self.alone}
        self.wide_grads = {i for i in self.rows if packet_of(self.ops[i]) == "aten.native_layer_norm_backward" and ROOMY < _row_elements(sites[i], self.rows[i]) <= WIDEST_TILE}
        self.ends = {i for i in self.rows if _summed_runs(sites[i])}  # nobody reads them in their group
        self.read = {i: frozenset(read) for i, read in self.reads.items()} if self.ends else {}
        self.spoken = set[int]() if held is None else {i for i in self.rows if packet_of(self.ops[i]) in _MASKING and _reads_number(graph, makers, i, values)}
        self.widening = set[int]() if held is None else {i for i in self.rows if _widens(graph.nodes[i], values.dtypes)}

    def groups(self) -> list[tuple[int, ...]]:
        for i in self.nodes:
            if i in self.rows and i not in self.widening:
                widened = {k for k in self.reads[i] if k in self.widening and len(self.members[self.find(k)]) == 1}
                self._merge_all(i, widened)
                self._merge_all(i, self.reads[i].union(*(self.reads[k] for k in widened)))
        for i in sorted(self.widening):
            if len(self.members[self.find(i)]) == 1:
                self._merge_all(i, self.reads[i])
        self._join_readers()
        self._join_siblings()
        self._join_totals()
        members: dict[int, list[int]] = {}
        for i in self.nodes:
            members.setdefault(self.find(i), []).append(i)
        return [tuple(found) for found in members.values() if len(found) > 1 or self.ops[found[0]] in _ALONE or found[0] in self.alone | self.spoken]

    def _merge_all(self, i: int, others: Collection[int]) -> None:
        for near in sorted({self.find(k) for k in others}):
            if near in self.rows:
                self._merge(self.find(i), self.find(near))

    def _join_readers(self) -> None:
        """In the update, units of pointwise nodes that read the same value, which they would read twice."""
        mixed = {self.find(i) for i, names in self.taken.items() if names is None}
        readers: dict[str, int] = {}
        for i, names in self.taken.items():
            for name in names or () if self.find(i) not in mixed else ():
                self._merge(self.find(i), self.find(readers.setdefault(name, i)))

    def _join_siblings(self) -> None:
        """Outside of the update, units that read the same value, which they would read twice: none of them reads anything that is larger, and registers have room for their rows."""
        before: dict[str, int] = {}
        for i in self.nodes if self.held is not None else ():
            if i not in self.rows:
                continue
            bases = dict(self.values.read[i])
            for name, base in ((name, bases[name]) for name in self.graph.nodes[i].inputs if name in bases):
                size = num_elements(self.values.shapes[name])
                if self._widest(i) > size:
                    continue
                if base in before and self._widest(before[base]) <= size <= ROOMY * max(self.rows[self.find(i)]):
                    self._merge(self.find(i), self.find(before[base]))
                before[base] = i

    def _widest(self, i: int) -> int:
        """Elements of the largest value that a unit reads or makes."""
        names = {name for k in self.members[self.find(i)] for name in (*(name for name, _ in self.values.read[k]), *self.values.made[k])}
        return max(num_elements(self.values.shapes[name]) for name in names)

    def _join_totals(self) -> None:
        """In the update, numbers of many parameters, what is made of all of them, and then of that alone or of it and other numbers."""
        for join in [i for i in self.nodes if packet_of(self.ops[i]) in JOINS and self.graph.nodes[i].phase is Phase.UPDATE]:
            readers = self.values.readers.get(self.graph.nodes[join].outputs[0], set())
            total = next(iter(readers), -1)
            if len(readers) != 1 or total not in self.leader or self.members[self.find(total)] != [total]:
                continue
            if not is_total(self.graph.nodes[join], self.graph.nodes[total], dict(self.values.read[join]), self.values.shapes, self.values.dtypes):
                continue
            numbers = {self.find(i) for i in self.values.readers.get(self.graph.nodes[total].outputs[0], {-1}) if i in self.leader} or {-1}
            after = numbers.pop()
            if not numbers and self._follows(join, total, after):
                self._unite(total, after)
            self._unite(join, total)

    def _follows(self, join: int, total: int, after: int) -> bool:
        """True for a unit of numbers that can be made where a total is made: nobody else reads that, and the unit reads none of the numbers that it is of."""
        members = self.members.get(after, [])
        inside, listed = set(members), {name for name, _ in self.values.read[join]} | {base for _, base in self.values.read[join]}
        alone = self.values.readers[self.graph.nodes[total].outputs[0]] <= inside
        return bool(members) and self.rows.get(after) == _NUMBERS and alone and not any(listed & set(self.graph.nodes[i].inputs) for i in members) and not self._leads(total, after)

    def _unite(self, one: int, other: int) -> None:
        """Two units as one that no other joins."""
        low, high = sorted((self.find(one), self.find(other)))
        self.members[low] = sorted((*self.members[low], *self.members[high]))
        self.leader[high] = low
        self.reads[low] |= self.reads[high]
        self.rows[low] = frozenset()

    def find(self, i: int) -> int:
        while self.leader[i] != i:
            self.leader[i] = self.leader[self.leader[i]]
            i = self.leader[i]
        return i

    def _merge(self, late: int, early: int) -> None:
        rows = self.rows[late] if self._is_expanded(early, late) else _meet(self.rows[late], self.rows[early])
        if late == early or rows is None:
            return
        low, high = sorted((late, early))
        both = sorted((*self.members[low], *self.members[high]))
        if len(self.wide_grads.intersection(both)) > 1:
            return
        if (ends := self.ends.intersection(both)) and any(ends & self.read[i] for i in both):
            return
        if self.held is not None and (len(both) > MOST_NODES or self.values.count(both) > MOST_VALUES):
            return
        if self._leads(early, late) or self._leads(late, early) or self.held is not None and self.held.place(both, self.rows) is None:
            return
        self.members[low] = both
        self.leader[high] = low
        self.reads[low] |= self.reads[high]
        self.rows[low] = rows

    def _is_expanded(self, early: int, late: int) -> bool:
        """True where what a unit makes is the beginning of a mask that another one alone reads, and makes larger, on other rows."""
        members, readers = self.members[early], {*self.members[late]}
        if self.held is None or _meet(self.rows[late], self.rows[early]) or len(members) > _MOST_MASKING or not self._masks({*members, *(k for i in members for k in self.reads[i] if k in self.rows)}):
            return False  # of what is added up, neither: a kernel that reads its own sums again is several, which read twice
        inside, made = readers.union(members), [name for i in members for name in self.values.made[i]]
        if not all(self.values.readers.get(name, inside) <= inside for name in made):
            return False
        sizes = [num_elements(self.values.shapes[name]) for i in readers if self.reads[i].intersection(members) for name in self.values.made[i]]
        return bool(sizes) and max(num_elements(self.values.shapes[name]) for name in made) < min(sizes)

    def _masks(self, nodes: Collection[int]) -> bool:
        return all(packet_of(self.ops[i]) in _MASKING for i in nodes)

    def _leads(self, start: int, end: int) -> bool:
        """True where a way leads from unit `start` to unit `end` over others."""
        todo = [u for u in {self.find(k) for k in self.reads[end]} if u not in (start, end)]
        seen = set(todo)
        while todo:
            for u in {self.find(k) for k in self.reads[todo.pop()]}:
                if u == start:
                    return True
                if u not in seen and u != end:
                    seen.add(u)
                    todo.append(u)
        return False


def _reads_number(graph: Graph, makers: Mapping[str, int], i: int, values: _Values) -> bool:
    """True for a node that makes a tensor of a number of the model's text and something else."""
    alone = all(num_elements(values.shapes[name]) < 2 for name in values.made[i])
    return not alone and bool(values.read[i]) and any(name in makers and is_number(graph.nodes[makers[name]]) for name in graph.nodes[i].inputs)


def _widens(node: Node, dtypes: Mapping[str, str]) -> bool:
    """True for a cast to a wider dtype."""
    return packet_of(node.op) == "aten._to_copy" and DTYPE_BYTES[dtypes[node.outputs[0]]] > DTYPE_BYTES[dtypes[node.inputs[0]]]


_Rows = frozenset[int]  # numbers of rows by which the values of a unit may be taken apart
_NUMBERS: _Rows = frozenset((0,))  # of nothing that has a dim


def _meet(a: _Rows, b: _Rows) -> _Rows | None:
    """The rows of both together; None where they do not work on the same rows."""
    return (a & b) or None


def work_rows(site: Site, signature: Signature) -> _Rows | None:
    """What a node works on; None where it cannot be in a group."""
    op = packet_of(site.node.op)
    if site.node.op in _NEVER or not site.outputs or not (op.startswith("aten.") or op == DRAWS or op in _CLASSES):
        return None
    if op in JOINS and site.node.phase is Phase.UPDATE:  # of what many parameters made: `_Run._join_totals`
        return None
    wide = max((*site.inputs, *site.outputs), key=num_elements)
    if not num_elements(wide):  # nothing is made
        return None
    if op in _CLASSES:
        return _prefixes(wide, len(wide) - 1) or None
    if op == DRAWS or op == "aten.cat":
        return _prefixes(wide, len(wide))
    if op in _ROWS:
        return _prefixes(wide, _first_whole(site, signature, wide)) or None
    if callable(signature.rule.flops) or signature.rule.flops == 2 or any(f.whole for f in signature.factors) or len(signature.outputs) != 1:
        return None
    operands = (*signature.inputs, *signature.outputs)
    if any(len(dim) > 1 for dims in operands for dim in dims):
        return None
    seen = {name for dim in signature.outputs[0] for name in dim}
    owed = {f.name for f in signature.factors} - seen
    if not owed:
        if site.node.phase is Phase.UPDATE and num_elements(wide) == 1 and site.inputs and not site.outputs[0]:
            return _NUMBERS  # a step count is a group's of its own, also where the parameter is one row, or one element
        return _prefixes(wide, len(wide)) if site.inputs else None
    if len(site.inputs) != 1:
        return None
    order = [name for dim in signature.inputs[0] for name in dim]
    if rows := _summed_runs(site):
        return frozenset((rows,))
    if len(owed) < len(order) and owed == set(order[len(order) - len(owed) :]):
        return _prefixes(wide, _place(signature.inputs[0], order[len(order) - len(owed)])) or None
    return _prefixes(wide, len(wide)) if owed == set(order[: len(owed)]) else None


def _summed_runs(site: Site) -> int:
    """Of a sum over dims in the middle the rows that it adds up, run by run; 0 of anything else, and where blocks do not divide the runs."""
    dims, shape = site.arg("dim"), site.inputs[0] if site.inputs else ()
    if site.node.op != "aten.sum.dim_IntList" or site.node.phase is Phase.UPDATE or not isinstance(dims, tuple) or not dims:
        return 0
    over = sorted(int(d) % len(shape) for d in dims)
    groups, count, cols = num_elements(shape[: over[0]]), num_elements(shape[over[0] : over[-1] + 1]), num_elements(shape[over[-1] + 1 :])
    return groups * count if over[0] > 0 and over[-1] - over[0] < len(over) and (may_group(count, cols) or groups == 1 < cols) else 0


def _row_elements(site: Site, rows: _Rows) -> int:
    """Elements of a row that a node needs at once; 1 of a pointwise one."""
    return max(map(num_elements, (*site.inputs, *site.outputs))) // max(rows)


def _whole_inputs(names: Sequence[str], site: Site) -> tuple[str, ...] | None:
    """What a pointwise node reads that has as many elements as its result; None of another node, and of one that makes a number."""
    [shape] = site.outputs if len(site.outputs) == 1 else [()]
    if num_elements(shape) < 2 or any(num_elements(read) > num_elements(shape) for read in site.inputs):
        return None
    return tuple(name for name, read in zip(names, site.inputs) if read == shape)


def _place(dims: Sequence[Sequence[str]], name: str) -> int:
    return next(k for k, dim in enumerate(dims) if name in dim)


def _first_whole(site: Site, signature: Signature, wide: Shape) -> int:
    """The first dim of the widest value along which the node needs all of a row."""
    whole = {f.name for f in signature.factors if f.whole}
    dims = next(d for d, shape in zip((*signature.inputs, *signature.outputs), (*site.inputs, *site.outputs)) if shape == wide)
    return next((k for k, dim in enumerate(dims) if whole.intersection(dim)), len(wide))


def _prefixes(shape: Shape, count: int) -> _Rows:
    """Into how many rows a value may be taken apart: by its first dims, at most `count` of them, with rows of no more than `_MOST_WIDE` elements."""
    size, rows, found = num_elements(shape), 1, set()
    for dim in shape[:count]:
        rows *= dim
        if size // rows <= _MOST_WIDE:
            found.add(rows)
    return frozenset(found) if shape else frozenset({1})


def find_traffic(graph: Graph, groups: Sequence[Sequence[int]]) -> dict[int, Traffic]:
    """Node index -> its traffic, of the nodes that are in a group, of numbers that kernels have in their text, and of sums that matmuls add up."""
    group_of = {i: k for k, nodes in enumerate(groups) for i in nodes}
    base: dict[str, str] = {}  # through views
    makers: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        view = is_view(node.op) and bool(node.inputs)
        for out in node.outputs:
            if out:
                base[out] = base.get(node.inputs[0], node.inputs[0]) if view else out
                if not view:
                    makers[out] = i
    leaves = {base.get(name, name) for name in (*(new for _, new in graph.updates), graph.loss, *graph.outputs, *(g for _, g in graph.grads)) if name}
    for i, node in enumerate(graph.nodes):
        if is_view(node.op):
            continue
        for name in node.inputs:
            source = base.get(name, name)
            maker = makers.get(source, -1)
            if maker in group_of and group_of[maker] != group_of.get(i, -1):
                leaves.add(source)
    found: dict[int, Traffic] = {}
    into, values = {new: old for old, new in graph.updates if old != new}, value_table(graph)
    for nodes in groups:
        phases = {graph.nodes[i].phase for i in nodes}
        step = find_adam([graph.nodes[i] for i in nodes], values, leaves, into) if phases == {Phase.UPDATE} else None
        one_pass = {nodes[place] for place in step.own} if step else set()
        inside = {out for i in nodes for out in graph.nodes[i].outputs if out}
        read: set[str] = set()
        for i in nodes:
            node = graph.nodes[i]
            counted = []
            for name in node.inputs:
                source = base.get(name, name)
                fresh = source not in inside and source not in read
                counted.append(min(1.0, num_elements(values[source].shape) / max(1, num_elements(values[name].shape))) if fresh else 0)
                read.add(source)
            found[i] = Traffic(tuple(counted), tuple(out in leaves for out in node.outputs if out), i == nodes[0], i in one_pass)
    for i, (_, both) in find_products_onto(graph).items():
        found[i] = Traffic(tuple(float(name == both.inputs[0]) for name in graph.nodes[i].inputs), (False,), False, True)
    return found | {i: Traffic((), (False,), False) for i in _list_spoken(graph, groups, base, makers, leaves)}


def _list_spoken(graph: Graph, groups: Sequence[Sequence[int]], base: Mapping[str, str], makers: Mapping[str, int], leaves: Collection[str]) -> list[int]:
    """Numbers of the model's text that kernels alone read, and so have in their own.

    Args:
        base: of each value, through views.
        makers: of these, the node that makes each.
        leaves: values that stay, whoever reads them.
    """
    numbers = {node.outputs[0]: i for i, node in enumerate(graph.nodes) if is_number(node)}
    kernels: set[int] = set()
    for nodes in groups:
        own = {*nodes}
        read = (base.get(name, name) for i in nodes for name in graph.nodes[i].inputs)
        if graph.nodes[nodes[0]].phase is not Phase.UPDATE and any(name not in numbers and makers.get(name, -1) not in own for name in read):  # a kernel has an argument
            kernels.update(nodes)
    readers: dict[str, set[bool]] = {}
    for i, node in enumerate(graph.nodes):
        for name in () if is_view(node.op) else node.inputs:
            readers.setdefault(base.get(name, name), set()).add(i in kernels)
    return [i for name, i in numbers.items() if readers.get(name) == {True} and name not in leaves]


def rewritten_states(graph: Graph, sites: Sequence[Site]) -> frozenset[str]:
    """States whose new versions are made in groups of the update: their kernels write them where the old ones are.

    Args:
        sites: with their traffic.
    """
    grouped = {out for site in sites if site.traffic is not None and site.node.phase is Phase.UPDATE for out in site.node.outputs}
    return frozenset(old for old, new in graph.updates if old != new and new in grouped)


def add_traffic(graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], node_class: Sequence[int]) -> tuple[Site, ...]:
    """The sites with their traffic; nodes of one class have that of its first node.

    Args:
        node_class: of each node, the first node that is like it (`repeats.Fold`).
    """
    found = find_traffic(graph, find_groups(graph, sites, signatures, set(node_class)))
    return tuple(
        replace(site, traffic=found.get(root)) if root in found else site for site, root in zip(sites, node_class)
    )


def least_traffic(graph: Graph, sites: Sequence[Site], signatures: Sequence[Signature | None], node_class: Sequence[int]) -> dict[str, Traffic | None]:
    """Of each node, by name, the least of all that are like it: the first of them may begin a kernel that reaches to the others from what is before them.

    Args: as of `add_traffic`.
    """
    found = find_traffic(graph, find_groups(graph, sites, signatures))
    least: dict[int, Traffic | None] = {}
    for i, root in enumerate(node_class):
        least[root] = _least(least.get(root), found.get(i))
    return {node.name: least[root] for node, root in zip(graph.nodes, node_class)}


def with_traffic_of(graph: Graph, sites: Sequence[Site], node_class: Sequence[int], known: Mapping[str, Traffic | None]) -> tuple[Site, ...]:
    """The sites of a part of a graph, each node with no more traffic than it has there and in the whole: a kernel may reach beyond the part, and starts elsewhere.

    Args:
        known: traffic of the nodes of the whole graph, by name; a node that is not there keeps its own.
    """
    found = {root: _least(sites[root].traffic, known.get(graph.nodes[root].name)) for root in set(node_class)}
    return tuple(replace(site, traffic=found[root]) if site.traffic != found[root] else site for site, root in zip(sites, node_class))


def _least(mine: Traffic | None, other: Traffic | None) -> Traffic | None:
    """What both move. None: of a node that is in no group, which reads and writes all and starts."""
    if mine is None or other is None:
        return mine or other
    inputs = tuple(map(min, mine.inputs, other.inputs))
    outputs = tuple(a and b for a, b in zip(mine.outputs, other.outputs))
    return Traffic(inputs, outputs, mine.starts and other.starts, mine.one_pass or other.one_pass)
