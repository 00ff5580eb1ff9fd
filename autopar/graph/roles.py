"""Roles: what it means for an op to split by the batch, by the sequence, or by anything else.

In: a graph with its rules and cuts. Out: `Roles`: which digits of which values are the batch, which the sequence. Each comes from a dim of a
batch input, followed through the whole step along factors (`graph.opportunities.spans`). Among the spans that enter with batch inputs

    features      some matmul reads the span in an operand that depends on parameters alone (the hidden size, classes), and a parameter has it
                  (learnt queries that are expanded over the batch have not): neither batch nor sequence
    reaches       a forward op sums it into a scalar (the loss does); without a loss: it stands in an output
    mixes         samples meet along it: a forward matmul or attention sums over it or needs it whole, or a forward value has it in two dims

    the batch     of the spans that are no features: first those that reach, then those that do not mix, then by the outermost dim, then by how
                  many batch inputs they stand in. An input that it does not reach (a second tower) joins with its outermost dim of the same size,
                  unless that dim runs through an input that it does reach.
    the sequence  every other span of batch inputs that is no features (tokens in a text, height and width of an image)

A dim of one element is no span. Where the samples are one, nothing is the batch: what would be taken for it lies, in each input that tells,
inside of a dim of one element that is no feature ([1, tokens]), or mixes, with such a dim beside it ([tokens, 1]).

A graph in turns is not looked at anew: its batch and sequence are what is left of those of the graph that it was made from, of the batch
maybe nothing (`whole`).

Everything else that can be split (features, heads, channels, vocabulary, experts) is what tensor parallelism splits. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..constraints import DATA, SEQUENCE, TENSOR
from .cuts import CutTable
from .graph import Graph, use_table, value_table
from .node import Node, Phase
from .opportunities.spans import Span, find_spans
from .rule import Signature, Site, is_contraction
from .sharding import Shard
from .strategy import Strategy
from .tensor import Kind, num_elements

Piece = tuple[int, int, int, str]  # dim, lower and upper stride of the digits, role


@dataclass(frozen=True, slots=True)
class Roles:
    """Where batch and sequence lie.

    Args:
        pieces: for each value the parts of its dims that are batch or sequence.
        splits: for each node the roles by whose factors its rule can split it.
        of_params: nodes that depend on parameters and on no batch input.
        batch, sequence: (input, dim, size) where they enter.
        samples: names of the nodes that run over samples or positions, of which a turn may have one.
        featured: names of the nodes that depend on a batch input and have more than batch and sequence around them: not masks and losses of tokens,
            nor what is made of constants or of parameters alone.
    """

    pieces: Mapping[str, tuple[Piece, ...]]
    splits: tuple[frozenset[str], ...]
    of_params: frozenset[int]
    batch: tuple[tuple[str, int, int], ...]
    sequence: tuple[tuple[str, int, int], ...]
    samples: frozenset[str] = frozenset()
    featured: frozenset[str] = frozenset()

    def available(self) -> tuple[str, ...]:
        """Roles that an axis can have in this model."""
        return (*((DATA,) if self.batch else ()), TENSOR, *((SEQUENCE,) if self.sequence else ()))


def role_of_choice(roles: Roles, node: Node, strategy: Strategy, axis: int, size: int) -> str:
    """By what a strategy splits a node along an axis: `dp`, `sp`, `tp` (anything else), or "" where it does not split."""
    found = ""
    for name, sharding in zip((*node.inputs, *(o for o in node.outputs if o)), (*strategy.inputs, *strategy.outputs)):
        placement = sharding.placements[axis]
        if isinstance(placement, Shard):
            found = found or TENSOR
            for dim, lower, upper, role in roles.pieces.get(name, ()):
                if dim == placement.dim and lower <= placement.stride and placement.stride * size <= upper:
                    return role
    return found


def find_roles(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, whole: Roles | None = None
) -> Roles:
    """See the head of this file.

    Args:
        whole: of the graph that takes the whole batch at once, where this one takes it in turns (`graph.microbatch`).
    """
    spans = find_spans(graph, sites, signatures, cuts)
    entering = {value.name for value in graph.values if value.kind is Kind.BATCH and value.name in graph.inputs}
    of_param_values, of_params, fed = _dependence(graph, entering)
    inside = [k for k, span in enumerate(spans) if any(n in entering for n, _ in span.places)]
    if whole is None:
        batch, sequence = _tell_apart(graph, signatures, spans, inside, entering, of_param_values)
    else:
        batch, sequence = (_left_of(whole, role, spans, inside, entering) for role in (DATA, SEQUENCE))
    roles = {**{k: SEQUENCE for k in sequence}, **{k: DATA for k in batch}}
    pieces: dict[str, list[Piece]] = {}
    splits: list[set[str]] = [set() for _ in graph.nodes]
    for k, role in roles.items():
        for name, digit in spans[k].places:
            pieces.setdefault(name, []).append((digit.dim, digit.lower, digit.upper, role))
        for i, letter in spans[k].letters:
            if not letter.whole:
                splits[i].add(role)
    places = _places(graph, spans, batch, entering)
    known = frozenset() if whole is None else whole.samples
    some = whole is None and not places  # of one sample, or none: all that is not of parameters alone is about it
    samples = known | {node.name for i, node in enumerate(graph.nodes) if splits[i] or (some and i not in of_params)}
    joined = {name: _join(found) for name, found in pieces.items()}
    featured = _list_featured(graph, joined, fed)
    return Roles(joined, tuple(map(frozenset, splits)), of_params, places, _places(graph, spans, sequence, entering), samples, featured)


def _list_featured(graph: Graph, pieces: Mapping[str, tuple[Piece, ...]], fed: set[int]) -> frozenset[str]:
    """`Roles.featured`. Args: fed: the nodes that depend on a batch input."""
    wide = set()
    for value in graph.values:
        covered = [1] * len(value.shape)
        for dim, lower, upper, _ in pieces.get(value.name, ()):
            covered[dim] *= upper // lower
        if any(size > known for size, known in zip(value.shape, covered)):
            wide.add(value.name)
    return frozenset(node.name for i, node in enumerate(graph.nodes) if i in fed and not wide.isdisjoint((*node.inputs, *node.outputs)))


def _tell_apart(
    graph: Graph, signatures: Sequence[Signature], spans: tuple[Span, ...], inside: list[int], entering: set[str], of_param_values: set[str]
) -> tuple[set[int], set[int]]:
    """(the batch, the sequence) among the spans that enter with batch inputs."""
    values = value_table(graph)
    facts = {k: _look(graph, signatures, spans[k], entering, of_param_values) for k in inside}
    plain = [k for k, fact in facts.items() if not fact.features]
    best = min(plain, key=lambda k: facts[k].order, default=None)
    if best is not None and _is_in_one_sample(graph, signatures, spans[best], facts[best].mixes, entering, of_param_values):
        best = None
    batch: set[int] = set() if best is None else _whole_dims(spans, entering, {best}, plain)
    if best is not None:
        sizes = {values[n].shape[d.dim] for n, d in spans[best].places if n in entering}
        reached = {n for k in batch for n, _ in spans[k].places if n in entering}
        for name in (n for n in graph.inputs if n in entering and n not in reached):
            alone = [k for k in plain if not any(n in reached for n, _ in spans[k].places)]
            alike = [k for k in alone if any(n == name and values[n].shape[d.dim] in sizes for n, d in spans[k].places)]
            batch |= _whole_dims(spans, entering, {min(alike, key=lambda k: facts[k].order)}, plain) if alike else set()
    return batch, {k for k in plain if k not in batch and facts[k].carried}


def _left_of(whole: Roles, role: str, spans: tuple[Span, ...], inside: list[int], entering: set[str]) -> set[int]:
    """The spans that enter where the whole graph has a role; batch inputs are the same in both."""
    return {
        k for k in inside
        if any(
            n in entering and d.dim == dim and lower <= d.lower and d.upper <= upper and role == own
            for n, d in spans[k].places for dim, lower, upper, own in whole.pieces.get(n, ())
        )
    }  # fmt: skip


def _is_in_one_sample(
    graph: Graph, signatures: Sequence[Signature], span: Span, mixes: bool, entering: set[str], of_param_values: set[str]
) -> bool:
    """True where what would be taken for the batch lies inside of the only sample. An input tells where it has the span in one dim of several."""
    values, dims = value_table(graph), dict[str, set[int]]()
    for name, digit in span.places:
        if name in entering:
            dims.setdefault(name, set()).add(digit.dim)
    telling = {name: min(found) for name, found in dims.items() if len(found) == 1 and len(values[name].shape) > 1}
    ones = {
        name: [d for d, size in enumerate(values[name].shape) if size == 1 and not _meets_weight(graph, signatures, name, d, of_param_values)]
        for name in telling
    }
    around = all(any(d < at for d in ones[name]) for name, at in telling.items())
    return bool(telling) and (around or (mixes and all(ones.values())))


def _meets_weight(graph: Graph, signatures: Sequence[Signature], name: str, dim: int, of_param_values: set[str]) -> bool:
    """True where a dim of one element is a feature: followed forward, a matmul reads it in an operand that depends on parameters alone."""
    uses, seen, todo = use_table(graph), {(name, dim)}, [(name, dim)]
    while todo:
        value, at = todo.pop()
        for i, k in uses[value]:
            node, signature = graph.nodes[i], signatures[i]
            letters = set(signature.inputs[k][at]) if node.phase is Phase.FORWARD else set()
            if is_contraction(signature) and any(
                letters.intersection(found) for other, dims in zip(node.inputs, signature.inputs) if other in of_param_values for found in dims
            ):
                return True
            for out, dims in zip((o for o in node.outputs if o), signature.outputs):
                fresh = {(out, d) for d, found in enumerate(dims) if letters.intersection(found)} - seen
                seen |= fresh
                todo += fresh
    return False


@dataclass(frozen=True, slots=True)
class _Facts:
    features: bool
    mixes: bool
    carried: bool
    order: tuple


def _look(graph: Graph, signatures: Sequence[Signature], span: Span, entering: set[str], of_param_values: set[str]) -> _Facts:
    """What is known of one span that enters with a batch input."""
    values = value_table(graph)
    features = reaches = mixes = carried = False
    learnt = any(values[name].kind is Kind.PARAM for name, _ in span.places)
    for i, letter in span.letters:
        node = graph.nodes[i]
        if node.phase is not Phase.FORWARD:
            continue
        product = is_contraction(signatures[i])
        held = [name for name, digit in zip(node.inputs, letter.inputs) if digit is not None]
        shapes = [values[o].shape for o in node.outputs if o]
        gone = bool(held) and any(digit is None and num_elements(shape) > 1 for digit, shape in zip(letter.outputs, shapes))
        features |= learnt and product and any(name in of_param_values for name in held)
        reaches |= bool(held) and all(num_elements(shape) == 1 for shape in shapes)
        mixes |= product and (gone or bool(letter.whole))
        carried |= any(digit is not None for digit in letter.outputs)
    dims: dict[str, set[int]] = {}
    for name, digit in span.places:
        dims.setdefault(name, set()).add(digit.dim)
    forward = {o for node in graph.nodes if node.phase is Phase.FORWARD for o in node.outputs}
    mixes |= any(len(found) > 1 for name, found in dims.items() if name in forward)
    if not graph.loss:
        reaches |= any(name in dims for name in graph.outputs)
    inside = [(name, min(dims[name])) for name in entering if name in dims]
    order = (not reaches, mixes, min(dim for _, dim in inside), -len(inside), min(graph.inputs.index(name) for name, _ in inside))
    return _Facts(features, mixes, carried, order)


def _dependence(graph: Graph, entering: set[str]) -> tuple[set[str], frozenset[int], set[int]]:
    """(values that depend on parameters and on no batch input, the nodes that make them, the nodes that depend on a batch input)."""
    values = value_table(graph)
    fed = set(entering)
    of_param = {name for name in graph.inputs if values[name].kind is Kind.PARAM}
    nodes, of_batch = set(), set()
    for i, node in enumerate(graph.nodes):
        outputs = [o for o in node.outputs if o]
        if any(name in fed for name in node.inputs):
            fed.update(outputs)
            of_batch.add(i)
        elif any(name in of_param for name in node.inputs):
            of_param.update(outputs)
            nodes.add(i)
    return of_param, frozenset(nodes), of_batch


def _whole_dims(spans: tuple[Span, ...], entering: set[str], some: set[int], plain: Iterable[int]) -> set[int]:
    """These spans and the other digits of the dims of batch inputs that they stand in."""
    dims = {(name, digit.dim) for k in some for name, digit in spans[k].places if name in entering}
    return some | {k for k in plain if any((name, digit.dim) in dims for name, digit in spans[k].places)}


def _join(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Neighbouring digits of one role become one piece."""
    found: list[Piece] = []
    for dim, lower, upper, role in sorted(pieces):
        if found and found[-1][0] == dim and found[-1][2] == lower and found[-1][3] == role:
            found[-1] = (dim, found[-1][1], upper, role)
        else:
            found.append((dim, lower, upper, role))
    return tuple(found)


def _places(graph: Graph, spans: tuple[Span, ...], some: Iterable[int], entering: set[str]) -> tuple[tuple[str, int, int], ...]:
    values = value_table(graph)
    found = {(name, digit.dim) for k in some for name, digit in spans[k].places if name in entering}
    return tuple((name, dim, values[name].shape[dim]) for name, dim in sorted(found, key=lambda p: (graph.inputs.index(p[0]), p[1])))
