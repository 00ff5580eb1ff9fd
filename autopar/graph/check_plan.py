"""The law of plans: what must hold in any plan, whoever made it: the solver, a file, or a person with an editor.

In: a plan. Out: nothing, or a `PlanError` at the first entry that breaks the law, with what was expected, what was found and what to do.
The tables of a plan must add up: who shows a plan shows sums of its rows, so a headline that is not the sum of its rows is an
error here and never a surprise on a page. What only the graph can tell (is this strategy legal for this op?) is checked
where the program is built from the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ..errors import PlanError
from .mesh import axis_sizes, num_ranks
from .node import Phase
from .plan import FORMAT, Holder, Peak, Plan, TensorPlan
from .registry import ORIGINS
from .reshard import StepKind
from .schedules.known import why_impossible
from .sharding import Sharding, local_elements, why_illegal
from .tensor import DTYPE_BYTES, Kind, num_elements

RELATIVE_TOLERANCE = 1e-6  # of sums of seconds: float additions in another order differ by less
COMM_KINDS = frozenset(kind.value for kind in StepKind) | {"send", "recv"}
CURE = "write the plan again with `autopar plan`, or repair this entry (docs/plan-format.md)"


def check_plan(plan: Plan, where: str = "plan") -> None:
    """Raise `PlanError` at the first place where the plan breaks its law.

    Args:
        plan: any plan.
        where: the file's name, for errors.
    """
    for checks in (_mesh_faults, _pipeline_faults, _tensor_faults, _param_faults, _node_faults, _assignment_faults, _comm_faults, _repeat_faults, _rule_faults,
                   _cost_faults, _memory_faults, _peak_faults, _certificate_faults):  # fmt: skip
        for place, fault in checks(plan):
            raise PlanError(f"{where}: {place}: {fault}; {CURE}")


Faults = Iterator[tuple[str, str]]


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)


def _twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _mesh_faults(plan: Plan) -> Faults:
    mesh = plan.assignment.mesh
    if plan.format != FORMAT:
        yield "format", f"expected {FORMAT!r}, found {plan.format!r}"
    for i, axis in enumerate(mesh.axes):
        if axis.size < 2:
            yield f"mesh.axes[{i}].size", f"expected at least 2 ranks along axis {axis.name!r}, found {axis.size}"
        if axis.link not in ("inside", "across"):
            yield f"mesh.axes[{i}].link", f"expected 'inside' or 'across', found {axis.link!r}"
    twice = _twice(axis.name for axis in mesh.axes)
    if twice is not None:
        yield "mesh.axes", f"expected names that differ, found two axes {twice!r}"
    if plan.num_stages < 1:
        yield "mesh.num_stages", f"expected at least 1, found {plan.num_stages}"
    if plan.num_microbatches < 1:
        yield "num_microbatches", f"expected at least 1, found {plan.num_microbatches}"
    if plan.assignment.microbatches != plan.num_microbatches:
        yield "assignment.microbatches", f"expected {plan.num_microbatches} as in num_microbatches, found {plan.assignment.microbatches}"
    stages = len(plan.pipeline.stages) if plan.pipeline is not None else 1
    if stages != plan.num_stages:
        yield "pipeline.stages", f"expected {plan.num_stages} as in mesh.num_stages, found {stages}"
    if plan.pipeline is not None and len(plan.pipeline.starts) != plan.num_stages * plan.pipeline.chunks - 1:
        yield "pipeline.starts", f"expected {plan.num_stages * plan.pipeline.chunks - 1}, one for each chunk but the first, found {len(plan.pipeline.starts)}"
    needed = num_ranks(mesh) * plan.num_stages
    if needed > plan.cluster.num_devices:
        yield "cluster.num_devices", f"expected at least the {needed} ranks of mesh and stages, found {plan.cluster.num_devices}"
    if not 1 <= plan.cluster.num_hosts <= plan.cluster.num_devices:
        yield "cluster.num_hosts", f"expected 1 to {plan.cluster.num_devices}, found {plan.cluster.num_hosts}"
    for name in ("memory_bytes", "peak_flops", "memory_bytes_per_s"):
        if getattr(plan.cluster, name) <= 0:
            yield f"cluster.{name}", f"expected a positive number, found {getattr(plan.cluster, name)}"
    known = {axis.name for axis in mesh.axes} | {"pipeline"}
    for name, _ in plan.labels:
        if name not in known:
            yield f"labels[{name!r}]", f"expected a mesh axis ({', '.join(sorted(known))}), found {name!r}"


def _pipeline_faults(plan: Plan) -> Faults:
    p = plan.pipeline
    if p is None:
        return
    why = why_impossible(p.kind, plan.num_stages, plan.num_microbatches, p.chunks)
    if why is not None:
        yield "pipeline.kind", why
    forward = {n.name for n in plan.nodes if n.phase is Phase.FORWARD}
    for i, name in enumerate(p.starts):
        if name not in forward:
            yield f"pipeline.starts[{i}]", f"expected the name of a forward node, found {name!r}"
    for i, s in enumerate(p.stages):
        place = f"pipeline.stages[{i}]"
        if len(s.modules) != p.chunks:
            yield f"{place}.modules", f"expected {p.chunks}, one for each chunk, found {len(s.modules)}"
        for field in ("prepare_s", "forward_s", "backward_s", "weight_s", "update_s", "in_flight", "num_params"):
            number = getattr(s, field)
            if not (math.isfinite(number) and number >= 0):
                yield f"{place}.{field}", f"expected a finite number of at least 0, found {number}"
        if s.chunks and len(s.chunks) != p.chunks:
            yield f"{place}.chunks", f"expected {p.chunks}, one for each chunk, or none, found {len(s.chunks)}"
        for field in ("forward_s", "backward_s", "weight_s") if s.chunks else ():
            parts = [getattr(chunk, field) for chunk in s.chunks]
            if not (all(math.isfinite(part) and part >= 0 for part in parts) and math.isclose(sum(parts), getattr(s, field), rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)):
                yield f"{place}.chunks", f"expected {field} of at least 0 which add up to the stage's {getattr(s, field)}, found {parts}"
        for k, chunk in enumerate(s.chunks):
            if chunk.kept_bytes < 0:
                yield f"{place}.chunks[{k}].kept_bytes", f"expected at least 0, found {chunk.kept_bytes}"
            if chunk.weight_s > chunk.backward_s * (1 + RELATIVE_TOLERANCE):
                yield f"{place}.chunks[{k}].weight_s", f"expected at most its backward_s of {chunk.backward_s}, found {chunk.weight_s}"
        if s.weight_s > s.backward_s * (1 + RELATIVE_TOLERANCE):
            yield f"{place}.weight_s", f"expected at most its backward_s of {s.backward_s}, found {s.weight_s}"


def _sharding_fault(shape: tuple[int, ...], sharding: Sharding, plan: Plan) -> str:
    reason = why_illegal(shape, sharding, axis_sizes(plan.assignment.mesh))
    return f"{sharding} is not legal for shape {list(shape)}: {reason}" if reason else ""


def _tensor_faults(plan: Plan) -> Faults:
    sizes = axis_sizes(plan.assignment.mesh)
    twice = _twice(t.name for t in plan.tensors)
    if twice is not None:
        yield "tensors", f"expected names that differ, found {twice!r} twice"
    for i, t in enumerate(plan.tensors):
        place = f"tensors[{i}] ({t.name})"
        if any(n < 0 for n in t.shape):
            yield f"{place}.shape", f"expected sizes of at least 0, found {list(t.shape)}"
        if t.dtype not in DTYPE_BYTES:
            yield f"{place}.dtype", f"expected one of {', '.join(DTYPE_BYTES)}, found {t.dtype!r}"
        if not 0 <= t.stage < plan.num_stages:
            yield f"{place}.stage", f"expected 0 to {plan.num_stages - 1}, found {t.stage}"
        fault = _sharding_fault(t.shape, t.sharding, plan)
        if fault:
            yield f"{place}.sharding", fault
        expected = local_elements(t.shape, t.sharding, sizes) * DTYPE_BYTES[t.dtype]
        if t.bytes != expected:
            yield f"{place}.bytes", f"expected {expected} ({t.dtype}{list(t.shape)} as {t.sharding}), found {t.bytes}"


def _find_state(tensors: dict[str, TensorPlan], name: str) -> TensorPlan | None:
    return tensors.get(f"{name}@0") or tensors.get(name)


def _param_faults(plan: Plan) -> Faults:
    tensors = {t.name: t for t in plan.tensors}
    num_axes = len(plan.assignment.mesh.axes)
    twice = _twice(p.name for p in plan.params)
    if twice is not None:
        yield "params", f"expected names that differ, found {twice!r} twice"
    for i, p in enumerate(plan.params):
        place = f"params[{i}] ({p.name})"
        for field, sharding in (("param", p.param), ("grad", p.grad)):
            fault = _sharding_fault(p.shape, sharding, plan) if sharding is not None else ""
            if fault:
                yield f"{place}.{field}", fault
        if p.optim is not None and len(p.optim.placements) != num_axes:
            yield f"{place}.optim", f"expected {num_axes} placements, one per mesh axis, found {p.optim}"
        for field, count in (("param_bytes", p.param_bytes), ("grad_bytes", p.grad_bytes), ("optim_bytes", p.optim_bytes)):
            if count < 0:
                yield f"{place}.{field}", f"expected at least 0, found {count}"
        state = _find_state(tensors, p.name)
        if state is None:
            yield place, f"expected the tensor {p.name}@0 among tensors, found none"
        elif state.kind is not Kind.PARAM:
            yield place, f"expected tensor {state.name} to be of kind param, found {state.kind.value}"
        elif state.shape != p.shape:
            yield f"{place}.shape", f"expected {list(state.shape)} as in tensor {state.name}, found {list(p.shape)}"
        elif state.sharding != p.param:
            yield f"{place}.param", f"expected {state.sharding} as in tensor {state.name}, found {p.param}"
        elif state.bytes != p.param_bytes:
            yield f"{place}.param_bytes", f"expected {state.bytes} as in tensor {state.name}, found {p.param_bytes}"
    total = sum(num_elements(p.shape) for p in plan.params)
    if total != plan.model.num_params:
        yield "model.num_params", f"expected {total}, the elements of all params together, found {plan.model.num_params}"


def _node_faults(plan: Plan) -> Faults:
    known = {t.name for t in plan.tensors}
    num_axes = len(plan.assignment.mesh.axes)
    twice = _twice(n.name for n in plan.nodes)
    if twice is not None:
        yield "nodes", f"expected names that differ, found {twice!r} twice"
    made: set[str] = set()
    for i, n in enumerate(plan.nodes):
        place = f"nodes[{i}] ({n.name})"
        for field, names in (("inputs", n.inputs), ("outputs", n.outputs)):
            for name in names:
                if name not in known and (name or field == "inputs"):
                    yield f"{place}.{field}", f"expected names of tensors, found {name!r}, which is not listed"
        for name in n.outputs:
            if name in made:
                yield f"{place}.outputs", f"expected a tensor that no node before makes, found {name!r}"
        made.update(name for name in n.outputs if name)
        for what, choices in (("choices", n.choices), *((f"alternatives[{k}].choices", a.choices) for k, a in enumerate(n.alternatives))):
            if len(choices) != num_axes:
                yield f"{place}.{what}", f"expected {num_axes} choices, one per mesh axis, found {list(choices)}"
        for what, number in (("seconds", n.seconds), ("flops", n.flops), *((f"alternatives[{k}].seconds", a.seconds) for k, a in enumerate(n.alternatives))):
            if not (math.isfinite(number) and number >= 0):
                yield f"{place}.{what}", f"expected a finite number of at least 0, found {number}"


def _assignment_faults(plan: Plan) -> Faults:
    tensors = {t.name: t for t in plan.tensors}
    made = {name for n in plan.nodes for name in n.outputs}
    storages = dict(plan.assignment.storages)
    if len(storages) != len(plan.assignment.storages):
        yield "assignment.storages", f"expected each input once, found {_twice(n for n, _ in plan.assignment.storages)!r} twice"
    for name, sharding in plan.assignment.storages:
        place = f"assignment.storages[{name!r}]"
        if name not in tensors:
            yield place, "expected an input of the graph that is listed among tensors, found none of this name"
        elif name in made:
            yield place, "expected an input of the graph, found a tensor that a node makes"
        elif tensors[name].sharding != sharding:
            yield place, f"expected {tensors[name].sharding} as in tensor {name}, found {sharding}"
    for t in plan.tensors:
        if t.name not in made and t.name not in storages:
            yield "assignment.storages", f"expected a sharding for every tensor that no node makes, found none for {t.name!r}"
    strategies = plan.assignment.strategies
    for i, n in enumerate(plan.nodes):
        if i >= len(strategies):
            yield "assignment.strategies", f"expected one entry per node, found {len(strategies)} for {len(plan.nodes)}; the first missing is {n.name!r}"
            return
        name, choices = strategies[i]
        if name != n.name:
            yield f"assignment.strategies[{name!r}]", f"expected node {n.name!r} at place {i}, as in nodes, found {name!r}"
            return
        if choices != n.choices:
            yield f"assignment.strategies[{name!r}]", f"expected {list(n.choices)} as in nodes[{i}].choices, found {list(choices)}"
    if len(strategies) > len(plan.nodes):
        yield f"assignment.strategies[{strategies[len(plan.nodes)][0]!r}]", "expected a node of this name, found none"


def _comm_faults(plan: Plan) -> Faults:
    tensors = {t.name: t for t in plan.tensors}
    readers = {n.name for n in plan.nodes} | tensors.keys() | {""}
    axes = {axis.name for axis in plan.assignment.mesh.axes}
    named = {c.name: c for c in plan.comms}
    nodes = {n.name for n in plan.nodes} | {""}
    for i, c in enumerate(plan.comms):
        place = f"comms[{i}] ({c.name})"
        if c.kind not in COMM_KINDS:
            yield f"{place}.kind", f"expected one of {', '.join(sorted(COMM_KINDS))}, found {c.kind!r}"
        if c.axis not in axes and c.kind not in ("send", "recv"):
            yield f"{place}.axis", f"expected a mesh axis ({', '.join(sorted(axes)) or 'there is none'}), found {c.axis!r}"
        if c.value not in tensors:
            yield f"{place}.value", f"expected the name of a tensor, found {c.value!r}, which is not listed"
        else:
            for field, sharding in (("source_sharding", c.source_sharding), ("target_sharding", c.target_sharding)):
                fault = _sharding_fault(tensors[c.value].shape, sharding, plan)
                if fault:
                    yield f"{place}.{field}", fault
        if c.reader not in readers:
            yield f"{place}.reader", f"expected the name of a node, found {c.reader!r}, which is not listed"
        if c.bytes < 0:
            yield f"{place}.bytes", f"expected at least 0, found {c.bytes}"
        if not (math.isfinite(c.seconds) and c.seconds >= 0):
            yield f"{place}.seconds", f"expected a finite number of at least 0, found {c.seconds}"
        if not 0 <= c.hidden_s <= c.seconds:
            yield f"{place}.hidden_s", f"expected 0 to its {c.seconds} seconds, found {c.hidden_s}"
        if c.value in tensors and c.dtype != tensors[c.value].dtype:
            yield f"{place}.dtype", f"expected {tensors[c.value].dtype}, as {c.value} has, found {c.dtype!r}"
        first = named.get(c.message)
        if first is None or (first.kind, first.dtype, first.message) != (c.kind, c.dtype, c.message):
            yield f"{place}.message", f"expected its own name, or that of a {c.kind} of {c.dtype} that is the first of a message, found {c.message!r}"
        for field, at in (("starts_at", c.starts_at), ("waits_at", c.waits_at)):
            if at not in nodes:
                yield f"{place}.{field}", f"expected the name of a node or nothing, found {at!r}, which is not listed"


def _repeat_faults(plan: Plan) -> Faults:
    phases = {n.name: n.phase for n in plan.nodes}
    owner: dict[str, int] = {}
    for i, repeat in enumerate(plan.repeats):
        for k, block in enumerate(repeat.blocks):
            place = f"repeats[{i}] ({repeat.family}).blocks[{k}]"
            if len(block) != len(repeat.blocks[0]):
                yield place, f"expected {len(repeat.blocks[0])} nodes as in the first block, found {len(block)}"
            for name in block:
                if name not in phases:
                    yield place, f"expected names of nodes, found {name!r}, which is not listed"
                elif phases[name] is not repeat.phase:
                    yield place, f"expected nodes of phase {repeat.phase.value}, found {name!r} of {phases[name].value}"
                if name in owner:
                    yield place, f"expected each node in one block, found {name!r} also in repeats[{owner[name]}]"
                owner[name] = i


def _rule_faults(plan: Plan) -> Faults:
    ops = {n.name: n.op for n in plan.nodes}
    for i, row in enumerate(plan.rules):
        place = f"rules[{i}] ({row.op})"
        if row.origin not in ORIGINS:
            yield f"{place}.origin", f"expected one of {', '.join(ORIGINS)}, found {row.origin!r}"
        if "->" not in row.text:
            yield f"{place}.text", f"expected inputs -> outputs, found {row.text!r}"
        if row.reduce not in ("sum", "max", "min"):
            yield f"{place}.reduce", f"expected sum, max or min, found {row.reduce!r}"
        for name in row.nodes:
            if ops.get(name) != row.op:
                yield f"{place}.nodes", f"expected names of nodes of this op, found {name!r} ({ops.get(name, 'no such node')})"
        if row.num_trials < 0:
            yield f"{place}.num_trials", f"expected at least 0, found {row.num_trials}"
        for field, number in (("seconds", row.seconds), ("flops", row.flops)):
            if not (math.isfinite(number) and number >= 0):
                yield f"{place}.{field}", f"expected a finite number of at least 0, found {number}"
    twice = _twice(name for row in plan.rules for name in row.nodes)
    if twice is not None:
        yield "rules", f"expected each node in one rule, found {twice!r} twice"


def _cost_faults(plan: Plan) -> Faults:
    cost = plan.cost
    numbers: list[tuple[str, float | None]] = [
        ("step_s", cost.step_s), ("compute_s", cost.compute_s), ("exposed_comm_s", cost.exposed_comm_s), ("bubble_s", cost.bubble_s),
        ("flops", cost.flops), ("tokens_per_s", cost.tokens_per_s), ("mfu", cost.mfu), ("relative_error", cost.relative_error),
    ]  # fmt: skip
    for name, number in numbers:
        if number is not None and not (math.isfinite(number) and number >= 0):
            yield f"cost.{name}", f"expected a finite number of at least 0, found {number}"
    parts = cost.compute_s + cost.exposed_comm_s + cost.bubble_s
    if not _is_close(cost.step_s, parts):
        yield "cost.step_s", f"expected {parts}, which is compute_s + exposed_comm_s + bubble_s, found {cost.step_s}"
    compute = math.fsum(n.seconds for n in plan.nodes) / plan.num_stages
    if not _is_close(cost.compute_s, compute):
        yield "cost.compute_s", f"expected {compute}, the seconds of all nodes together (of stages: their average), found {cost.compute_s}"
    exposed = math.fsum(c.seconds - c.hidden_s for c in plan.comms) / plan.num_stages
    if not _is_close(cost.exposed_comm_s, exposed):
        yield "cost.exposed_comm_s", f"expected {exposed}, the seconds of all comms together less what is hidden, found {cost.exposed_comm_s}"
    flops = math.fsum(n.flops for n in plan.nodes)
    if not _is_close(cost.flops, flops):
        yield "cost.flops", f"expected {flops}, the flops of all nodes together, found {cost.flops}"


def _sum_holders(holders: tuple[Holder, ...]) -> int:
    return sum(h.bytes for h in holders)


def _memory_faults(plan: Plan) -> Faults:
    cost = plan.cost
    for name in ("peak_bytes", "state_bytes", "activation_bytes"):
        entries: tuple[int, ...] = getattr(cost, name)
        if len(entries) != plan.num_stages:
            yield f"cost.{name}", f"expected {plan.num_stages} entries, one per stage, found {len(entries)}"
        for i, count in enumerate(entries):
            if not 0 <= count <= cost.peak_bytes[i]:
                yield f"cost.{name}[{i}]", f"expected 0 to the peak of {cost.peak_bytes[i]}, found {count}"
    if len(cost.under_way_bytes) != plan.num_stages or min(cost.under_way_bytes, default=0) < 0:
        yield "cost.under_way_bytes", f"expected {plan.num_stages} entries, one per stage, none negative, found {list(cost.under_way_bytes)}"
    peak = max(cost.peak_bytes)
    negative = next((h for m in (cost, *cost.moments) for h in m.holders if h.bytes < 0), None)
    if negative is not None:
        yield "cost.holders", f"expected at least 0 for {negative.name!r}, found {negative.bytes}"
    if _sum_holders(cost.holders) != peak:
        yield "cost.holders", f"expected a sum of {peak}, the largest of peak_bytes, found {_sum_holders(cost.holders)}"
    for i, moment in enumerate(cost.moments):
        if _sum_holders(moment.holders) != moment.bytes:
            yield f"cost.moments[{i}] ({moment.node}).bytes", f"expected {_sum_holders(moment.holders)}, the sum of its holders, found {moment.bytes}"
    if cost.moments and max(m.bytes for m in cost.moments) != peak:
        yield "cost.moments", f"expected the largest to hold the peak of {peak}, found {max(m.bytes for m in cost.moments)}"


def _peak_faults(plan: Plan) -> Faults:
    for i, stage in enumerate(plan.pipeline.stages if plan.pipeline is not None else ()):
        place = f"pipeline.stages[{i}]"
        if stage.holders and _sum_holders(stage.holders) != plan.cost.peak_bytes[i]:
            yield f"{place}.holders", f"expected a sum of {plan.cost.peak_bytes[i]}, as in cost.peak_bytes[{i}], found {_sum_holders(stage.holders)}"
        if stage.peak is not None:
            yield from _one_peak_faults(plan, stage.peak, stage.holders, f"{place}.peak")
    if plan.peak is None:
        return
    top = max(plan.cost.peak_bytes)
    moment = next((m for m in plan.cost.moments if m.node == plan.peak.node and m.bytes == top), None)
    if plan.cost.moments and moment is None:
        yield "peak.node", f"expected the node of the moment that holds the peak of {top}, found {plan.peak.node!r}"
    yield from _one_peak_faults(plan, plan.peak, plan.cost.holders, "peak")


def _one_peak_faults(plan: Plan, peak: Peak, holders: tuple[Holder, ...], where: str) -> Faults:
    """Of the tensors that are held at a peak."""
    tensors = {t.name: t for t in plan.tensors}
    sizes = axis_sizes(plan.assignment.mesh)
    sums = {h.name: 0 for h in holders if h.name != "reserve"}
    for i, row in enumerate(peak.tensors):
        place = f"{where}.tensors[{i}] ({row.tensor or 'scratch'})"
        if row.holder not in sums:
            yield f"{place}.holder", f"expected a holder of the peak ({', '.join(sums)}), found {row.holder!r}"
            continue
        sums[row.holder] += row.bytes
        if not row.tensor:
            if row.sharding is not None or row.bytes < 0:
                yield place, f"expected no sharding and at least 0 bytes for what is no tensor, found {row.sharding} and {row.bytes}"
            continue
        whole = tensors.get(row.tensor)
        if whole is None:
            yield f"{place}.tensor", f"expected the name of a tensor, found {row.tensor!r}, which is not listed"
        elif row.sharding is None:
            yield f"{place}.sharding", "expected a sharding, found none"
        else:
            fault = _sharding_fault(whole.shape, row.sharding, plan)
            if fault:
                yield f"{place}.sharding", fault
            expected = local_elements(whole.shape, row.sharding, sizes) * DTYPE_BYTES[whole.dtype]
            own = row.bytes - row.waiting_bytes
            if own != expected and (own or not row.waiting_bytes):
                beside = f" beside {row.waiting_bytes} of other microbatches" if row.waiting_bytes else ""
                yield f"{place}.bytes", f"expected {expected} ({whole.dtype}{list(whole.shape)} as {row.sharding}){beside}, found {own}"
    for holder in holders:
        if holder.name in sums and sums[holder.name] != holder.bytes:
            yield f"{where}.tensors", f"expected {holder.bytes} bytes of {holder.name} together, as in cost.holders, found {sums[holder.name]}"


def _certificate_faults(plan: Plan) -> Faults:
    solve = plan.solve
    for name in ("objective_s", "lower_bound_s", "wall_s", "num_variables"):
        number = getattr(solve, name)
        if not (math.isfinite(number) and number >= 0):
            yield f"solve.{name}", f"expected a finite number of at least 0, found {number}"
    for name, seconds in solve.phases:
        if not (math.isfinite(seconds) and seconds >= 0):
            yield f"solve.phases[{name!r}]", f"expected a finite number of at least 0, found {seconds}"
    if solve.lower_bound_s > solve.objective_s * (1 + RELATIVE_TOLERANCE):
        yield "solve.lower_bound_s", f"expected at most the objective of {solve.objective_s}, found {solve.lower_bound_s}: no bound"
    gap = (solve.objective_s - solve.lower_bound_s) / solve.objective_s if solve.objective_s else 0.0
    if not math.isclose(solve.gap, gap, rel_tol=1e-3, abs_tol=1e-6):
        yield "solve.gap", f"expected {gap}, which is (objective_s - lower_bound_s) / objective_s, found {solve.gap}"
