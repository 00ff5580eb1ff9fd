"""The product's own prediction of a published run: its model traced, its recipe as constraints, its cluster, the search's cost model.

In: rows of throughput.csv. Out: a `Prediction`. What a row does not print stays free: the search takes the fastest. A run is predicted once; with a file
given, once for all calls (delete it after a change of the cost model). Nothing here knows what was measured.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from math import inf
from pathlib import Path

from autopar.constraints import SEQUENCE, Constraints
from benchmarks.fidelity_runs import Prediction, global_batch, is_close, row_of, schedule_of, sizes_of_run
from benchmarks.published import ImageRun, Run
from benchmarks.published_models import NNUNET, run_of_image, traced_model
from benchmarks.published_rows import NotExpressible, Row, cluster_of, constraints_of, precision_of, with_half_rates, with_tf32_rates, zero_of

# Megatron-LM before FlashAttention: attention multiplied out with a fused softmax (arXiv:2104.04473 section 4.2; arXiv:2205.05198 section 3), dropout
# in three places (its defaults). Zero Bubble is built on it, and does not say that --use-flash-attn was given; this was
# settled with its rows in sight (its smallest model is 26 % too fast with flash attention), so its small models say little about attention.
MEGATRON = {"ptdp", "seqpar", "zb", "mtnlg", "bloom"}
# The attention kernel of others: llm-foundry's benchmarks ran with `--attn_impl triton` (the default of
# scripts/train/benchmarking/submit_benchmarks.py, which
# its sweep.sh does not change); Megatron-Core's H100 runs and Llama 3 ran on Transformer Engine and FlashAttention of their time; torchtitan's of 2024 and 2025 on what
# torch's attention took then (`cost.attention`: before 2.11 FlashAttention-2).
ATTENTION = {"llmfoundry": "triton", "mcore_h100": "flash2", "llama3": "flash3", "torchtitan": "flash2"}
# Frameworks that ran op by op: MPT in eager mode, with the optimizer's ops over lists of tensors. Megatron-LM has kernels of its own for bias, GELU,
# dropout, residual, norms and softmax, and apex's fused Adam (arXiv:2104.04473 section 4.2). nnU-Net ran under PyTorch Lightning, with apex's fused Adam, too.
EAGER = {"llmfoundry", NNUNET}
_EAGER_FRAMEWORK = "HF + "  # Hugging Face's GPT-2 under its Trainer
_XLA_FRAMEWORK = "Alpa "  # its own runs, by jax and XLA; those of Megatron-LM and DeepSpeed beside them are named so
# FlashAttention has no kernels for it (Turing and later: Dao-AILab/flash-attention, README), so attention was multiplied out, whatever framework ran.
UNFUSED = "V100"
# Composer feeds every microbatch's logits to the model's train metrics, under its precision's autocast (`Trainer`, composer/trainer/trainer.py);
# llm-foundry's model
# has two (`ComposerMosaicGPT`, later `ComposerMPTCausalLM`: LanguageCrossEntropy, LanguagePerplexity), each a cross-entropy in float32: bytes of a logit that
# a cast (2 read, 4 written) and a log_softmax (4 and 4) move.
TRAIN_METRICS = {"llmfoundry": 2}
_METRIC_BYTES = 14
# All but these rerun a block whole under full recompute: Megatron-LM's CheckpointFunction, and torch.utils.checkpoint before its early stop (torch 2.1;
# llm-foundry's rows are of 1.13 and 2.0, by the images in sweep.sh).
EARLY_STOP = {"torchtitan"}
# DeepSpeed's ZeRO-3 of 2021 sends nothing beside compute unless `overlap_comm` is set: it was off by default, for all stages (`ZERO_OPTIMIZATION_OVERLAP_COMM_DEFAULT`,
# deepspeed/runtime/zero/constants.py), and the script of DeepSpeedExamples/Megatron-LM-v1.1.5-ZeRO3 does not set it, which BigScience ran
# (experiments/gpt2-meg-ds-zero/meg_ds_zero_gpt2_perf_n16.slurm); PTD-P says no more than that it is the authors' integration into Megatron. BigScience's runs by
# Hugging Face's Trainer set it (experiments/gpt2-hf-ds/hf_ds_gpt2_perf_n16.slurm).
# Nor did XLA: "Currently we don't support overlapping NCCL reductions with compute" (jax issue 4666, which Alpa's issue 31 wishes for; gathers and reduce-scatters beside compute came in 2023).
_HIDES_NOTHING = r"DeepSpeed ZeRO-3 no model parallel|Megatron \+ Deepspeed ZeRO|Alpa "
# Flags that hide the gradients' reduction and the parameters' gather behind the last backward and the next forward, as rows print them.
HIDES_ENDS = "--overlap-grad-reduce --overlap-param-gather"
# Megatron-Core sends gradients and parameters in buckets of so many elements at least, and as many millions as dp has ranks where that is more
# (`DistributedDataParallel`, megatron/core/distributed/distributed_data_parallel.py), of 2 bytes each.
_MCORE_BUCKET, _MCORE_BUCKET_A_RANK = 40_000_000, 1_000_000
# FSDP gathers and reduces what one wrapped module has as one message, and these wrap each block (llm-foundry: `fsdp_wrap_fn`, llmfoundry/models/mpt/modeling_mpt.py;
# torchtitan: `apply_fsdp`, torchtitan/parallelisms/parallelize_llama.py; Llama 3: FSDP with hints from the layers, arXiv:2407.21783 section 3.3.2), however large it is.
BLOCKS_AT_ONCE = {"llmfoundry", "torchtitan", "llama3"}
_WITHOUT_LIMIT = 2**50
# What Composer's `mixed_precision: DEFAULT` gives FSDP: parameters in the run's 16 bits, gradients reduced in float32 (`get_mixed_precision`, composer/trainer/mosaic_fsdp_utils.py); its
# PURE reduces in 16 bits, too. Rows print it behind the precision.
FLOAT32_GRADS = "/DEFAULT"
# They cut optimizer states as flat buffers, padded at the end: the distributed optimizer of Megatron-LM, Megatron-Core and what is built on it
# (`DistributedOptimizer`, megatron/core/optimizer/distrib_optimizer.py: ranges of the gradient buffer), DeepSpeed's ZeRO (`DeepSpeedZeroOptimizer`,
# deepspeed/runtime/zero/stage_1_and_2.py: flattened groups), FSDP's FlatParameter (llm-foundry). FSDP2 (torchtitan) cuts the first dim, unevenly where it must.
FLAT_STATES = {"mcore_h100", "mbridge", "nemo2407", "nemo_longseq", "mtnlg", "zero", "bigsci", "bloom", "llmfoundry", "torchtitan"}
# All whose rows have context parallelism (`balances_rows`) cut the sequence into twice as many blocks as ranks and give each rank one and its mirror image: Llama 3
# (arXiv:2407.21783 section 3.3.2), Megatron-Core and what is built on it (`get_batch_on_this_cp_rank`, megatron/core/utils.py), torchtitan (torch's
# `context_parallel`, whose load balance is on unless asked otherwise). Our own programs give each rank a run of neighbours, and the last one has most to do.
# Where more of the states' bytes than this stays whole here, ZeRO-1 in flat buffers is priced as our plan without ZeRO, its states cut afterwards: an
# all-reduce sends what a reduce-scatter of gradients and a gather of parameters send.
_MOST_WHOLE = 0.1
_BEYOND = 4  # times a device's memory: a limit for what does not fit
# What rows that print none ran by the configurations of their source: torchtitan's `train_configs/llama3_8b.toml` and the like keep activations op by op.
_CONFIG_RECOMPUTE = {"torchtitan": "selective, op by op"}
_ALL_CHUNKS = "vpp = max for 1F1B-I"  # a row's note: a chunk is one layer, and the first and last stage have one layer fewer
_SECONDS = 240.0  # for the search of one run, which ends long before: a limit of wall time that is reached makes a price one of the machine's load
# As a row names it, and as a constraint does. `_AUTO`: microbatches of a rank that fit, in ranks of the pipeline, where the order is searched (`zero_bubble`): stages are
# priced as for ZB-H1, and the order is found afterwards.
_SCHEDULES = {"1F1B": "1f1b", "1F1B-I": "interleaved", "ZB-V": "zbv", "ZB-1p": "zero-bubble", "ZB-2p": "zero-bubble", "ZB-2p*": "zero-bubble", "": ""}
_AUTO = {"ZB-1p": 1, "ZB-2p": 2, "ZB-2p*": 2}  # the star: with half of the microbatch, so that it holds what the others do (Qi et al. 2024, Table 6)
# All of ZB-* end their steps without waiting for each other: the norm of the gradients is looked at afterwards (Qi et al. 2024, section 4), so a step takes the
# longest span of a rank.
_UNSYNCED = "ZB-"
# Matmuls of 8 and 4 bits: (words of the precision column, times the 16-bit rate by the data sheets of H100, B200 and GB200). No kernel table has
# them. Casts and
# scales may eat all of the gain, or none: their seconds are the middle of both.
_NARROW = ((r"fp4", 4.0), (r"fp8|float8", 2.0))
# Scales by rows cost more than by tensors: of what these save of a step they save 0.52, as torchtitan's commit 7a04053 (January 2025) prints for Llama 3 8B on 8 H100:
# 5,760 tokens/s in bfloat16, 6,418 (of 6,412 and 6,424) by rows, 7,186 by tensors.
_BY_ROWS = (1 / 5760 - 1 / 6418) / (1 / 5760 - 1 / 7186)
# Stated errors, as shares of the prediction; the largest that holds for a run.
# - narrow matmuls: from the middle to no gain or to all of it is a third (8 bits) or 0.6 (4 bits) of a step of matmuls alone; and what 16-bit rows
#   have (90 % within 0.11).
# - a power limit: between a clock that falls with the watts, as predicted, and none that falls: 1 - 500 / 700; and the same 0.11.
# - anything else that is not judged closely (V100, frameworks that are not told): 90 % of published rows were within 0.48 before the habits of their
#   frameworks were
#   known to this file (docs/benchmarks.md).
_ROW_BAND, _POWER_BAND, _UNKNOWN_BAND = 0.11, 0.29, 0.48
# - runs whose source says how much one and the same run moves, beside that: BigScience's speed "can vary as much as 40 %" with the traffic of others (experiments/gpt2.md: one run
#   took 125, 129, 217 and 225 s), so seconds of up to 1 / (1 - 0.4).
_SPEED_NOISE = {"bigsci": 0.40}


@dataclass(slots=True)
class SearchPredictor:
    """Predicts runs; keeps what it traced and predicted.

    Args:
        path: of a file of predictions; None: nowhere.
        rows: only runs whose id matches are predicted.
    """

    path: Path | None = None
    rows: str = "*"
    known: dict[str, Prediction] = field(default_factory=dict)
    case: tuple[object, object] | None = None

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():
            self.known = {k: Prediction(**v) for k, v in json.loads(self.path.read_text()).items()}

    def __call__(self, run: Run | ImageRun) -> Prediction:
        if run.row_id not in self.known and not fnmatch(run.row_id, self.rows):
            return Prediction(why="not asked for")
        if run.row_id not in self.known:
            self.known[run.row_id] = self._predict_row(run)
            if self.path is not None:
                part = self.path.with_suffix(".part")
                part.write_text(json.dumps({k: asdict(v) for k, v in self.known.items()}, indent=1))
                part.replace(self.path)
        return self.known[run.row_id]

    def _predict_row(self, run: Run | ImageRun) -> Prediction:
        try:
            return self._predict(run if isinstance(run, Run) else run_of_image(run))
        except NotExpressible as error:
            return Prediction(why=str(error).splitlines()[0])
        except LookupError as error:  # a fault of the search: the row says so, and the others are asked all the same
            return Prediction(why=f"the search failed: {type(error).__name__}: {error}")

    def _predict(self, run: Run) -> Prediction:
        from autopar.cost.buckets import bucketed_model
        from autopar.constraints import constrain, merge_constraints, parse_fix
        from autopar.cost.measured_file import list_packaged, load_packaged
        from autopar.cost.model import CostModel, at_level, build_cost_model
        from autopar.errors import AutoparError
        from autopar.solver.layout_cases import LayoutCases
        from autopar.solver.layout_guess import cut_evenly
        from autopar.solver.pipeline import PipelineSearch

        schedule = schedule_of(run)
        if schedule not in _SCHEDULES:
            return Prediction(why=f"schedule {schedule} is not built here")
        try:
            row = row_of(run)
            constraints, cluster = constraints_of(row), cluster_of(row)
            if schedule and constraints.vpp is None:
                constraints = merge_constraints(constrain(schedule=_SCHEDULES[schedule]), constraints)
            if schedule == "1F1B-I" and _ALL_CHUNKS in run.notes and run.layers and run.pp:
                constraints = merge_constraints(parse_fix(f"vpp={(run.layers + 2) // run.pp}"), constraints)
            model = replace(build_cost_model(cluster), whole_blocks=run.source_id not in EARLY_STOP, hides_ends=HIDES_ENDS in run.zero_stage, flat_states=run.source_id in FLAT_STATES, balances_rows=True)
            if run.source_id in ATTENTION and model.rates is not None:
                model = replace(model, attention=ATTENTION[run.source_id])
            if run.source_id == "mcore_h100" and run.dp:
                size = 2 * max(_MCORE_BUCKET, _MCORE_BUCKET_A_RANK * run.dp)
                model = replace(model, bucket_bytes=size, state_bucket_bytes=size)
            if run.source_id in EAGER or run.framework.startswith(_EAGER_FRAMEWORK):
                model = replace(model, fuses=False)
            if run.framework.startswith(_XLA_FRAMEWORK):
                model = replace(model, sums_end_kernels=True)
            if re.match(_HIDES_NOTHING, run.framework):
                model = replace(model, exposed_share=1.0)
            if run.source_id == "llmfoundry" and FLOAT32_GRADS in run.precision:
                model = replace(model, grad_width=2)
            model = with_half_rates(model, narrow_share(run))
            if run.precision == "tf32":
                model = with_tf32_rates(model)
            case = self._case(row, run.source_id in MEGATRON or UNFUSED in run.hardware)
            if run.source_id in BLOCKS_AT_ONCE:
                model = replace(bucketed_model(model, case.graph), bucket_bytes=_WITHOUT_LIMIT, state_bucket_bytes=_WITHOUT_LIMIT)
            limit = cluster.device.memory_bytes - model.reserve_bytes

            def search_for(asked: Constraints, limits: tuple[float, ...], model: CostModel = model) -> PipelineSearch:
                for bytes_allowed in limits:  # what does not fit has a time all the same
                    search = PipelineSearch(
                        LayoutCases(case, asked), model, bytes_allowed, time.monotonic() + _SECONDS, lambda line: None, plain_too=True, price_only=True,
                        cut=cut_evenly,
                    )  # fmt: skip
                    search.run(inf)
                    if search.best is not None:
                        break
                return search

            asked, limits = constraints, (limit, _BEYOND * limit)
            search = search_for(asked, limits)
            if search.best is not None and constraints.zero == 1 and model.flat_states and _whole_share(search.best.stages[0]) > _MOST_WHOLE:
                asked, limits = replace(constraints, zero=0), (_BEYOND * limit,)
                search = search_for(asked, limits)
                if search.best is not None:  # what is left free fits beside the states as they are cut
                    limits = (limit + max(map(_cut_bytes, search.best.stages)), *limits)
                    search = search_for(asked, limits)
            measured = is_close(run) and cluster.device.name in list_packaged() and search.best is not None
            slower = search_for(asked, limits, at_level(model, load_packaged(cluster.device.name))).best if measured else None
        except (AutoparError, NotExpressible) as error:
            return Prediction(why=str(error).splitlines()[0])
        if search.best is None:
            return Prediction(why="; ".join(f"{p.what}: {p.why}" for p in list(search.pruned)[:2]) or "no plan was found")
        peak = max(_peak_bytes(stage, model, run) for stage in search.best.stages) + side_bytes(run)
        reserved = peak + model.reserve_bytes
        seconds, scaled_s = (None if best is None else _whole_seconds(best, run, model.memory_bytes_per_s) for best in (search.best, slower))
        layout = _print_layout(search.best.layout)
        if _AUTO.get(schedule, 1) > 1:
            why = "its memory counts on what an input gradient gives back, which stays here until the weights' gradient"
            return Prediction(seconds, scaled_s, band_of(run), why=why)
        again = row.get("recompute") or _CONFIG_RECOMPUTE.get(run.source_id)
        if again and constraints.recompute is None:  # it was left free, so the memory is that of our choice
            why = f"recompute {again!r} has no word among the constraints; {layout}"
            return Prediction(seconds, scaled_s, band_of(run), why=why)
        if constraints.zero and dict(constraints.degrees).get(SEQUENCE, 1) > 1:
            return Prediction(seconds, scaled_s, band_of(run), why=f"its states are cut among the ranks of dp and cp together, and zero is about those of dp; {layout}")
        return Prediction(seconds, scaled_s, band_of(run), peak, reserved, reserved <= cluster.device.memory_bytes, layout)

    def _case(self, row, as_megatron: bool):  # noqa: ANN001, ANN202 - torch is imported inside
        from autopar.graph.case import build_case
        from autopar.trace import trace_step

        precision = "bf16" if narrow_gain(row) > 1 else precision_of(row)
        traced = traced_model(row, as_megatron)
        key = (traced.sizes, precision, as_megatron)
        if self.case is None or self.case[0] != key:
            self.case = (key, build_case(trace_step(traced.build(), precision).graph))
        return self.case[1]


def _whole_seconds(best, run: Run, memory_bytes_per_s: float) -> float:  # noqa: ANN001
    """Seconds of a step as the run's framework makes it."""
    together_s = _together_seconds(best, run) if schedule_of(run).startswith(_UNSYNCED) else 0.0
    return best.step_s + side_seconds(run, memory_bytes_per_s) - together_s


def side_seconds(run: Run, memory_bytes_per_s: float) -> float:
    """Seconds of a step beside the training itself: metrics of the logits on every device."""
    metrics, batch = TRAIN_METRICS.get(run.source_id, 0), global_batch(run)
    if not metrics or not batch or not run.seq_len or not run.n_gpus:
        return 0.0
    return metrics * _METRIC_BYTES * batch * run.seq_len / run.n_gpus * sizes_of_run(run).vocab / memory_bytes_per_s


def side_bytes(run: Run) -> int:
    """Bytes that Megatron-LM holds beside its tensors where attention is multiplied out: the scores of one microbatch, which `baddbmm` asks for as an input and
    which stay (`CoreAttention`, megatron/model/transformer.py: `get_global_memory_buffer().get_tensor(..., "mpu")`)."""
    if run.source_id not in MEGATRON or not run.micro_bs or not run.heads or not run.seq_len:
        return 0
    return 2 * run.micro_bs * run.heads // (run.tp or 1) * run.seq_len**2


def narrow_gain(run: Run | Row) -> float:
    """How many times faster its matmuls are than those of 16 bits at most; 1: they are not narrower."""
    said = (run.precision if isinstance(run, Run) else run.get("precision")).lower()
    return next((gain for words, gain in _NARROW if re.search(words, said)), 1.0)


def narrow_share(run: Run) -> float:
    """Of the seconds of its matmuls in 16 bits, what they take."""
    saved = (1 - 1 / narrow_gain(run)) / 2
    return 1 - saved * (_BY_ROWS if "rowwise" in run.precision.lower() else 1.0)


def band_of(run: Run) -> float | None:
    """The stated error; None of a closely judged run."""
    if is_close(run):
        return None
    gain = narrow_gain(run)
    narrow = (gain - 1) / (gain + 1) + _ROW_BAND if gain > 1 else 0.0
    power = _POWER_BAND + _ROW_BAND if re.search(r"\d+W\b|power limited", run.hardware) else 0.0
    return (1 + (max(narrow, power) or _UNKNOWN_BAND)) / (1 - _SPEED_NOISE.get(run.source_id, 0.0)) - 1


def _together_seconds(best, run: Run) -> float:  # noqa: ANN001
    """Seconds that a step is shorter than as searched: no rank waits for all to begin or end it, and an automatic order is another one.

    The order is found as the paper's code finds it, with one stage's seconds for all (sail-sg/zero-bubble-pipeline-parallelism, megatron/core/pipeline_parallel:
    `ScheduleTimers.joint_conclusion` "maybe an all-reduce here to collect global stats?"); it then runs with each stage's own. A middle stage stands for all.
    """
    from autopar.graph.chunk_times import chunk_durations
    from autopar.graph.schedules.known import build_order
    from autopar.graph.schedules.timeline import simulate
    from autopar.solver.layouts import layout_ranks
    from benchmarks.zero_bubble import Passes, build_grid, kept_share, longest_span

    layout, limit = best.layout, _AUTO.get(schedule_of(run))
    stages, count = layout.place.num_stages, layout.num_microbatches
    times = chunk_durations([stage.times for stage in best.stages], layout_ranks(layout), True)
    order = build_order(layout.schedule, stages, count, layout.chunks)
    searched_s = simulate(order, times).makespan_s
    if limit is not None and stages > 1 and run.hidden and run.heads and run.seq_len:
        kept = kept_share(run.hidden, run.heads, run.seq_len)
        middle = best.stages[stages // 2].times
        passes = Passes(middle.forward_s, middle.backward_s - middle.weight_s, middle.weight_s, kept)
        order = build_order(build_grid([passes] * stages, count, limit * stages), stages, count)
    return searched_s - longest_span(order, times)


def _peak_bytes(stage, model, run: Run) -> float:  # noqa: ANN001
    """The most that a device of a stage holds, as the run's framework holds it: states that do not divide cut where it cuts them (`habits.flat_states_bytes`),
    gradients of Alpa sent at once; of torchtitan without stages what its allocator reserves, which is what it prints."""
    from autopar.solver.stage_solve import stage_program
    from benchmarks.allocator import reserved_bytes
    from benchmarks.alpa import combined_bytes
    from benchmarks.fsdp2 import list_pieces

    if stage.memory is None:
        return 0.0
    if not model.flat_states and run.source_id != "alpa":
        return stage.memory.peak_bytes
    program = stage_program(stage.case, stage.assignment)[1]
    if run.source_id == "alpa":
        return max(stage.memory.peak_bytes, combined_bytes(program, zero_of(row_of(run)) != 3))
    if run.source_id == "torchtitan" and (run.pp or 1) == 1 and zero_of(row_of(run)) == 3:
        return reserved_bytes(list_pieces(program))
    return stage.memory.peak_bytes - _cut_bytes(stage)


def _cut_bytes(stage) -> float:  # noqa: ANN001
    """What a device of a stage holds less for flat buffers of its states."""
    from autopar.cost.habits import flat_states_bytes
    from autopar.solver.role_meshes import data_axes
    from autopar.solver.stage_solve import stage_program

    program = stage_program(stage.case, stage.assignment)[1]
    return flat_states_bytes(program, data_axes(program.mesh))


def _whole_share(stage) -> float:  # noqa: ANN001
    """Of the bytes of optimizer states that a device of a stage holds, the share that flat buffers would save, and that of states in chunks which do not divide:
    what such a framework sends is that of its flat buffers, whatever divides."""
    from autopar.cost.habits import flat_states_bytes
    from autopar.graph.sharding import is_uneven
    from autopar.graph.tensor import Kind, size_bytes
    from autopar.solver.role_meshes import data_axes
    from autopar.solver.stage_solve import stage_program

    program = stage_program(stage.case, stage.assignment)[1]
    states = [v for v in program.graph.values if v.kind is Kind.OPTIM and v.version == 0]
    shardings = {name: sharding for name, _, sharding in program.shardings}
    uneven = sum(size_bytes(v) for v in states if is_uneven(shardings[v.name]))
    return (flat_states_bytes(program, data_axes(program.mesh)) + uneven) / max(1, sum(map(size_bytes, states)))


def _print_layout(layout) -> str:  # noqa: ANN001
    from autopar.solver.layouts import print_layout

    return print_layout(layout)
