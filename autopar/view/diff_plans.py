"""Two plans side by side: what each costs and who holds its memory, then what was decided otherwise, equal blocks folded.

In: two plans that keep their laws, of the same model or not. Out: a `PlanDiff`. Invariants: the holders of each side sum to its peak;
the communication rows of each side, less what hides behind compute, sum to its exposed communication; the nodes of each side (kept,
changed, only there) sum to its compute (of a plan in stages: to that of all its stages). What runs once in each microbatch counts so often.
Nodes of equal graphs are compared by name; of others by module path, phase, op and place among
those of the same, since names count through the whole graph. Axes of two meshes are the same where they have one name: what lies or works
along the same axes is alike, even where these are longer in one plan, and only its bytes or seconds differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ..graph.mesh import Mesh, print_mesh
from ..graph.plan import CommPlan, NodePlan, ParamPlan, Plan, counted
from ..graph.tensor import Kind
from .fold import fold_names, fold_places
from .split_text import print_choices, print_op, print_split
from .stages import PIPE, StageRow, comm_times, list_stages, param_stages, print_steps
from .units import print_bytes, print_count, print_percent

_ROLES = (("param", "param", "param_bytes"), ("grad", "grad", "grad_bytes"), ("optimizer", "optim", "optim_bytes"))
_LISTED = (Kind.PARAM, Kind.BUFFER, Kind.BATCH)  # kinds whose names people know; the others are counted


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that both plans have, as text."""

    what: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of both plans; None where one does not know it. `unit`: `s`, `bytes`, `flop`, `per_s`, `share`."""

    what: str
    unit: str
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True)
class ParamChange:
    """Parameters (equal blocks folded) whose `roles` (param, grad, optimizer; home: the stage that keeps it) lie otherwise; bytes of them, of all members, on a rank."""

    name: str
    members: tuple[str, ...]
    roles: tuple[str, ...]
    a: str
    b: str
    bytes_a: int
    bytes_b: int


@dataclass(frozen=True, slots=True)
class StrategyChange:
    """Nodes of one module (equal blocks folded), phase and op that work otherwise; seconds of all of them."""

    path: str
    op: str
    phase: str
    count: int
    a: str
    b: str
    seconds_a: float
    seconds_b: float


@dataclass(frozen=True, slots=True)
class Share:
    """So many things of each side, and their seconds."""

    count_a: int
    count_b: int
    seconds_a: float
    seconds_b: float


@dataclass(frozen=True, slots=True)
class Resized:
    """Parameters that lie along the same axes, of another size in each plan; bytes on one rank, with gradients and optimizer states."""

    count: int
    bytes_a: int
    bytes_b: int


@dataclass(frozen=True, slots=True)
class CommChange:
    """All communications of one kind along one axis in one phase, changed or not."""

    kind: str
    axis: str
    phase: str
    count_a: int
    count_b: int
    bytes_a: int
    bytes_b: int
    seconds_a: float
    seconds_b: float


@dataclass(frozen=True, slots=True)
class Lonely:
    """Tensors of one kind whose names are in one plan only; `names`, equal blocks folded, only of kinds whose names people know."""

    kind: str
    count: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """What differs.

    Args:
        same: nothing differs but the time that solving took and the proof.
        grounds: facts about what was planned that are not the same: model, batch, cluster, precision, ...
        same_graph: nodes were compared by name.
        layout: mesh, what each axis is for, schedule, proof: of both, equal or not.
        num_params: compared, whether changed or not; `resized`: those of `params` aside.
        kept: nodes that both have and that decide alike.
        alone: nodes that only one side has.
        hidden_s: of each side, communication that hides behind compute.
        num_stages: of each side; times of nodes and communications are those of all stages together.
    """

    name_a: str
    name_b: str
    same: bool
    same_graph: bool
    grounds: tuple[Fact, ...]
    figures: tuple[Figure, ...]
    holders: tuple[Figure, ...]
    layout: tuple[Fact, ...]
    summaries: tuple[str, str]
    params: tuple[ParamChange, ...]
    num_params: int
    resized: Resized
    strategies: tuple[StrategyChange, ...]
    kept: Share
    alone: Share
    comms: tuple[CommChange, ...]
    hidden_s: tuple[float, float]
    num_stages: tuple[int, int]
    only_a: tuple[Lonely, ...]
    only_b: tuple[Lonely, ...]


def diff_plans(a: Plan, b: Plan) -> PlanDiff:
    """Compare two plans as far as that makes sense."""
    grounds = _list_grounds(a, b)
    sized = a.assignment.mesh != b.assignment.mesh
    same_graph = a.model.graph_hash == b.model.graph_hash
    params, num_params, resized = _compare_params(a, b, sized)
    strategies, kept, alone = _compare_nodes(a, b, same_graph, sized)
    return PlanDiff(
        name_a=f"{a.model.name} on {a.cluster.spec}",
        name_b=f"{b.model.name} on {b.cluster.spec}",
        same=not grounds and _decisions(a) == _decisions(b),
        same_graph=same_graph,
        grounds=grounds,
        figures=_list_figures(a, b),
        holders=_list_holders(a, b),
        layout=_list_layout(a, b),
        summaries=(a.summary, b.summary),
        params=params,
        num_params=num_params,
        resized=resized,
        strategies=strategies,
        kept=kept,
        alone=alone,
        comms=_compare_comms(a, b),
        hidden_s=(_hidden_s(a), _hidden_s(b)),
        num_stages=(a.num_stages, b.num_stages),
        only_a=_list_lonely(a, b),
        only_b=_list_lonely(b, a),
    )


def _hidden_s(plan: Plan) -> float:
    return fsum(c.hidden_s for c in plan.comms)


def _decisions(plan: Plan) -> Hashable:
    """All that the solver decided and what follows from it; not how long it took."""
    return (
        plan.assignment,
        plan.num_stages,
        plan.num_microbatches,
        plan.schedule,
        plan.labels,
        plan.cost,
        plan.params,
        plan.comms,
        plan.rules,
        plan.pipeline,
    )


def _list_grounds(a: Plan, b: Plan) -> tuple[Fact, ...]:
    def cluster(plan: Plan) -> str:
        c = plan.cluster
        return f"{c.num_devices} x {c.device} on {c.num_hosts} host{'s' if c.num_hosts > 1 else ''}"

    def speeds(plan: Plan) -> tuple[float, ...]:
        c = plan.cluster
        return (c.peak_flops, c.memory_bytes_per_s, c.inside_latency_s, c.inside_bytes_per_s, c.across_latency_s, c.across_bytes_per_s)

    def args(plan: Plan) -> str:
        return ", ".join(f"{name}={value}" for name, value in plan.model.args) or "none"

    facts = [
        Fact("model", a.model.name, b.model.name),
        Fact("parameters", f"{a.model.num_params:,}", f"{b.model.num_params:,}"),
        Fact("arguments", args(a), args(b)),
        Fact("batch", str(a.model.batch or "the factory's own"), str(b.model.batch or "the factory's own")),
        Fact("sequence", str(a.model.seq or "the factory's own"), str(b.model.seq or "the factory's own")),
        Fact("precision", a.model.precision, b.model.precision),
        *_list_graphs(a, b),
        Fact("cluster", cluster(a), cluster(b)),
        Fact("constraints", "; ".join(a.constraints) or "none", "; ".join(b.constraints) or "none"),
        Fact("memory limit", *_print_apart(a.cluster.memory_bytes, b.cluster.memory_bytes)),
    ]
    if speeds(a) != speeds(b) and cluster(a) == cluster(b):
        facts.append(Fact("figures of the cluster", a.cluster.source, f"{b.cluster.source}, with other numbers"))
    return tuple(fact for fact in facts if fact.a != fact.b)


def _list_graphs(a: Plan, b: Plan) -> list[Fact]:
    """The traced graphs, where they differ: turns, stages and recompute add nodes to one and the same."""
    if a.model.graph_hash == b.model.graph_hash:
        return []
    return [Fact("graph", *(f"{plan.model.graph_hash}, {len(plan.nodes):,} nodes" for plan in (a, b)))]


def _print_apart(a: int, b: int) -> tuple[str, str]:
    """Both sizes, with enough figures to be told apart where they differ."""
    short = print_bytes(a), print_bytes(b)
    return short if a == b or short[0] != short[1] else (f"{a:,} bytes", f"{b:,} bytes")


def _list_figures(a: Plan, b: Plan) -> tuple[Figure, ...]:
    def both(what: str, unit: str, field: str) -> Figure:
        return Figure(what, unit, getattr(a.cost, field), getattr(b.cost, field))

    return (
        both("step", "s", "step_s"),
        both("compute", "s", "compute_s"),
        both("exposed communication", "s", "exposed_comm_s"),
        both("pipeline bubble", "s", "bubble_s"),
        both("work of the whole step", "flop", "flops"),
        both(counted(a) if counted(a) == counted(b) else "tokens or samples", "per_s", "tokens_per_s"),
        both("MFU", "share", "mfu"),
        Figure("peak memory", "bytes", max(a.cost.peak_bytes), max(b.cost.peak_bytes)),
    )


def _list_holders(a: Plan, b: Plan) -> tuple[Figure, ...]:
    """Who holds the peak, the largest of both first."""
    held = [{h.name: h.bytes for h in plan.cost.holders} for plan in (a, b)]
    names = dict.fromkeys((*held[0], *held[1]))
    rows = [Figure(name, "bytes", held[0].get(name, 0), held[1].get(name, 0)) for name in names]
    return tuple(sorted((r for r in rows if r.a or r.b), key=lambda r: -max(r.a or 0, r.b or 0)))


def _list_layout(a: Plan, b: Plan) -> tuple[Fact, ...]:
    def mesh(plan: Plan) -> str:
        stages = f"{plan.num_stages} stages of " if plan.num_stages > 1 else ""
        across = [axis.name for axis in plan.assignment.mesh.axes if axis.link == "across"]
        return stages + print_mesh(plan.assignment.mesh) + (f" ({', '.join(across)} across hosts)" if across else "")

    def stage(rows: Sequence[StageRow], number: int) -> str:
        if number >= len(rows):
            return "-"
        row = rows[number]
        return f"{row.modules}: {print_count(row.num_params)} parameters, busy {print_percent(row.busy)}, peak {print_bytes(row.peak_bytes)}"

    def again(plan: Plan) -> str:
        return f"{len(plan.assignment.again):,} ops" if plan.assignment.again else "nothing"

    def proof(plan: Plan) -> str:
        return "optimal" if plan.solve.gap <= 1e-6 else f"within {plan.solve.gap * 100:.2g} %"

    labels = [dict(plan.labels) for plan in (a, b)]
    axes = dict.fromkeys(name for known in labels for name in known if name != PIPE)
    rows = [Fact("mesh", mesh(a), mesh(b))]
    rows += [
        Fact(f"axis {axis}", *(" + ".join(known[axis]) or "replicated" if axis in known else "-" for known in labels)) for axis in axes
    ]
    if a.assignment.again or b.assignment.again:
        rows.append(Fact("run again for the backward pass", again(a), again(b)))
    rows.append(Fact("steps", print_steps(a), print_steps(b)))
    stages = list_stages(a), list_stages(b)
    rows += [Fact(f"stage {number}", *(stage(side, number) for side in stages)) for number in range(max(map(len, stages)))]
    rows.append(Fact("proven", proof(a), proof(b)))
    return tuple(rows)


# -- parameters ----------------------------------------------------------------------------------------------------------------------


def _compare_params(a: Plan, b: Plan, sized: bool) -> tuple[tuple[ParamChange, ...], int, Resized]:
    other = {p.name: p for p in b.params}
    common = [(p, other[p.name]) for p in a.params if p.name in other]
    homes = (param_stages(a), param_stages(b)) if a.num_stages == b.num_stages > 1 else ({}, {})
    changes = [(*_param_changes(p, q, a.assignment.mesh, b.assignment.mesh, sized), *_move(p, q, *homes)) for p, q in common]
    changed = [(p.name, rows) for (p, _), rows in zip(common, changes) if rows]
    result = []
    for fold in fold_names([name for name, _ in changed], [rows for _, rows in changed]):
        members = tuple(changed[i][0] for i in fold.members)
        for roles, before, after, bytes_a, bytes_b in changed[fold.members[0]][1]:
            result.append(ParamChange(fold.name, members, roles, before, after, bytes_a * len(members), bytes_b * len(members)))
    moved = {name for name, _ in changed}
    resized = [(p, q) for p, q in common if p.name not in moved and _sum_bytes(p) != _sum_bytes(q)]
    return tuple(result), len(common), Resized(len(resized), sum(_sum_bytes(p) for p, _ in resized), sum(_sum_bytes(q) for _, q in resized))


def _sum_bytes(p: ParamPlan) -> int:
    return p.param_bytes + p.grad_bytes + p.optim_bytes


def _param_changes(
    p: ParamPlan, q: ParamPlan, mesh_a: Mesh, mesh_b: Mesh, sized: bool
) -> tuple[tuple[tuple[str, ...], str, str, int, int], ...]:
    """(roles, A, B, bytes in A, bytes in B): roles that change alike are one row."""
    rows: dict[tuple[str, str], tuple[tuple[str, ...], int, int]] = {}
    for role, field, size in _ROLES:
        here, there = getattr(p, field), getattr(q, field)
        before, after = print_split(p.shape, here, mesh_a, sized), print_split(q.shape, there, mesh_b, sized)
        if p.shape != q.shape:
            before, after = f"{_print_shape(p.shape)} {before}", f"{_print_shape(q.shape)} {after}"
        if p.shape != q.shape or print_split(p.shape, here, mesh_a) != print_split(q.shape, there, mesh_b):
            roles, bytes_a, bytes_b = rows.get((before, after), ((), 0, 0))
            rows[before, after] = ((*roles, role), bytes_a + getattr(p, size), bytes_b + getattr(q, size))
    return tuple((roles, before, after, bytes_a, bytes_b) for (before, after), (roles, bytes_a, bytes_b) in rows.items())


def _move(p: ParamPlan, q: ParamPlan, homes_a: Mapping[str, int], homes_b: Mapping[str, int]) -> tuple[tuple[tuple[str, ...], str, str, int, int], ...]:
    """A row where another stage keeps it: of plans with as many stages."""
    here, there = homes_a.get(p.name), homes_b.get(q.name)
    return ((("home",), f"stage {here}", f"stage {there}", _sum_bytes(p), _sum_bytes(q)),) if here != there else ()


def _print_shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


# -- nodes ---------------------------------------------------------------------------------------------------------------------------


def _key_nodes(nodes: Iterable[NodePlan], by_name: bool) -> dict[Hashable, NodePlan]:
    if by_name:
        return {node.name: node for node in nodes}
    seen: Counter[Hashable] = Counter()
    found: dict[Hashable, NodePlan] = {}
    for node in nodes:
        kin = (node.path, node.phase, node.op)
        found[kin, seen[kin]] = node
        seen[kin] += 1
    return found


def _compare_nodes(a: Plan, b: Plan, same_graph: bool, sized: bool) -> tuple[tuple[StrategyChange, ...], Share, Share]:
    """(changes, nodes that decide alike, nodes of one side only)."""
    of_a, of_b = _key_nodes(a.nodes, same_graph), _key_nodes(b.nodes, same_graph)
    kept: list[tuple[NodePlan, NodePlan]] = []
    changed: list[tuple[NodePlan, NodePlan]] = []
    keys: list[tuple[str, str, str, str]] = []
    for key, n in of_a.items():
        m = of_b.get(key)
        if m is None:
            continue
        if print_choices(n.choices, a.assignment.mesh) == print_choices(m.choices, b.assignment.mesh):
            kept.append((n, m))
        else:
            changed.append((n, m))
            before, after = print_choices(n.choices, a.assignment.mesh, sized), print_choices(m.choices, b.assignment.mesh, sized)
            keys.append((print_op(n.op), n.phase.value, before, after))
    rows = []
    for fold in fold_places([n.path for n, _ in changed], keys):
        op, phase, before, after = keys[fold.members[0]]
        sums = _sum_pairs([changed[i] for i in fold.members])
        rows.append(StrategyChange(fold.name, op, phase, len(fold.members), before, after, sums.seconds_a, sums.seconds_b))
    rows.sort(key=lambda row: -abs(row.seconds_b - row.seconds_a))
    lone_a = [node for key, node in of_a.items() if key not in of_b]
    lone_b = [node for key, node in of_b.items() if key not in of_a]
    alone = Share(len(lone_a), len(lone_b), fsum(n.seconds for n in lone_a), fsum(n.seconds for n in lone_b))
    return tuple(rows), _sum_pairs(kept), alone


def _sum_pairs(pairs: Sequence[tuple[NodePlan, NodePlan]]) -> Share:
    return Share(len(pairs), len(pairs), fsum(n.seconds for n, _ in pairs), fsum(m.seconds for _, m in pairs))


# -- communication and names ---------------------------------------------------------------------------------------------------------


def _compare_comms(a: Plan, b: Plan) -> tuple[CommChange, ...]:
    sides = []
    for plan in (a, b):
        groups: dict[tuple[str, str, str], list[CommPlan]] = {}
        for c in plan.comms:
            groups.setdefault((c.kind, c.axis, c.phase.value), []).append(c)
        sides.append(groups)
    rows = []
    for key in dict.fromkeys((*sides[0], *sides[1])):
        those_a, those_b = (side.get(key, []) for side in sides)
        rows.append(
            CommChange(
                *key, *(sum(comm_times(p, c) for c in those) for p, those in ((a, those_a), (b, those_b))),
                *(sum(c.bytes * comm_times(p, c) for c in those) for p, those in ((a, those_a), (b, those_b))),
                fsum(c.seconds for c in those_a), fsum(c.seconds for c in those_b),
            )
        )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -max(row.seconds_a, row.seconds_b)))


def _list_lonely(plan: Plan, other: Plan) -> tuple[Lonely, ...]:
    """Tensors of a plan whose names the other does not know, by kind."""
    known = {t.name for t in other.tensors}
    kinds: dict[Kind, list[str]] = {}
    for t in plan.tensors:
        if t.name not in known and t.version == 0:
            kinds.setdefault(t.kind, []).append(t.name.removesuffix("@0"))
    rows = []
    for kind, names in kinds.items():
        folds = fold_names(names, [kind] * len(names)) if kind in _LISTED else ()
        rows.append(Lonely(kind.value, len(names), tuple(fold.name for fold in folds)))
    return tuple(rows)
