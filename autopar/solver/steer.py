"""Steer: what each node may choose, and how each state may be stored, under a user's constraints.

In: the menus and storages of a mesh whose axes have roles (`role_meshes`), and a `Steer`. Out: the same with only what obeys. What must hold of
an op or a state along an axis (the law; `obeyed` checks it on the answer):

    dp, sp   forward and backward ops split the batch (the sequence) among as many ranks as their rule allows, and nothing else. An op that has
             neither does the same on every rank or passes a Partial; if it only prepares parameters (ZeRO-3) or finishes gradients, it may be
             split as they are stored.
    tp       forward and backward ops split no batch, and the sequence unless sequence_parallel=0. Every matmul over samples is split by
             something that is neither (the column or row of its weight, heads, vocabulary) among as many ranks as its rule allows; with
             sequence_parallel=1 every other op of the samples that has features, too, and one of the two, splits one of them (`Roles.featured`).
    the rest an axis without a role does anything that no word is about
    update   ops are split in any way; with zero=0 not along dp
    zero     along dp: 0: no parameter, buffer, optimizer state or gradient in pieces; 1: optimizer states in pieces, parameters whole; 2: and the
             gradient that the update reads in pieces; 3: parameters in pieces, too. "In pieces" is among as many ranks as the shape allows.
             What the turns add up (`turns.ACCUMULATE`): 0: not in pieces; 1: not in pieces, and what the ranks of dp owe to it stays owed until
             the turns are over; 2, 3: in pieces from the first turn on.

What names values and modules (pins, `whole`, `alike`, `module`) comes first: "as many as" counts what it leaves. Nothing is ever forgiven
silently: where nothing is left a `ConstraintError` says for which node or state, and what its rule offers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..constraints import DATA, ROLES, SEQUENCE, TENSOR, Constraints, Pin, axis_role, names_module, names_value, print_constraints
from ..errors import ConstraintError
from ..graph.attention_core import list_selective
from ..graph.cuts import CutTable
from ..graph.graph import Graph, value_table
from ..graph.mesh import Mesh, axis_sizes, num_ranks, print_mesh
from ..graph.node import Node, Phase
from ..graph.plan import Pruned
from ..graph.repeats import Fold
from ..graph.roles import Roles, find_roles, role_of_choice
from ..graph.rule import Signature, Site, is_contraction
from ..graph.sharding import REPLICATE, Partial, Placement, Shard, Sharding, parse_sharding, why_illegal
from ..graph.strategy import REPLICATED, Strategy
from ..graph.tensor import STATE_KINDS, Kind, Value, num_elements
from ..graph.turns import ACCUMULATE, RECEIVE, SEND
from .menus import AxisTest
from .role_meshes import SPARE, cut_axes, rest_roles

_MOST_SHOWN = 6
_KEPT = "it breaks a constraint"


@dataclass(frozen=True, slots=True)
class Steer:
    """The constraints of one graph: what was said, and where batch and sequence lie.

    `choices`: (node, its choices per mesh axis) that are settled already; for one mesh, and told of all nodes that decide together.
    """

    constraints: Constraints
    roles: Roles
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()


def prepare_steer(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, constraints: Constraints, whole: Roles | None = None
) -> Steer:
    """Check the names, find the roles.

    Args:
        whole: of the graph that this one in turns was made from (`graph.case.Case.whole_roles`).
    Raises:
        ConstraintError: as in `check_words`.
    """
    check_words(graph, signatures, constraints)
    return Steer(constraints, find_roles(graph, sites, signatures, cuts, whole))


# --- names -------------------------------------------------------------------------------------------------------------------------


def check_words(graph: Graph, signatures: tuple[Signature, ...], constraints: Constraints) -> None:
    """What a word is about is there.

    Raises:
        ConstraintError: a glob names nothing, a pin cannot be meant for its value, there is no attention core, `dp_shard` stands without `zero`.
    """
    if constraints.dp_shard is not None and not constraints.zero:
        raise ConstraintError(f"dp_shard={constraints.dp_shard} says how many ranks of dp share what zero cuts, but zero is not given; give zero=3, say, or leave dp_shard out")
    check_names(graph, constraints)
    if constraints.recompute == "selective" and not list_selective(graph, signatures):
        raise ConstraintError(
            f"recompute=selective: {graph.name} has no attention core that may be run again: expected an attention op, or a softmax between two "
            "matmuls of which neither reads a weight; take recompute=full, or leave it out"
        )


def check_names(graph: Graph, constraints: Constraints) -> None:
    """Every glob names something.

    Raises:
        ConstraintError: see there.
    """
    paths: dict[str, None] = {}
    for node in graph.nodes:
        parts = node.path.split(".")
        paths.update((".".join(parts[: k + 1]), None) for k in range(len(parts)) if node.path)
    said = [(f"{word} {glob}", glob) for word in ("whole", "alike") for glob in getattr(constraints, word)]
    for text, glob in (*said, *((f"module {row.path}", row.path) for row in (*constraints.modules, *constraints.module_stages))):
        if not any(names_module(glob, node.path) for node in graph.nodes):
            raise ConstraintError(f"{text}: names no module of {graph.name} that runs an op{_near(glob, paths)}")
    for pin in constraints.pins:
        found = [value for value in graph.values if names_pin(graph, pin, value)]
        if not found:
            raise ConstraintError(f"{_print_pin(pin)}: names no value of {graph.name}{_near(pin.value, [v.name for v in graph.values])}")
        for value in found:
            for text in pin.placements:
                if text.startswith("S") and int(text[1:].partition("/")[0]) >= len(value.shape):
                    raise ConstraintError(f"{_print_pin(pin)}: {value.name} has {len(value.shape)} dims {list(value.shape)}; expected a dim below that")
                if text.startswith("P") and value.name in graph.inputs:
                    raise ConstraintError(f"{_print_pin(pin)}: {value.name} enters the step: it is stored whole or in pieces, never as a Partial")


def names_pin(graph: Graph, pin: Pin, value: Value) -> bool:
    """True where a pin is about a value."""
    return names_value(pin.value, value.name, value.storage if value.kind in STATE_KINDS and value.version == 0 else "")


def names_node(glob: str, node: Node) -> bool:
    """True where a glob names the module of an op; what crosses between stages is of no module, and splits as `stage_solve` says."""
    return node.op not in (SEND, RECEIVE) and names_module(glob, node.path)


def _near(glob: str, known: Iterable[str]) -> str:
    plain = glob.replace("*", "")
    names = list(known)
    close = difflib.get_close_matches(plain, names, n=3, cutoff=0.5) or [name for name in names if plain.strip(".") and plain.strip(".") in name][:3]
    return f"; near names: {', '.join(close)}" if close else f"; some that there are: {', '.join(names[:3])}"


def _print_pin(pin: Pin) -> str:
    return print_constraints(Constraints(pins=(pin,)))[0]


def names_some(constraints: Constraints) -> bool:
    """True of constraints that speak of single modules or values: then equal blocks may have to differ."""
    return bool(constraints.pins or constraints.whole or constraints.alike or constraints.modules)


def refine_fold(graph: Graph, fold: Fold, constraints: Constraints) -> Fold:
    """The fold in which nodes and inputs decide together only where the same names are about them."""
    if not names_some(constraints):
        return fold
    values = value_table(graph)

    def pins_of(name: str) -> tuple[int, ...]:
        return tuple(k for k, pin in enumerate(constraints.pins) if names_pin(graph, pin, values[name]))

    globs = (*constraints.whole, *constraints.alike, *(row.path for row in constraints.modules))
    first_node: dict[tuple, int] = {}
    node_class = []
    first_value: dict[tuple, str] = {}
    value_class = {}
    for name in graph.inputs:
        kept = tuple(names_module(glob, values[name].storage) for glob in constraints.whole)
        value_class[name] = first_value.setdefault((fold.value_class[name], pins_of(name), kept), name)
    for i, node in enumerate(graph.nodes):
        key = (fold.node_class[i], tuple(names_module(glob, node.path) for glob in globs), tuple(pins_of(o) for o in node.outputs if o))
        node_class.append(first_node.setdefault(key, i))
        for k, out in enumerate(node.outputs):
            if out:
                value_class[out] = first_value.setdefault((fold.value_class[out], node_class[-1], k), out)
    return Fold(tuple(node_class), value_class)


# --- one mesh ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AxisLaws:
    """What the axes of a mesh may do.

    Args:
        of: role -> its axes; "" -> axes without one; `SPARE` -> axes along which nothing is split.
        rest: roles that axes without one may take.
        cut: the axes of dp along which ZeRO cuts states. copied: its other axes, along which they are whole (`dp_shard`).
    """

    sizes: tuple[int, ...]
    of: Mapping[str, tuple[int, ...]]
    rest: tuple[str, ...]
    cut: tuple[int, ...]
    copied: tuple[int, ...]


def axis_laws(steer: Steer, mesh: Mesh) -> AxisLaws:
    """Read off the names of the axes."""
    of = {role: tuple(k for k, a in enumerate(mesh.axes) if axis_role(a.name) == role and a.name != SPARE) for role in ("", *ROLES)}
    of[SPARE] = tuple(k for k, a in enumerate(mesh.axes) if a.name == SPARE)
    cut = cut_axes(mesh, steer.constraints) or ()
    return AxisLaws(axis_sizes(mesh), of, rest_roles(steer.constraints, steer.roles, num_ranks(mesh)), cut, tuple(a for a in of[DATA] if a not in cut))


def pin_placements(pin: Pin, mesh: Mesh) -> dict[int, str]:
    """Axis -> the placement that a pin wants there.

    Raises:
        ConstraintError: this mesh has not the axes that the pin speaks of.
    """
    if pin.on:
        axes = [k for k, a in enumerate(mesh.axes) if pin.on in (a.name, axis_role(a.name))]
    else:
        axes = list(range(len(mesh.axes)))
    if (pin.on and not axes) or len(pin.placements) not in (1, len(axes)):
        names = ", ".join(a.name for a in mesh.axes) or "none"
        wanted = f"axis {pin.on}" if pin.on else f"{len(pin.placements)} axes"
        raise ConstraintError(f"{_print_pin(pin)}: expected a mesh with {wanted}, found {print_mesh(mesh)} (axes {names})")
    return {axis: pin.placements[k] if len(pin.placements) > 1 else pin.placements[0] for k, axis in enumerate(axes)}


def obeys_pin(wanted: Mapping[int, str], sharding: Sharding) -> bool:
    """True where a sharding is what a pin wants; `S0` leaves the stride open."""
    return all(text in (str(sharding.placements[a]), str(sharding.placements[a]).partition("/")[0]) for a, text in wanted.items())


def why_role(steer: Steer, laws: AxisLaws, node: Node, index: int, strategy: Strategy, roles: Sequence[str]) -> str:
    """Which law of an axis a choice breaks whatever else is offered: "" where it breaks none.

    Args:
        roles: by what the strategy splits the node, per axis (`role_of_choice`).
    """
    if node.op in (SEND, RECEIVE):
        return ""  # as both stages agreed (`stage_solve.crossing_choices`), whose axes may have other roles
    zero = steer.constraints.zero
    if any(roles[a] for a in laws.of[SPARE]):
        return "nothing is split along a spare axis"
    if node.op == ACCUMULATE and zero in (0, 1) and any(roles[a] for a in laws.of[DATA]):
        return f"zero={zero}: what the turns add up is not split along dp"
    if (node.op == ACCUMULATE or node.phase is Phase.UPDATE) and any(roles[a] for a in laws.copied):
        return f"dp_shard={steer.constraints.dp_shard}: sums over turns and the update are split among its ranks alone"
    if node.phase is Phase.UPDATE:
        return "zero=0: the update is not split along dp" if zero == 0 and any(roles[a] for a in laws.of[DATA]) else ""
    loose = (node.phase is Phase.BACKWARD and zero != 0) or (index in steer.roles.of_params and zero in (None, 3))
    for role in (DATA, SEQUENCE):
        tail = loose and role not in steer.roles.splits[index]
        for a in laws.of[role]:
            if roles[a] not in ("", role) and not (tail and roles[a] == TENSOR and a not in laws.copied):
                return f"an axis of {role} splits nothing but that"
    for a in laws.of[TENSOR]:
        if roles[a] == DATA or (roles[a] == SEQUENCE and steer.constraints.sequence_parallel is False):
            return f"an axis of tp does not split by {roles[a]}"
    for a in laws.of[""]:
        if roles[a] and roles[a] not in laws.rest:
            return f"an axis without a role does not split by {roles[a]}, whose degree is named"
    return ""


def sum_weight(steer: Steer, laws: AxisLaws, node: Node) -> Callable[[Strategy], int] | None:
    """Of what the turns add up, that of which the most is demanded: pieces along dp (zero=2, 3), axes of dp that owe to it (1); None: nothing is."""
    zero = steer.constraints.zero
    if node.op != ACCUMULATE or not zero or not laws.of[DATA]:
        return None
    if zero == 1:
        return lambda s: sum(isinstance(s.outputs[0].placements[a], Partial) for a in laws.of[DATA])
    return lambda s: _num_pieces(s.outputs[0], laws)


def forced_roles(steer: Steer, laws: AxisLaws, node: Node, index: int, signature: Signature) -> list[tuple[str, tuple[str, ...]]]:
    """(role of axes, roles of choices) that must be split among as many ranks as is offered, the first first."""
    if node.phase is Phase.UPDATE:
        return []
    found = [(role, (role,)) for role in (DATA, SEQUENCE) if laws.of[role]]
    if laws.of[TENSOR]:
        if is_contraction(signature) and node.name in steer.roles.samples:
            found.append((TENSOR, (TENSOR,)))
        if steer.constraints.sequence_parallel and node.name in steer.roles.featured:
            found.append((TENSOR, (TENSOR, SEQUENCE)))
    return found


Test = Callable[[Strategy, Sequence[str]], bool]


def _named_tests(steer: Steer, mesh: Mesh, graph: Graph, node: Node, values: Mapping[str, Value]) -> list[tuple[str, Test]]:
    """What words about modules and values demand of a node: (the words, is a choice fine)."""
    constraints = steer.constraints
    found: list[tuple[str, Test]] = []
    for glob in constraints.alike:
        if names_node(glob, node):
            found.append((f"alike {glob}", lambda s, roles: all(c == REPLICATED for c in s.choices)))
    if node.phase is not Phase.UPDATE:
        for glob in constraints.whole:
            if names_node(glob, node):
                found.append((f"whole {glob}", lambda s, roles: all(r in ("", DATA) for r in roles)))
        for row in constraints.modules:
            if names_node(row.path, node):
                found.append((f"module {row.path} forbid {','.join(row.forbid)}", lambda s, roles, no=row.forbid: not any(r in no for r in roles)))
    for pin in constraints.pins:
        for k, out in enumerate(o for o in node.outputs if o):
            if names_pin(graph, pin, values[out]):
                wanted = pin_placements(pin, mesh)
                found.append((f"{_print_pin(pin)} ({out})", lambda s, roles, k=k, wanted=wanted: obeys_pin(wanted, s.outputs[k])))
    for name, choices in steer.choices:
        if name == node.name:
            found.append((f"{name} as {' '.join(choices)}", lambda s, roles, choices=choices: s.choices == choices))
    return found


def screen_axes(steer: Steer, graph: Graph, mesh: Mesh) -> Callable[[int], AxisTest | None]:
    """Node number -> what the laws of the axes leave it along each; None where a word names the node, which comes first."""
    laws, values, roles = axis_laws(steer, mesh), value_table(graph), steer.roles

    def screen(index: int) -> AxisTest | None:
        node = graph.nodes[index]
        if _named_tests(steer, mesh, graph, node, values):
            return None
        pieces = tuple(roles.pieces.get(name, ()) for name in (*node.inputs, *(o for o in node.outputs if o)))

        def allowed(strategy: Strategy, axis: int) -> bool:
            row = [""] * len(laws.sizes)
            row[axis] = role_of_choice(roles, node, strategy, axis, laws.sizes[axis])
            return not why_role(steer, laws, node, index, strategy, row)

        return (node.phase, roles.splits[index], index in roles.of_params, pieces), allowed

    return screen


def steer_menus(
    steer: Steer, graph: Graph, signatures: tuple[Signature, ...], menus: Mapping[int, tuple[Strategy, ...]], mesh: Mesh
) -> tuple[dict[int, tuple[Strategy, ...]], dict[str, int]]:
    """The menus with only what obeys, and how many strategies were dropped.

    Raises:
        ConstraintError: a node has nothing left.
    """
    laws, values = axis_laws(steer, mesh), value_table(graph)
    grads = {g for _, g in graph.grads}
    found: dict[int, tuple[Strategy, ...]] = {}
    for index, options in menus.items():
        node = graph.nodes[index]
        known: dict[tuple, str] = {}

        def role(strategy: Strategy, axis: int, node: Node = node, known: dict[tuple, str] = known) -> str:
            key = (axis, *(s.placements[axis] for s in (*strategy.inputs, *strategy.outputs)))
            if key not in known:
                known[key] = role_of_choice(steer.roles, node, strategy, axis, laws.sizes[axis])
            return known[key]

        rows = [(s, tuple(role(s, a) for a in range(len(laws.sizes)))) for s in options]
        for text, test in _named_tests(steer, mesh, graph, node, values):
            kept = [row for row in rows if test(*row)]
            if not kept:
                raise ConstraintError(_why_empty(text, node, mesh, rows))
            rows = kept
        kept = [row for row in rows if not why_role(steer, laws, node, index, *row)]
        if not kept:
            why = why_role(steer, laws, node, index, *rows[0])
            raise ConstraintError(_why_empty(f"{why}, and other constraints leave {node.name} nothing else", node, mesh, rows))
        rows = kept
        for of, by in forced_roles(steer, laws, node, index, signatures[index]):
            rows = _keep_most(rows, lambda row, of=of, by=by: prod(laws.sizes[a] for a in laws.of[of] if row[1][a] in by))
        weight = sum_weight(steer, laws, node)
        if weight is not None:
            rows = _keep_most(rows, lambda row, weight=weight: weight(row[0]))
        if node.phase is Phase.UPDATE and steer.constraints.zero in (2, 3):
            for k, name in enumerate(node.inputs):
                if name in grads:
                    rows = _keep_most(rows, lambda row, k=k: _num_pieces(row[0].inputs[k], laws))
        found[index] = tuple(s for s, _ in rows)
    dropped = sum(len(menus[i]) - len(found[i]) for i in menus)
    return found, {_KEPT: dropped}


def _num_pieces(sharding: Sharding, laws: AxisLaws) -> int:
    """Into how many pieces ZeRO's axes cut a value."""
    return prod(laws.sizes[a] for a in laws.cut if isinstance(sharding.placements[a], Shard))


def _keep_most(rows: list, weight: Callable) -> list:
    weights = [weight(row) for row in rows]
    return [row for row, w in zip(rows, weights) if w == max(weights)]


def _why_empty(text: str, node: Node, mesh: Mesh, rows: Sequence[tuple[Strategy, Sequence[str]]]) -> str:
    offered = dict.fromkeys(" ".join(s.choices) for s, _ in rows)
    shown = "; ".join(list(offered)[:_MOST_SHOWN]) + (f" and {len(offered) - _MOST_SHOWN} more" if len(offered) > _MOST_SHOWN else "")
    made = ", ".join(dict.fromkeys(str(s.outputs[0]) for s, _ in rows[:_MOST_SHOWN]) if rows[0][0].outputs else ())
    return (
        f"{text}: cannot be obeyed on mesh {print_mesh(mesh)} by {node.name} ({node.op}, {node.path or 'the root module'}, "
        f"{node.source or 'no source line'}): "
        f"what is left to it: {shown or 'nothing'}{f' (made as {made})' if made else ''}; loosen the constraint, or leave another out"
    )


# --- storages ----------------------------------------------------------------------------------------------------------------------


def steer_storages(
    steer: Steer, graph: Graph, fold: Fold, storages: Mapping[str, tuple[Sharding, ...]], mesh: Mesh
) -> tuple[dict[str, tuple[Sharding, ...]], tuple[Pruned, ...]]:
    """The storages with only what obeys, and which states a ZeRO stage exempts.

    Raises:
        ConstraintError: a state has nothing left.
    """
    laws, values = axis_laws(steer, mesh), value_table(graph)
    found: dict[str, tuple[Sharding, ...]] = {}
    exempt: list[str] = []
    for root, options in storages.items():
        value = values[root]
        kept = list(options)
        for pin in steer.constraints.pins:
            if names_pin(graph, pin, value):
                wanted = pin_placements(pin, mesh)
                fine = [s for s in (*kept, *_spelled_out(wanted, value, laws.sizes)) if obeys_pin(wanted, s)]
                if not fine:
                    shown = ", ".join(map(str, kept[:_MOST_SHOWN]))
                    raise ConstraintError(
                        f"{_print_pin(pin)}: {root} {list(value.shape)} cannot be stored so on mesh {print_mesh(mesh)}; what it can be: {shown}"
                    )
                kept = list(dict.fromkeys(fine))
        if value.kind is Kind.PARAM and any(names_module(glob, value.storage) for glob in steer.constraints.whole):
            whole = [s for s in kept if all(p == REPLICATE for p in s.placements)]
            if not whole:
                raise ConstraintError(f"whole: {root} is pinned in pieces, so its module is not kept whole; leave one out")
            kept = whole
        kept = [s for s in kept if all(s.placements[a] == REPLICATE for a in laws.of[SPARE])] if laws.of[SPARE] else kept
        pinned = any(names_pin(graph, pin, value) for pin in steer.constraints.pins)
        wanted_pieces = zero_law(steer.constraints.zero, value.kind)
        if laws.copied and not pinned:
            kept = [s for s in kept if not any(isinstance(s.placements[a], Shard) for a in laws.copied)]
        if laws.of[DATA] and wanted_pieces == "whole" and not pinned:
            kept = [s for s in kept if _num_pieces(s, laws) == 1]
        elif laws.of[DATA] and wanted_pieces == "pieces":
            kept = _keep_most(kept, lambda s: _num_pieces(s, laws))
            if num_elements(value.shape) > 1 and _num_pieces(kept[0], laws) < prod(laws.sizes[a] for a in laws.cut):
                exempt += [name for name in graph.inputs if fold.value_class[name] == root]
        found[root] = tuple(kept)
    if not exempt:
        return found, ()
    names = ", ".join(exempt[:_MOST_SHOWN]) + (f" and {len(exempt) - _MOST_SHOWN} more" if len(exempt) > _MOST_SHOWN else "")
    why = f"its shape does not divide by all of {'dp_shard' if laws.copied else 'dp'}, or another constraint holds it: exempt from zero={steer.constraints.zero}"
    return found, (Pruned(f"{names} in more pieces", why),)


def zero_law(zero: int | None, kind: Kind) -> str:
    """What a ZeRO stage says of states of this kind along dp: `whole`, `pieces`, or "" (nothing)."""
    if zero is None:
        return ""
    if kind is Kind.OPTIM:
        return "pieces" if zero else "whole"
    if kind is Kind.PARAM:
        return "pieces" if zero == 3 else "whole"
    return "whole" if kind is Kind.BUFFER and zero < 3 else ""


def _spelled_out(wanted: Mapping[int, str], value: Value, sizes: tuple[int, ...]) -> list[Sharding]:
    """The sharding that a pin spells out with its strides, whole on the other axes; none where it leaves strides open."""
    if any(text.startswith("S") and "/" not in text for text in wanted.values()):
        return []
    placements: list[Placement] = [REPLICATE] * len(sizes)
    for axis, text in wanted.items():
        placements[axis] = parse_sharding(text).placements[0]
    sharding = Sharding(tuple(placements))
    return [] if why_illegal(value.shape, sharding, sizes) else [sharding]


# --- clusters ----------------------------------------------------------------------------------------------------------------------


def part_clusters(clusters: Mapping[int, int], menus: Mapping[int, tuple[Strategy, ...]]) -> dict[int, int]:
    """Clusters whose members have no sharding left in common decide one by one.

    Args:
        menus: as aligned (`menus.align`).
    """
    return {root: root if not menus[root] else leader for root, leader in clusters.items()}


def describe_space(constraints: Constraints) -> str:
    """For the certificate: `; only what obeys dp=2, tp=2, zero=1`."""
    lines = print_constraints(constraints)
    return f"; only what obeys {', '.join(lines)}" if lines else ""
