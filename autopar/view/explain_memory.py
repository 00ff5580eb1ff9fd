"""Who holds the peak, when, and why: a plan's memory, tensor by tensor at the worst moment and holder by holder over the step.

In: a plan. Out: `PeakReport`. Invariants: the rows of a holder sum to its bytes and the holders to the peak (the reserve has no
rows). Pieces that equal blocks hold alike are one row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import fsum

from ..graph.mesh import axis_sizes
from ..graph.node import Phase
from ..graph.plan import CommPlan, Holder, Moment, NodePlan, Peak, PeakTensor, Plan, TensorPlan
from ..graph.sharding import local_shape
from .fold import fold_places
from .split_text import print_op, print_split
from .stages import StageRow, list_stages, top_stage
from .units import print_bytes

ORDER = (
    "reserve",
    "batch",
    "buffers",
    "parameters",
    "optimizer",
    "gradients",
    "activations",
    "gathered",
    "temporaries",
)  # from the ground up
_KEPT = {"parameters": "stays from step to step", "buffers": "stays from step to step", "optimizer": "stays from step to step",
         "batch": "of the batch, held the whole step"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Pieces held alike.

    Args:
        name: of the tensor, or `gelu of blocks.[0..3]` for what nodes of equal blocks made.
        tensors: the names of all.
        bytes: of one; the row holds `bytes` times the number of its tensors.
        local_shape: of the piece; () with `split` "" for a buffer of a collective.
        made_by, last_read: what and where, in words; "" where the step begins or ends.
    """

    name: str
    tensors: tuple[str, ...]
    bytes: int
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    split: str
    made_by: str
    last_read: str
    why: str


@dataclass(frozen=True, slots=True)
class HolderReport:
    """One holder at the peak; its rows hold `bytes` together, the largest first. The reserve has none."""

    name: str
    bytes: int
    rows: tuple[HeldRow, ...]


@dataclass(frozen=True, slots=True)
class StagePeak:
    """The peak of one of several stages: when it is, and who holds it."""

    stage: int
    bytes: int
    node: str
    op: str
    phase: str
    path: str
    source: str
    holders: tuple[HolderReport, ...]


@dataclass(frozen=True, slots=True)
class PeakReport:
    """The peak of a plan.

    Args:
        op: what runs at the peak, in words.
        position: which of how many moments of the plan it is, from 0.
        moments: memory over the step; of a plan in stages, of the one that holds most.
        phase_s: predicted seconds of each phase, there.
        known: the plan says which tensors are held.
        stage: whose devices these are; None where there are no stages. stages: all of them.
        others: the peaks of the stages that hold less.
        num_microbatches: of the step; the moments are those of one, with what is in flight of the others.
        under_way_bytes: what the program holds at most beside the peak (`graph.plan.Cost`).
    """

    model: str
    cluster: str
    bytes: int
    limit_bytes: int
    node: str
    op: str
    phase: str
    path: str
    source: str
    position: int
    holders: tuple[HolderReport, ...]
    moments: tuple[Moment, ...]
    phase_s: tuple[tuple[str, float], ...]
    known: bool
    stage: int | None
    stages: tuple[StageRow, ...]
    others: tuple[StagePeak, ...]
    num_microbatches: int
    under_way_bytes: int


def explain_memory(plan: Plan) -> PeakReport:
    """Say who holds the peak, when, and why."""
    names = _Names(plan)
    peak, top = plan.peak, max(plan.cost.peak_bytes)
    position = next((i for i, m in enumerate(plan.cost.moments) if m.bytes == top), 0)
    holders = _list_holders(plan, names, plan.cost.holders, peak)
    moment = plan.cost.moments[position] if plan.cost.moments else None
    node = peak.node if peak else moment.node if moment else ""
    made = names.node_of(node)
    return PeakReport(
        plan.model.name, plan.cluster.spec, top, plan.cluster.memory_bytes, node, names.what(node),
        (peak or moment).phase.value if peak or moment else Phase.FORWARD.value,
        peak.path if peak else made.path if made else "", peak.source if peak else made.source if made else "",
        position, holders, plan.cost.moments,
        tuple((phase.value, _phase_s(plan, phase)) for phase in Phase), peak is not None,
        top_stage(plan) if plan.pipeline else None, list_stages(plan), _list_others(plan, names), plan.num_microbatches, max(plan.cost.under_way_bytes),
    )  # fmt: skip


def _list_holders(plan: Plan, names: _Names, holders: Sequence[Holder], peak: Peak | None) -> tuple[HolderReport, ...]:
    """The largest first, each with its tensors, if they are known."""
    held: dict[str, list[PeakTensor]] = {}
    for row in peak.tensors if peak else ():
        held.setdefault(row.holder, []).append(row)
    return tuple(HolderReport(h.name, h.bytes, _fold_rows(plan, names, held.get(h.name, []))) for h in sorted(holders, key=lambda h: -h.bytes))


def _list_others(plan: Plan, names: _Names) -> tuple[StagePeak, ...]:
    found = []
    for number, stage in enumerate(plan.pipeline.stages if plan.pipeline is not None else ()):
        peak = stage.peak
        if peak is not None and number != top_stage(plan):
            holders = _list_holders(plan, names, stage.holders, peak)
            found.append(StagePeak(number, plan.cost.peak_bytes[number], peak.node, names.what(peak.node), peak.phase.value, peak.path, peak.source, holders))
    return tuple(found)


def _phase_s(plan: Plan, phase: Phase) -> float:
    if plan.pipeline is not None:
        s, turns = plan.pipeline.stages[top_stage(plan)], plan.num_microbatches
        return {Phase.PREPARE: s.prepare_s, Phase.FORWARD: turns * s.forward_s, Phase.BACKWARD: turns * s.backward_s, Phase.UPDATE: s.update_s}[phase]
    return fsum([*(n.seconds for n in plan.nodes if n.phase is phase), *(c.seconds - c.hidden_s for c in plan.comms if c.phase is phase)])


class _Names:
    """Says in words what a node of the program does."""

    def __init__(self, plan: Plan) -> None:
        self.nodes: dict[str, NodePlan] = {n.name: n for n in plan.nodes}
        self.comms: dict[str, CommPlan] = {c.name: c for c in plan.comms}
        self.tensors: dict[str, TensorPlan] = {t.name: t for t in plan.tensors}

    def node_of(self, name: str) -> NodePlan | None:
        """The whole graph's node that a node of the program is, or for which it communicates."""
        comm = self.comms.get(name)
        return self.nodes.get(comm.reader if comm else name)

    def what(self, name: str) -> str:
        """`mm`, `all_gather on a`, `the write of the new version`."""
        if name in self.comms:
            comm = self.comms[name]
            return f"{comm.kind} on {comm.axis}" if comm.axis else comm.kind
        if name in self.nodes:
            return print_op(self.nodes[name].op)
        return "the write of the new version" if name.startswith("write:") else name

    def where(self, name: str) -> str:
        """`(backward, model.py:31)`."""
        node = self.node_of(name)
        return f"({', '.join(part for part in (node.phase.value, node.source) if part)})" if node else ""

    def tell(self, name: str) -> str:
        """Both."""
        return f"{self.what(name)} {self.where(name)}".rstrip() if name else ""


def _fold_rows(plan: Plan, names: _Names, rows: list[PeakTensor]) -> tuple[HeldRow, ...]:
    """Rows of one holder, equal ones of equal blocks together, the most bytes first."""
    keys: list[Hashable] = []
    titles: list[str] = []
    for row in rows:
        maker = names.node_of(row.made_by) if row.made_by else None
        named = not row.made_by or row.holder in ("gathered", "gradients")  # people know the names of states and of their gradients
        path = row.tensor.removesuffix("@0") if named else maker.path if maker else ""
        titles.append(path)
        keys.append((named, row.sharding, row.bytes, row.waiting_bytes, _shape(names, row), names.tell(row.made_by), names.tell(row.last_read)))
    held = [_held_row(plan, names, fold.name, [rows[i] for i in fold.members]) for fold in fold_places(titles, keys)]
    return tuple(sorted(held, key=lambda row: (-row.bytes * len(row.tensors), row.name)))


def _shape(names: _Names, row: PeakTensor) -> tuple[int, ...]:
    return names.tensors[row.tensor].shape if row.tensor else ()


def _held_row(plan: Plan, names: _Names, place: str, rows: list[PeakTensor]) -> HeldRow:
    first = rows[0]
    made_by, last_read = names.tell(first.made_by), names.tell(first.last_read)
    if not first.tensor:
        why = f"the buffer through which {names.what(first.made_by)} packs"
        return HeldRow(f"buffer of {first.made_by}", ("",) * len(rows), first.bytes, (), (), "", "", made_by, last_read, why)
    tensor, mesh = names.tensors[first.tensor], plan.assignment.mesh
    if first.sharding is None:
        raise AssertionError(f"{first.tensor} has no sharding (check_plan)")
    named = not first.made_by or first.holder in ("gathered", "gradients")
    title = place if named else first.tensor if len(rows) == 1 else f"{names.what(first.made_by)}{f' of {place}' if place else ''}"
    if not first.made_by:
        why = _KEPT[first.holder]
    else:
        where = f" in {place}" if len(rows) == 1 and not named and place else ""
        why = f"made by {made_by}{where}; " + (f"last read by {last_read}" if last_read else "held to the end of the step")
    if first.waiting_bytes:
        share = "all of it" if first.waiting_bytes == first.bytes else f"{print_bytes(first.waiting_bytes)} of it"
        why += f"; {share} of microbatches that wait for their backward pass"
    return HeldRow(
        title, tuple(row.tensor for row in rows), first.bytes, tensor.shape, local_shape(tensor.shape, first.sharding, axis_sizes(mesh)),
        tensor.dtype, print_split(tensor.shape, first.sharding, mesh), made_by, last_read, why,
    )  # fmt: skip
