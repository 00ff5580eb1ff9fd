"""Reductions in kernels: sums and extremes, norms, softmax, each made of sums along rows and pointwise text.

In: a kernel's graph. Out: which of its nodes reduce what (`list_reductions`), and the text of an element of what such a node makes (`row_text`). A row is what the
trailing dims of a value hold: `rows * cols` elements in all. Formulas are those of torch's own kernels (ATen/native/cuda/layer_norm_kernel.cu, SoftMax.cu).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...graph.blocks import WIDEST_TILE, may_group
from ...graph.graph import Graph
from ...graph.kernel import KINDS
from ...graph.liveness import is_view
from ...graph.node import Node, Phase, Ref, get_arg, packet_of
from ...graph.tensor import Value, num_elements
from .index import Index, place_in_row, row_of
from .literals import TYPES

if TYPE_CHECKING:
    from .triton_text import Printer

_COUNTING = ("aten.any", "aten.all", "aten.count_nonzero")  # of what is not 0
EXTREMES = ("aten.amax", "aten.amin")
_NORMS = ("aten.native_layer_norm", "aten.native_layer_norm_backward", "aten._fused_rms_norm", "aten._fused_rms_norm_backward")
_SOFTMAX = ("aten._softmax", "aten._safe_softmax", "aten._log_softmax", "aten._softmax_backward_data", "aten._log_softmax_backward_data")
_CLASSES = ("autopar.sum_exp", "autopar.pick", "autopar.unpick", "autopar.cross_entropy_backward")
_SPREADS = ("autopar.unpick", "autopar.cross_entropy_backward")  # make an element for each class
_UNCHANGED = ("aten._to_copy", "aten.view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.alias", "aten.detach")  # the same number, in float32 at least
REDUCING = frozenset((*KINDS, *_NORMS, *_SOFTMAX, *_CLASSES))


class UnsupportedError(Exception):
    """A group that there is no Triton text for; this says why."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a node reduces.

    Args:
        along: `row` (trailing dims), `column` (leading dims) or `all`.
        rows, cols: of what is reduced.
        outputs: values that are the sums themselves, where they are not made within the kernel's rows.
        element: (printer, output, index) -> what is summed up there.
        inner: elements between two neighbours of a row: 1 where the dims that are reduced are the last ones.
        kind: `sum`, `max` or `min`.
        groups: of sums over leading dims: the first rows are one sum, the next as many another, and so on (each picture's, over its tokens).
    """

    along: str
    rows: int
    cols: int
    outputs: tuple[str, ...]
    element: Callable[[Printer, str, Index], str]
    inner: int = 1
    kind: str = "sum"
    groups: int = 1


def list_reductions(graph: Graph, values: Mapping[str, Value]) -> list[Reduced]:
    """The reductions of a kernel, in order.

    Raises:
        UnsupportedError: one goes over dims that do not lie side by side.
    """
    found = []
    for node in graph.nodes:
        packet = packet_of(node.op)
        if packet in KINDS:
            found += _plain(node, values)
        elif packet in _NORMS:
            found += _norm(node, values)
        elif packet in _CLASSES:
            shape = _class_shape(node, values)
            sums = () if packet in _SPREADS else node.outputs
            found.append(Reduced("row", num_elements(shape[:-1]), shape[-1], sums, _nothing))
        elif packet in _SOFTMAX:
            size, cols, inner = num_elements(values[node.outputs[0]].shape), *_softmax_row(node, values[node.outputs[0]].shape)
            found.append(Reduced("row", size // cols, cols, (), _nothing, inner))
    return _over_rows(graph, values, found)


def _over_rows(graph: Graph, values: Mapping[str, Value], found: list[Reduced]) -> list[Reduced]:
    """Sums over dims in the middle, beside what works on the rows that they are of, as sums over these."""
    middle = [r for r in found if r.along == "row" and r.outputs and r.inner > 1 and r.kind == "sum"]
    kinds = {(r.rows, r.inner if r.along == "row" else 1) for r in found if r not in middle and r.along != "all"}
    if not middle or len({(r.rows, r.cols, r.inner) for r in middle}) > 1:
        return found
    groups, count, cols = middle[0].rows // middle[0].inner, middle[0].cols, middle[0].inner
    others = [num_elements(values[name].shape) for name in graph.outputs if not any(name in r.outputs for r in found)]
    if groups == 1 or not may_group(count, cols) or not kinds <= {(groups * count, 1)} or any(size % (groups * count) for size in others):
        return found
    if not kinds and set(others) - {groups * count * cols}:
        return found
    return [replace(r, along="column", rows=groups * count, cols=cols, inner=1, groups=groups) if r in middle else r for r in found]


def row_text(printer: Printer, node: Node, output: int, index: Index, mask: str, reduced: Reduced | None) -> str | None:
    """The text of an element of what a reducing node makes; None for other nodes."""
    packet = packet_of(node.op)
    if packet not in REDUCING:
        return None
    if mask:
        raise UnsupportedError("a reduction inside of a concatenation")
    if packet in KINDS:
        value, dtype = node.inputs[0], printer.values[node.outputs[0]].dtype
        if reduced is None:  # over dims of size 1
            text = _element(printer, node, index, dtype)
            return printer.rounded(text, value) if packet in EXTREMES else text
        if index.variables() - {"row"}:
            raise UnsupportedError("a row's sum that is wanted at several rows at once")
        cols, inner = reduced.cols, reduced.inner
        exps = _exps_above(printer, node) if printer.walks and packet == "aten.amax" and inner == 1 else None
        if exps is not None:
            names = (node.outputs[0], (node.name, index)), (exps.outputs[0], (exps.name, index))
            return printer.reduce_exps(*names, _sums_beside(printer, node, index), cols, lambda col: printer.at(value, place_in_row(index, col, cols, inner)))
        kind = KINDS[packet]
        text = printer.reduce(kind, node.outputs[0], cols, lambda col: _element(printer, node, place_in_row(index, col, cols, inner), dtype), (node.name, index), dtype)
        return printer.rounded(text, value) if packet in EXTREMES else text
    if packet in _CLASSES:
        return _classes(printer, node, packet.removeprefix("autopar."), index)
    row = _Row(printer, node, index)
    if packet == "aten.native_layer_norm":
        return _layer_norm(row, output)
    if packet == "aten._fused_rms_norm":
        return _rms_norm(row, output)
    if packet in ("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward"):
        return _norm_backward(row)
    return _softmax(row, packet)


def keeps_numbers(node: Node) -> bool:
    """True for what has the elements of its first input, in another place or type."""
    return is_view(node.op) or packet_of(node.op) in ("aten._to_copy", "aten.clone")


def list_statistics(graph: Graph) -> frozenset[str]:
    """What norms tell of their rows. torch's kernels leave it in float32 on a GPU, whatever the rows are, and ask for it so; on a CPU in the dtype of the rows."""
    return frozenset(out for node in graph.nodes if packet_of(node.op) in ("aten.native_layer_norm", "aten._fused_rms_norm") for out in node.outputs[1:] if out)


def _exps_above(printer: Printer, peak: Node) -> Node | None:
    """The sum of exponentials over the row of which `peak` is the largest element, that it is taken off: one walk makes both."""
    for node in printer.graph.nodes:
        if packet_of(node.op) == "autopar.sum_exp" and node.inputs[_place(node, "logits")] == peak.inputs[0]:
            name = node.inputs[_place(node, "peak")]
            while name in printer.makers and name != peak.outputs[0]:
                maker = printer.graph.nodes[printer.makers[name][0]]
                if packet_of(maker.op) not in _UNCHANGED:
                    break
                name = maker.inputs[0]
            if name == peak.outputs[0]:
                return node
    return None


def _sums_beside(printer: Printer, peak: Node, index: Index) -> list[tuple[str, tuple[str, Index]]]:
    """What the sums of the elements whose largest is `peak` are called, and their keys (the loss that label smoothing adds): the same walk makes them."""
    floats = ("float32", "float64")
    over = {int(d) % len(printer.values[peak.inputs[0]].shape) for d in get_arg(peak, "dim") or ()}  # type: ignore[union-attr]
    found = []
    for node in printer.graph.nodes:
        if node.op == "aten.sum.dim_IntList" and node.inputs[0] == peak.inputs[0] and printer.values[node.outputs[0]].dtype in floats:
            if {int(d) % len(printer.values[node.inputs[0]].shape) for d in get_arg(node, "dim") or ()} == over:  # type: ignore[union-attr]
                found.append((node.outputs[0], (node.name, index)))
    return found


# --- which


def _plain(node: Node, values: Mapping[str, Value]) -> list[Reduced]:
    shape = values[node.inputs[0]].shape
    dims = get_arg(node, "dim", None)
    if isinstance(dims, int):
        dims = (dims,)
    over = {int(d) % len(shape) for d in dims} if dims and shape else set(range(len(shape)))  # type: ignore[union-attr, arg-type]
    wide = [d for d, size in enumerate(shape) if size > 1]
    over &= set(wide)
    kept = [d for d in wide if d not in over]
    name = node.outputs[0]

    def element(printer: Printer, output: str, index: Index) -> str:
        text = _element(printer, node, index, values[name].dtype)
        return printer.rounded(text, node.inputs[0]) if packet_of(node.op) in EXTREMES else text

    if not over:
        return []
    kind, size = KINDS[packet_of(node.op)], num_elements(shape)
    if kind == "sum" and values[name].dtype == "bool":
        raise UnsupportedError("a sum of bools as a bool")
    first, last = min(over), max(over)
    if any(first < d < last for d in kept):
        raise UnsupportedError("a reduction over dims that do not lie side by side")
    if not kept and (kind == "sum" or size > WIDEST_TILE or node.phase is Phase.UPDATE):
        return [Reduced("all", size, 1, (name,), element, kind=kind)]
    cols, inner = num_elements(tuple(shape[first : last + 1])), num_elements(tuple(shape[last + 1 :]))
    if inner > 1 and cols * inner == size and kind == "sum":
        return [Reduced("column", cols, inner, (name,), element)]
    return [Reduced("row", size // cols, cols, (name,), element, inner)]


def _element(printer: Printer, node: Node, index: Index, dtype: str) -> str:
    """The text of an element of a sum or an extreme, in the type in which the result is computed."""
    value = node.inputs[0]
    if packet_of(node.op) not in _COUNTING:
        return printer.in_type(value, index, dtype)
    text = printer.at(value, index)
    text = text if printer.values[value].dtype == "bool" else f"({printer.rounded(text, value)} != 0)"
    return text if dtype == "bool" else f"{text}.to({TYPES[dtype]})"


def _norm(node: Node, values: Mapping[str, Value]) -> list[Reduced]:
    shape = get_arg(node, "normalized_shape")
    cols = num_elements(tuple(shape))  # type: ignore[arg-type]
    backward = "backward" in node.op
    whole = values[node.inputs[_place(node, "input")]]
    rows = num_elements(whole.shape) // cols
    found = [Reduced("row", rows, cols, (), _nothing)]
    if not backward:
        return found
    for output, name in enumerate(node.outputs[1:], start=1):
        if name:
            found.append(Reduced("column", rows, cols, (name,), _norm_weight(node, output)))
    return found


def _norm_weight(node: Node, output: int) -> Callable[[Printer, str, Index], str]:
    def element(printer: Printer, name: str, index: Index) -> str:
        row = _Row(printer, node, index)
        return row.at("grad_output") if output == 2 else f"{row.at('grad_output')} * {_normalised(row)}"

    return element


def _softmax_row(node: Node, shape: Sequence[int]) -> tuple[int, int]:
    """(elements of a row, elements between two neighbours)."""
    dim = int(get_arg(node, "dim", -1)) % max(len(shape), 1)  # type: ignore[arg-type]
    return (shape[dim], num_elements(tuple(shape[dim + 1 :]))) if shape else (1, 1)


def _nothing(printer: Printer, name: str, index: Index) -> str:
    raise UnsupportedError("a row that is not summed up")


def _place(node: Node, key: str) -> int:
    arg = get_arg(node, "grad_out" if key == "grad_output" and packet_of(node.op) == "aten.native_layer_norm_backward" else key)
    assert isinstance(arg, Ref)
    return arg.index


def _is_given(node: Node, key: str) -> bool:
    return isinstance(get_arg(node, key), Ref)


# --- texts


class _Row:
    """A node that works on rows, asked for one element of what it makes."""

    def __init__(self, printer: Printer, node: Node, index: Index) -> None:
        self.printer, self.node, self.index = printer, node, index
        shape = get_arg(node, "normalized_shape")
        self.cols, self.inner = (num_elements(tuple(shape)), 1) if shape else _softmax_row(node, printer.values[node.outputs[0]].shape)  # type: ignore[arg-type]

    @property
    def row(self) -> Index:
        return row_of(self.index, self.cols, self.inner)

    def at(self, key: str, index: Index | None = None, row: Index | None = None) -> str:
        """An operand's element: of the same place, of the same row (a number per row), or of the same column (a weight)."""
        value = self.printer.values[self.node.inputs[_place(self.node, key)]]
        size = num_elements(value.shape)
        index = self.index if index is None else index
        row = index // self.cols if row is None else row
        place = index % self.cols if key in ("weight", "bias") else row if key in ("mean", "rstd") or size * self.cols == self.size() and self.cols > 1 else index
        return self.printer.at(value.name, place)

    def size(self) -> int:
        first = get_arg(self.node, "input") or get_arg(self.node, "self") or get_arg(self.node, "grad_output")
        assert isinstance(first, Ref)
        return num_elements(self.printer.values[self.node.inputs[first.index]].shape)

    def sum(self, what: str, row: Index, element: Callable[[Index], str], kind: str = "sum") -> str:
        """A reduction along a row; `element(index)` is the text of one element."""
        wish, of_col, key = self._told(what, row, element)
        return self.printer.reduce(kind, wish, self.cols, of_col, key)

    def sum_both(self, first: tuple[str, Callable[[Index], str]], second: tuple[str, Callable[[Index], str]], row: Index) -> tuple[str, str]:
        """Two sums along a row, each (what, element) as of `sum`."""
        return self.printer.sum_both(*(self._told(what, row, element) for what, element in (first, second)), self.cols)

    def _told(self, what: str, row: Index, element: Callable[[Index], str]) -> tuple[str, Callable[[Index], str], object]:
        """A reduction as the printer asks for it: its name, the text of an element by its column, its key."""
        if row.variables() - {"row"}:
            raise UnsupportedError("a row's sum that is wanted at several rows at once")
        return what, lambda col: element(place_in_row(row, col, self.cols, self.inner)), (self.node.name, what, row)

    def named(self, what: str, row: Index, text: str) -> str:
        return self.printer.named(self.printer.scope_of(row), (self.node.name, what, row), what, text)


def _layer_norm(row: _Row, output: int) -> str:
    here = row.row if output == 0 else row.index
    total = row.sum("total", here, lambda i: row.at("input", i))
    mean = row.named("mean", here, f"{total} / {row.cols}")
    if output == 1:
        return mean
    spread = row.sum("spread", here, lambda i: f"({row.at('input', i)} - {mean}) * ({row.at('input', i)} - {mean})")
    rstd = row.named("rstd", here, f"1.0 / tl.sqrt({spread} / {row.cols} + {_eps(row)})")
    if output == 2:
        return rstd
    return _scaled(row, f"({row.at('input')} - {mean}) * {rstd}")


def _rms_norm(row: _Row, output: int) -> str:
    here = row.row if output == 0 else row.index
    squares = row.sum("squares", here, lambda i: f"{row.at('input', i)} * {row.at('input', i)}")
    rstd = row.named("rstd", here, f"1.0 / tl.sqrt({squares} / {row.cols} + {_eps(row)})")
    return rstd if output == 1 else _scaled(row, f"{row.at('input')} * {rstd}")


def _scaled(row: _Row, text: str) -> str:
    text = f"{text} * {row.at('weight')}" if _is_given(row.node, "weight") else text
    return f"{text} + {row.at('bias')}" if _is_given(row.node, "bias") else text


def _eps(row: _Row) -> str:
    eps = get_arg(row.node, "eps")
    if eps is None:
        raise UnsupportedError("a norm with the eps of its dtype")
    return row.printer.number(eps, row.node.inputs[_place(row.node, "input")])  # type: ignore[arg-type]


def _normalised(row: _Row, index: Index | None = None) -> str:
    x, rstd = row.at("input", index), row.at("rstd", index)
    text = f"({x} - {row.at('mean', index)}) * {rstd}" if _is_given(row.node, "mean") else f"{x} * {rstd}"
    return row.named("normalised", row.index if index is None else index, text)


def _norm_backward(row: _Row) -> str:
    """The input's gradient: rstd (w g - mean(w g) - x' mean(w g x')), x' the normalised input; without the first mean for RMS norm."""

    def scaled(index: Index | None) -> str:
        grad = row.at("grad_output", index)
        there = row.index if index is None else index
        return row.named("scaled", there, f"{grad} * {row.at('weight', index)}") if _is_given(row.node, "weight") else grad

    def along_row(index: Index) -> str:
        return f"{scaled(index)} * {_normalised(row, index)}"

    if _is_given(row.node, "mean"):
        along, whole = row.sum_both(("along", along_row), ("whole", scaled), row.row)
        minus = f" - {whole} / {row.cols}"
    else:
        along, minus = row.sum("along", row.row, along_row), ""
    return f"({scaled(None)}{minus} - {_normalised(row)} * ({along} / {row.cols})) * {row.at('rstd')}"


def _softmax(row: _Row, packet: str) -> str:
    here = row.row
    if packet == "aten._softmax_backward_data":
        along = row.sum("along", here, lambda i: f"{row.at('grad_output', i)} * {row.at('output', i)}")
        return f"{row.at('output')} * ({row.at('grad_output')} - {along})"
    if packet == "aten._log_softmax_backward_data":
        whole = row.sum("whole", here, lambda i: row.at("grad_output", i))
        return f"{row.at('grad_output')} - tl.exp({row.at('output')}) * {whole}"
    peak = row.sum("peak", here, lambda i: row.at("self", i), "peak")
    total = row.sum("total", here, lambda i: f"tl.exp({row.at('self', i)} - {peak})")
    share = f"tl.exp({row.at('self')} - {peak}) / {total}"
    if packet == "aten._softmax":
        return share
    if packet == "aten._safe_softmax":  # of a row that sees nothing, zeros
        return f'tl.where({peak} == float("-inf"), 0.0, {share})'
    return f"{row.at('self')} - {peak} - tl.log({total})"


def _class_shape(node: Node, values: Mapping[str, Value]) -> Sequence[int]:
    """Of what has all classes of each token."""
    return values[node.outputs[0] if packet_of(node.op) == "autopar.unpick" else node.inputs[_place(node, "logits")]].shape


def _classes(printer: Printer, node: Node, op: str, index: Index) -> str:
    """Cross-entropy over the local classes, as in `runtime.vocabulary`."""
    width = _class_shape(node, printer.values)[-1]
    row = index // width if f"autopar.{op}" in _SPREADS else index
    if row.variables() - {"row"}:
        raise UnsupportedError("a token's loss that is wanted at several tokens at once")

    def of_row(key: str) -> str:
        return printer.at(node.inputs[_place(node, key)], row)

    def is_class(col: Index) -> str:
        number = printer.at(node.inputs[_place(node, "rows")], col) if width != get_arg(node, "num_rows") else f"({col.text()})"
        return f"({number} == {of_row('target')})"

    if op == "unpick":
        return f"tl.where({is_class(index % width)}, {of_row('grad')}, 0.0)"
    logits = node.inputs[_place(node, "logits")]
    if op == "sum_exp":
        peak = of_row("peak")
        return printer.reduce("sum", node.outputs[0], width, lambda col: f"tl.exp({printer.at(logits, row * width + col)} - {peak})", (node.name, row))
    if op == "pick":
        target = of_row("target")
        if width == get_arg(node, "num_rows") and target.isidentifier():
            found = printer.looked_up(logits, row, width, target)
            if found:
                return found
        return printer.reduce("sum", node.outputs[0], width, lambda col: f"tl.where({is_class(col)}, {printer.at(logits, row * width + col)}, 0.0)", (node.name, row))
    grad, col = of_row("grad"), index % width
    share = printer.named(printer.scope_of(row), (node.name, "share", row), "share", f"{grad} / {of_row('total')}")
    own = of_row("own") if _is_given(node, "own") else grad
    text = f"tl.exp({printer.at(logits, index)} - {of_row('peak')}) * {share} - tl.where({is_class(col)}, {own}, 0.0)"
    return f"{text} + {of_row('even')}" if _is_given(node, "even") else text
