"""Triton: a kernel's graph as one Triton function.

In: a `Kernel`. Out: a `TritonText`: the function, its launch. Every value is asked for at an `Index`, and its text is made from its operands at the indices that
they have there, down to loads: so views, broadcasts and concatenations are arithmetic on indices, and what is asked for twice at one place is made once.

Three shapes of kernels:

    flat       pointwise only: a block of elements per program
    rows       something is reduced along rows: a program holds whole rows, or walks along them in blocks where they are wide
    columns    rows are only summed up: a program has a block of columns and walks down its share of the rows

Loops may load STAGES rounds at a time (`runtime.block_table` says how many); what no round changes is loaded before them, but beside wide rows (`blocks.ROOMY`). Elements that every block has (`graph.blocks`) need no mask.

Sums over rows (a bias's gradient), and over everything, leave one partial sum per program, which the launch adds up. A group that fits none of these has no Triton text
(`UnsupportedError` says why), and runs as plain torch everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...graph.blocks import EIGHT, LARGEST, ROOMY, WIDEST_TILE, block_cols, most_rows
from ...graph.fusion import DRAWS
from ...graph.graph import Graph, producer_table, value_table
from ...graph.kernel import Kernel, result_places, takes_lists
from ...graph.layouts import span
from ...graph.node import Const, Node, Ref, get_arg, packet_of
from ...graph.tensor import DTYPE_BYTES, num_elements, power_of_two
from .draws import draw_text
from .index import Index, broadcast, coordinates, flatten, in_memory, place_in_row, variable, view_source
from .lines import Scope, as_block, drop_unread, is_wide, place_early
from .literals import FLOATS, HALVES, LOWEST, SMALL, TYPES, as_kept, common_dtype, converted, identity_of, number_text, type_text
from .partials import Partial, Running, masked, rows_of_program, where_text
from .placed import placed_text
from .pointwise import COMPARISONS, RELATIONS, ROUNDS_NUMBERS, pointwise_text, tells_apart
from .reductions import Reduced, UnsupportedError, keeps_numbers, list_reductions, list_statistics, row_text
from .wide_rows import find_wide

_LEAST = 'float("-inf")'  # has no share of a sum of exponentials
_ANY_SIZE = (1024,)  # stands for all shapes


@dataclass(frozen=True, slots=True)
class TritonText:
    """A kernel as text.

    Args:
        lines: the function.
        shape: `flat`, `rows` or `columns`.
        rows, cols: what the grid is divided into.
        widest: elements of the widest thing that a row has, `cols` or more.
        walks: rows are wider than a program holds.
        partials: outputs that come in parts, in the order of the outputs.
        pieces: a program goes through its rows in pieces of columns.
    """

    lines: tuple[str, ...]
    shape: str
    rows: int
    cols: int
    widest: int
    walks: bool
    partials: tuple[Partial, ...]
    pieces: bool = False


def print_triton(kernel: Kernel) -> TritonText:
    """The Triton function of a kernel, named `NAME_kernel`.

    Raises:
        UnsupportedError: there is none.
    """
    return Printer(kernel).text()


class Printer:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.graph = kernel, _of_any_size(kernel.graph) if kernel.any_shape else kernel.graph
        self.values = value_table(self.graph)
        self.makers = producer_table(self.graph)
        self.layouts, self.statistics = dict(kernel.layouts), list_statistics(self.graph)
        for value in self.graph.values:
            if value.dtype not in TYPES:
                raise UnsupportedError(f"{value.dtype} values")
            if not num_elements(value.shape):
                raise UnsupportedError("a tensor without elements")
        self.reductions = list_reductions(self.graph, self.values)
        self.inner = 1  # elements between two neighbours of a row
        self.shape, self.rows, self.cols = self._find_shape()
        self.program = f"tl.program_id({int(self.shape == 'columns')})"  # its number along the rows; of columns there may be more than a grid's second side can be long
        self.limit: int | str = "SIZE" if kernel.any_shape else self.rows
        self.walks = self.shape == "rows" and self.cols > WIDEST_TILE
        self.widest = self.cols if self.walks or self.shape != "rows" else max(self.cols, *self._widths())
        if not self.walks and self.shape == "rows" and self.widest > WIDEST_TILE:
            raise UnsupportedError("results that are wider than a program holds, beside narrower rows")
        self.taken = {"row", "col", "part", *(v.name for v in kernel.graph.values)}
        self.used: set[str] = set()
        self.base: dict[str, frozenset[str]] = {}  # variable -> the variables that it is made of
        cols = set() if self.walks or self.shape == "flat" else {"col", *(f"col_{w}" for w in self._widths())}
        self.fixed, self.outer = Scope(frozenset(cols if self.shape != "rows" or power_of_two(self.widest) <= ROOMY else ())), Scope(frozenset({"row"} | cols))  # before a loop over rows; in it
        loops = any(name in self.graph.outputs for r in self.reductions if r.along != "row" for name in r.outputs) and not takes_lists(kernel)
        self.before = [self.fixed, self.outer] if loops else [self.outer]  # a walk along rows
        self.scopes = self.before.copy()
        self.wide = find_wide(self)
        self.walked = self.cols  # elements of the row that is walked along
        self.whole = False  # within a walk: every column of the block is one of the row
        self.widths: set[int] = set()

    # --- what it is

    def _find_shape(self) -> tuple[str, int, int]:
        along = [r for r in self.reductions if r.along == "row"]
        down = [r for r in self.reductions if r.along in ("column", "all")]
        inner = {name for node in self.graph.nodes for name in node.inputs}
        for r in down:
            if any(o in inner for o in r.outputs):
                raise UnsupportedError("a sum over rows that is read in the same kernel")
        sizes = [num_elements(self.values[o].shape) for o in self.graph.outputs if not any(o in r.outputs for r in down)]
        if along:
            kinds = {(r.rows, r.inner) for r in along} | {(r.rows, 1) for r in down if r.along == "column"}
            if len(kinds) > 1:
                raise UnsupportedError("reductions along rows of several kinds")
            count, self.inner = kinds.pop()
            if any(size % count for size in sizes):
                raise UnsupportedError("results that are not made of the same rows")
            return "rows", count, max(r.cols for r in along)
        columns = [r for r in down if r.along == "column"]
        if columns:
            sums = {(r.rows, r.cols) for r in columns}
            rows_count, cols = sums.pop()
            if sums or any(size != rows_count * cols for size in sizes) or any(r.along == "all" for r in down):
                raise UnsupportedError("sums over rows beside results of another shape")
            return "columns", rows_count, cols
        sizes += [r.rows * r.cols for r in down]
        if len(set(sizes)) == 1:
            return "flat", sizes[0], 1
        shapes = [self.values[o].shape for o in self.graph.outputs]
        common = set.intersection(*({num_elements(s[:k]) for k in range(len(s) + 1)} for s in shapes))
        count = max((c for c in common if all(size % c == 0 for size in sizes) and c < min(sizes)), default=0)
        if count == 0 or down or max(sizes) // count > WIDEST_TILE:
            raise UnsupportedError("results of several sizes")
        return "rows", count, max(sizes) // count

    def _widths(self) -> set[int]:
        found = {r.cols for r in self.reductions}
        for name in self.graph.outputs:
            size = num_elements(self.values[name].shape)
            found.add(size // self.rows if size >= self.rows else 1)
        return found

    def row(self) -> Index:
        return variable("row", self.rows)

    def col(self, width: int) -> Index:
        """The place in a row of `width` elements."""
        if width == 1:
            return Index()
        self.widths.add(width)
        return variable("col" if width == self.cols else f"col_{width}", width)

    # --- lines

    def scope_of(self, index: Index, mask: str = "") -> Scope:
        """The outermost scope in which an element can be made, in a loop over rows where there is one."""
        if mask:
            return self.scopes[-1]
        names = {base for name in index.variables() for base in self.base.get(name, frozenset({name}))}
        return next((s for s in self.scopes if names <= s.variables and s is not self.fixed), self.scopes[-1])

    def fresh(self, wish: str) -> str:
        if wish not in self.used:
            self.used.add(wish)
            return wish
        count = 2
        while f"{wish}_{count}" in self.used or f"{wish}_{count}" in self.taken:
            count += 1
        self.used.add(f"{wish}_{count}")
        return f"{wish}_{count}"

    def named(self, scope: Scope, key: object, wish: str, text: str) -> str:
        """The name of a text in a scope; what has one keeps it."""
        for place in self.scopes[: self.scopes.index(scope) + 1]:
            if key in place.names:
                return place.names[key]
        if text.isidentifier():
            scope.names[key] = text
            return text
        name = self.fresh(wish)
        scope.lines.append(f"{name} = {text}")
        scope.names[key] = name
        return name

    def known(self, key: object) -> str | None:
        return next((s.names[key] for s in self.scopes if key in s.names), None)

    # --- values

    def at(self, name: str, index: Index, mask: str = "") -> str:
        """The text of a value's element, in the type in which values of its dtype are computed."""
        known = self.known((name, index, mask))
        if known:
            return known
        if name not in self.makers:
            return self._load(name, index, mask)
        number, output = self.makers[name]
        node = self.graph.nodes[number]
        packet = packet_of(node.op).removeprefix("aten.")
        shape = self.values[name].shape
        reduced = next((r for r in self.reductions if name in r.outputs), None)
        if reduced is not None and reduced.along != "row":
            raise UnsupportedError("a sum over rows that is read in the same kernel")
        if self.wide and is_wide(index):
            self.wide.settle(name)
        text = row_text(self, node, output, index, mask, reduced)
        if text is None and node.inputs:
            base = view_source(index, packet, lambda key, default: get_arg(node, key, default), shape, self.values[node.inputs[0]].shape)
            if base is not None:
                return self.at(node.inputs[0], base, mask)
        if text is None:
            text = placed_text(self, node, index, mask)
        if text is None and node.op == DRAWS:
            text = draw_text(self, node, index, mask)
        if text is None:
            text = self._pointwise(node, name, index, mask)
        return self.named(self.scope_of(index, mask), (name, index, mask), name, text)

    def _load(self, name: str, index: Index, mask: str) -> str:
        limits = [mask] if mask else []
        names = {base for n in index.variables() for base in self.base.get(n, frozenset({n}))}
        for variable_name in sorted(names, reverse=True):
            limits += self._limits_of(variable_name, self._room(name, index) if variable_name == "col" else None)
        dtype = self.values[name].dtype
        lies = self._lies(name, index)
        place = f"{name}_ptr" if not lies.terms and not lies.start else f"{name}_ptr + {lies.text()}"
        if mask and not index.terms and (self.shape, self.limit) != ("flat", 1):
            place += " + row * 0"  # as many pointers as the mask has places
        text = f"tl.load({place}{f'{_mask(limits)}, other=0' if limits else ''}{self.wide.loads() if self.wide and is_wide(index) else ''})"
        if dtype in HALVES:
            text += ".to(tl.float32)"
        elif dtype == "bool":
            text += ".to(tl.int1)"
        early = not mask and set(index.variables()) <= self.fixed.variables and self.fixed in self.scopes
        return self.named(self.fixed if early else self.scope_of(index, mask), (name, index, mask), name, text)

    def _lies(self, name: str, index: Index) -> Index:
        """Where in memory an element of an argument or result lies."""
        return in_memory(index, self.values[name].shape, self.layouts[name]) if name in self.layouts else index

    def _room(self, name: str, index: Index) -> int:
        """Columns of a row, and where a program walks along it what lies between it and the next: so a device loads and stores several at once up to the end."""
        shape = self.values[name].shape
        if not self.walks or name not in self.kernel.roomy or shape[-1] != self.walked or index != self.row() * self.walked + variable("col", self.walked):
            return self.walked
        return self.layouts[name][-2]

    def _limits_of(self, name: str, room: int | None = None) -> list[str]:
        """What a variable of every element of a block is asked for: nothing, where no block reaches beyond what there is.

        Args:
            room: columns of a row, with what lies behind them.
        """
        if name == "row":
            sure = not self.kernel.any_shape and self.rows % most_rows(self.shape, self.widest, self.walks) == 0
            return [] if sure else [f"(row < {self.limit})"]
        size = self.walked if name == "col" else int(name.partition("_")[2])
        sure = self.whole if self.walks else size % block_cols(self.shape, size) == 0
        return [] if sure else [f"({name} < {room or size})"]

    def _pointwise(self, node: Node, name: str, index: Index, mask: str) -> str:
        out, exact = self.values[name], tells_apart(node.op, self.values[name].dtype)
        wanted = self._compared_in(node) if node.op in RELATIONS else "" if node.op in COMPARISONS else out.dtype
        operands: dict[str, str] = {}
        options: dict[str, object] = {}
        for key, arg in node.args:
            if isinstance(arg, Ref):
                source = self.values[node.inputs[arg.index]]
                text = self.at(source.name, broadcast(index, out.shape, source.shape), mask)
                text = self.rounded(text, source.name) if exact else text
                operands[key] = text if key in ("condition", "mask") or not wanted else converted(text, source.dtype, wanted, node.op in RELATIONS)
            elif isinstance(arg, (int, float)) and not isinstance(arg, bool):
                options[key] = arg
                operands[key] = number_text(as_kept(arg, wanted) if node.op in ROUNDS_NUMBERS else arg, wanted)
            elif not isinstance(arg, Const) and arg is not None:
                options[key] = arg
        found = pointwise_text(node.op, operands, options, out.dtype)
        if found is None:
            raise UnsupportedError(f"{node.op} has no Triton text")
        return f"({found}).to({TYPES[out.dtype]})" if found.startswith("tl.") and out.dtype not in FLOATS and node.op not in COMPARISONS else found

    def _compared_in(self, node: Node) -> str:
        """The dtype in which a node compares what it reads."""
        read = [self.values[name] for name in node.inputs]
        numbers = [arg for _, arg in node.args if isinstance(arg, (int, float)) and not isinstance(arg, bool)]
        return common_dtype([v.dtype for v in read if v.shape], [v.dtype for v in read if not v.shape], numbers)

    def rounded(self, text: str, name: str) -> str:
        """The text of a value that is compared, or that may be compared with what another kernel or part reads: what is made here as a half is the half's number, whatever float it
        is converted to. Else a row's largest element, read where it was rounded, were equal to none of the row."""
        asked = self.values[name].dtype
        while name in self.makers and asked in FLOATS:
            node, dtype = self.graph.nodes[self.makers[name][0]], self.values[name].dtype
            source = node.inputs[0] if keeps_numbers(node) else ""
            if dtype in HALVES and (not source or self.values[source].dtype != dtype):
                return f"{text}.to(tl.{dtype}).to({TYPES[asked]})"
            if not source:
                return text
            name = source
        return text

    def in_type(self, name: str, index: Index, dtype: str) -> str:
        """The text of a value's element in the type in which values of another dtype are computed."""
        text = self.at(name, index) if dtype in FLOATS else self.rounded(self.at(name, index), name)
        return converted(text, self.values[name].dtype, dtype)

    def number(self, number: float | int, like: str) -> str:
        """A literal of the type in which a value is computed."""
        return number_text(number, self.values[like].dtype)  # type: ignore[arg-type]

    def looked_up(self, name: str, row: Index, width: int, place: str) -> str | None:
        """The element of a row whose place in it is a number that the kernel has made; None where the value is made here. 0 where the place is none."""
        if name in self.makers:
            return None
        self.base[place] = self.row().variables()
        scope = self.scope_of(row)
        inside = self.named(scope, ("inside", place, width), "inside", f"({place} >= 0) & ({place} < {width})")
        return self._load(name, row * width + variable(place, width), inside)

    # --- reductions

    def reduce(self, kind: str, wish: str, width: int, element: Callable[[Index], str], key: object, dtype: str = "") -> str:
        """The name of a reduction along rows of `width` elements: `element(col index)` is the text of one element.

        Args:
            kind: `sum`; `max` or `min`, which are no number where an element is none; `peak`: the largest that is a number.
            dtype: of the elements and of the result; by default the type in which the kernel has its floats.
        """
        known = self.known(key)
        if known:
            return known
        dtype = dtype or ("float64" if self._is_double() else "float32")
        identity, careful = identity_of(kind, dtype), kind in ("max", "min") and dtype in FLOATS
        name = "max" if kind == "peak" else kind

        def along(text: str) -> str:
            """The reduction of a block, of whole numbers in their own type: Triton has small ones in int32."""
            body = f'fused.along({text}, 1, "{name}")[:, None]' if careful else f"tl.{name}({text}, axis=1)[:, None]"
            return f"{body}.to({TYPES[dtype]})" if dtype in SMALL else body

        if not self.walks:
            col = self.col(width)
            text = element(col)
            where = text if not col.terms else as_block(text, width, self.cols, self.scopes) if width & (width - 1) == 0 else f"tl.where({col.text()} < {width}, {text}, {identity})"
            found = self.named(self.outer, key, wish, along(where) if col.terms else where)
            if self.wide:
                self.wide.let_go()
            return found
        total = self.fresh(f"{wish}_parts")

        def add_block() -> list[str]:
            part = self._in_row(element(variable("col", width)), width, identity)
            if kind == "sum":
                return [f"{total} += {part}"]
            return [f"{total} = tl.{name}imum({total}, {part}{', propagate_nan=tl.PropagateNan.ALL' if careful else ''})"]

        kept = "tl.int32" if dtype in SMALL else TYPES[dtype]
        self.outer.lines += [f"{total} = tl.full([ROWS, COLS], {identity}, {kept})", *self._walk(width, add_block)]
        return self.named(self.outer, key, wish, along(total))

    def sum_both(self, first: tuple[str, Callable[[Index], str], object], second: tuple[str, Callable[[Index], str], object], width: int) -> tuple[str, str]:
        """The names of two sums along rows of `width` elements, which programs that hold whole rows make together.

        Args:
            first, second: (wish for its name, what its element is, its key), as of `reduce`.
        """
        both = first, second
        if self.walks or width == 1 or any(self.known(key) for *_, key in both):
            return self.reduce("sum", first[0], width, *first[1:]), self.reduce("sum", second[0], width, *second[1:])
        col = self.col(width)
        texts = [where_text(self._limits_of(col.text()), as_block(element(col), width, self.cols, self.scopes)) for _, element, _ in both]
        names = self.fresh(first[0]), self.fresh(second[0])
        self.outer.lines.append(f"{', '.join(names)} = row_sums({', '.join(texts)})")
        self.outer.names.update(zip((first[2], second[2]), names))
        if self.wide:
            self.wide.let_go()
        return names

    def reduce_exps(self, peak: tuple[str, object], sum_exp: tuple[str, object], sums: Sequence[tuple[str, object]], width: int, element: Callable[[Index], str]) -> str:
        """The name of a row's largest element; in the same walk the sum of exp(element - largest) (`runtime.fused.more_exps`), and the sum of the elements where it is wanted.

        Args:
            peak, sum_exp, each of sums: (wish for its name, its key).
        """
        known = self.known(peak[1])
        if known:
            return known
        names = self.fresh(peak[0]), self.fresh(sum_exp[0])
        parts = [self.fresh(f"{name}_parts") for name in names]
        block = f"[ROWS, COLS // {EIGHT}], {{}}, {'tl.float64' if self._is_double() else 'tl.float32'}"
        added = self.fresh(f"{sums[0][0]}_parts") if sums else ""

        def add_block() -> list[str]:
            text = element(variable("col", width))
            found = [f"{', '.join(parts)} = more_exps({self._in_row(text, width, _LEAST)}, {', '.join(parts)})"]
            eights = f"tl.reshape({self._in_row(text, width, '0.0')}, [ROWS, COLS // {EIGHT}, {EIGHT}])"
            return [*found, f"{added} += tl.sum({eights}, axis=2)"] if sums else found

        self.outer.lines.append(f"{parts[0]} = tl.full({block.format(LOWEST['float64' if self._is_double() else 'float32'])})")
        self.outer.lines += [f"{name} = tl.full({block.format('0.0')})" for name in (parts[1], *([added] if sums else []))]
        self.outer.lines += [*self._walk(width, add_block), f"{', '.join(names)} = row_exps({', '.join(parts)})"]
        self.outer.names.update({peak[1]: names[0], sum_exp[1]: names[1]})
        for k, (wish, key) in enumerate(sums):
            self.outer.names[key] = self.outer.names[sums[0][1]] if k else self.named(self.outer, key, wish, f"tl.sum({added}, axis=1)[:, None]")
        return names[0]

    def _in_row(self, text: str, width: int, other: str) -> str:
        """The text of an element of a walk where a row has it, else another."""
        return text if self.whole else f"tl.where(col < {width}, {text}, {other})"

    def _walk(self, width: int, add_block: Callable[[], list[str]]) -> list[str]:
        """The lines of a walk along a row.

        Args:
            add_block: the last lines for a block of columns; called for blocks that a row has as a whole, and for what is left of it.
        """
        around, lines = (self.scopes, self.walked, self.whole), []
        self.walked = width
        for whole in (True, False):
            body, self.whole = Scope(frozenset({"row", "col"})), whole
            self.scopes = [*self.before, body]
            found = add_block()
            first = "first" if whole else f"{width} // COLS * COLS"
            block = [f"col = {first} + {self._places('COLS')}[None, :]", *body.lines, *found]
            if whole:
                lines += [f"for first in tl.range(0, {width} // COLS * COLS, COLS, num_stages=STAGES):", *(f"    {line}" for line in block)]
            elif width % LARGEST:  # the most columns that a block may have
                lines += block
        self.scopes, self.walked, self.whole = around
        return lines

    # --- the function

    def text(self) -> TritonText:
        graph, row = self.graph, self.row()
        down = {name: r for r in self.reductions if r.along != "row" for name in r.outputs}
        accumulated: list[Running] = []
        stores: list[str] = []
        finals: list[str] = []
        wide: list[str] = []
        for name, reduced in ((name, down[name]) for name in graph.outputs if name in down):
            partial = Partial(graph.outputs.index(name), reduced.cols if reduced.along == "column" else 1, self.values[name].dtype, reduced.kind, reduced.groups)
            text, width = self._partial_text(reduced, name, partial)
            accumulated.append(Running(self.fresh(f"{name}_{reduced.kind}"), text, width, partial))
            finals.append(self._store_partial(name, accumulated[-1], reduced))
        if self.wide:
            self.wide.settle(*graph.outputs)
        for name in (name for name in graph.outputs if name not in down):
            width = num_elements(self.values[name].shape) // self.rows
            if self.walks and width == self.cols:
                wide.append(name)
                continue
            place = self._in_order(name) if self.shape == "flat" and not down else place_in_row(row, self.col(width), width, self.inner)
            stores.append(self._store(name, place, width))
        across = place_in_row(row, variable("col", self.cols), self.cols, self.inner)
        walk = self._walk(self.cols, lambda: [self._store(name, across, self.cols) for name in wide]) if wide else []
        if self.walks and self.widths:
            raise UnsupportedError("rows of several widths, one of them wider than a program holds")
        body = [*self.outer.lines, *stores, *walk]
        body = drop_unread(body, [running.text for running in accumulated]) if self.wide else body
        pieces = self.wide.find_pieces([*body, *(running.text for running in accumulated)], accumulated) if self.wide else 0
        lines = self._function(body, accumulated, finals, pieces)
        return TritonText(tuple(lines), self.shape, self.rows, self.cols, self.widest, self.walks, tuple(a.partial for a in accumulated), pieces > 0)

    def _in_order(self, name: str) -> Index:
        """The element that a flat kernel makes: in the order in which its first result lies in memory."""
        first = self.graph.outputs[0]
        shape = self.values[first].shape
        if first not in self.layouts or self.values[name].shape != shape:
            return self.row()
        order = sorted(range(len(shape)), key=lambda d: (-self.layouts[first][d], d))
        places = dict(zip(order, coordinates(self.row(), [shape[d] for d in order])))
        return flatten([places[d] for d in range(len(shape))], shape)

    def _store(self, name: str, index: Index, width: int) -> str:
        text = self.at(name, index)
        limits = self._limits(width, self._room(name, index) if self.walks and width > 1 else None)
        index = self._lies(name, index)
        dtype = self.values[name].dtype
        target = self._target(name)
        kept = f"{target}.dtype.element_ty" if name in self.statistics else type_text(dtype)
        cast = f"{text}.to({kept})" if dtype in HALVES else self.rounded(text, name)
        place = f"{target} + {index.text()}" if index.terms or index.start else target if self.shape == "flat" else f"{target} + row * 0"  # a block of places for a block of values
        return f"tl.store({place}, {cast}{_mask(limits)})"

    def _target(self, name: str) -> str:
        number = self.graph.outputs.index(name)
        into = result_places(self.kernel)
        return f"{self.graph.inputs[into[number]]}_ptr" if number in into else f"{name}_out"

    def _partial_text(self, reduced: Reduced, name: str, partial: Partial) -> tuple[str, int]:
        """What a block of rows adds to a sum over rows, or of everything, and how many columns that has."""
        size = reduced.rows * reduced.cols
        if self.walks and reduced.along == "all" and size == self.rows * self.cols:
            dtype = partial.kept if partial.kind == "sum" else partial.dtype
            total = self.reduce(partial.kind, name, self.cols, lambda col: reduced.element(self, name, place_in_row(self.row(), col, self.cols, self.inner)), (name, "all"), dtype)
            return masked(self._limits_of("row"), total, partial), 1
        if size % self.rows or self.walks and size != self.rows:
            raise UnsupportedError("a sum over rows beside rows of another kind")
        width = size // self.rows
        text = reduced.element(self, name, place_in_row(self.row(), self.col(width), width, self.inner))
        return masked(self._limits_of("row") + (self._limits_of(self.col(width).text()) if width > 1 else []), text, partial), width

    def _limits(self, width: int, room: int | None) -> list[str]:
        """What holds where an element of a row of `width` is, which has this room."""
        rows = [] if self.rows == 1 and not self.kernel.any_shape else self._limits_of("row")
        return rows + (self._limits_of("col" if self.walks else self.col(width).text(), room) if width > 1 else [])

    def _store_partial(self, name: str, running: Running, reduced: Reduced) -> str:
        if reduced.along == "all" or reduced.cols == 1:
            return f"tl.store({name}_out + {'tl.load(part + 2)' if takes_lists(self.kernel) else self.program}, {running.whole()})"
        width = reduced.cols
        place = f"{name}_out + {self.program} * {width} + {self.col(width).text()}"
        return f"tl.store({place}, tl.sum({running.name}, axis=0)[None, :]{_mask(self._limits_of(self.col(width).text()) if width > 1 else [])})"

    def _function(self, body: list[str], accumulated: list[Running], finals: list[str], pieces: int) -> list[str]:
        graph, into = self.graph, result_places(self.kernel)
        outs = [f"{name}_out" for k, name in enumerate(graph.outputs) if k not in into]
        flat = self.shape == "flat"
        sizes = (["SIZE"] if self.kernel.any_shape else []) + ["ROWS: tl.constexpr"] + ([] if flat else ["COLS: tl.constexpr"]) + (["PROGRAMS: tl.constexpr"] if accumulated else [])
        sizes += ["STAGES: tl.constexpr"] if accumulated or self.walks else []
        if takes_lists(self.kernel):
            return self._of_many(body, outs, accumulated, finals)
        head = f"def {self.kernel.name}_kernel({', '.join([*(f'{n}_ptr' for n in graph.inputs), *outs, *sizes])}):"
        lines: list[str] = []
        rows = self._places("ROWS") if flat else "tl.arange(0, ROWS)[:, None]"
        if self.shape == "columns":
            lines.append(f"col = tl.program_id(0) * COLS + {self._places('COLS')}[None, :]")
        elif not flat and not self.walks:
            for width in sorted(self.widths):
                lines.append(f"col = {self._places('COLS')}[None, :]" if width == self.cols else f"col_{width} = tl.arange(0, {power_of_two(width)})[None, :]")
        lines += self.wide.notes(body) if self.wide else []
        wide = "int64" if self.kernel.any_shape or any(self._span(v.name) > 2**31 - 1 for v in graph.values) else ""
        program = f"{self.program}{f'.to(tl.{wide})' if wide else ''}"
        if flat and self.rows == 1 and not accumulated:
            lines += body
        elif not accumulated:
            lines += [f"row = {program} * ROWS + {rows}", *body]
        else:
            for running in accumulated:
                cols = "COLS" if running.width == self.cols and running.width > 1 else str(power_of_two(running.width))
                lines.append(running.begin("[ROWS]" if flat else f"[ROWS, {cols}]"))
            lines += self.fixed.lines
            stages = "" if self.walks else ", num_stages=STAGES"  # the loop that loads is the inner one then
            lines.append(f"for block in tl.range({rows_of_program(program, self.rows, max(r.groups for r in self.reductions))}{stages}):")
            block = self.wide.block_text(accumulated, pieces) if self.wide else "block"
            added = [running.add() for running in accumulated]
            inner = [f"row = {block} + {rows}", *body]
            inner = [*inner, *added] if self.walks else place_early(inner, added)
            lines += [*(f"    {line}" for line in inner), *finals]
            lines = self.wide.in_pieces(lines, pieces) if self.wide and pieces else lines
        return ["@fused.jit", head, *(f"    {line}" for line in lines)]

    def _of_many(self, body: list[str], outs: list[str], accumulated: list[Running], finals: list[str]) -> list[str]:
        """The function that works on one parameter of many (`runtime.together`): it finds its place in tables, and leaves a part of each sum."""
        graph, sums = self.graph, {f"{p}_out" for r in self.reductions for p in r.outputs}
        made = [n for n in graph.outputs if f"{n}_out" in outs and f"{n}_out" not in sums]
        told = [(f"{n}_ptr", self.values[n]) for n in graph.inputs] + [(f"{n}_out", self.values[n]) for n in made]
        lines = ["part = parts + tl.program_id(0) * 3", f"entry = table + tl.load(part) * {1 + len(told)}"]
        if self.kernel.any_shape:
            lines += ["row = tl.load(part + 1) * ROWS + tl.arange(0, ROWS)", "SIZE = tl.multiple_of(tl.load(entry), ALIGN)"]
        for number, (name, value) in enumerate(told, 1):
            place = f"tl.load(entry + {number}).to(tl.pointer_type({type_text(value.dtype)}))"
            lines.append(f"{name} = {f'tl.multiple_of({place}, ALIGN)' if value.shape else place}")
        lines += [*body, *(f"{running.name} = {running.text}" for running in accumulated), *finals]
        arguments = ["parts", "table", *(name for name in outs if name in sums), "ROWS: tl.constexpr", "ALIGN: tl.constexpr"]
        return ["@fused.jit", f"def {self.kernel.name}_kernel({', '.join(arguments)}):", *(f"    {line}" for line in lines)]

    def _places(self, count: str) -> str:
        """The numbers of a block's elements: beside larger ones a thread takes no more bytes of masks side by side than elements of those, else threads exchange what they loaded."""
        sizes = {DTYPE_BYTES[v.dtype] for v in self.graph.values if v.name in {*self.graph.inputs, *self.graph.outputs} and num_elements(v.shape) >= self.rows * self.cols > 1}
        larger = sizes - {1}
        return f"fused.places({count}, {16 // min(larger)})" if larger < sizes and larger and not self.kernel.any_shape else f"tl.arange(0, {count})"

    def _span(self, name: str) -> int:
        shape = self.values[name].shape
        return span(shape, self.layouts[name]) if name in self.layouts else num_elements(shape)

    def _is_double(self) -> bool:
        return any(v.dtype == "float64" for v in self.graph.values if v.shape)


def _mask(limits: list[str]) -> str:
    return f", mask={' & '.join(limits)}" if limits else ""


def _of_any_size(graph: Graph) -> Graph:
    """A graph that works on tensors of any one shape, on a shape that is nothing special."""
    return replace(graph, values=tuple(replace(v, shape=_ANY_SIZE) if v.shape else v for v in graph.values))
