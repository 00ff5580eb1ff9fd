"""Estimates: what one step of a program costs, predicted node by node.

In: a cost model, a `Program`, and for each node of the whole graph its site, signature and strategy. Out: seconds per node,
and the `Cost` of a plan. Invariant: `step_s` is the sum of the table of `node_seconds` less that of `hidden_seconds`, and each entry is
what the solver adds for the same choice (both call `cost.model`). A single stage: no bubble.

    hidden of a phase = min(sum of (1 - exposed share) x the seconds of the collectives that may hide there, compute of the phase)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from ..graph.case import Case
from ..graph.fusion import rewritten_states
from ..graph.graph import phase_table, value_table
from ..graph.liveness import is_view
from ..graph.mesh import axis_sizes, num_ranks
from ..graph.node import Node, Phase, get_arg
from ..graph.plan import Cost
from ..graph.program import Origin, Program
from ..graph.recompute import is_copy
from ..graph.reshard import JOINED, StepKind
from ..graph.rule import Signature, Site
from ..graph.sharding import Sharding
from ..graph.small_reductions import share_meetings
from ..graph.stages import COPY
from ..graph.strategy import Strategy, split_share
from ..graph.tensor import Kind, Value, count_batch, size_bytes
from ..graph.transfer import HIDING_PHASES, find_hiding, may_hide, outside_blocks, transfer_of
from ..graph.turns import LOOP, RECEIVE, SEND, count_microbatches, times_of
from .error_bar import error_bar
from .memory import ALONE, Among, comm_step, estimate_memory
from .model import CostModel
from .ops import Shape, Tensor, as_run, compute_dtype, estimate_op_s, estimate_write_s, has_start, least_node_s, least_write_s, node_flops, op_reach, site_dtypes
from .unlike import Unlike, find_unlike
from .wires import STEP_S, comm_reach, estimate_comm_s, estimate_hidden_s, joint_copied_bytes, joint_link, joins_steps, most_together, step_copied_bytes


def node_seconds(
    model: CostModel, program: Program, sites: Sequence[Site], signatures: Sequence[Signature], strategies: Mapping[str, Strategy]
) -> dict[str, float]:
    """Node of the program -> its seconds, in program order.

    Args:
        sites, signatures: of each node of the whole graph (`cuts.resolve_all`).
        strategies: by node name (`partition.assigned_strategies`).
    """
    values = value_table(program.graph)
    sizes = axis_sizes(program.mesh)
    sent, shares = _comm_prices(model, program, values), _share_meetings(program, sites)
    at, flops = {site.node.name: site for site in sites}, _local_flops(sites, signatures, strategies, sizes)
    seconds = {}
    for node, origin in zip(program.graph.nodes, program.origins):
        if node.op.startswith("comm."):
            seconds[node.name] = sent.get(node.name, (0.0, 0.0))[0] * shares.get((origin.value, origin.node), 1.0)
        elif node.op == "state.write":
            by_kernel = node.phase is Phase.UPDATE and origin.node in at and at[origin.node].traffic is not None
            seconds[node.name] = 0.0 if by_kernel else estimate_write_s(model, size_bytes(values[node.inputs[0]]))
        else:
            seconds[node.name] = estimate_op_s(model, node.op, flops.get(node.name, 0.0), *_tensors(node, values), at.get(node.name))
    turns = count_microbatches(program.graph)
    return {node.name: times_of(node.phase, turns) * seconds[node.name] for node in program.graph.nodes}


def _share_meetings(program: Program, sites: Sequence[Site]) -> dict[tuple[str, str], float]:
    """(number, node that reads it) -> of the price of bringing it there alone, what it costs (`small_reductions`)."""
    shapes = {name: shape for site in sites for name, shape in zip((o for o in site.node.outputs if o), site.outputs)}
    shares = share_meetings([site.node for site in sites], shapes, program.graph.sequences)
    read = {name for name, _ in shares}
    return {(name, site.node.name): shares[name, site.node.phase] for site in sites for name in read.intersection(site.node.inputs) if (name, site.node.phase) in shares}


def _local_flops(sites: Sequence[Site], signatures: Sequence[Signature], strategies: Mapping[str, Strategy], sizes: tuple[int, ...]) -> dict[str, float]:
    """Contraction -> its FLOPs on one device."""
    return {
        site.node.name: whole / split_share(strategies[site.node.name], signature.rule, sizes)
        for site, signature in zip(sites, signatures)
        if (whole := node_flops(signature, site))
    }


def _tensors(node: Node, values: Mapping[str, Value]) -> tuple[list[Tensor], list[Tensor]]:
    """(shape, dtype) of what a node reads, and of what it makes that somebody sees."""
    return [(values[i].shape, values[i].dtype) for i in node.inputs], [(values[o].shape, values[o].dtype) for o in node.outputs if o]


def _find_unlike(
    model: CostModel, program: Program, sites: Sequence[Site], signatures: Sequence[Signature], strategies: Mapping[str, Strategy], seconds: Mapping[str, float]
) -> Unlike:
    values, at = value_table(program.graph), {site.node.name: site for site in sites}
    flops = _local_flops(sites, signatures, strategies, axis_sizes(program.mesh))
    number = {axis.name: k for k, axis in enumerate(program.mesh.axes)}
    reaches = {}
    for node in program.graph.nodes if model.measured is not None else ():
        if node.op.startswith("comm."):
            link = joint_link(model, program.mesh, [number[str(get_arg(node, "axis"))]])
            reaches[node.name] = comm_reach(model, comm_step(program, node)[0], link, *(size_bytes(values[name]) for name in (node.inputs[0], node.outputs[0])))
        elif node.op != "state.write":
            reaches[node.name] = op_reach(model, node.op, flops.get(node.name, 0.0), *_tensors(node, values), at.get(node.name))
    return find_unlike(program.graph.nodes, seconds, flops, reaches)


def _comm_prices(model: CostModel, program: Program, values: Mapping[str, Value]) -> dict[str, tuple[float, float]]:
    """Communication -> its seconds, and what of them hides where it may. Of several nodes that are one collective (`reshard.join_steps`) the first stands for all,
    and the others are not there."""
    runs: list[list[Node]] = []
    about: list[tuple[Value, bool]] = []  # what moves, and whether its reshard begins there
    last: Origin | None = None
    for node, origin in zip(program.graph.nodes, program.origins):
        if not node.op.startswith("comm."):
            continue
        value = values[origin.value]
        joins = joins_steps(value) and StepKind(node.op.removeprefix("comm.")) in JOINED
        if joins and origin == last and node.op == runs[-1][-1].op and node.inputs[0] == runs[-1][-1].outputs[0]:
            runs[-1].append(node)
        else:
            runs.append([node])
            about.append((value, origin != last or node.inputs[0] != runs[-2][-1].outputs[0]))
        last = origin
    sharding, whole = {name: s for name, _, s in program.shardings}, dict(program.whole)
    found = {}
    for run, (value, begins), hides in zip(runs, about, _list_hiding(runs, about)):
        seconds, hidden = _comm_s(model, program, run, value, values, sharding, whole[value.name])
        more = STEP_S * (len(run) - begins) if joins_steps(value) else 0.0
        found[run[0].name] = seconds + more, hidden * hides
    return found


def _list_hiding(runs: Sequence[Sequence[Node]], about: Sequence[tuple[Value, bool]]) -> list[bool]:
    """Of each collective whether it hides where it may, reshard by reshard (`find_hiding`)."""
    found: list[bool] = []
    starts = [k for k, (_, begins) in enumerate(about) if begins]
    for low, high in zip(starts, [*starts[1:], len(runs)]):
        found += find_hiding(transfer_of(about[low][0]), [StepKind(run[0].op.removeprefix("comm.")) for run in runs[low:high]])
    return found


def _comm_s(
    model: CostModel, program: Program, run: Sequence[Node], moved: Value, values: Mapping[str, Value], sharding: Mapping[str, Sharding], shape: Shape
) -> tuple[float, float]:
    number = {axis.name: k for k, axis in enumerate(program.mesh.axes)}
    kind, size, ends = comm_step(program, run[0])
    axes = sorted(number[str(get_arg(node, "axis"))] for node in run)
    before, after = values[run[0].inputs[0]], values[run[-1].outputs[0]]
    sides, link, transfer, most = (size_bytes(before), size_bytes(after)), joint_link(model, program.mesh, axes), transfer_of(moved), most_together(model, replace(moved, shape=shape), program.mesh, axes)
    if len(run) == 1:
        copied = step_copied_bytes(kind, before.shape, after.shape, before.dtype, size, ends)
    else:
        split = sharding[before.name if kind is StepKind.ALL_GATHER else after.name]
        copied = joint_copied_bytes(kind, shape, split, axes, program.mesh, *sides)
    seconds = estimate_comm_s(model, kind, link, *sides, copied, transfer, most)
    return seconds, estimate_hidden_s(model, kind, link, *sides, transfer, most)


def hidden_seconds(model: CostModel, program: Program, seconds: Mapping[str, float]) -> dict[str, float]:
    """Node of the program -> of its seconds, what does not lengthen the step; only of the collectives that hide behind compute.

    Args:
        seconds: of each node (`node_seconds`).
    """
    values = value_table(program.graph)
    sent = _comm_prices(model, program, values)
    outside, phases = outside_blocks(program.graph), phase_table(program.graph)
    hidden: dict[Phase, dict[str, float]] = {phase: {} for phase in HIDING_PHASES}
    compute, turns = dict.fromkeys(HIDING_PHASES, 0.0), count_microbatches(program.graph)
    for node, origin in zip(program.graph.nodes, program.origins):
        if node.op.startswith("comm."):
            beside = sent.get(node.name, (0.0, 0.0))[1]
            if beside and may_hide(values[origin.value], node.phase, outside, phases.get(origin.value)):
                hidden[node.phase][node.name] = times_of(node.phase, turns) * beside
        elif node.op != "state.write" and node.phase in compute:
            compute[node.phase] += seconds[node.name]
    found: dict[str, float] = {}
    for phase, rows in hidden.items():
        wanted = fsum(rows.values())
        share = min(1.0, compute[phase] / wanted) if wanted else 1.0
        found.update({name: share * beside for name, beside in rows.items()})
    return found


def estimate_program(
    model: CostModel, program: Program, sites: Sequence[Site], signatures: Sequence[Signature], strategies: Mapping[str, Strategy],
    in_flight: float = 1.0, among: Among = ALONE,
) -> Cost:
    """Time and memory of one step on one device (all are alike).

    Args:
        sites, signatures: of each node of the whole graph (`cuts.resolve_all`).
        strategies: by node name (`partition.assigned_strategies`).
    """
    seconds = node_seconds(model, program, sites, signatures, strategies)
    beside = [-s for s in hidden_seconds(model, program, seconds).values()]
    comm_s = fsum([*(seconds[n.name] for n in program.graph.nodes if n.op.startswith("comm.")), *beside])
    step_s = fsum([*seconds.values(), *beside])
    memory = estimate_memory(program, model.reserve_bytes, in_flight, among)
    by_dtype, again = _flops_by_dtype(program, sites, signatures)
    total = fsum(by_dtype.values())
    busiest = max(by_dtype, key=by_dtype.__getitem__, default="float32")
    samples = count_samples(program)
    error, compared = error_bar(model, busiest, _count_calls(program, seconds), step_s, _find_unlike(model, program, sites, signatures, strategies, seconds), comm_s)
    return Cost(
        step_s=step_s,
        compute_s=step_s - comm_s,
        exposed_comm_s=comm_s,
        bubble_s=0.0,
        peak_bytes=(memory.peak_bytes,),
        state_bytes=(memory.state_bytes,),
        activation_bytes=(memory.max_activation_bytes,),
        under_way_bytes=(0,),
        flops=total,
        tokens_per_s=samples / step_s if samples and step_s > 0 else None,
        mfu=(total - again) / (step_s * peak_flops_per_s(model, busiest) * num_ranks(program.mesh)) if step_s > 0 else None,
        holders=memory.holders,
        moments=memory.moments,
        relative_error=error,
        error_source=f"{compared} ({model.source})",
    )


def _count_calls(program: Program, seconds: Mapping[str, float]) -> int:
    """What a rank asks its device for in forward and backward, each turn; the update is a few launches for all parameters."""
    turns = count_microbatches(program.graph)
    return sum(int(times_of(node.phase, turns)) for node in program.graph.nodes if node.phase in LOOP and seconds[node.name] > 0)


def _flops_by_dtype(program: Program, sites: Sequence[Site], signatures: Sequence[Signature]) -> tuple[dict[str, float], float]:
    """FLOPs of the whole step (all devices, nothing counted twice) by the dtype in which they are done; and what of them is run again."""
    values = value_table(program.graph)
    turns = count_microbatches(program.graph)
    found: dict[str, float] = {}
    again = 0.0
    for site, signature in zip(sites, signatures):
        flops = times_of(site.node.phase, turns) * node_flops(signature, site)
        if flops:
            dtype = compute_dtype(site_dtypes(site.node, values))
            found[dtype] = found.get(dtype, 0.0) + flops
            again += flops if is_copy(site.node) else 0.0
    return found, again


def peak_flops_per_s(model: CostModel, dtype: str) -> float:
    """The device's nominal matmul peak: what MFU is a share of."""
    rates = dict(model.cluster.device.flops_per_s)
    return rates.get(dtype) or rates.get("float32") or min(rates.values())


def count_samples(program: Program) -> int | None:
    """Tokens or samples of one step (`tensor.count_batch`); None where no batch enters."""
    whole = dict(program.whole)
    values = value_table(program.graph)
    batch = [values[name] for name in program.graph.inputs if values[name].kind is Kind.BATCH]
    found = count_batch([(whole.get(value.name, value.shape), value.dtype) for value in batch])
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Roofline:
    """What a graph takes at least: seconds of its work on one device of unlimited memory (n devices take no less than the n-th part), and of starting
    its ops, which every device does.

    Args:
        loop_s, loop_start_s: of one turn of forward and backward.
        once_s, once_start_s: of everything else.
        forward_s, forward_start_s: of the forward of a turn.
    """

    loop_s: float
    once_s: float
    loop_start_s: float
    once_start_s: float
    forward_s: float
    forward_start_s: float


def estimate_roofline(model: CostModel, case: Case, shared: frozenset[str] = frozenset()) -> Roofline:
    """Of a graph, whole or of a stage; what a stage only has a copy of (`graph.stages`), sends and receives count nothing.

    Args:
        shared: nodes and inputs that count nothing, either.
    """
    values = value_table(case.graph)
    work, starts = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    forward, forward_starts = 0.0, 0
    known: dict[int, float] = {}
    for node, root in zip(case.graph.nodes, case.fold.node_class):
        if is_view(node.op) or node.op in (SEND, RECEIVE) or COPY in node.name or node.name in shared:
            continue
        site = case.sites[root]
        if root not in known:
            known[root] = least_node_s(model, case.signatures[root], site, site_dtypes(case.graph.nodes[root], values))
        begins = has_start(as_run(model, site))
        work[node.phase in LOOP] += known[root]
        starts[node.phase in LOOP] += begins
        if node.phase is Phase.FORWARD:
            forward, forward_starts = forward + known[root], forward_starts + begins
    kept = rewritten_states(case.graph, case.sites)
    for old, new in case.graph.updates:
        if old != new and COPY not in old and old not in shared and not model.fuses and old not in kept:
            work[False] += least_write_s(model, size_bytes(values[old]))
            starts[False] += 1
    launch = model.launch_s
    return Roofline(work[True], work[False], launch * starts[True], launch * starts[False], forward, launch * forward_starts)
