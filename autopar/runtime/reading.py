"""Reading: the text of an emitted program becomes a `ProgramSpec`, checked."""

from __future__ import annotations

import builtins
import hashlib
import linecache
import traceback
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ..errors import AutoparError, PlanError, ProgramError
from ..graph.mesh import Mesh, axis_sizes
from ..graph.sharding import has_partial, parse_sharding, why_illegal
from .place import EMITTED
from .spec import STATE_KINDS, Batch, ProgramSpec, State, make_mesh, torch_dtype
from .stages import read_pipeline, run_step, union_of

_FILES = "__autopar_files__"


def compile_program(files: Mapping[str, str], name: str = "program.py") -> dict[str, object]:
    """Run the text of an emitted program as a module; tracebacks show its lines.

    Returns:
        the module's namespace. Files beside it are found under their own names.
    Raises:
        ProgramError: there is no such file, its text is not Python, or it fails as it is loaded (what it imports is missing).
    """
    if name not in files:
        raise ProgramError(f"the emitted program has no {name}, only {', '.join(sorted(files)) or 'nothing'}")
    return vars(_run_file(files, name, {}))


def _run_file(files: Mapping[str, str], name: str, known: dict[str, ModuleType]) -> ModuleType:
    """The module of a file; where it imports a file beside it, that is the one of `files`, whatever else has that name."""
    text = files[name]
    shown = f"{EMITTED}{name} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
    try:
        code = compile(text, shown, "exec")
    except SyntaxError as error:
        raise ProgramError(f"{name}, line {error.lineno}: the emitted program is not valid Python: {error.msg}") from None

    def find(wanted: str, *args: Any, **keywords: Any) -> Any:
        beside = f"{wanted}.py"
        if beside not in files:
            return builtins.__import__(wanted, *args, **keywords)
        if beside not in known:
            known[beside] = _run_file(files, beside, known)
        return known[beside]

    module = ModuleType(f"autopar_{name.removesuffix('.py')}")
    vars(module).update({"__file__": shown, "__builtins__": {**vars(builtins), "__import__": find}, _FILES: files})
    try:
        exec(code, vars(module))
    except AutoparError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == shown]
        cure = "emit the program again, or put it beside the others" if isinstance(error, ImportError) else "mend the line, or emit the program again"
        raise ProgramError(f"{name}, line {lines[-1]}: cannot be loaded: {type(error).__name__}: {error}; {cure}") from error
    return module


def read_program(namespace: Mapping[str, object]) -> ProgramSpec:
    """Read the constants of a program's namespace (`vars(module)` works too) and check them.

    Raises:
        ProgramError: a constant is missing or a sharding does not fit its tensor.
    """
    staged = "STAGES" in namespace
    constants = ("MESH", "STAGES", "SCHEDULE", "MICROBATCHES", "BATCH", "step") if staged else ("MESH", "STATES", "BATCH", "step")
    missing = [name for name in constants if name not in namespace]
    if missing:
        raise ProgramError(f"program.py: expected {', '.join(constants[:-1])} and step, {', '.join(missing)} missing; emit it again")
    mesh = make_mesh(namespace["MESH"])  # type: ignore[arg-type]
    batch: dict[str, Batch] = dict(namespace["BATCH"])  # type: ignore[call-overload]
    aliases: dict[str, str] = dict(namespace.get("ALIASES", {}))  # type: ignore[call-overload]
    step: Any = namespace["step"]
    if staged:
        files: Any = namespace.get(_FILES, {})
        pipeline = read_pipeline(namespace, files.get(namespace["SCHEDULE"]))
        spec = ProgramSpec(mesh, union_of(pipeline), batch, namespace.get("OUTPUT"), aliases, lambda *args: run_step(spec, step, *args), pipeline)
        every = [entry for tables in (pipeline.states, pipeline.batches) for table in tables for entry in table.items()]
    else:
        states: dict[str, State] = dict(namespace["STATES"])  # type: ignore[call-overload]
        spec = ProgramSpec(mesh, states, batch, namespace.get("OUTPUT"), aliases, step)
        every = list(states.items())
    _check(spec, [*every, *batch.items()])
    return spec


def _check(spec: ProgramSpec, entries: list[tuple[str, Any]]) -> None:
    for name, entry in entries:
        _check_entry(name, entry, spec.mesh)
    for name, state in spec.states.items():
        if state.kind not in STATE_KINDS:
            raise ProgramError(f"program.py: {name}: expected kind {', '.join(STATE_KINDS)}, found {state.kind!r}")
    for alias, target in spec.aliases.items():
        if target not in spec.states:
            raise ProgramError(f"program.py: {alias} is an alias of {target}, which is no state")


def _check_entry(name: str, entry: State | Batch, mesh: Mesh) -> None:
    try:
        sharding = parse_sharding(entry.sharding)
    except PlanError as error:
        raise ProgramError(f"program.py: {name}: {error}") from None
    reason = why_illegal(entry.shape, sharding, axis_sizes(mesh)) or ("a stored tensor cannot be partial" if has_partial(sharding) else "")
    if reason:
        raise ProgramError(f"program.py: {name} {list(entry.shape)} cannot be stored as {entry.sharding}: {reason}")
    torch_dtype(entry.dtype)

