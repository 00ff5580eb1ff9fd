"""Plans: the answer, complete enough to print, save, compare, edit by hand, check, and build the program from.

A plan holds the `Assignment` (what was decided), what it costs, how sure we are, and the tables that people and the page look at.
Every table entry is computed from the program that the plan determines, once (`api`); nobody adds to a plan later. Seconds and
bytes inside, always.
"""

from __future__ import annotations

from dataclasses import dataclass

from .choice import Assignment
from .chunk_times import ChunkTimes
from .node import Phase
from .registry import RuleRow
from .sharding import Sharding
from .tensor import Kind, count_batch

FORMAT = "autopar-plan-1"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model: `source` and `args` say how to make it again (`file.py:factory`), "" where it came as an object.

    `norm_turns`: so many microbatches have statistics of batch norm of their own; `sequences`: numbered containers whose entries are no blocks, and families of blocks numbered by their names (`Graph`).
    """

    name: str
    num_params: int
    graph_hash: str
    precision: str
    source: str = ""
    args: tuple[tuple[str, str], ...] = ()
    batch: int | None = None
    seq: int | None = None
    norm_turns: int = 1
    sequences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Which cluster: its text, and the figures that the plan was made with.

    `exposed_share`: of the seconds of a collective beside compute that lengthen the step all the same; 1: nothing hides.
    `measured`: the profile that was asked for, a file or a device's name; empty: what the cache has.
    """

    spec: str
    num_devices: int
    num_hosts: int
    device: str
    memory_bytes: int
    peak_flops: float
    memory_bytes_per_s: float
    inside_latency_s: float
    inside_bytes_per_s: float
    across_latency_s: float
    across_bytes_per_s: float
    source: str
    exposed_share: float = 1.0
    measured: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds bytes at the peak: parameters, gradients, optimizer, buffers, batch, activations, gathered, temporaries, reserve."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes held on one device while one program node runs, by holder (names as in `Holder`); used for the memory picture."""

    node: str
    phase: Phase
    bytes: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """One piece that a device holds at the peak.

    Args:
        tensor: the whole graph's value of which it is a piece; "" for the buffer through which a collective packs (`sharding` None).
        sharding: of this piece: of a gathered parameter not the one in which it is stored.
        holder: names as in `Holder`.
        bytes: with those of other microbatches in flight.
        made_by: node of the program; "" where it enters the step.
        last_read: node of the program after which it is dropped; "" where it is held to the end of the step.
        waiting_bytes: of other microbatches in flight, which wait for their backward pass; all of the bytes where this one holds nothing there.
    """

    tensor: str
    sharding: Sharding | None
    holder: str
    bytes: int
    made_by: str
    last_read: str
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Peak:
    """The node of the program at which one device holds most, where it comes from, and all that is held there but the reserve."""

    node: str
    phase: Phase
    path: str
    source: str
    tensors: tuple[PeakTensor, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one step costs, predicted. Tuples have one entry per pipeline stage.

    Args:
        under_way_bytes: what the program holds at most beside `peak_bytes`: tensors of collectives that are started early, as far as its device has room, arguments of
            kernels until they return, and on a CPU what other ranks sent for a reduction in pieces, the logits on which the loss works, and what matmuls, convolutions and casts copy.
    """

    step_s: float
    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    peak_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    activation_bytes: tuple[int, ...]
    under_way_bytes: tuple[int, ...]
    flops: float
    tokens_per_s: float | None
    mfu: float | None
    holders: tuple[Holder, ...]
    moments: tuple[Moment, ...]
    relative_error: float | None
    error_source: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """Something that the search did not try further, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good the answer is, for this cost model and this search space.

    Args:
        objective_s: predicted seconds of the chosen plan as the solver adds them.
        lower_bound_s: no plan of the search space is faster.
        gap: (objective - bound) / objective.
        search_space: what was searched, in one sentence.
    """

    objective_s: float
    lower_bound_s: float
    gap: float
    wall_s: float
    phases: tuple[tuple[str, float], ...]
    num_variables: int
    search_space: str
    pruned: tuple[Pruned, ...]


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One value of the whole graph: `bytes` are those of the piece on one rank, in its own sharding."""

    name: str
    kind: Kind
    version: int
    shape: tuple[int, ...]
    dtype: str
    stage: int
    sharding: Sharding
    bytes: int


@dataclass(frozen=True, slots=True)
class ParamPlan:
    """One parameter: how it is stored, how its final gradient and its optimizer states (all alike, or the first) are."""

    name: str
    param: Sharding
    grad: Sharding | None
    optim: Sharding | None
    shape: tuple[int, ...]
    param_bytes: int
    grad_bytes: int
    optim_bytes: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another strategy of a node: its choices, and what the node itself would cost (compute; neighbours unchanged in kind)."""

    choices: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node of the whole graph and what was decided for it."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    phase: Phase
    path: str
    source: str
    choices: tuple[str, ...]
    seconds: float
    flops: float
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommPlan:
    """One communication of the program: `value` is brought from one sharding to another because `reader` needs it there.

    `dtype`: what it sends. `hidden_s`: of its `seconds`, what hides behind compute and does not lengthen the step. `message`, `starts_at`, `waits_at`: as of `graph.sendings.Sending`.
    """

    name: str
    kind: str
    axis: str
    value: str
    reader: str
    phase: Phase
    source_sharding: Sharding
    target_sharding: Sharding
    bytes: int
    dtype: str
    seconds: float
    hidden_s: float
    message: str
    starts_at: str
    waits_at: str


@dataclass(frozen=True, slots=True)
class RepeatPlan:
    """A run of equal blocks: `family` (`transformer.h`), its phase, and for each block the names of its nodes, aligned."""

    family: str
    phase: Phase
    blocks: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a pipeline, on its own devices.

    Args:
        modules: the first and the last module of each chunk that it runs.
        num_params: elements of its parameters, whole.
        prepare_s, update_s: once a step. forward_s, backward_s: of one microbatch, all its chunks; weight_s: of the backward, what is for the
            weights alone and may wait.
        in_flight: microbatches between their forward and their backward, at most (of several chunks each counts as much as it keeps).
        holders, peak: who holds its peak, and when that is.
        axes: the roles of the mesh's axes on this stage (`dp`, `tp`), where they are not the same on all stages; else ().
        chunks: of forward_s, backward_s and weight_s what each chunk takes; () where there is one.
    """

    modules: tuple[str, ...]
    num_params: int
    prepare_s: float
    forward_s: float
    backward_s: float
    weight_s: float
    update_s: float
    in_flight: float
    holders: tuple[Holder, ...] = ()
    peak: Peak | None = None
    axes: tuple[str, ...] = ()
    chunks: tuple[ChunkTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a step runs in stages.

    Args:
        kind: of the schedule (`graph.schedules`).
        chunks: that each stage's devices run.
        starts: forward nodes at which the second and every later chunk begins; which stage runs which chunk says the
            schedule (`graph.schedules.known.chunk_ranks`).
        stages: in order.
    """

    kind: str
    chunks: int
    starts: tuple[str, ...]
    stages: tuple[StagePlan, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `rules` are those that are not in the table: stated by the user, or discovered. `peak`: None where no node runs.

    `constraints`: what the user demanded, one line each; `free_step_s`: the step without them, as the solver adds it, None where nobody asked.

    A plan in stages (`pipeline`): the mesh is that of each stage; nodes, tensors and comms are those of all stages; of the costs `compute_s`,
    `exposed_comm_s` and `bubble_s` are the average device's, so that they add up to the step; holders, moments and `peak`
    are those of the stage with the highest one.
    """

    format: str
    model: ModelInfo
    cluster: ClusterInfo
    assignment: Assignment
    num_stages: int
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    summary: str
    num_microbatches: int
    schedule: str
    cost: Cost
    solve: Certificate
    tensors: tuple[TensorPlan, ...]
    params: tuple[ParamPlan, ...]
    nodes: tuple[NodePlan, ...]
    comms: tuple[CommPlan, ...]
    repeats: tuple[RepeatPlan, ...]
    rules: tuple[RuleRow, ...] = ()
    peak: Peak | None = None
    constraints: tuple[str, ...] = ()
    free_step_s: float | None = None
    pipeline: Pipeline | None = None


def counted(plan: Plan) -> str:
    """What `tokens_per_s` counts: `tokens` or `samples`."""
    found = count_batch([(t.shape, t.dtype) for t in plan.tensors if t.kind is Kind.BATCH])
    return found[1] if found else "samples"
