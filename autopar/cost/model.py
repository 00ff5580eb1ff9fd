"""The cost model: the figures of one device of a cluster and of its links, with the shares that are reached already taken.

In: a `Cluster`, and the rows that `autopar profile` measured where there are any. Out: a `CostModel`. `cost.ops` prices an op with it, `cost.wires` what
is sent, `cost.estimate` a program; the solver asks the same two, so that what chooses and what reports agree. Pure and torch-free; nothing here is fitted
to a step time. `docs/design/cost.md` says what is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..cluster import Cluster, Device, ports_per_device
from ..graph.messages import BUCKET_BYTES
from .attention import default_attention
from .calibrated import calibrate
from .comm_table import CommTable, comm_table
from .device_rates import find_device_rates, nominal_flops
from .matmul import MatmulRates
from .measured import MeasuredRows, measured_rows
from .rows import ProfileRows, measured_device, measured_link

# What a matmul of a GPU that no kernel table knows reaches of its nominal peak: the H100's level in `cost.matmul`.
_OTHER_MATMUL_SHARE = 695.7 / 989
# The bytes term that fitted best out of sample against published kernel times is bytes / (0.9 x bandwidth).
_MEMORY_SHARE = 0.9
# Bytes that a device cannot give to tensors: CUDA context, cuBLAS and NCCL buffers, allocator rounding (assumption; 0.5-1.5 GiB are seen).
_RESERVE_BYTES = {"cpu": 0, "cuda": 2**30}
# What one bucket of small gradients or parameters holds: torch's `DistributedDataParallel(bucket_cap_mb=25)`; FSDP's flat parameter of a
# transformer block is larger. 0: as much as a block of the model has (`cost.buckets`).
_BUCKET_BYTES = {"cpu": 0, "cuda": BUCKET_BYTES}
# Share of a collective that lengthens the step although it runs beside compute: it takes multiprocessors and memory bandwidth from the
# kernels. Of 506 published rows, those with FSDP fit best where about half of the hidden communication still costs; a perfect
# max(compute, comm) is wrong. Processes on the cores of one machine compute and send with the same cores: nothing hides.
_EXPOSED_SHARE = {"cpu": 1.0, "cuda": 0.5}


@dataclass(frozen=True, slots=True)
class CostModel:
    """The figures that predictions use, with the shares already taken.

    Args:
        cluster: with measured figures in place of presets where there are any.
        flops_per_s: (dtype, reached matmul rate).
        memory_bytes_per_s: reached.
        launch_s: of one kernel.
        links: prices of collectives.
        reserve_bytes: that tensors cannot have.
        source: one line for people.
        bucket_bytes: of gradients that travel together; 0: each travels alone.
        state_bucket_bytes: of states that do. On a CPU none do as a rule: often a few small states of a block are in pieces, and their message is not full (`buckets.bucketed_model`).
        block_elements: that a block has of states, and of gradients (`buckets.bucketed_model`): no more of them travel together; 0: not known.
        vector_elements: that a block has of gradients of vectors (norms, biases); 0: not known, or none.
        exposed_share: of the seconds of a collective beside compute that lengthen the step all the same; 1: nothing hides.
        rates: of matmuls by shape; None: a matmul takes FLOPs / rate.
        attention: its kernel, where `rates` has any (`attention.list_attention_kernels`).
        fuses: pointwise ops and norms in a row run as one kernel (`graph.fusion`).
        sums_end_kernels: each sum along rows ends a kernel, and what needs it reads the rows again (`row_sums`): XLA before 2023, and on a V100; else a softmax or a norm is
            one kernel, as in our programs.
        whole_blocks: full recompute runs the forward pass of a block whole, as `torch.utils.checkpoint` (before its early stop) and Megatron-LM do; else only
            what the backward pass reads, as our programs do.
        hides_ends: what is sent when the turns are over (gradients that were added up, new parameters) runs beside the last backward, and the first forward of
            the next step, as Megatron-LM's `--overlap-grad-reduce` and `--overlap-param-gather` have it; else it is waited for, as in our programs.
        flat_states: optimizer states are cut along dp as one flat buffer, whatever their dims, as Megatron-LM's distributed optimizer has them; else a state whose
            dims do not divide stays whole, as in our programs.
        balances_rows: where the rows of causal attention are split, each rank has as many early ones as late ones (Megatron-Core's context parallelism: a block
            and its mirror image); else a run of neighbours, as in our programs, and the last rank has the most to do.
        grad_width: bytes sent of a gradient for each that it has: 2 where 16-bit gradients are cast to float32 and summed so (FSDP's `reduce_dtype`); our programs send them as they are.
            The casts hide as the sending does. For gradients of 16 bits and collectives that nobody measured here: not where rows of `autopar profile` price them.
        nics: ports per host that a group drives, whoever else sends; None: its ranks' share of them (`links.ports`).
        stage_per_host: 2 where a pipeline stage and the next are on one host, 1 where not; 0: there is one stage (`staged_model`).
        measured: rows of `autopar profile`, which price what they know; the figures above price the rest.
    """

    cluster: Cluster
    flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes_per_s: float
    launch_s: float
    links: CommTable
    reserve_bytes: int
    source: str
    bucket_bytes: int
    state_bucket_bytes: int
    exposed_share: float
    rates: MatmulRates | None = None
    attention: str = ""
    fuses: bool = False
    sums_end_kernels: bool = False
    whole_blocks: bool = False
    hides_ends: bool = False
    flat_states: bool = False
    balances_rows: bool = False
    grad_width: int = 1
    block_elements: tuple[int, int] = (0, 0)
    vector_elements: int = 0
    nics: int | None = None
    stage_per_host: int = 0
    measured: MeasuredRows | None = None


def build_cost_model(cluster: Cluster, rows: ProfileRows | None = None) -> CostModel:
    """The model of a cluster.

    Args:
        rows: measured on this machine, for `cpu` devices at this cluster's number of ranks per host; on a GPU of this kind (`measured_file.find_measured`), for the level of its matmuls and
            its memory (`calibrated`).
    """
    device, inside, across, measured = cluster.device, cluster.inside, cluster.across, None
    if rows is not None and device.kind == "cpu" and device.name == "cpu":
        ranks = cluster.devices_per_host
        device = measured_device(rows, device, ranks)
        measured = measured_rows(rows, ranks, device.launch_s, device.memory_bytes_per_s)
        if inside.name == "loopback":
            inside = measured_link(rows, inside, ranks)
        cluster = replace(cluster, device=device, inside=inside)
    nominal = device.kind == "cuda"
    rates = find_device_rates(device) if nominal else None
    share = _OTHER_MATMUL_SHARE if nominal and rates is None else 1.0
    model = CostModel(
        cluster,
        rates.flops_per_s if rates is not None else nominal_flops(device, share),
        device.memory_bytes_per_s * (_MEMORY_SHARE if nominal else 1.0),
        device.launch_s,
        comm_table(device.name, inside, across, ports=ports_per_device(cluster)),
        _RESERVE_BYTES[device.kind],
        _print_source(device, rates) + f"; inside: {inside.source}" + _print_across(cluster),
        _BUCKET_BYTES[device.kind],
        _BUCKET_BYTES[device.kind],
        _EXPOSED_SHARE[device.kind],
        rates,
        default_attention(rates.name) if rates is not None else "",
        nominal,
        measured=measured,
    )
    return at_level(model, rows) if rows is not None and rates is not None and rows.machine.device != "cpu" else model


def at_level(model: CostModel, profile: ProfileRows) -> CostModel:
    """The model of GPUs with matmuls and memory at the level of a profile of such a one."""
    assert model.rates is not None
    level = calibrate(model.rates, profile)
    return replace(
        model, rates=level.rates, flops_per_s=level.rates.flops_per_s, memory_bytes_per_s=level.memory_bytes_per_s or model.memory_bytes_per_s, source=f"{model.source}; {level.source}"
    )  # fmt: skip


def _print_across(cluster: Cluster) -> str:
    if cluster.num_hosts == 1:
        return ""
    shared = "" if cluster.nics is None else f" ({cluster.nics} for the {cluster.devices_per_host} devices of a host)"
    return f"; across: {cluster.across.source}{shared}"


def _print_source(device: Device, rates: MatmulRates | None) -> str:
    return device.source if rates is None else f"{device.source}; matmuls: {rates.source}"


def staged_model(model: CostModel, num_stages: int, num_ranks: int) -> CostModel:
    """The model of a cluster whose devices are divided among pipeline stages, in order: what is received comes from the same place of another stage.

    Args:
        num_ranks: of the cluster. A stage boundary crosses hosts unless all stages are on one.
    """
    if num_stages == 1:
        return model
    return replace(model, stage_per_host=2 if num_ranks <= model.cluster.devices_per_host else 1)


def matmul_flops_per_s(model: CostModel, dtype: str) -> float:
    """Reached matmul rate; a dtype without a figure runs as float32, and float32 without one at the slowest."""
    rates = dict(model.flops_per_s)
    return rates.get(dtype) or rates.get("float32") or min(rates.values())
