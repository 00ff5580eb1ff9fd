"""Obeyed: does an assignment do what a user demanded? The law of `steer`, read off the answer alone.

In: a graph, an assignment over a mesh whose axes are named by their roles, constraints. Out: one line for each thing that is not as demanded;
none where all is obeyed. It knows nothing of menus: what an op could have split is read off its rule and sizes here again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from ..constraints import DATA, SEQUENCE, names_module
from ..cost.model import is_contraction
from ..errors import ConstraintError
from ..graph.choice import Assignment
from ..graph.cuts import CutTable
from ..graph.graph import Graph, value_table
from ..graph.mesh import num_ranks
from ..graph.node import Node, Phase
from ..graph.partition import assigned_strategies, node_cuts
from ..graph.recompute import list_recomputable
from ..graph.rule import Signature, Site
from ..graph.sharding import Shard, Sharding
from ..graph.strategy import REPLICATED, Strategy, build_strategy
from ..graph.tensor import Kind
from .role_meshes import named_degrees
from .roles import role_of_choice
from .steer import AxisLaws, Steer, axis_laws, names_pin, obeys_pin, pin_placements, why_role, zero_law


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
    found = [*_degrees(steer, assignment, laws)]
    for index, (node, site, signature) in enumerate(zip(graph.nodes, sites, signatures)):
        found += _node_faults(steer, laws, index, node, site, signature, node_cuts(site, signature, cuts), strategies[node.name])
    found += _pin_faults(steer, graph, assignment, strategies, storages)
    found += _zero_faults(steer, laws, graph, storages)
    found += _recompute_faults(steer, graph, signatures, assignment)
    return tuple(found)


def require_obeyed(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, assignment: Assignment, steer: Steer
) -> None:
    """Refuse a plan that is not as demanded.

    Raises:
        ConstraintError: names the first thing, and how many there are.
    """
    found = check_obeyed(graph, sites, signatures, cuts, assignment, steer)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConstraintError(f"{found[0]}{more}: the search did not obey; leave this constraint out, and please report it")


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
    roles = tuple(role_of_choice(steer.roles, node, strategy, a, n) for a, n in enumerate(laws.sizes))
    if any(names_module(glob, node.path) for glob in constraints.alike) and any(c != REPLICATED for c in strategy.choices):
        yield f"alike: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}"
    why = why_role(steer, laws, node, index, strategy, roles)
    if why:
        yield f"{node.name} ({node.path}) chooses {' '.join(strategy.choices)}: {why}"
    if node.phase is Phase.UPDATE:
        return
    if any(names_module(glob, node.path) for glob in constraints.whole) and any(r not in ("", DATA) for r in roles):
        yield f"whole: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}"
    for row in constraints.modules:
        if names_module(row.path, node.path) and any(r in row.forbid for r in roles):
            yield f"module {row.path}: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}"
    if _is_named(steer, node):
        return  # what it could have split is no longer all that its rule offers
    missed = [a for role in (DATA, SEQUENCE) for a in laws.of[role] if roles[a] == ""]
    if is_contraction(signature) and (steer.roles.splits[index] or not steer.roles.batch):
        missed += [a for a in laws.of["tp"] if roles[a] != "tp"]
    for a in missed:
        role = next(r for r in (DATA, SEQUENCE, "tp") if a in laws.of[r])
        for factor in (f.name for f in signature.factors if not f.whole):
            other = build_strategy(signature, site, (*strategy.choices[:a], factor, *strategy.choices[a + 1 :]), laws.sizes, cuts)
            if isinstance(other, Strategy) and role_of_choice(steer.roles, node, other, a, laws.sizes[a]) == role:
                yield f"{role}: {node.name} ({node.path}) chooses {' '.join(strategy.choices)}, although {factor} can be split there"
                break


def _is_named(steer: Steer, node: Node) -> bool:
    constraints = steer.constraints
    globs = (*constraints.alike, *constraints.whole, *(row.path for row in constraints.modules))
    return bool(constraints.pins) or any(names_module(glob, node.path) for glob in globs)


def _pin_faults(
    steer: Steer, graph: Graph, assignment: Assignment, strategies: Mapping[str, Strategy], storages: Mapping[str, Sharding]
) -> Iterator[str]:
    made = dict(storages)
    for node in graph.nodes:
        made.update(zip((o for o in node.outputs if o), strategies[node.name].outputs))
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
        if law == "whole" and cut:
            yield f"zero={constraints.zero}: {name} is stored as {storages[name]}, in pieces along dp"
        held = value.kind is Kind.PARAM and any(names_module(glob, value.storage) for glob in constraints.whole)
        if law == "pieces" and not cut and not held and any(size % laws.sizes[axes[0]] == 0 and size > 1 for size in value.shape):
            if not any(isinstance(p, Shard) for p in storages[name].placements):  # else the dim may be taken
                yield f"zero={constraints.zero}: {name} {list(value.shape)} is stored as {storages[name]}, whole along dp"


def _recompute_faults(steer: Steer, graph: Graph, signatures: tuple[Signature, ...], assignment: Assignment) -> Iterator[str]:
    said = steer.constraints.recompute
    if said == "none" and assignment.again:
        yield f"recompute=none: {len(assignment.again)} nodes are run again"
    if said == "full" and not assignment.again and list_recomputable(graph, signatures):
        yield "recompute=full: no node is run again"
