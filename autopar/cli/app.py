"""The commands as typer declares them: names, flags, help. What they do is in `commands`, how they end in `outcome`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Optional

import typer

from .. import __version__
from ..zoo import CLUSTERS, MODEL_LIMIT_S, TIME_LIMIT_S, ZooOptions
from . import commands
from .asked import list_given, read_asked, read_constraints, read_options
from .outcome import INTERRUPTED, Ending
from .profiling import measure_machine

app = typer.Typer(
    name="autopar",
    help="Decide how a PyTorch training step is split over a cluster, prove how good the answer is, and emit the distributed program.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="file.py:factory, or a Hugging Face config.json")]
ClusterFlag = Annotated[str, typer.Option("--cluster", help="cpu:4, 2x8xH100-80GB (hosts x devices x type), or a TOML file", metavar="C")]
MaybeCluster = Annotated[Optional[str], typer.Option("--cluster", help="as for plan; a PLAN has its own", metavar="C")]
Memory = Annotated[Optional[str], typer.Option("--memory", help="limit per device, as 2GiB or 512MB; default: the device's own", metavar="SIZE")]
Precision = Annotated[Optional[str], typer.Option("--precision", help="fp32, bf16, fp16 or fp64; default: bf16 on GPUs, fp32 on cpu", metavar="P")]
Batch = Annotated[Optional[int], typer.Option("--batch", help="global batch size, instead of the factory's own", metavar="N")]
Seq = Annotated[Optional[int], typer.Option("--seq", help="sequence length, instead of the factory's own", metavar="N")]
Args = Annotated[Optional[list[str]], typer.Option("--arg", help="argument of the factory, or field of the config; repeatable", metavar="K=V")]
TimeLimit = Annotated[Optional[float], typer.Option("--time-limit", help="seconds for the solver; then the best so far and its gap", metavar="S")]
Fix = Annotated[Optional[str], typer.Option("--fix", help="what the plan must be: dp=4,tp=2,zero=1,recompute=none,...; the rest stays free", metavar="K=V,..")]
ConstraintFile = Annotated[Optional[str], typer.Option("--constraints", help="the same and finer ones in a TOML file (docs/constraints.md)", metavar="F")]
Local = Annotated[
    Optional[str], typer.Option("--local", help="what ranks run between collectives: kernels of our own, torch.compile, or op by op", metavar="kernels|inductor|ops")
]
CudaGraph = Annotated[bool, typer.Option("--cuda-graph", help="on GPUs capture the step once and replay it")]
Batchnorm = Annotated[
    Optional[str], typer.Option("--batchnorm", help="statistics of the whole batch, or of each microbatch (needs --fix microbatches=N)", metavar="batch|microbatch")
]
Measured = Annotated[
    Optional[str], typer.Option("--measured", help="price at the level of this profile: a file, or a GPU measured for the package (H100-80GB, H200-141GB); default: the cache's", metavar="F|GPU")
]
Dump = Annotated[Optional[str], typer.Option("--dump", help="folder for each stage of the compiler as numbered text", metavar="DIR")]
Html = Annotated[Optional[str], typer.Option("--html", help="write the plan as one page that opens offline", metavar="F")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout and nothing else")]


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="print the version and exit", is_eager=True)] = False) -> None:
    """What stands before the command."""
    if version:
        print(f"autopar {__version__}")
        raise typer.Exit(0)


@app.command()
def plan(
    model: Model,
    cluster: ClusterFlag,
    memory: Memory = None,
    precision: Precision = None,
    batch: Batch = None,
    seq: Seq = None,
    arg: Args = None,
    time_limit: TimeLimit = None,
    output: Annotated[Optional[str], typer.Option("-o", "--output", help="write plan.json", metavar="plan.json")] = None,
    html: Html = None,
    fix: Fix = None,
    constraints: ConstraintFile = None,
    batchnorm: Batchnorm = None,
    measured: Measured = None,
    no_price: Annotated[bool, typer.Option("--no-price", help="do not solve again to tell what constraints cost, or what would fit")] = False,
    dump: Dump = None,
    as_json: Json = False,
) -> int:
    """Decide how to split MODEL over a cluster; needs no GPU and no memory for weights."""
    asked = read_asked(model, arg or (), batch, seq)
    options = read_options(
        memory, precision, time_limit, dump, constraints=read_constraints(fix, constraints), price=not no_price, batchnorm=batchnorm, measured=measured,
    )  # fmt: skip
    return Ending(as_json).answer(lambda say: commands.make_plan(asked, cluster, options, output, html, say))


@app.command()
def show(plan: Annotated[str, typer.Argument(metavar="PLAN", help="a plan.json")], html: Html = None, as_json: Json = False) -> int:
    """Print a plan, checked."""
    return Ending(as_json).answer(lambda say: commands.show_plan(plan, html))


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="a plan.json")],
    second: Annotated[str, typer.Argument(metavar="B", help="another one, of the same model and cluster or not")],
    as_json: Json = False,
) -> int:
    """Compare two plans: time and memory first, then what was decided otherwise."""
    return Ending(as_json).answer(lambda say: commands.compare_plans(first, second))


@app.command()
def explain(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="a plan.json")],
    name: Annotated[Optional[str], typer.Argument(metavar="NAME", help="a parameter, tensor or op, whole, its end, or with *")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="who holds the peak, when, and why")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="only what the plan has; do not solve again with each alternative")] = False,
    time_limit: Annotated[Optional[float], typer.Option("--time-limit", help="seconds for each alternative; default: 10", metavar="S")] = None,
    as_json: Json = False,
) -> int:
    """Say what a plan chose for NAME and what each alternative would cost, or who holds its memory."""
    return Ending(as_json).answer(lambda say: commands.explain_plan(plan, name, memory, quick, time_limit, say))


@app.command()
def trace(
    model: Model,
    precision: Annotated[Optional[str], typer.Option("--precision", help="fp32, bf16, fp16 or fp64; default: fp32", metavar="P")] = None,
    batch: Batch = None,
    seq: Seq = None,
    arg: Args = None,
    ranks: Annotated[int, typer.Option("--ranks", help="among how many ranks the work is to be divided", metavar="N")] = 8,
    html: Annotated[Optional[str], typer.Option("--html", help="write the graph and its factors as one page that opens offline", metavar="F")] = None,
    as_json: Json = False,
) -> int:
    """Show what the step of MODEL offers before any plan: what may be split how far, what waits for what, what is rewritten where."""
    asked = read_asked(model, arg or (), batch, seq)
    options = read_options(None, precision, None, None)
    return Ending(as_json).answer(lambda say: commands.trace_model(asked, options, ranks, html, say))


@app.command()
def emit(
    word: Annotated[str, typer.Argument(metavar="MODEL|PLAN", help="a model as for plan, or a plan.json")],
    output: Annotated[str, typer.Option("-o", "--output", help="folder to write the program into", metavar="DIR")],
    cluster: MaybeCluster = None,
    memory: Memory = None,
    precision: Precision = None,
    batch: Batch = None,
    seq: Seq = None,
    arg: Args = None,
    time_limit: TimeLimit = None,
    fix: Fix = None,
    constraints: ConstraintFile = None,
    batchnorm: Batchnorm = None,
    measured: Measured = None,
    local: Local = None,
    cuda_graph: CudaGraph = False,
    dump: Dump = None,
    as_json: Json = False,
) -> int:
    """Write the program as a folder of readable Python: program.py, kernels.py, train.py, plan.json."""
    given = list_given(
        cluster=cluster, memory=memory, precision=precision, batch=batch, seq=seq, arg=arg, time_limit=time_limit, fix=fix, constraints=constraints,
        batchnorm=batchnorm, measured=measured,
    )  # fmt: skip
    asked = read_asked(word, arg or (), batch, seq)
    options = read_options(
        memory, precision, time_limit, dump, constraints=read_constraints(fix, constraints), price=False, batchnorm=batchnorm, local=local,
        cuda_graph=cuda_graph, measured=measured,
    )  # fmt: skip
    return Ending(as_json).answer(lambda say: commands.emit_program(word, asked, cluster, options, given, output, say))


@app.command()
def simulate(
    word: Annotated[str, typer.Argument(metavar="MODEL|PLAN", help="a model as for plan, or a plan.json")],
    cluster: MaybeCluster = None,
    memory: Memory = None,
    precision: Precision = None,
    batch: Batch = None,
    seq: Seq = None,
    arg: Args = None,
    time_limit: TimeLimit = None,
    fix: Fix = None,
    constraints: ConstraintFile = None,
    batchnorm: Batchnorm = None,
    measured: Measured = None,
    trace: Annotated[Optional[str], typer.Option("--trace", help="write the step for Perfetto or chrome://tracing", metavar="F")] = None,
    against: Annotated[
        Optional[str], typer.Option("--against", help="print it beside what `autopar run` measured, line by line", metavar="run.json")
    ] = None,
    as_json: Json = False,
) -> int:
    """Replay one step, of a plan or of MODEL under your own recipe: when what runs, where the seconds go."""
    given = list_given(
        cluster=cluster, memory=memory, precision=precision, batch=batch, seq=seq, arg=arg, time_limit=time_limit, fix=fix, constraints=constraints,
        batchnorm=batchnorm, measured=measured,
    )  # fmt: skip
    asked = read_asked(word, arg or (), batch, seq)
    options = read_options(memory, precision, time_limit, None, constraints=read_constraints(fix, constraints), price=False, batchnorm=batchnorm, measured=measured)
    return Ending(as_json).answer(lambda say: commands.simulate_step(word, asked, cluster, options, given, trace, against, say))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="a folder that emit wrote; what follows goes to its train.py (--steps 10)")],
    record: Annotated[Optional[str], typer.Option("--record", help="file for what the steps took and held; default: DIR/run.json", metavar="F")] = None,
    no_record: Annotated[bool, typer.Option("--no-record", help="record nothing")] = False,
    profile: Annotated[Optional[str], typer.Option("--profile", help="file for a trace of one step with the program's own names, for Perfetto", metavar="F")] = None,
    as_json: Json = False,
) -> int:
    """Start an emitted program on this machine, one process per rank (torchrun), and record what its steps take."""
    words = list(context.args)
    return Ending(as_json).answer(lambda say: commands.run_program(directory, words, record, no_record, profile, as_json, say))


@app.command()
def verify(
    model: Model,
    cluster: ClusterFlag,
    memory: Annotated[
        Optional[str], typer.Option("--memory", help="limit per device as for plan in fp32; float64 gets twice as much", metavar="SIZE")
    ] = None,
    batch: Batch = None,
    seq: Seq = None,
    arg: Args = None,
    time_limit: TimeLimit = None,
    fix: Fix = None,
    constraints: ConstraintFile = None,
    batchnorm: Batchnorm = None,
    dump: Dump = None,
    seed: Annotated[int, typer.Option("--seed", help="of first values and random inputs", metavar="N")] = 0,
    random_plans: Annotated[
        int, typer.Option("--random-plans", help="also draw and compare so many random legal plans: any plan must be right", metavar="N", min=0)
    ] = 0,
    as_json: Json = False,
) -> int:
    """Run the program of MODEL on all ranks in one process, in float64, against plain PyTorch."""
    asked = read_asked(model, arg or (), batch, seq)
    options = read_options(memory, "fp64", time_limit, dump, seed, read_constraints(fix, constraints), price=False, batchnorm=batchnorm)
    return Ending(as_json).answer(lambda say: commands.verify_model(asked, cluster, options, random_plans, say))


@app.command()
def zoo(
    models: Annotated[
        Optional[list[str]], typer.Argument(metavar="FILE|FILE:NAME", help="files of factories; default: tests/zoo of the checkout")
    ] = None,
    cluster: Annotated[str, typer.Option("--cluster", help="to verify on", metavar="C")] = CLUSTERS[0],
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="compare each program with plain PyTorch")] = True,
    plan_for: Annotated[
        Optional[list[str]], typer.Option("--plan-for", help=f"repeatable; default: {', '.join(CLUSTERS)}", metavar="C")
    ] = None,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="leave the plans out")] = False,
    time_limit: Annotated[float, typer.Option("--time-limit", help="seconds for the solver, for each plan", metavar="S")] = TIME_LIMIT_S,
    model_limit: Annotated[float, typer.Option("--model-limit", help="seconds for each model, all in all", metavar="S")] = MODEL_LIMIT_S,
    jobs: Annotated[int, typer.Option("--jobs", help="models at the same time", metavar="N")] = 1,
    as_json: Json = False,
) -> int:
    """Trace, plan and verify many models, each in its own process, and print the table; ends with 1 if one fails."""
    clusters = () if no_plan else tuple(plan_for or CLUSTERS)
    options = ZooOptions(cluster, verify, clusters, time_limit, model_limit)
    return Ending(as_json).answer(lambda say: commands.run_zoo(models or (), options, jobs, say))


@app.command()
def demo(
    out: Annotated[str, typer.Option("--out", help="folder for plan.json, plan.html and program/", metavar="DIR")] = "demo_out",
    steps: Annotated[int, typer.Option("--steps", help="training steps", metavar="N")] = 25,
    as_json: Json = False,
) -> int:
    """Train a small language model on four processes, split by a proven plan, beside plain PyTorch."""
    return Ending(as_json).answer(lambda say: commands.run_demo(out, steps, say))


@app.command()
def profile(
    ranks: Annotated[Optional[str], typer.Option("--ranks", help="numbers of processes to measure the cpu at; default 1,2,4", metavar="N,N")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto: the GPU where there is one", metavar="D")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="fewer shapes, within a minute")] = False,
    time_limit: Annotated[Optional[float], typer.Option("--time-limit", help="seconds for all of it; default 160, quick 45", metavar="S")] = None,
    output: Annotated[Optional[str], typer.Option("-o", "--output", help="default: where plan looks for it", metavar="F")] = None,
    as_json: Json = False,
) -> int:
    """Measure this machine (under torchrun with its ranks), so that predictions are about it. Goes on where it was interrupted."""
    return Ending(as_json).answer(lambda say: measure_machine(ranks, device, quick, time_limit, output, say))


def _drop(record: logging.LogRecord) -> bool:
    return False


def run_words(arguments: Sequence[str]) -> int:
    """Run the command line.

    Returns:
        the exit code.
    """
    as_json = "--json" in arguments
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(_drop)  # torch logs a traceback of what our error is about to say
    try:
        code = app(args=list(arguments), prog_name="autopar", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout (`| head`) has enough
        sys.stdout = sys.__stderr__
        return 0
    except Exception as error:  # noqa: BLE001 - every way to end has its exit code
        return Ending(as_json).fail(error)
