"""Obeyed: does an answer do what a user demanded? The law of `steer`, read off the answer alone.

In: a graph, an assignment over a mesh whose axes are named by their roles, constraints; or a plan in stages or turns, of which every stage is such a
graph. Out: one line for each thing that is not as demanded; none where all is obeyed. It knows nothing of menus: what an op could have split is read
off its rule and sizes here again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from ..constraints import DATA, PIPELINE, SEQUENCE, TENSOR, Constraints, axis_role, names_module
from ..errors import ConstraintError
from ..graph.attention_core import list_selective
from ..graph.case import Case, case_roles, split_case
from ..graph.choice import Assignment
from ..graph.cuts import CutTable
from ..graph.graph import Graph, value_table
from ..graph.mesh import num_ranks, print_mesh
from ..graph.node import Node, Phase
from ..graph.partition import assigned_strategies, node_cuts
from ..graph.recompute import list_recomputable
from ..graph.roles import Roles, role_of_choice
from ..graph.rule import Signature, Site, is_contraction
from ..graph.schedules.known import kind_name
from ..graph.sharding import Partial, Shard, Sharding
from ..graph.stages import COPY
from ..graph.strategy import REPLICATED, Strategy, build_strategy
from ..graph.tensor import STATE_KINDS, Kind
from ..graph.turns import ACCUMULATE, RECEIVE, SEND
from .layout_solve import Staged
from .layouts import Layout, inner_constraints, num_samples
from .role_meshes import named_degrees
from .steer import AxisLaws, Steer, axis_laws, names_node, names_pin, obeys_pin, pin_placements, why_role, zero_law
from .unit_costs import part_roles


def check_obeyed(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, assignment: Assignment, steer: Steer
) -> tuple[str, ...]:
    """What is not as demanded, one line each.

    Args:
        sites, signatures, cuts: of the graph (`cuts.resolve_all`, `cuts.find_cuts`), without what is run again.
        steer: the constraints, with the roles of this graph.
    """
    laws = axis_laws(steer, assignment.mesh)
    own = {node.name for node in graph.nodes}  # what is run again is run as the first time
    first = replace(assignment, strategies=tuple(row for row in assignment.strategies if row[0] in own), again=())
    strategies = assigned_strategies(graph, sites, signatures, cuts, first)
    storages = dict(assignment.storages)
    made = {**storages, **{o: s for node in graph.nodes for o, s in zip((o for o in node.outputs if o), strategies[node.name].outputs)}}
    found = [*_degrees(steer, assignment, laws)]
    for index, (node, site, signature) in enumerate(zip(graph.nodes, sites, signatures)):
        found += _node_faults(steer, laws, index, node, site, signature, node_cuts(site, signature, cuts), strategies[node.name])
    found += _pin_faults(steer, graph, assignment, made)
    found += _zero_faults(steer, laws, graph, storages)
    for index, (node, site, signature) in enumerate(zip(graph.nodes, sites, signatures)):
        if node.op == ACCUMULATE and not _is_named(steer, node):
            found += _sum_faults(steer, laws, index, node, site, signature, node_cuts(site, signature, cuts), strategies[node.name], made[node.inputs[0]])
    found += _recompute_faults(steer, graph, signatures, assignment)
    return tuple(found)


def require_obeyed(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, assignment: Assignment, steer: Steer
) -> None:
    """Refuse a plan that is not as demanded.

    Raises:
        ConstraintError: names the first thing, and how many there are.
    """
    _require_none(check_obeyed(graph, sites, signatures, cuts, assignment, steer))


def check_obeyed_stages(case: Case, staged: Staged, constraints: Constraints) -> tuple[str, ...]:
    """What is not as demanded in a plan in stages or turns, one line each; what is wrong inside of a stage names it.

    Args:
        case: of the traced graph.
    """
    whole = split_case(case, staged.layout.num_microbatches)
    roles = case_roles(whole)
    found = [*_layout_faults(constraints, staged.layout, roles)]
    for number, stage in enumerate(staged.stages):
        inner = inner_constraints(constraints, staged.layout.place.stage_mesh(number))
        if stage.assignment is None:
            raise AssertionError(f"stage {number} of an answer has no assignment")
        mine = stage.case
        steer = Steer(inner, part_roles(roles, whole, mine))
        faults = check_obeyed(mine.graph, mine.sites, mine.signatures, mine.cuts, stage.assignment, steer)
        faults += tuple(_copy_faults(inner, mine.graph, stage.assignment))
        found += [f"stage {number}: {fault}" if len(staged.stages) > 1 else fault for fault in faults]
    return (*found, *_module_faults(constraints, staged))


def require_obeyed_stages(case: Case, staged: Staged, constraints: Constraints) -> None:
    """Refuse a plan in stages or turns that is not as demanded.

    Raises:
        ConstraintError: names the first thing, and how many there are.
    """
    _require_none(check_obeyed_stages(case, staged, constraints))


def _require_none(found: tuple[str, ...]) -> None:
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConstraintError(f"{found[0]}{more}: the search did not obey; leave this constraint out, and please report it")


def _layout_faults(constraints: Constraints, layout: Layout, roles: Roles) -> Iterator[str]:
    """Of the number of stages, the axes of each, the microbatches and the schedule."""
    place, turns = layout.place, layout.num_microbatches
    own = {role: prod(a.size for a in place.mesh.axes if axis_role(a.name) == role) for role in (DATA, TENSOR, SEQUENCE)}
    own[PIPELINE] = place.num_stages
    degrees = {**named_degrees(constraints, num_ranks(place.mesh) * place.num_stages), **dict(constraints.degrees)}
    for role, degree in degrees.items():
        if own[role] != degree:
            yield f"{role}={degree}: the plan has {own[role]}"
    for row in constraints.stage_degrees:
        mesh = place.stage_mesh(row.number)
        there = {role: prod(a.size for a in mesh.axes if axis_role(a.name) == role) for role in (DATA, TENSOR)}
        if row.number >= place.num_stages or there != {DATA: row.dp, TENSOR: row.tp}:
            yield f"stage {row.number} dp={row.dp} tp={row.tp}: the plan has {print_mesh(mesh)} there"
    for role in constraints.require:
        if own[role] == 1:
            yield f"require {role}: " + ("the plan has one stage" if role == PIPELINE else "no axis has this role")
    if constraints.zero and own[DATA] == 1:
        yield f"zero={constraints.zero}: no axis is dp"
    if constraints.sequence_parallel and own[TENSOR] == 1:
        yield "sequence_parallel=1: no axis is tp"
    if constraints.microbatches not in (None, turns):
        yield f"microbatches={constraints.microbatches}: the plan has {turns}"
    if constraints.microbatch is not None:
        samples = num_samples(roles)
        if constraints.microbatch * own[DATA] * turns != samples:
            yield f"microbatch={constraints.microbatch}: each rank takes {samples / own[DATA] / turns:g} of {samples} samples in a turn"
    if constraints.vpp not in (None, layout.chunks):
        yield f"vpp={constraints.vpp}: each stage has {layout.chunks} chunk{'s' if layout.chunks > 1 else ''} of the model"
    if constraints.schedule is not None and place.num_stages == 1:
        yield f"schedule={kind_name(constraints.schedule)}: the plan has one stage, and no schedule"
    elif constraints.schedule not in (None, layout.schedule):
        yield f"schedule={kind_name(constraints.schedule)}: the plan has {kind_name(layout.schedule)}"


def _module_faults(constraints: Constraints, staged: Staged) -> Iterator[str]:
    """Ops of the forward pass that are on another stage than their module should be; what is on several stages is where it is read."""
    places: dict[tuple[str, str], list[int]] = {}
    for number, stage in enumerate(staged.stages):
        for node in (n for n in stage.case.graph.nodes if n.phase is Phase.FORWARD and n.op not in (SEND, RECEIVE)):
            places.setdefault((node.name.partition(COPY)[0], node.path), []).append(number)
    for row in constraints.module_stages:
        for (name, path), stages in places.items():
            if len(stages) == 1 and stages[0] != row.stage and names_module(row.path, path):
                yield f"module {row.path} stage {row.stage}: {name} ({path}) is on stage {stages[0]}"


def _copy_faults(constraints: Constraints, graph: Graph, assignment: Assignment) -> Iterator[str]:
    """A state that several stages hold is pinned on each of them."""
    storages, values = dict(assignment.storages), value_table(graph)
    for pin in constraints.pins:
        wanted = pin_placements(pin, assignment.mesh)
        for name in (name for name in graph.inputs if COPY in name and values[name].kind in STATE_KINDS):
            value = values[name]
            first = replace(value, name=name.partition(COPY)[0])
            if names_pin(graph, pin, first) and not names_pin(graph, pin, value) and not obeys_pin(wanted, storages[name]):
                yield f"pin {pin.value} {pin.sharding}: the copy that this stage holds, {name}, is {storages[name]}; pin {value.storage} to mean both"


def _degrees(steer: Steer, assignment: Assignment, laws: AxisLaws) -> Iterator[str]:
    for role, degree in named_degrees(steer.constraints, num_ranks(assignment.mesh)).items():
        own = prod(laws.sizes[a] for a in laws.of[role])
        if own != degree:
            yield f"{role}={degree}: the axes of {role} have {own} ranks"
    for role in steer.constraints.require:
        if not laws.of[role]:
            yield f"require {role}: no axis has this role"


def _node_faults(
    steer: Steer, laws: AxisLaws, index: int, node: Node, site: Site, signature: Signature, cuts: dict[str, tuple[int, ...]], strategy: Strategy
) -> Iterator[str]:
    constraints = steer.constraints
    roles = _split_roles(steer, laws, node, strategy)
    if any(names_node(glob, node) for glob in constraints.alike) and any(c != REPLICATED for c in strategy.choices):
        yield f"alike: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}"
    why = why_role(steer, laws, node, index, strategy, roles)
    if why:
        yield f"{node.name} ({node.path}) chooses {' '.join(strategy.choices)}: {why}"
    if node.phase is Phase.UPDATE or node.op in (SEND, RECEIVE):
        return
    if any(names_node(glob, node) for glob in constraints.whole) and any(r not in ("", DATA) for r in roles):
        yield f"whole: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}"
    for row in constraints.modules:
        if names_node(row.path, node) and any(r in row.forbid for r in roles):
            yield f"module {row.path}: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}"
    if _is_named(steer, node):
        return  # what it could have split is no longer all that its rule offers
    missed = [a for role in (DATA, SEQUENCE) for a in laws.of[role] if roles[a] == ""]
    if is_contraction(signature) and node.name in steer.roles.samples:
        missed += [a for a in laws.of["tp"] if roles[a] != "tp"]
    for a in missed:
        role = next(r for r in (DATA, SEQUENCE, "tp") if a in laws.of[r])
        for factor in (f.name for f in signature.factors if not f.whole):
            other = build_strategy(signature, site, (*strategy.choices[:a], factor, *strategy.choices[a + 1 :]), laws.sizes, cuts)
            if isinstance(other, Strategy) and role_of_choice(steer.roles, node, other, a, laws.sizes[a]) == role:
                yield f"{role}: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}, although {factor} can be split there"
                break


def _split_roles(steer: Steer, laws: AxisLaws, node: Node, strategy: Strategy) -> tuple[str, ...]:
    """By what a strategy splits a node, per axis."""
    return tuple(role_of_choice(steer.roles, node, strategy, a, n) for a, n in enumerate(laws.sizes))


def _is_named(steer: Steer, node: Node) -> bool:
    constraints = steer.constraints
    globs = (*constraints.alike, *constraints.whole, *(row.path for row in constraints.modules))
    return bool(constraints.pins) or any(names_node(glob, node) for glob in globs)


def _pin_faults(steer: Steer, graph: Graph, assignment: Assignment, made: Mapping[str, Sharding]) -> Iterator[str]:
    for pin in steer.constraints.pins:
        wanted = pin_placements(pin, assignment.mesh)
        for value in graph.values:
            if names_pin(graph, pin, value) and not obeys_pin(wanted, made[value.name]):
                yield f"pin {pin.value} {pin.sharding}{f' on {pin.on}' if pin.on else ''}: {value.name} is {made[value.name]}"


def _zero_faults(steer: Steer, laws: AxisLaws, graph: Graph, storages: Mapping[str, Sharding]) -> Iterator[str]:
    constraints, values = steer.constraints, value_table(graph)
    axes = laws.of[DATA]
    if constraints.zero is None or not axes:
        return
    for name in graph.inputs:
        value = values[name]
        if any(names_pin(graph, pin, value) for pin in constraints.pins):
            continue
        law = zero_law(constraints.zero, value.kind)
        cut = [a for a in axes if isinstance(storages[name].placements[a], Shard)]
        if set(cut) & set(laws.copied):
            yield f"dp_shard={constraints.dp_shard}: {name} is stored as {storages[name]}, in pieces along more of dp"
        if law == "whole" and cut:
            yield f"zero={constraints.zero}: {name} is stored as {storages[name]}, in pieces along dp"
        held = value.kind is Kind.PARAM and any(names_module(glob, value.storage) for glob in constraints.whole)
        if law == "pieces" and not cut and not held and any(size % laws.sizes[laws.cut[0]] == 0 and size > 1 for size in value.shape):
            if not any(isinstance(p, Shard) for p in storages[name].placements):  # else the dim may be taken
                yield f"zero={constraints.zero}: {name} {list(value.shape)} is stored as {storages[name]}, whole along dp"


def _sum_faults(
    steer: Steer,
    laws: AxisLaws,
    index: int,
    node: Node,
    site: Site,
    signature: Signature,
    cuts: dict[str, tuple[int, ...]],
    strategy: Strategy,
    part: Sharding,
) -> Iterator[str]:
    """Of what the turns add up, whether it is whole or in pieces along dp, and reduced when they are over. `part`: how that of one turn is made."""
    zero, made = steer.constraints.zero, strategy.outputs[0]
    for a in laws.of[DATA] if zero is not None else ():
        if zero in (0, 1) and isinstance(made.placements[a], Shard):
            yield f"zero={zero}: {node.outputs[0]} is added up as {made}, in pieces along dp"
        if zero == 1 and isinstance(part.placements[a], Partial) and not isinstance(made.placements[a], (Partial, Shard)):
            yield f"zero=1: {node.inputs[0]} is reduced along dp in each turn, not when they are over"
        if zero in (2, 3) and a in laws.cut and not isinstance(made.placements[a], Shard):
            for factor in (f.name for f in signature.factors if not f.whole):
                other = build_strategy(signature, site, (*strategy.choices[:a], factor, *strategy.choices[a + 1 :]), laws.sizes, cuts)
                if not isinstance(other, Strategy) or not isinstance(other.outputs[0].placements[a], Shard):
                    continue
                if not why_role(steer, laws, node, index, other, _split_roles(steer, laws, node, other)):
                    yield f"zero={zero}: {node.outputs[0]} is added up as {made}, whole along dp, although {factor} can be split there"
                    break


def _recompute_faults(steer: Steer, graph: Graph, signatures: tuple[Signature, ...], assignment: Assignment) -> Iterator[str]:
    said = steer.constraints.recompute
    if said == "none" and assignment.again:
        yield f"recompute=none: {len(assignment.again)} nodes are run again"
    if said == "full" and not assignment.again and list_recomputable(graph, signatures):
        yield "recompute=full: no node is run again"
    if said == "selective":
        core = list_selective(graph, signatures)
        if core and not assignment.again:
            yield "recompute=selective: no node is run again"
        for name in assignment.again:
            if name not in core:
                yield f"recompute=selective: {name} is run again, which is nothing that an attention core makes for itself"
