"""Adam's step among the nodes of an update: torch has one pass for it on a CPU, where our ops would take ten.

In: the nodes of a group. Out: which of them are Adam's or AdamW's step as torch traces it. What stands before (a gradient that is scaled, summed up or converted) and
after (a working copy) is apart. Cost prices it and codegen calls it (`runtime.adam`), so both ask here. Invariant: nobody but the step reads what is made within it,
nor a state's old version afterwards.

    exp_avg'    = exp_avg + (1 - beta1) (grad - exp_avg), or grad - beta1 (grad - exp_avg) where beta1 is at most a half
    exp_avg_sq' = beta2 exp_avg_sq + (1 - beta2) grad grad
    param'      = keep param + value exp_avg' / (sqrt(exp_avg_sq') / divide + plus)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose

from .graph import Graph, use_table, value_table
from .node import Arg, Node, Phase, Ref, get_arg
from .tensor import Value

_ROUNDING = 1e-12  # between `1 - beta2` as traced and as worked out here


@dataclass(frozen=True, slots=True)
class AdamStep:
    """Places of the step's nodes, the values that it reads and makes, and its factors: numbers or names of scalars.

    Args:
        own, before, after: places of the step's nodes, and of the others.
    """

    own: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    param: str
    grad: str
    exp_avg: str
    exp_avg_sq: str
    new_param: str
    new_exp_avg: str
    new_exp_avg_sq: str
    keep: float | str
    beta1: float
    beta2: float
    divide: float | str
    plus: float | str
    value: float


def find_adam(nodes: Sequence[Node], values: Mapping[str, Value], read: Collection[str], into: Mapping[str, str]) -> AdamStep | None:
    """The step, if there is one.

    Args:
        nodes: of a group, in order; places count among them.
        values: what they read and make.
        read: what others read of it.
        into: new version -> the state in whose place it goes.
    """
    return next(_Finder(nodes, values, read, into).steps(), None)


def list_unheld_adam(graph: Graph) -> frozenset[str]:
    """What Adam's steps make in a program that needs no storage: it is made within them, or goes where the old version of a state is.

    Args:
        graph: of a program, whose `state.write` nodes say where new versions go.
    """
    parts: dict[str, list[int]] = {}
    into: dict[str, str] = {}
    for i, node in enumerate(graph.nodes):
        if node.phase is Phase.UPDATE and node.op == "state.write":
            into[node.inputs[1]] = node.inputs[0]
        elif node.phase is Phase.UPDATE and not node.op.startswith("comm."):
            parts.setdefault(node.path, []).append(i)
    values, uses = value_table(graph), use_table(graph)
    ends = {graph.loss, *graph.outputs, *(name for _, name in graph.grads)}
    found: set[str] = set()
    for places in parts.values():
        inside, nodes = set(places), [graph.nodes[i] for i in places]
        made = [out for node in nodes for out in node.outputs if out]
        read = {name for name in made if name in ends or any(i not in inside and graph.nodes[i].op != "state.write" for i, _ in uses[name])}
        for step in _Finder(nodes, values, read, into).steps():
            kept = {step.new_param, step.new_exp_avg, step.new_exp_avg_sq} - (into.keys() - read)
            found.update(out for k in step.own for out in nodes[k].outputs if out not in kept)
    return frozenset(found)


class _Finder:
    """Goes back from the last op of the step."""

    def __init__(self, nodes: Sequence[Node], values: Mapping[str, Value], read: Collection[str], into: Mapping[str, str]) -> None:
        self.nodes, self.values, self.read, self.into = nodes, values, read, into
        self.makers = {out: place for place, node in enumerate(nodes) for out in node.outputs}
        self.taken: set[int] = set()

    def steps(self) -> Iterator[AdamStep]:
        """All that there are."""
        found = (self._match(place) for place, node in enumerate(self.nodes) if node.op == "aten.addcdiv.default")
        return (step for step in found if step is not None)

    def _match(self, last: int) -> AdamStep | None:
        self.taken = {last}
        node = self.nodes[last]
        value = get_arg(node, "value", 1)
        kept, moment, below = (self._operand(node, key) for key in ("self", "tensor1", "tensor2"))
        summed = self._take("aten.add", below, alpha=False)
        divided = self._take("aten.div", self._operand(summed, "self"))
        root = self._take("aten.sqrt", self._operand(divided, "self"))
        second = self._take("aten.addcmul", self._operand(root, "self"))
        decayed = self._take("aten.mul", self._operand(second, "self"))
        first = self._take("aten.add", moment, alpha=True) or self._take("aten.sub", moment, alpha=True)
        apart = self._take("aten.sub", self._operand(first, "other"), alpha=False)
        if not (summed and divided and root and second and decayed and first and apart) or not isinstance(value, (int, float)):
            return None
        grad, exp_avg, exp_avg_sq = self._operand(apart, "self"), self._operand(apart, "other"), self._operand(decayed, "self")
        weight, beta2, rest = get_arg(first, "alpha"), self._factor(decayed), get_arg(second, "value", 1)
        divide, plus = self._factor(divided), self._factor(summed)
        starts_there = first.op.startswith("aten.add")
        if self._operand(first, "self") != (exp_avg if starts_there else grad) or {self._operand(second, k) for k in ("tensor1", "tensor2")} != {grad}:
            return None
        if not isinstance(weight, float) or not isinstance(beta2, float) or not isinstance(rest, float) or not isclose(rest, 1 - beta2, rel_tol=_ROUNDING):
            return None
        maker = self.nodes[self.makers[kept]] if kept in self.makers else None
        keep: float | str | None = 1.0
        param = kept
        if maker is not None and maker.op.startswith("aten.mul."):
            self.taken.add(self.makers[kept])
            param, keep = self._operand(maker, "self"), self._factor(maker)
        if keep is None or divide is None or plus is None:
            return None
        made = (node.outputs[0], first.outputs[0], second.outputs[0])
        step = AdamStep((), (), (), param, grad, exp_avg, exp_avg_sq, *made, keep, 1 - weight if starts_there else weight, beta2, divide, plus, float(value))
        return self._apart(step)

    def _take(self, op: str, name: str, alpha: bool | None = None) -> Node | None:
        """The node of this op that makes a value, as one of the step's. `alpha`: it must have one, or must not."""
        place = self.makers.get(name, -1)
        if place < 0 or self.nodes[place].op not in (f"{op}.Tensor", f"{op}.Scalar", f"{op}.default"):
            return None
        node = self.nodes[place]
        if alpha is not None and (get_arg(node, "alpha") is not None) != alpha:
            return None
        self.taken.add(place)
        return node

    def _operand(self, node: Node | None, key: str) -> str:
        found = get_arg(node, key) if node else None
        return node.inputs[found.index] if node and isinstance(found, Ref) else ""

    def _factor(self, node: Node) -> float | str | None:
        """The other operand, if it is a number or a scalar."""
        found: Arg = get_arg(node, "other")
        if isinstance(found, Ref):
            name = node.inputs[found.index]
            return None if self.values[name].shape or self.makers.get(name, -1) in self.taken else name
        return float(found) if isinstance(found, (int, float)) else None

    def _apart(self, step: AdamStep) -> AdamStep | None:
        """The step with what stands before and after it; None where the rest of the kernel reads what it hides, or states would not be torch's."""
        made = {step.new_param, step.new_exp_avg, step.new_exp_avg_sq}
        hidden = {out for place in self.taken for out in self.nodes[place].outputs} - made
        rest = [place for place in range(len(self.nodes)) if place not in self.taken]
        if hidden & {*self.read, *(name for place in rest for name in self.nodes[place].inputs)}:
            return None
        reached, after = set(made), []
        for place in rest:
            if reached & set(self.nodes[place].inputs):
                reached.update(self.nodes[place].outputs)
                after.append(place)
        olds = {old for new, old in self.into.items() if new in made}
        read_later = {name for place in after for name in self.nodes[place].inputs}
        needs = {step.grad, *(f for f in (step.keep, step.divide, step.plus) if isinstance(f, str))}
        kinds = {(self.values[n].shape, self.values[n].dtype) for n in (step.param, step.grad, step.exp_avg, step.exp_avg_sq, *made)}
        states = (step.exp_avg, step.exp_avg_sq) == (self.into.get(step.new_exp_avg), self.into.get(step.new_exp_avg_sq))
        own = self.into.get(step.new_param, step.param) == step.param and step.param not in self.makers
        real = all("float" in dtype for _, dtype in kinds)
        if needs & reached or olds & read_later or len(kinds) != 1 or not real or not states or not own or len({step.param, step.grad, step.exp_avg, step.exp_avg_sq}) != 4:
            return None
        return replace(step, own=tuple(sorted(self.taken)), before=tuple(p for p in rest if p not in after), after=tuple(after))
