"""What the user's words mean: the model, the cluster, the options, and the places where files go.

In: the words as typed. Out: values of the floors below. Whatever is wrong is an error that names the word, before anything slow begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cluster import Cluster, parse_cluster
from ..constraints import Constraints, load_constraints, merge_constraints, parse_fix
from ..errors import ModelError, OptionsError, PlanError
from ..graph.plan import ModelInfo, Plan
from ..options import Options, parse_bytes

if TYPE_CHECKING:
    from ..trace import Workload

_PLAN_MARK, _RUN_MARK = b'"autopar-plan-', b'"autopar-run-'


@dataclass(frozen=True, slots=True)
class Asked:
    """MODEL and what belongs to it: `file.py:factory` or `config.json`, `--arg name=value`, `--batch`, `--seq`."""

    model: str
    args: tuple[tuple[str, str], ...] = ()
    batch: int | None = None
    seq: int | None = None


def read_asked(model: str, args: Sequence[str], batch: int | None, seq: int | None) -> Asked:
    """Check the words about the model.

    Raises:
        OptionsError: a number is not positive, or an `--arg` is not `name=value`.
    """
    for name, value in (("--batch", batch), ("--seq", seq)):
        if value is not None and value < 1:
            raise OptionsError(f"{name}: expected a positive whole number, found {value}")
    pairs: dict[str, str] = {}
    for word in args:
        name, equals, value = word.partition("=")
        if not equals or not name.strip().isidentifier():
            raise OptionsError(f"--arg: expected name=value, as in --arg layers=4, found {word!r}")
        if name.strip() in pairs:
            raise OptionsError(f"--arg: {name.strip()} is given twice")
        pairs[name.strip()] = value.strip()
    return Asked(model, tuple(pairs.items()), batch, seq)


def read_constraints(fix: str | None, path: str | None) -> Constraints:
    """What `--fix` and `--constraints` say together.

    Raises:
        ConstraintError: a word cannot be used, or the two contradict each other.
    """
    found = Constraints() if path is None else load_constraints(path)
    return found if fix is None else merge_constraints(parse_fix(fix), found)


def read_options(
    memory: str | None, precision: str | None, time_limit: float | None, dump: str | None, seed: int = 0,
    constraints: Constraints = Constraints(), price: bool = True, batchnorm: str | None = None, local: str | None = None,
    cuda_graph: bool = False, measured: str | None = None,
) -> Options:
    """The options of a compilation.

    Raises:
        OptionsError: one of them cannot be used.
    """
    limits: dict[str, Any] = {} if time_limit is None else {"time_limit_s": time_limit}
    limits |= {} if batchnorm is None else {"batchnorm": batchnorm}
    limits |= {} if local is None else {"local": local}
    limits |= {"cuda_graph": True} if cuda_graph else {}
    size = None if memory is None else parse_bytes(memory, "--memory")
    if size == 0:
        raise OptionsError(f"--memory: expected at least one byte, found {memory!r}")
    if dump is not None:
        check_folder_place(dump, "--dump")
    return Options(precision=precision, memory_bytes=size, dump_dir=dump, seed=seed, constraints=constraints, price=price, measured=measured, **limits)


def list_given(**flags: object) -> list[str]:
    """The flags that were given, as they are typed: `--time-limit`."""
    return [f"--{name.replace('_', '-')}" for name, value in flags.items() if value not in (None, [])]


def refuse_given(word: str, given: Sequence[str]) -> None:
    """Refuse flags about what a plan has decided already.

    Raises:
        OptionsError: some were given.
    """
    if given:
        raise OptionsError(f"{', '.join(given)}: {word} is a plan, which has decided this already; leave it out, or give the model instead")


def need_cluster(word: str, cluster: str | None) -> Cluster:
    """The cluster of MODEL, which a plan would have had.

    Raises:
        ModelError: the word is a plan's name, but there is no such file, or it is a run.
        OptionsError: no cluster was given.
    """
    if cluster is None and word.endswith(".json") and not Path(word).is_file():
        raise ModelError(f"{word}: no such file (looked in {Path.cwd()}); expected a plan that `autopar plan -o` wrote, or a model")
    if _RUN_MARK in _begin(word):
        raise ModelError(f"{word}: expected a plan or a model, found what `autopar run` recorded; compare it with its plan: autopar simulate PLAN --against {word}")
    if cluster is None:
        raise OptionsError("--cluster: missing; a model needs one (--cluster cpu:4), a plan that `autopar plan -o` wrote has it")
    return parse_cluster(cluster)


def load_asked(asked: Asked) -> tuple[Workload, ModelInfo]:
    """The workload, and the record by which a plan can make it again.

    Raises:
        ModelError: it cannot be made.
    """
    from ..trace.load import load_workload

    workload = load_workload(asked.model, dict(asked.args), asked.batch, asked.seq)
    file, colon, factory = asked.model.rpartition(":") if not asked.model.endswith(".json") else (asked.model, "", "")
    source = f"{os.path.abspath(file)}{colon}{factory}"
    return workload, ModelInfo("", 0, "", "", source, asked.args, asked.batch, asked.seq)


def load_again(plan: Plan, where: str) -> tuple[Workload, ModelInfo]:
    """Make the model of a plan again.

    Args:
        where: the plan's file: a model that moved together with it is found beside it.
    Raises:
        PlanError: the plan came from Python objects, or its model is not there.
        ModelError: the model cannot be made.
    """
    source = plan.model.source
    if not source:
        raise PlanError(
            f"{where}: the plan was made from Python objects (autopar.plan), so its model cannot be made again here; pass it to "
            "autopar.compile(model, ..., given_plan=plan) and call .emit, or plan a file: `autopar plan FILE.py:FACTORY`"
        )
    file, colon, factory = source.rpartition(":") if not source.endswith(".json") else (source, "", "")
    beside = Path(where).resolve().parent / Path(file).name
    found = next((str(p) for p in (Path(file), beside) if p.is_file()), None)
    if found is None:
        raise PlanError(f"{where}: its model {source} is not there, nor {beside.name} beside the plan; put the file back, or plan the model again")
    workload, again = load_asked(Asked(f"{found}{colon}{factory}", plan.model.args, plan.model.batch, plan.model.seq))
    return replace(workload, norm_turns=plan.model.norm_turns), again


def cluster_again(plan: Plan, where: str) -> Cluster:
    """The cluster of a plan: its text, or its TOML file, which may have moved together with the plan."""
    spec = plan.cluster.spec
    beside = Path(where).resolve().parent / Path(spec).name
    return parse_cluster(str(beside) if spec.endswith(".toml") and not Path(spec).is_file() and beside.is_file() else spec)


def is_plan_file(word: str) -> bool:
    """True where MODEL|PLAN names a plan (whole or damaged), False where it is a model."""
    return _PLAN_MARK in _begin(word)


def _begin(word: str) -> bytes:
    """How a `.json` file begins; nothing of what is none, or cannot be read: loading says what is wrong."""
    if not word.endswith(".json"):
        return b""
    try:
        with open(word, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def check_file_place(path: str | None, flag: str) -> None:
    """Raise `OptionsError` where a file cannot be written, before anything slow begins."""
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise OptionsError(f"{flag}: expected a file to write, {path} is a folder")
    folder = target.resolve().parent
    if not folder.is_dir():
        raise OptionsError(f"{flag}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise OptionsError(f"{flag}: the folder {folder} cannot be written to")


def check_folder_place(path: str, flag: str) -> None:
    """Raise `OptionsError` where a folder cannot be made."""
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise OptionsError(f"{flag}: expected a folder, {path} is a file")
    above = next((p for p in (target.resolve(), *target.resolve().parents) if p.is_dir()), None)
    if above is None or not os.access(above, os.W_OK):
        raise OptionsError(f"{flag}: the folder {above or path} cannot be written to")
