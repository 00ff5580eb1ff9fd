"""Many uses: the gradient of a weight that is used many times on few rows is one product of all of them.

A recurrent cell uses its weights once for each step of a sequence, and autograd adds up a product of `[rows, o]` and `[rows, i]` for each. With few rows each such product reads and writes the whole weight's
gradient to add little to it; laid one after the other the rows are one product, which writes it once. In: draft nodes. Out: the same nodes, where a sum of `autopar.linear_weight_grad`s of equally many rows
is one of their `cat`s along a new first dim, and a sum of sums over the rows of the same gradients (a bias) is the sum over the rows of that `cat`. Added up in another order than the loop's. Where nothing
else lays the gradients of all steps one after the other, some steps at a time are one product, so that no more of them are held than are worth it.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from ...graph.node import Phase
from .draft import Draft, DraftNode, Shape, Val, node_inputs, view_chain

_ADD, _CAT, _SUM, _GRAD = "aten.add.Tensor", "aten.cat.default", "aten.sum.dim_IntList", "autopar.linear_weight_grad"
_LEAST = 3  # products
_HELD = 4  # weights: so much at most is held of rows that are laid for a product alone


def join_uses(draft: Draft, roots: list[Val]) -> None:
    """Rewrite the sums in place; what nobody reads any more is dropped later.

    Args:
        roots: values that the step returns.
    """
    uses = Counter(id(v) for v in [*roots, *(v for node in draft.nodes for v in node_inputs(node))])
    sums = {id(node.outs[0]): node for node in draft.nodes if _is_sum(node)}
    inner = {id(v) for node in sums.values() for v in node_inputs(node) if id(v) in sums and uses[id(v)] == 1}
    totals = [(node, _terms(node, inner)) for node in sums.values() if id(node.outs[0]) not in inner]
    totals = [(node, terms) for node, terms in totals if len(terms) >= _LEAST]
    if totals:
        joined = _Joined(draft)
        for join in (joined.weights, joined.bias):
            for node, terms in totals:
                join(node, terms)
        joined.put()


def _is_sum(node: DraftNode) -> bool:
    if node.phase is not Phase.BACKWARD or node.op != _ADD or any(key not in ("self", "other") for key, _ in node.args):
        return False
    return all(isinstance(v, Val) and v.shape == node.outs[0].shape and v.dtype == node.outs[0].dtype for _, v in node.args)


def _terms(node: DraftNode, inner: set[int]) -> list[Val]:
    """What is added up, in order."""
    found: list[Val] = []
    todo = [value for _, value in reversed(node.args)]
    while todo:
        value = todo.pop()
        if id(value) in inner:
            todo += [v for _, v in reversed(value.node.args)]
        else:
            found.append(value)
    return found


def _thin(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


def _kind(term: Val) -> object:
    """What products must share to be one: leading dims, how the weight lies, dtypes; None for what is no product, or has so many rows that laying them costs more than adding."""
    if term.node is None or term.node.op != _GRAD or _worth(term) <= 1:
        return None
    args = dict(term.node.args)
    return _thin(args["grad"].shape[:-1]), bool(args.get("transposed")), args["grad"].dtype, args["input"].dtype


def _worth(term: Val) -> float:
    """Of so many such products laying the rows moves as much as adding one product to another."""
    args = dict(term.node.args)
    wide = args["grad"].shape[-1], args["input"].shape[-1]
    return prod(wide) / (prod(args["grad"].shape[:-1]) * sum(wide))


def _summed(term: Val) -> Val | None:
    """`[..., o]` of which this `[o]` is the sum over all leading dims; of one row it is a view. None where it is no such sum."""
    if term.node is None or term.node.op != _SUM:
        return term if len(term.shape) == 1 else None
    args = dict(term.node.args)
    shape = args["self"].shape
    wide = {k for k, n in enumerate(shape[:-1]) if n != 1}
    return args["self"] if term.shape == shape[-1:] and "dtype" not in args and wide <= set(args["dim"]) and len(shape) - 1 not in args["dim"] else None


def _base(x: Val) -> int:
    return id(view_chain(x)[-1])


class _Joined:
    """What was joined so far, and where its nodes will stand."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.at = {id(node): k for k, node in enumerate(draft.nodes)}
        self.laid: dict[frozenset[int], tuple[tuple[int, ...], Val]] = {}  # rows that stand one after the other somewhere -> in which order, and the whole
        self.before: dict[int, list[DraftNode]] = {}  # nodes that will stand before the one of this number
        self.first_read: dict[int, int] = {}
        for k, node in enumerate(draft.nodes):
            for value in node_inputs(node):
                self.first_read.setdefault(id(value), k)
            if node.phase is Phase.BACKWARD and node.op == _CAT and not dict(node.args).get("dim"):
                tensors = dict(node.args)["tensors"]
                if all(t.shape[:1] == (1,) and t.shape == tensors[0].shape for t in tensors):
                    self._keep(tensors, node.outs[0])

    def weights(self, node: DraftNode, terms: list[Val]) -> None:
        """A sum of products, of which those with few rows become one."""
        groups: dict[object, list[Val]] = {}
        for term in terms:
            groups.setdefault(_kind(term), []).append(term)
        if not any(kind is not None and len(group) >= _LEAST for kind, group in groups.items()):
            return
        begin, values = self._begin(node), []
        for kind, group in groups.items():
            if kind is None or len(group) < _LEAST:
                values += group
                continue
            there = self._find([dict(term.node.args)["grad"] for term in group], node) is not None
            most = len(group) if there else max(_LEAST, int(_HELD * _worth(group[0])))
            for start in range(0, len(group), most):
                values.append(self._product(group[start : start + most], node))
        self._finish(node, values, begin)

    def _product(self, group: list[Val], node: DraftNode) -> Val:
        """The sum of these products as one."""
        if len(group) == 1:
            return group[0]
        arguments = [dict(term.node.args) for term in group]
        order, grad = self._lay([a["grad"] for a in arguments], node)
        laid = self._lay([arguments[k]["input"] for k in order], node, in_order=True)[1]
        more = {"transposed": True} if arguments[0].get("transposed") else {}
        return self.draft.emit_one(_GRAD, {"grad": grad, "input": laid} | more, node.outs[0].shape, node.outs[0].dtype)

    def bias(self, node: DraftNode, terms: list[Val]) -> None:
        """A sum of sums over rows, where these stand one after the other already."""
        read = [_summed(term) for term in terms]
        found = self._find(read, node) if None not in read else None
        if found is not None and found[1].shape[-1:] == node.outs[0].shape:
            begin = self._begin(node)
            self._finish(node, [self.draft.sum(found[1], list(range(len(found[1].shape) - 1)))], begin)

    def put(self) -> None:
        """Write all in its place."""
        moved = {id(node) for made in self.before.values() for node in made}
        nodes: list[DraftNode] = []
        for k, node in enumerate(self.draft.nodes):
            nodes += self.before.get(k, [])
            nodes += [] if id(node) in moved else [node]
        self.draft.nodes[:] = nodes + self.before.get(len(self.draft.nodes), [])

    def _keep(self, values: list[Val], whole: Val) -> None:
        bases = tuple(_base(v) for v in values)
        if len(set(bases)) == len(bases):
            self.laid.setdefault(frozenset(bases), (bases, whole))

    def _find(self, values: list[Val], node: DraftNode) -> tuple[tuple[int, ...], Val] | None:
        """Where these stand already, if whoever reads the sum reads it later."""
        bases = [_base(v) for v in values]
        found = self.laid.get(frozenset(bases))
        if found is None or len(bases) != len(found[0]):
            return None
        made = self.at.get(id(found[1].node), -1)
        return found if made < self.first_read.get(id(node.outs[0]), len(self.draft.nodes)) else None

    def _lay(self, values: list[Val], node: DraftNode, in_order: bool = False) -> tuple[list[int], Val]:
        """The values one after the other along a new first dim, and in which order: as they stand already somewhere, if they do."""
        lead = _thin(values[0].shape[:-1])
        bases, found = [_base(v) for v in values], self._find(values, node)
        if found is not None and (not in_order or list(found[0]) == bases):
            return [bases.index(base) for base in found[0]], self.draft.view(found[1], (len(values), *lead, values[0].shape[-1]))
        whole = self.draft.call(_CAT, [self.draft.view(v, (1, *lead, v.shape[-1])) for v in values])
        self._keep(values, whole)
        return list(range(len(values))), whole

    def _begin(self, node: DraftNode) -> int:
        self.draft.phase, self.draft.path, self.draft.source = node.phase, node.path, node.source
        return len(self.draft.nodes)

    def _finish(self, node: DraftNode, values: list[Val], begin: int) -> None:
        """The sum's node becomes what adds up the values; it and what was written for it stand each after all that it reads."""
        total = values[0]
        for value in values[1:]:
            total = self.draft.add(total, value)
        last = total.node
        made = [one for one in self.draft.nodes[begin:] if one is not last]
        del self.draft.nodes[begin:]
        node.op, node.args = last.op, last.args
        waiting: list[DraftNode] = []  # rows are laid right before their product
        for one in (*made, node):
            waiting.append(one)
            if one is not node and one.op not in (_GRAD, _ADD):
                continue
            read = [v.node for each in waiting for v in node_inputs(each) if v.node is not None and id(v.node) in self.at]
            at = max([self.at[id(node)] if one is node else 0, *(self.at[id(maker)] + 1 for maker in read)])
            self.at.update((id(each), at - 1) for each in waiting)
            self.before.setdefault(at, []).extend(waiting)
            waiting = []
