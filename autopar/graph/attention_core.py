"""The attention core: what an attention does between the projections that make queries, keys and values and the one that reads its result.

In: a graph with its signatures. Out: names of nodes of the forward pass. Found by ops, not by the names of modules:

    fused      an attention op by itself
    unfused    a product of two values of which neither is a weight (the scores), what leads from there through a softmax to the next product,
               with the values, and that product; and what is made for these alone: masks, dropout's random numbers

What leads into a core (queries, keys, values, a bias from elsewhere) is none of it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Graph, producer_table, use_table, value_table
from .liveness import is_view
from .node import Phase
from .recompute import list_recomputable
from .repeats import block_of
from .rule import Signature, is_contraction
from .tensor import Kind

_FUSED = ("autopar.attention",)
_SOFTMAX = ("aten._softmax", "aten._safe_softmax")
_CAST = "aten._to_copy"


def list_core(graph: Graph, signatures: Sequence[Signature]) -> tuple[str, ...]:
    """Names of all nodes of attention cores, in graph order.

    Args:
        signatures: of each node (`cuts.resolve_all`).
    """
    return tuple(graph.nodes[i].name for i in sorted(_Cores(graph, signatures).find()))


def list_selective(graph: Graph, signatures: Sequence[Signature]) -> tuple[str, ...]:
    """Names of the nodes that are run again where attention cores are (arXiv:2205.05198 section 5), in graph order.

    Of a core in several ops what it makes for itself: its result is held for the projection that reads it, so that the product that
    makes it need not run again. A fused op, whose backward pass reads what it made, is run again whole.
    """
    core = set(list_core(graph, signatures))
    leaving: set[str] = set()  # values of cores that other forward nodes read, through views
    for node in reversed(graph.nodes):
        if node.phase is Phase.FORWARD and (node.name not in core or (is_view(node.op) and leaving.intersection(node.outputs))):
            leaving.update(node.inputs)
    own = {node.name for node in graph.nodes if node.op in _FUSED or not leaving.intersection(node.outputs)}
    return tuple(name for name in list_recomputable(graph, signatures) if name in core and name in own)


class _Cores:
    """Finds the cores of one graph; lives for one call."""

    def __init__(self, graph: Graph, signatures: Sequence[Signature]) -> None:
        self.graph, self.signatures = graph, signatures
        self.values, self.makers, self.uses = value_table(graph), producer_table(graph), use_table(graph)
        self.blocks = [block_of(node.path, graph.sequences) for node in graph.nodes]

    def find(self) -> set[int]:
        """Numbers of the nodes."""
        found: set[int] = set()
        for i, node in enumerate(self.graph.nodes):
            if node.phase is Phase.FORWARD and node.op in _FUSED:
                found.add(i)
            elif node.phase is Phase.FORWARD and node.op.removesuffix(".default") in _SOFTMAX:
                found |= self._around(i)
        return found

    def _around(self, softmax: int) -> set[int]:
        """The core that has this softmax; nothing where it is of something else (a gate, a loss)."""
        above = self._reach(softmax, self._before)
        below = self._reach(softmax, self._after)
        scores = {i for i in above if self._is_product(i)}
        products = {i for i in below if self._is_product(i)}
        if not scores or not products:
            return set()
        way = {softmax, *scores, *products}  # what lies on a path from the scores to a product
        way |= {i for i in above if self._reach(i, self._before) & scores} | {i for i in below if self._reach(i, self._after) & products}
        return way | self._serving(way, {*scores, *products})

    def _before(self, i: int) -> list[int]:
        return [self.makers[name][0] for name in self.graph.nodes[i].inputs if name in self.makers]

    def _after(self, i: int) -> list[int]:
        return [j for out in self.graph.nodes[i].outputs if out for j, _ in self.uses[out]]

    def _reach(self, start: int, near) -> set[int]:  # noqa: ANN001 - a method of this class
        """Forward nodes of the same block that are reached without passing a matmul, each matmul at the ends included."""
        found: set[int] = set()
        todo = [start]
        while todo:
            for i in near(todo.pop()):
                if i not in found and self.graph.nodes[i].phase is Phase.FORWARD and self.blocks[i] == self.blocks[start]:
                    found.add(i)
                    if not is_contraction(self.signatures[i]):
                        todo.append(i)
        return found

    def _is_product(self, i: int) -> bool:
        """A matmul of two values of which neither is a weight."""
        inputs = self.graph.nodes[i].inputs
        return is_contraction(self.signatures[i]) and len(inputs) > 1 and not any(self._is_weight(name) for name in inputs)

    def _is_weight(self, name: str) -> bool:
        """A parameter, a view of one, or one in another dtype."""
        while name in self.makers:
            node = self.graph.nodes[self.makers[name][0]]
            if not (is_view(node.op) or node.op.removesuffix(".default") == _CAST):
                return False
            name = node.inputs[0]
        return self.values[name].kind is Kind.PARAM

    def _serving(self, way: set[int], products: set[int]) -> set[int]:
        """What is made for the nodes on the way alone, no matmul in it; not what the products multiply."""
        found: set[int] = set()
        todo = [i for j in way - products for i in self._before(j)]
        while todo:
            i = todo.pop()
            node = self.graph.nodes[i]
            own = node.phase is Phase.FORWARD and self.blocks[i] == self.blocks[min(way)] and bool(node.path or node.inputs)  # constants of no module may be anybody's
            if i in way or i in found or not own or is_contraction(self.signatures[i]):
                continue
            if all(j in way or j in found for j in self._after(i) if self.graph.nodes[j].phase is Phase.FORWARD):
                found.add(i)
                todo += self._before(i)
        return found
