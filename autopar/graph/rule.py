"""Rules: one row per op says everything that sharding needs to know about it, as einsum text over factors.

    "m k, k n -> m n"                 a matmul; k is missing from the output, so splitting it leaves a Partial
    "... [c] -> ... [c]"              a softmax; `[c]` is whole: it is never split
    "<s> d, [t] d, <s> -> <s> d"      `<s>`: a piece is a run of neighbours; of a dim that is a product the inner part is never split
    "b s (h d) -> b h s d"            a view and permute; `(h d)` is one dim of two factors, h the outer
    "input: ... i, weight: o i, bias: o -> ... o"    operands by schema name, for ops with optional ones
    "[v] d, [n] -> n d, {d} n"        `{d}`: this output lacks d and is the same on every piece, not a sum of parts

`...` is any number of leading dims, aligned from the right as broadcasting does; a dim of size 1 that meets a larger one has no
factor. A size may be stated: `([g:3] c)`. Rows of views, slices and cats are functions from shapes to such a text.

Beside the text a row says: through which sets of inputs a Partial may pass (`linear`); which inputs must become Partial when a
factor that they lack is contracted (`owed`: a bias is added once); how the op's attributes change on a shard (`localise`); and the
FLOPs of one point of the factor space. In: a row and a node's shapes. Out: a `Signature`. Readers: strategies, cost, local attributes,
the referee.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Union

from ..errors import GraphError, NoRuleError
from .fusion import Traffic
from .node import Arg, Node, get_arg, input_names, packet_of

Shape = tuple[int, ...]
LinearSets = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A node with the shapes around it: what a row's functions may look at.

    `inputs` and `outputs` are whole shapes when a text is asked for, local shapes when `localise` is asked. `dtypes` are those of the
    inputs (`float32`), () where nobody said. `traffic`: what it moves as part of a fused group; None: it runs alone.
    """

    node: Node
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtypes: tuple[str, ...] = ()
    traffic: Traffic | None = None

    def arg(self, name: str, default: Arg = None) -> Arg:
        return get_arg(self.node, name, default)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row.

    Args:
        op: `aten.mm` for all overloads of a packet, or `aten.sum.dim_IntList` for one.
        text: the rule, or a function from the site (whole shapes) to it.
        linear: sets of argument names through which a Partial(sum) may pass together; all outputs are then Partial. A set counts
            where all its arguments are tensors: `add(x, 2.0)` is not linear in x. A function where attributes decide.
        owed: argument names that must be Partial(sum) on an axis that splits a contracted factor which they lack. Or a function.
        reduce: what a factor that is missing from an output leaves there: `sum`, `max` or `min`; a word per output where they differ:
            `min max`. Or a function.
        flops: floating point operations per point of the factor space (2 for a multiply-add); 0 for pure movement. A function
            gives the whole op's FLOPs from the site (convolutions: input and output rows are not independent factors).
        localise: (site with LOCAL shapes, whole input shapes) -> the arguments that change, by name. None: no attribute changes.
        why_whole: why the factors in brackets are whole, for people.
    """

    op: str
    text: Union[str, Callable[[Site], str]]
    linear: Union[LinearSets, Callable[[Site], LinearSets]] = ()
    owed: Union[tuple[str, ...], Callable[[Site], tuple[str, ...]]] = ()
    reduce: Union[str, Callable[[Site], str]] = "sum"
    flops: Union[float, Callable[[Site], float]] = 1.0
    localise: Callable[[Site, tuple[Shape, ...]], Mapping[str, Arg]] | None = None
    why_whole: str = "the op needs all of it at once"


@dataclass(frozen=True, slots=True)
class Factor:
    """A letter of a rule, with its size at one node. `whole` says why it is never split, "" where it may be; `runs`: its pieces are runs of neighbours."""

    name: str
    size: int
    whole: str = ""
    runs: bool = False


DimFactors = tuple[str, ...]  # the factors of one dim, outermost first; () where the dim has size 1


@dataclass(frozen=True, slots=True)
class Signature:
    """A rule applied to one node's shapes: which factors make up each dim of each input and output, and its linear sets.

    `rule` has its functions `owed` and `reduce` answered. `same` says per output which factors it lacks without being summed over. `uneven`: its
    factors may be cut into chunks that do not divide them (`graph.uneven`). `exact`: no split leaves a sum of parts (`graph.exact`).
    """

    rule: Rule
    factors: tuple[Factor, ...]
    inputs: tuple[tuple[DimFactors, ...], ...]
    outputs: tuple[tuple[DimFactors, ...], ...]
    linear: LinearSets = ()
    same: tuple[tuple[str, ...], ...] = ()
    uneven: bool = False
    exact: bool = False


def node_key(op: str, name: str) -> str:
    """The place in a table of a row that holds for one node alone (`graph.registry`)."""
    return f"{op} at {name}"


def find_rule(rules: Mapping[str, Rule], node: Node) -> Rule:
    """The row of this node: its overload's, else its packet's, else its own.

    Raises:
        NoRuleError: there is none.
    """
    rule = rules.get(node.op) or rules.get(packet_of(node.op)) or rules.get(node_key(node.op, node.name))
    if rule is None:
        raise NoRuleError(
            f"{node.op} ({node.name}, {node.source or 'no source line'} in {node.path or 'the root module'}) has no sharding rule. "
            "State it with autopar.register_rule, or write the computation with ops that have one."
        )
    return rule


_TOKEN = re.compile(r"\.\.\.|\(|\)|\{\w+\}|<\w+>|\[?[A-Za-z_][A-Za-z_0-9]*(?::\d+)?\]?|1|\S")
_WHOLE, _RUNS = "[", "<"


def _parse_operand(text: str, where: str) -> list[object]:
    """Dims of one operand: `...`, or a tuple of (factor, its bracket or "", size or 0); and the names in braces, which are no dims."""
    dims: list[object] = []
    group: list[tuple[str, str, int]] | None = None
    for token in _TOKEN.findall(text):
        if token == "...":
            dims.append("...")
        elif token.startswith("{"):
            dims.append(token[1:-1])
        elif token == "(":
            group = []
        elif token == ")":
            dims.append(tuple(group or ()))
            group = None
        elif token == "1":
            if group is None:
                dims.append(())
        elif re.fullmatch(r"\[[A-Za-z_]\w*(:\d+)?\]|<[A-Za-z_]\w*>|[A-Za-z_]\w*(:\d+)?", token):
            bracket = token[0] if token[0] in (_WHOLE, _RUNS) else ""
            name, _, size = token.strip("[]<>").partition(":")
            item = (name, bracket, int(size) if size else 0)
            if group is None:
                dims.append((item,))
            else:
                group.append(item)
        else:
            raise GraphError(f"{where}: cannot read {token!r} in rule text {text!r}")
    if group is not None:
        raise GraphError(f"{where}: a ( without ) in rule text {text!r}")
    return dims


def _parse_text(text: str, where: str) -> tuple[list[tuple[str, list[object]]], list[tuple[str, list[object]]]]:
    left, arrow, right = text.partition("->")
    if not arrow:
        raise GraphError(f"{where}: rule text {text!r} has no ->")

    def side(part: str) -> list[tuple[str, list[object]]]:
        operands = []
        for piece in part.split(","):  # nothing at all is one scalar
            name, colon, rest = re.match(r"\s*(?:([A-Za-z_]\w*)(:)(?!\d))?(.*)", piece, re.S).groups(default="")
            operands.append((name if colon else "", _parse_operand(rest, where)))
        return operands

    return side(left), side(right)


def resolve(rule: Rule, site: Site) -> Signature:
    """Apply a row to one node's shapes.

    Raises:
        GraphError: the text and the shapes do not fit; says which operand and dim.
    """
    node = site.node
    where = f"rule of {rule.op} at {node.name} {[list(s) for s in site.inputs]} -> {[list(s) for s in site.outputs]}"
    text = rule.text if isinstance(rule.text, str) else rule.text(site)
    left, right = _parse_text(text, where)
    names = input_names(node)
    by_name = {name: dims for name, dims in left if name}
    operands: list[tuple[list[object], Shape]] = []
    for k, shape in enumerate(site.inputs):
        if names[k] in by_name:
            operands.append((by_name[names[k]], shape))
        elif not by_name and k < len(left):
            operands.append((left[k][1], shape))
        else:
            raise GraphError(f"{where}: rule text {text!r} has no operand for input {k} ({names[k]})")
    num_inputs = len(operands)
    seen = [k for k, name in enumerate(node.outputs) if name]  # the text speaks of all outputs, the site of those that exist
    same: list[tuple[str, ...]] = []
    for k, shape in zip(seen, site.outputs):
        if k >= len(right):
            raise GraphError(f"{where}: rule text {text!r} has no operand for output {k}")
        dims = right[k][1]
        same.append(tuple(dim for dim in dims if isinstance(dim, str) and dim != "..."))
        operands.append(([dim for dim in dims if dim == "..." or not isinstance(dim, str)], shape))
    words = (rule.reduce(site) if callable(rule.reduce) else rule.reduce).split()
    reduce = words[0] if len(words) == 1 else " ".join(words[k] for k in seen)
    rule = replace(rule, owed=rule.owed(site) if callable(rule.owed) else rule.owed, reduce=reduce)
    linear = rule.linear(site) if callable(rule.linear) else rule.linear
    linear = tuple(together for together in linear if not _splits_square(site, names, together))
    return replace(_solve_sizes(rule, operands, num_inputs, where, text), linear=linear, same=tuple(same))


def count_flops(signature: Signature, site: Site) -> float:
    """Floating point operations of the whole node (whole shapes); a rank does this over `split_share`."""
    flops = signature.rule.flops
    return flops(site) if callable(flops) else flops * prod(f.size for f in signature.factors)


def is_contraction(signature: Signature) -> bool:
    """True where the op's FLOPs count against the matmul peak: a multiply-add per point, or FLOPs that the row works out itself.

    Everything else (a norm's 8 per point) is bound by bytes on any device listed.
    """
    flops = signature.rule.flops
    return callable(flops) or flops == 2


def _splits_square(site: Site, names: tuple[str, ...], together: tuple[str, ...]) -> bool:
    """True where a value meets itself and only one side would be Partial.

    `g * g` as a sum of `part * g` is right in exact arithmetic, but where the parts cancel it may round below zero, and the square
    root after it gives NaN (Adam's second moment of a gradient that is zero).
    """
    inside = {v for v, name in zip(site.node.inputs, names) if name in together}
    return any(v in inside for v, name in zip(site.node.inputs, names) if name not in together)


def meeting(node: Node) -> tuple[int, ...]:
    """Which inputs of a node are the same value: the place of the first of each."""
    return tuple(node.inputs.index(v) for v in node.inputs)


def _solve_sizes(rule: Rule, operands: list[tuple[list[object], Shape]], num_inputs: int, where: str, text: str) -> Signature:
    # `...` becomes factors .0 .1 ... counted from the right, so that operands of different rank broadcast
    spread: list[list[tuple[tuple[str, str, int], ...]]] = []
    for dims, shape in operands:
        missing = len(shape) - (len(dims) - dims.count("..."))
        if missing < 0 or ("..." not in dims and missing):
            raise GraphError(f"{where}: rule text {text!r} does not fit shape {list(shape)}")
        row: list[tuple[tuple[str, str, int], ...]] = []
        for dim in dims:
            if dim == "...":
                row += [((f".{missing - 1 - j}", "", 0),) for j in range(missing)]
            else:
                row.append(dim)  # type: ignore[arg-type]
        spread.append(row)
    sizes: dict[str, int] = {}
    for row, (_, shape) in zip(spread, operands):
        for dim, size in zip(row, shape):
            for name, _, stated in dim:
                if stated:
                    sizes[name] = stated
            if len(dim) == 1 and size != 1:
                name = dim[0][0]
                if sizes.setdefault(name, size) != size:
                    raise GraphError(f"{where}: factor {name} of {text!r} is {sizes[name]} and {size}")
    for row, (_, shape) in zip(spread, operands):
        for dim, size in zip(row, shape):
            for name, _, _ in dim if len(dim) == 1 else ():
                sizes.setdefault(name, 1)
    for row, (_, shape) in zip(spread, operands):
        for dim, size in zip(row, shape):
            unknown = [name for name, _, _ in dim if name not in sizes]
            known = prod(sizes[name] for name, _, _ in dim if name in sizes)
            if len(unknown) == 1 and known and size % known == 0:
                sizes[unknown[0]] = size // known
    factors: dict[str, Factor] = {}
    for row in spread:
        for dim in row:
            for name, bracket, _ in dim:
                if name not in sizes:
                    raise GraphError(f"{where}: cannot tell the size of factor {name} of {text!r}")
                if name not in factors or bracket:
                    factors[name] = Factor(name, sizes[name], rule.why_whole if bracket == _WHOLE else "", bracket == _RUNS)
    found: list[tuple[DimFactors, ...]] = []
    for row, (_, shape) in zip(spread, operands):
        dims_found: list[DimFactors] = []
        for dim, size in zip(row, shape):
            dim_names = tuple(name for name, _, _ in dim if sizes[name] > 1)
            if size == 1 and prod(sizes[n] for n in dim_names) > 1:
                dim_names = ()  # broadcast
            if size and prod(sizes[n] for n in dim_names) != size:
                raise GraphError(f"{where}: a dim of size {size} does not fit ({' '.join(n for n, _, _ in dim)}) of {text!r}")
            dims_found.append(dim_names)
        found.append(tuple(dims_found))
    kept = tuple(f for f in factors.values() if f.size > 1)
    return Signature(rule, kept, tuple(found[:num_inputs]), tuple(found[num_inputs:]))


def localise_args(signature: Signature, site: Site, whole_inputs: tuple[Shape, ...]) -> tuple[tuple[str, Arg], ...]:
    """The node's arguments as a shard needs them; `site` has the LOCAL shapes."""
    if signature.rule.localise is None:
        return site.node.args
    changed = dict(signature.rule.localise(site, whole_inputs))
    return tuple((name, changed.pop(name, value)) for name, value in site.node.args) + tuple(changed.items())
