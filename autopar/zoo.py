"""The zoo: many models through every stage, each in a process of its own.

In: model files (`tests/zoo` of the checkout, or the user's own), clusters to plan for. Out: one `ZooRow` per model, as each is done: what
its trace holds, how much of it can be divided, whether each plan was found, whether the program equals plain PyTorch, and what went wrong
where. A model whose library is missing is a row too, with the library's name. Nothing is decided here: the stages are `api`'s and `verify`'s.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import TYPE_CHECKING

from .cluster import Cluster, parse_cluster
from .errors import AutoparError, ModelError
from .options import Options

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from .graph.graph import Graph
    from .trace import Workload

CLUSTERS = ("cpu:4", "1x8xH100-80GB", "2x8xA100-40GB")  # that every model is planned for
TIME_LIMIT_S, MODEL_LIMIT_S = 20.0, 900.0
NUM_RANKS = 8  # among which a step's work is asked to divide
FOLDER = Path(__file__).resolve().parents[1] / "tests" / "zoo"
_PRELOADED = ["torch", "autopar.api", "autopar.verify", "autopar.trace.load"]  # in the process that all others are copied from
_NUM_TAIL = 3  # lines of a crashed process that are told


@dataclass(frozen=True, slots=True)
class ZooOptions:
    """What is asked of every model.

    Args:
        cluster: to verify on.
        verify: False: leave verification out.
        plan_for: clusters to plan for, as text.
        time_limit_s: of the solver, for each plan.
        model_limit_s: of a model; then its process is ended.
    """

    cluster: str = "cpu:4"
    verify: bool = True
    plan_for: tuple[str, ...] = CLUSTERS
    time_limit_s: float = TIME_LIMIT_S
    model_limit_s: float = MODEL_LIMIT_S


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong with a model: the stage (load, trace, rules, plan CLUSTER, verify, process) and the error's text."""

    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class KeptRow:
    """What is kept whole with more than 1 % of the FLOPs or bytes: op, line, shares, and why."""

    op: str
    source: str
    flops_share: float
    bytes_share: float
    reason: str


@dataclass(frozen=True, slots=True)
class ZooPlan:
    """A plan that was found.

    Args:
        step_s: predicted.
        gap: the share of it that any plan of the search space may save at most.
        wall_s: of the search.
    """

    cluster: str
    step_s: float
    gap: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class ZooRow:
    """What became of one model.

    Args:
        model: FILE:NAME.
        skipped: the library that is missing, "" where none is.
        num_nodes, trace_s: of the graph in fp32; 0 where there is none.
        without_rows: ops of the graph that the rules table lacks.
        discovered: those of them whose rule was found by running them, or stated by the model's file.
        plans: those that were found.
        verified: the program's numbers equal plain PyTorch's; None: not asked, or not reached.
        flops_share, bytes_share: of the step, that some strategy divides among `NUM_RANKS`; None where an op has no rule.
        kept: what is not divided and holds more than 1 % of either.
        problems: what failed.
        seconds: all stages together.
    """

    model: str
    skipped: str = ""
    num_nodes: int = 0
    trace_s: float = 0.0
    without_rows: tuple[str, ...] = ()
    discovered: tuple[str, ...] = ()
    plans: tuple[ZooPlan, ...] = ()
    verified: bool | None = None
    flops_share: float | None = None
    bytes_share: float | None = None
    kept: tuple[KeptRow, ...] = ()
    problems: tuple[Problem, ...] = ()
    seconds: float = 0.0


# -- which models ------------------------------------------------------------------------------------------------------------------------


def list_models(words: Sequence[str]) -> tuple[str, ...]:
    """FILE:NAME of every model meant: a FILE stands for its public functions without required arguments, no words for the checkout's zoo.

    Raises:
        ModelError: a file is missing, cannot be read as Python or holds no model, or there is no checkout.
    """
    found: list[str] = []
    for word in words or _zoo_files():
        found += [word] if ".py:" in word else [f"{word}:{name}" for name in _factories(Path(word))]
    return tuple(dict.fromkeys(found))


def _zoo_files() -> list[str]:
    if not FOLDER.is_dir():
        raise ModelError(
            f"{FOLDER}: no such folder; the zoo is part of autopar's repository, not of its package. Run the command from a checkout installed "
            "with `pip install -e .`, or name files: `autopar zoo FILE.py`"
        )
    files = sorted(p for p in FOLDER.glob("*.py") if not p.name.startswith(("test_", "_")) and p.name != "conftest.py")
    return [os.path.relpath(p) for p in files]


def _factories(path: Path) -> list[str]:
    if not path.is_file():
        raise ModelError(f"{path}: no such file (looked in {Path.cwd()}); expected a FILE.py of models, or FILE.py:NAME")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read as Python: {error}") from None
    names = [f.name for f in tree.body if isinstance(f, ast.FunctionDef) and not f.name.startswith("_") and not _num_required(f.args)]
    if not names:
        raise ModelError(f"{path}: holds no model; expected public functions without required arguments that return an autopar.Workload")
    return names


def _num_required(args: ast.arguments) -> int:
    return len(args.posonlyargs) + len(args.args) - len(args.defaults) + sum(default is None for default in args.kw_defaults)


# -- one model ---------------------------------------------------------------------------------------------------------------------------


def try_model(model: str, options: ZooOptions | None = None) -> ZooRow:
    """Take one model through every stage in this process. Never raises: what goes wrong is in the row."""
    run = _Run(model, options or ZooOptions())
    began = time.perf_counter()
    run.all_stages()
    return ZooRow(**{**run.found, "model": model, "problems": tuple(run.problems), "seconds": time.perf_counter() - began})


class _Run:
    """One model on its way through the stages. Lives for one call of `try_model`."""

    def __init__(self, model: str, options: ZooOptions) -> None:
        self.model, self.options = model, options
        self.found: dict[str, object] = {}
        self.problems: list[Problem] = []

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the next stage and the next model go on
            kinds = [t.__name__ for t in type(error).__mro__ if t.__module__ == AutoparError.__module__]
            self.problems.append(Problem(name, f"{[*kinds, type(error).__name__][0]}: {error}"))

    def all_stages(self) -> None:
        workload = self._load()
        if workload is None:
            return
        graph = None
        with self._stage("trace"):
            graph = self._trace(workload)
        if graph is None:
            return
        for cluster in self.options.plan_for:
            with self._stage(f"plan {cluster}"):
                self._plan(workload, parse_cluster(cluster))
        if self.options.verify:
            with self._stage("verify"):
                self._verify(workload)

    def _load(self) -> Workload | None:
        from .trace.load import load_workload

        try:
            return load_workload(self.model)
        except ModelError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and missing.name:
                self.found["skipped"] = missing.name.partition(".")[0]
            else:
                self.problems.append(Problem("load", str(error)))
        except Exception as error:  # noqa: BLE001 - as in _stage
            self.problems.append(Problem("load", f"{type(error).__name__}: {error}"))
        return None

    def _trace(self, workload: Workload) -> Graph:
        from .graph.graph import check_graph
        from .graph.registry import nodes_without_row
        from .trace import trace_step

        began = time.perf_counter()
        graph = trace_step(workload, "fp32").graph
        self.found["trace_s"] = time.perf_counter() - began
        self.found["num_nodes"] = len(graph.nodes)
        check_graph(graph)
        self.found["without_rows"] = tuple(dict.fromkeys(node.op for node in nodes_without_row(graph)))
        with self._stage("rules"):
            self._split(graph)
        return graph

    def _split(self, graph: Graph) -> None:
        from .api import build_case
        from .graph.opportunities.find import splittable
        from .graph.registry import rules_in_force
        from .trace.discovery.discover import CACHE_PATH, find_rows

        rows = find_rows(graph, (), CACHE_PATH)
        self.found["discovered"] = tuple(dict.fromkeys(row.op for row in rows))
        case = build_case(graph, rules_in_force(rows))
        share = splittable(graph, case.sites, case.signatures, NUM_RANKS)
        self.found["flops_share"], self.found["bytes_share"] = share.flops_share, share.bytes_share
        self.found["kept"] = tuple(KeptRow(k.op, k.source, k.flops_share, k.bytes_share, k.reason) for k in share.kept)

    def _plan(self, workload: Workload, cluster: Cluster) -> None:
        from .api import plan_workload

        plan = plan_workload(workload, cluster, Options(time_limit_s=self.options.time_limit_s)).plan
        row = ZooPlan(cluster.spec, plan.cost.step_s, plan.solve.gap, plan.solve.wall_s)
        self.found["plans"] = (*self.found.get("plans", ()), row)  # type: ignore[misc]

    def _verify(self, workload: Workload) -> None:
        from .verify import describe_failure, verify_workload

        report = verify_workload(workload, self.options.cluster, Options(time_limit_s=self.options.time_limit_s))
        self.found["verified"] = not report.failures
        if report.failures:
            self.problems.append(Problem("verify", describe_failure(report)))


# -- all models --------------------------------------------------------------------------------------------------------------------------


def run_zoo(models: Sequence[str], options: ZooOptions | None = None, jobs: int = 1) -> Iterator[ZooRow]:
    """The rows of the models, each as soon as it is known.

    Every model runs in its own process, which is a copy of one that has imported torch: its memory is given back, and a crash is its own.

    Args:
        jobs: how many run at the same time; with more than one the rows come in the order in which they end.
    """
    options = options or ZooOptions()
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    waiting, running = list(models), {}
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                job = _Job(context, waiting.pop(0), options)
                running[job.sentinel] = job
            left = min(job.left_s() for job in running.values())
            ended = connection.wait([*running, *(job.inbox for job in running.values())], timeout=max(0.0, left))
            for job in list(running.values()):
                if job.sentinel in ended or job.inbox in ended or job.left_s() <= 0:
                    del running[job.sentinel]
                    yield job.end()
    finally:
        for job in running.values():
            job.process.kill()
            job.end()


class _Job:
    """One model in its process. Lives until `end`."""

    def __init__(self, context: object, model: str, options: ZooOptions) -> None:
        self.model, self.limit_s = model, options.model_limit_s
        self.began = time.monotonic()
        self.log = tempfile.NamedTemporaryFile(prefix="autopar-zoo-", suffix=".txt")  # noqa: SIM115 - closed by `end`
        self.inbox, outbox = context.Pipe(duplex=False)  # type: ignore[attr-defined]
        words = (model, options, self.log.name, outbox)
        self.process: BaseProcess = context.Process(target=_child, args=words, daemon=True)  # type: ignore[attr-defined]
        self.process.start()
        outbox.close()
        self.sentinel = self.process.sentinel

    def left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self.began)

    def end(self) -> ZooRow:
        """Its row; the process is gone afterwards."""
        row = None
        with contextlib.suppress(EOFError, OSError):
            row = self.inbox.recv() if self.inbox.poll() else None
        self.inbox.close()
        late = row is None and self.left_s() <= 0
        if late:
            self.process.kill()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        tail = Path(self.log.name).read_text(errors="replace").strip().splitlines()[-_NUM_TAIL:]
        self.log.close()
        if row is not None:
            return row
        why = f"took longer than {self.limit_s:g} s" if late else _cause_of_death(self.process.exitcode)
        return ZooRow(self.model, problems=(Problem("process", "\n".join([why, *tail])),), seconds=time.monotonic() - self.began)


def _cause_of_death(code: int | None) -> str:
    return f"ended by signal {-code} (9: killed, often for memory)" if code is not None and code < 0 else f"ended with exit code {code}"


def _child(model: str, options: ZooOptions, log: str, outbox: connection.Connection) -> None:
    """What a model's process does: what libraries print goes to the log, the row to the pipe."""
    import logging
    import warnings

    import torch

    with open(log, "a", buffering=1) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    warnings.simplefilter("ignore")
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: False)  # it logs a traceback of what our error says
    torch.set_num_threads(1)  # the ranks are threads already, and the tensors small
    torch.manual_seed(0)
    outbox.send(try_model(model, options))
