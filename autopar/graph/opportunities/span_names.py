"""Names of spans, for people: `batch`, `sequence`, `heads`, `features`, `experts`, `vocabulary`, `channels`, `space`
(`space: height`).

In: a graph and its spans. Out: for each span a name and where it starts. The name is what the place says: a dim of a batch tensor, of a
parameter, or the part that an op gives to it (the heads of an attention, the rows of a table that tokens look up). What says nothing is
named after its place: `dim 0 of table`. Names are for print alone; nothing is decided by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Graph, value_table
from ..node import Node, input_names, packet_of
from ..tensor import Kind, Value
from .spans import Digit, Letter, Span

_RANKED = ("experts", "vocabulary", "heads", "heads of a group", "head features", "channels", "kernel", "space", "positions")  # the first that applies
_LOOKUPS = ("aten.embedding", "autopar.embedding")
_OVER_SPACE = ("aten.convolution", "aten.max_pool", "aten.avg_pool", "aten._adaptive_avg_pool", "aten.upsample")


@dataclass(frozen=True, slots=True)
class SpanName:
    """A span's name, and the value and digit where it starts."""

    name: str
    value: str
    digit: Digit

    @property
    def start(self) -> str:
        """`dim 0 of h.0.attn.weight`."""
        return f"dim {self.digit.dim} of {self.value.partition('@')[0]}"


def name_spans(graph: Graph, spans: tuple[Span, ...]) -> tuple[SpanName, ...]:
    """The name of each span."""
    values = value_table(graph)
    order = {name: (values[name].kind is not Kind.BATCH, k) for k, name in enumerate(graph.inputs)}  # what the user passes comes first
    return tuple(_name_span(graph, values, order, span) for span in spans)


def _name_span(graph: Graph, values: dict[str, Value], order: dict[str, tuple[bool, int]], span: Span) -> SpanName:
    entering = [place for place in span.places if place[0] in order]
    where, digit = min(entering, key=lambda place: order[place[0]]) if entering else span.places[0]
    value = values[where]
    if value.kind is Kind.BATCH:
        return SpanName(_batch_name(value, digit), where, digit)
    roles = {role for i, letter in span.letters for role in _roles(graph.nodes[i], letter, values)}
    found = next((role for role in _RANKED if role in roles), "")
    if found == "space":
        found = _space(digit.dim, len(value.shape))
    if not found and "classes" in roles and value.kind is Kind.PARAM:
        found = "vocabulary" if _reads_tokens(graph, values) else "classes"
    if not found and value.kind is Kind.PARAM:
        found = "parts" if digit.lower > 1 else "features"  # the parts of a fused weight: query, key and value
    return SpanName(found or f"dim {digit.dim} of {value.storage}", where, digit)


def _batch_name(value: Value, digit: Digit) -> str:
    rank = len(value.shape)
    if digit.dim == 0:
        return "batch"
    if "int" in value.dtype or value.dtype == "bool":
        return "sequence" if digit.dim == 1 and rank < 4 else _space(digit.dim, rank)
    if rank >= 4:
        return "channels" if digit.dim == 1 else _space(digit.dim, rank)
    return "sequence" if rank == 3 and digit.dim == 1 else "features"


def _space(dim: int, rank: int) -> str:
    return "space" if rank < 4 else f"space: {('width', 'height', 'depth')[min(rank - dim, 3) - 1]}"


def _reads_tokens(graph: Graph, values: dict[str, Value]) -> bool:
    batch = {n for n in graph.inputs if values[n].kind is Kind.BATCH}
    return any(packet_of(n.op) in _LOOKUPS and n.inputs[1] in batch for n in graph.nodes)


def _roles(node: Node, letter: Letter, values: dict[str, Value]) -> list[str]:
    """What a node says that its letter is."""
    packet = packet_of(node.op)
    first = letter.inputs[0] if letter.inputs else None
    if packet == "autopar.attention":
        query = next((d for d, name in zip(letter.inputs, input_names(node)) if name == "query"), None)
        if query is None:
            return []
        return {1: ["heads of a group" if letter.factor == "r" else "heads"], 3: ["head features"]}.get(query.dim, [])
    if packet in _LOOKUPS and first is not None and first.dim == 0:
        return ["vocabulary" if values[node.inputs[1]].kind is Kind.BATCH else "positions"]
    if packet == "aten.convolution":
        weight = letter.inputs[1]
        if weight is not None:
            return ["channels"] if weight.dim < 2 else ["kernel"]
    if packet.startswith(_OVER_SPACE):
        return ["space"] if any(d is not None and d.dim >= 2 for d in (first, *letter.outputs)) else []
    if packet in ("aten._grouped_mm", "aten.bmm", "aten.baddbmm"):
        return _product_roles(node, letter, values)
    if packet in ("aten._log_softmax", "aten.nll_loss_forward") and letter.whole:
        return ["classes"]
    return ["classes"] if packet == "autopar.pick" and letter.factor == "v" else []


def _product_roles(node: Node, letter: Letter, values: dict[str, Value]) -> list[str]:
    """The batch of a product: experts where a parameter has one matrix each, heads where it is a part of a dim on both sides."""
    digits = [d for d in (*letter.inputs, *letter.outputs) if d is not None]
    if len(digits) < 2 or any(d.dim != 0 for d in digits):
        return []
    return ["experts"] if any(values[n].kind is Kind.PARAM for n in node.inputs) else ["heads"]
