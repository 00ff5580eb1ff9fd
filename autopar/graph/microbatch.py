"""Microbatches: the batch in turns, as an axis in time.

In: a whole graph and how many turns. Out: the graph of one step that runs its forward and backward once per turn, on one microbatch each: an
ordinary graph, on which every later pass works as on any other. Time is an axis like those of a mesh, and the same rules say what a split of
the batch along it does:

    split        a value holds its samples of this turn; the batch enters whole and each turn takes its own (`autopar.microbatch`)
    partial      a sum over samples (a gradient, the loss) is owed by all turns together: `autopar.accumulate` adds them up. What is the same in
                 every turn and is added to such a sum (a penalty on weights) is divided among the turns
    replicated   parameters, and what is the same in every turn

Phases say when a node runs: PREPARE once before the turns, FORWARD and BACKWARD in each turn, UPDATE after them. What no turn changes (weights
in another dtype) is prepared, and so is what depends on batch inputs alone and is needed of the whole batch (the number of tokens that count, by
which a mean loss divides; buffers that no step changes may take part). What depends on sums over all turns and on what is the same in each waits
until they are over (the gradient of what makes a weight, a hook that clamps a gradient). What would need all samples inside of a turn
(statistics of batch norm) makes turns impossible: a `MicrobatchError` says where.

    autopar.microbatch(x, dim, count)    x: dim of size count * n; gives the n samples of this turn: the turn is the outermost digit of the dim
    autopar.accumulate(x)                adds x of all turns, in float32 at least; its output exists from the first turn on and may be read
                                         after the last
    autopar.collect(x, dim, count)       puts x of all turns side by side: its output is the whole batch again, and may be read after the last. So
                                         an output beside the loss leaves the step

The step's result is that of the whole batch at once, up to the order of sums: the loss and every gradient, whether an optimizer reads it or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..errors import MicrobatchError
from .choice import Assignment
from .cuts import CutTable, find_cuts, resolve_all
from .graph import Graph, producer_table, use_table, value_table
from .mesh import Mesh, MeshAxis
from .node import Const, Node, Phase, Ref, get_arg
from .partition import node_cuts, partition
from .rule import Rule, Signature, Site
from .sharding import PARTIAL, REPLICATE, Partial, Placement, Replicate, Shard, Sharding
from .strategy import Strategy, list_strategies
from .tensor import Kind, Value
from .turns import ACCUMULATE, COLLECT, GROWN, LOOP, TAKE, count_microbatches

_TIME = "time"
_VIEW = "aten.view.default"
_CAST, _FLOAT, _HALF = "aten._to_copy.default", Const("dtype", "torch.float32"), ("bfloat16", "float16")
_DIVISIBLE = (*_HALF, "float32", "float64", "complex64", "complex128")
_ADDITIONS = ("aten.add.Tensor", "aten.sub.Tensor", "aten.add.Scalar", "aten.sub.Scalar")
_SUFFIX = {"comm.slice": "_turn", "comm.all_reduce": "_sum", "comm.keep": "_share", "comm.all_gather": "_whole"}
_ORDER = {phase: k for k, phase in enumerate(Phase)}
Pieces = Mapping[str, tuple[tuple[int, int, int], ...]]  # value -> (dim, lower, upper): the digits of the dim that are the batch


def split_batch(
    graph: Graph,
    sites: tuple[Site, ...],
    signatures: tuple[Signature, ...],
    cuts: CutTable,
    pieces: Pieces,
    count: int,
    rules: Mapping[str, Rule],
) -> Graph:
    """The graph that takes `count` turns; the graph itself for one.

    Args:
        sites, signatures, cuts: of the graph (`cuts.resolve_all`, `cuts.find_cuts`).
        pieces: where the batch lies in each value.
        rules: those in force.
    Raises:
        MicrobatchError: the model cannot be run in turns, or its batch does not divide.
    """
    if count == 1:
        return graph
    _check_batch(graph, pieces, count)
    while True:
        turns = _Turns(graph, sites, signatures, cuts, pieces, count)
        assignment = turns.assign()
        if assignment is not None:
            return _as_graph(graph, partition(graph, sites, signatures, cuts, assignment, keep_grads=True).graph, count)
        graph = _lift_numbers(graph, turns.lifted)
        sites, signatures = resolve_all(graph, rules)
        cuts = find_cuts(graph, signatures)


def _lift_numbers(graph: Graph, indices: set[int]) -> Graph:
    """The graph in which the numbers that these nodes add are values, which turns can share."""
    values = value_table(graph)
    nodes, held = [], {name: values[name] for name in graph.inputs}
    for i, node in enumerate(graph.nodes):
        if i in indices:
            name, dtype = f"{node.name}_number", values[node.outputs[0]].dtype
            args = (("size", ()), ("fill_value", get_arg(node, "other")), ("dtype", Const("dtype", f"torch.{dtype}")))
            nodes.append(Node(name, "aten.full.default", (), args, (name,), node.phase, node.path, node.source))
            held[name] = Value(name, name, 0, (), dtype, Kind.ACTIVATION)
            args = tuple((key, Ref(1) if key == "other" else value) for key, value in node.args)
            node = replace(node, op=node.op.replace(".Scalar", ".Tensor"), inputs=(*node.inputs, name), args=args)
        nodes.append(node)
        held.update((out, values[out]) for out in node.outputs if out)
    return replace(graph, values=tuple(held.values()), nodes=tuple(nodes))


def _check_batch(graph: Graph, pieces: Pieces, count: int) -> None:
    """Raise `MicrobatchError` where there is no batch or it does not divide."""
    found, values = False, value_table(graph)
    for name in graph.inputs:
        if values[name].kind is Kind.BATCH:
            for dim, lower, upper in pieces.get(name, ()):
                found = True
                size = values[name].shape[dim]
                if upper != size or (size // lower) % count:
                    raise MicrobatchError(
                        f"{graph.name}: the batch has size {size // lower} (dim {dim} of {name}), which does not divide by {count} microbatches"
                    )
    if not found:
        raise MicrobatchError(f"{graph.name} cannot run in {count} microbatches: no dim of its batch inputs is a batch")


class _Turns:
    """Chooses for each node what time does to it; lives for one call of `split_batch`."""

    def __init__(self, graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, pieces: Pieces, count: int) -> None:
        self.graph, self.sites, self.signatures, self.cuts, self.pieces, self.count = graph, sites, signatures, cuts, pieces, count
        self.values, self.makers = value_table(graph), producer_table(graph)
        self.rewritten = {old for old, _ in graph.updates}
        self.lifted: set[int] = set()  # nodes that add a number to what all turns owe together
        self.menus: dict[tuple, tuple[Strategy, ...]] = {}
        self.ahead: set[int] = set()  # nodes that are computed from the whole batch before the turns
        self.made: dict[str, Placement] = {}
        self.late: set[str] = set()  # values that are computed after the turns, from what they have summed

    def assign(self) -> Assignment | None:
        """Walk the graph until no more has to be computed ahead; None where numbers must be lifted first (they are in `lifted`)."""
        while True:
            chosen = self._walk()
            if self.lifted:
                return None
            if chosen is not None:
                storages = tuple((name, Sharding((REPLICATE,))) for name in self.graph.inputs)
                return Assignment(Mesh((MeshAxis(_TIME, self.count),)), storages, chosen)

    def _walk(self) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
        """Choices of all nodes; None where one more value must be computed ahead (then it is in `ahead`)."""
        self.made = {name: REPLICATE for name in self.graph.inputs}
        self.late = set()
        chosen = []
        for i, node in enumerate(self.graph.nodes):
            options = [s for s in self._menu(i) if self._may(i, s)] or [s for s in self._menu(i) if self._may(i, s, shares=True)]
            if not options:
                owed = len(node.inputs) == 1 and self.made[node.inputs[0]] == PARTIAL
                if owed and node.op in _ADDITIONS and self.values[node.outputs[0]].dtype in _DIVISIBLE:
                    self.lifted.add(i)
                    return None
                if self._compute_ahead(i):
                    return None
                if not self._may_wait(i):
                    raise self._error(i)
                self.late.update(out for out in node.outputs if out)
                options = [s for s in self._menu(i) if self._may(i, s)]
            best = max(options, key=lambda s: self._rank(s))
            chosen.append((node.name, best.choices))
            for out, sharding in zip((o for o in node.outputs if o), best.outputs):
                self.made[out] = sharding.placements[0]
        return tuple(chosen)

    def _menu(self, i: int) -> tuple[Strategy, ...]:
        node, site, signature = self.graph.nodes[i], self.sites[i], self.signatures[i]
        key = (id(signature), tuple(self.cuts[n] for n in (*node.inputs, *node.outputs) if n))
        if key not in self.menus:
            self.menus[key] = list_strategies(signature, site, (self.count,), node_cuts(site, signature, self.cuts))[0]
        return self.menus[key]

    def _may(self, i: int, strategy: Strategy, shares: bool = False) -> bool:
        """True where the node can run like this with its inputs as they are; with `shares`, what is the same in every turn may be divided."""
        node = self.graph.nodes[i]
        inside = node.phase is not Phase.UPDATE and not any(out in self.late for out in node.outputs)
        if inside and any(name in self.late for name in node.inputs):
            return False
        shares = shares and inside and not all(isinstance(self.made[name], Replicate) for name in node.inputs)
        for name, sharding in zip(node.inputs, strategy.inputs):
            wanted = sharding.placements[0]
            if not self._reaches(name, self.made[name], wanted, inside) and not (shares and wanted == PARTIAL and self._divides(name)):
                return False
        if i in self.ahead or not inside:
            return all(isinstance(s.placements[0], Replicate) for s in (*strategy.inputs, *strategy.outputs))
        return all(
            not isinstance(s.placements[0], Shard) or self._is_batch(out, s.placements[0])
            for out, s in zip((o for o in node.outputs if o), strategy.outputs)
        ) and not any(isinstance(s.placements[0], Partial) and s.placements[0] != PARTIAL for s in strategy.outputs)

    def _reaches(self, name: str, made: Placement, wanted: Placement, inside: bool) -> bool:
        if made == wanted:
            return True
        if isinstance(made, Replicate):
            return isinstance(wanted, Shard) and self._is_batch(name, wanted)
        return not inside and made == PARTIAL and isinstance(wanted, Replicate)

    def _divides(self, name: str) -> bool:
        """True where each turn can bear its share of a value that is the same in all."""
        return isinstance(self.made[name], Replicate) and self.values[name].dtype in _DIVISIBLE

    def _is_batch(self, name: str, placement: Shard) -> bool:
        """The outermost digit of the batch."""
        return any(dim == placement.dim and upper == placement.stride * self.count for dim, _, upper in self.pieces.get(name, ()))

    def _rank(self, strategy: Strategy) -> int:
        """What is split is best, then what sums over the batch, then what is the same in every turn."""
        placements = [s.placements[0] for s in (*strategy.inputs, *strategy.outputs)]
        if any(isinstance(p, Shard) for p in placements):
            return 2
        return 1 if any(isinstance(p, Partial) for p in placements) else 0

    def _may_wait(self, i: int) -> bool:
        """True where the node can run after the turns: it reads what is the same in all of them, and sums."""
        return all(isinstance(self.made[name], Replicate) or self.made[name] == PARTIAL for name in self.graph.nodes[i].inputs)

    def _compute_ahead(self, i: int) -> bool:
        """Mark what makes the inputs of this node that are not whole, where it depends on batch inputs and constants alone; False where nothing does."""
        node = self.graph.nodes[i]
        before = len(self.ahead)
        for name in node.inputs:
            if not isinstance(self.made[name], Replicate):
                found = self._ancestors(name)
                if found is not None:
                    self.ahead |= found
        return len(self.ahead) > before

    def _error(self, i: int) -> MicrobatchError:
        node = self.graph.nodes[i]
        owed = [name for name in node.inputs if name in self.late or self.made[name] == PARTIAL]
        owed += [name for name in node.inputs if not isinstance(self.made[name], Replicate)]
        where = f"{node.name} ({node.op}, {node.source or 'no source line'} in {node.path or 'the root module'})"
        return MicrobatchError(
            f"{self.graph.name} cannot run in {self.count} microbatches: {where} needs {owed[0] if owed else 'its inputs'} of the whole batch; plan with one microbatch "
            "(or, if that is batch norm, let it take each microbatch's own statistics: --batchnorm microbatch)"
        )

    def _ancestors(self, name: str) -> set[int] | None:
        """The nodes that make a value; None where a state that learns or changes is among what they read."""
        found: set[int] = set()
        todo = [name]
        while todo:
            value = todo.pop()
            if value not in self.makers:
                if self.values[value].kind is not Kind.BATCH and (self.values[value].kind is not Kind.BUFFER or value in self.rewritten):
                    return None
                continue
            k = self.makers[value][0]
            if k not in found:
                found.add(k)
                todo += self.graph.nodes[k].inputs
        return found


def _as_graph(whole: Graph, local: Graph, count: int) -> Graph:
    """The program over time as a graph: what moved along time becomes ops of ours, in the order of the parts."""
    local = _merge_sums(local)
    renamed = {node.outputs[0]: node.outputs[0].replace("~", _SUFFIX.get(node.op, "_")) for node in local.nodes if node.op.startswith("comm.")}
    readers = use_table(local)
    written = dict(local.updates)
    held = value_table(local)
    nodes, views = [], []
    for node in local.nodes:
        if node.op == "state.write":
            continue
        if node.op == "comm.slice":
            path = _common_path([local.nodes[i].path for i, _ in readers[node.outputs[0]]])
            found, between = _take(replace(node, path=path), held, count)
            nodes += [_renamed(one, renamed) for one in found]
            views += between
            continue
        if node.op == "comm.all_reduce":
            node = replace(node, name=f"sum_{node.outputs[0].partition('~')[0]}", op=ACCUMULATE, args=(("x", Ref(0)),))
        elif node.op == "comm.keep":
            args = (("self", Ref(0)), ("other", count))
            node = replace(node, name=f"share_{node.outputs[0].partition('~')[0]}_{node.phase.value}", op="aten.div.Tensor", args=args)
        elif node.op == "comm.all_gather":
            node = replace(node, name=f"collect_{node.outputs[0].partition('~')[0]}", op=COLLECT, args=_collect_args(whole, node, count))
        elif node.op.startswith("comm."):
            raise MicrobatchError(f"{whole.name}: {node.name} would move {node.inputs[0]} between turns")
        nodes.append(_renamed(node, renamed))
    graph = Graph(
        local.name,
        (*(_rename_value(v, renamed) for v in local.values), *views),
        tuple(nodes),
        local.inputs,
        tuple((old, renamed.get(new, new)) for old, new in written.items()),
        renamed.get(local.loss, local.loss),
        tuple(renamed.get(name, name) for name in local.outputs[: len(whole.outputs)]),  # then come gradients
        (),
        whole.sequences,
    )
    if count_microbatches(graph) != count:
        raise MicrobatchError(f"{whole.name} cannot run in {count} microbatches: nothing that it computes depends on one sample more than on another")
    graph = _widen(graph)
    sums = {node.inputs[0]: node.outputs[0] for node in graph.nodes if node.op == ACCUMULATE}
    phases = _phases(graph)
    order = sorted(range(len(graph.nodes)), key=lambda i: _ORDER[phases[i]])
    made = {out: k for k, i in enumerate(order) for out in graph.nodes[i].outputs if out}
    values = sorted(graph.values, key=lambda v: made.get(v.name, -1))
    grads = tuple((param, sums.get(grad, grad)) for param, grad in whole.grads)
    return replace(graph, values=tuple(values), nodes=tuple(_in_phase(graph.nodes[i], phases[i]) for i in order), grads=grads)


def _take(node: Node, values: Mapping[str, Value], count: int) -> tuple[list[Node], list[Value]]:
    """What takes the samples of a turn, and the values between: where they lie inside of another dim (what is drawn for two views of each sample side by side)
    the two are dims of their own meanwhile.

    Args:
        node: the local cut along time.
    """
    x, out = values[node.inputs[0]], values[node.outputs[0]]
    dim, stride = int(get_arg(node, "dim")), int(get_arg(node, "stride"))
    name, outer = f"take_{out.name.partition('~')[0]}_{node.phase.value}", x.shape[dim] // (stride * count)
    take = replace(node, name=name, op=TAKE, args=(("x", Ref(0)), ("dim", dim + (outer > 1)), ("count", count)))
    if outer == 1:
        return [take], []
    apart, part = (
        replace(source, name=f"{name}_{word}", storage=f"{name}_{word}", version=0, shape=(*source.shape[:dim], outer, size, *source.shape[dim + 1 :]))
        for source, word, size in ((x, "apart", stride * count), (out, "part", stride))
    )
    return [
        replace(node, name=apart.name, op=_VIEW, args=(("self", Ref(0)), ("size", apart.shape)), outputs=(apart.name,)),
        replace(take, inputs=(apart.name,), outputs=(part.name,)),
        replace(node, name=f"{name}_joined", op=_VIEW, inputs=(part.name,), args=(("self", Ref(0)), ("size", out.shape))),
    ], [apart, part]


def _collect_args(whole: Graph, node: Node, count: int) -> tuple:
    """The arguments of `autopar.collect` for what leaves the step in the samples of each turn.

    Raises:
        MicrobatchError: the samples of a turn do not lie side by side.
    """
    name, dim = node.inputs[0], int(get_arg(node, "dim"))
    size = value_table(whole)[name].shape[dim]
    if int(get_arg(node, "stride")) * count != size:
        raise MicrobatchError(
            f"{whole.name} cannot run in {count} microbatches: it returns {name} ({node.source or 'no source line'} in {node.path or 'the root module'}), in whose dim {dim} "
            f"of size {size} the batch lies inside of another dim; expected it outermost: return the two as dims of their own, or plan with one microbatch"
        )
    return ("x", Ref(0)), ("dim", dim), ("count", count)


def _in_phase(node: Node, phase: Phase) -> Node:
    return node if node.phase is phase else replace(node, phase=phase)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other names of what it reads and makes; most have none."""
    if not any(name in names for name in (*node.inputs, *node.outputs)):
        return node
    return replace(node, inputs=tuple(names.get(i, i) for i in node.inputs), outputs=tuple(names.get(o, o) for o in node.outputs))


def _merge_sums(local: Graph) -> Graph:
    """One sum per value, whoever reads it."""
    first: dict[str, str] = {}
    same: dict[str, str] = {}
    for node in local.nodes:
        if node.op == "comm.all_reduce" and first.setdefault(node.inputs[0], node.outputs[0]) != node.outputs[0]:
            same[node.outputs[0]] = first[node.inputs[0]]
    return replace(
        local,
        values=tuple(v for v in local.values if v.name not in same),
        nodes=tuple(_renamed(n, same) for n in local.nodes if n.outputs[:1] == () or n.outputs[0] not in same),
        updates=tuple((old, same.get(new, new)) for old, new in local.updates),
        loss=same.get(local.loss, local.loss),
        outputs=tuple(same.get(name, name) for name in local.outputs),
    )


def _widen(graph: Graph) -> Graph:
    """Sums over turns are in float32 where the parts are in half precision; who reads the sum in float32 reads it as it is, others rounded."""
    values = value_table(graph)
    narrow = {node.outputs[0] for node in graph.nodes if node.op == ACCUMULATE and values[node.outputs[0]].dtype in _HALF}
    rounded: dict[str, Node] = {}
    nodes: list[Node] = []

    def add_rounded(name: str, near: Node) -> None:
        if name in narrow and name not in rounded:
            args = (("self", Ref(0)), ("dtype", Const("dtype", f"torch.{values[name].dtype}")))
            rounded[name] = Node(f"round_{name}", _CAST, (name,), args, (f"{name}_rounded",), Phase.UPDATE, near.path, near.source)
            nodes.append(rounded[name])

    for node in graph.nodes:
        wide = node.op == _CAST and get_arg(node, "dtype") == _FLOAT
        for name in () if wide else node.inputs:
            add_rounded(name, node)
        fresh = () if wide else tuple(f"{name}_rounded" if name in rounded else name for name in node.inputs)
        nodes.append(node if wide or fresh == node.inputs else replace(node, inputs=fresh))
    for name in graph.outputs:
        add_rounded(name, graph.nodes[-1])
    held = [replace(v, dtype="float32") if v.name in narrow else v for v in graph.values]
    held += [replace(values[name], name=f"{name}_rounded", storage=f"{name}_rounded") for name in rounded]
    outputs = tuple(f"{name}_rounded" if name in rounded else name for name in graph.outputs)
    return replace(graph, values=tuple(held), nodes=tuple(nodes), outputs=outputs)


def _phases(graph: Graph) -> list[Phase]:
    """When each node runs: in the turns if it reads something of a turn, after them if it reads a sum over them, else before."""
    when: dict[str, Phase] = {}
    found = []
    for node in graph.nodes:
        read = [when.get(name, Phase.PREPARE) for name in node.inputs]
        if node.phase is Phase.UPDATE or Phase.UPDATE in read:
            phase = Phase.UPDATE
        elif node.op == TAKE or node.op in GROWN or any(p in LOOP for p in read):
            phase = node.phase
        else:
            phase = Phase.PREPARE
        found.append(phase)
        for out in node.outputs:
            when[out] = Phase.UPDATE if node.op in GROWN else phase
    return found


def _common_path(paths: list[str]) -> str:
    """The innermost module that all of these are in."""
    parts = [path.split(".") if path else [] for path in paths]
    count = 0
    while all(len(p) > count and p[count] == parts[0][count] for p in parts):
        count += 1
    return ".".join(parts[0][:count])


def _rename_value(value: Value, renamed: Mapping[str, str]) -> Value:
    name = renamed.get(value.name, value.name)
    return replace(value, name=name, storage=name) if name != value.name else value
