"""Constraints: what a user says about the plan before it is searched. Nouns, and their three spellings.

In: `--fix tp=2,dp=4,zero=1`, a TOML file, or `constrain(tp=2, dp=4, zero=1)`. Out: one `Constraints` value; equal words in any of the three
spellings are equal values. What is wrong in itself (an unknown word, `zero=5`, two degrees for one role) is refused here; what does not fit
the model or the cluster is refused by the solver (`solver.steer`), which obeys all the rest. docs/constraints.md says what each means.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from .errors import ConstraintError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

DATA, TENSOR, SEQUENCE, PIPELINE = "dp", "tp", "sp", "pp"
ROLES = (DATA, TENSOR, SEQUENCE, PIPELINE)
RECOMPUTE = ("none", "selective", "full", "free")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv")
IN_CHUNKS = ("interleaved", "zbv")  # those in which a rank runs several chunks of the model
FORWARD_ONLY = "forward-only"  # the schedules of a model without a loss
_PLACEMENT = re.compile(r"R|P|Pmax|Pmin|S\d+(/\d+)?")


def axis_role(name: str) -> str:
    """The role of an axis by its name: `dp_2` -> `dp`; "" where it has none."""
    role = name.partition("_")[0]
    return role if role in ROLES else ""


@dataclass(frozen=True, slots=True)
class Pin:
    """Values that lie as the user says.

    Args:
        value: name as the plan prints it, or a glob: `h.*.attn.weight@0`; without `@` it names states by their own name.
        sharding: a placement (`R`, `P`, `S0`, `S0/64`), or one per mesh axis joined by commas. `S0` leaves the stride to the solver.
        on: a role (`tp`) or the name of a mesh axis on which the placement holds; "": on every axis.
    """

    value: str
    sharding: str
    on: str = ""

    @property
    def placements(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.sharding.split(","))


@dataclass(frozen=True, slots=True)
class ModuleForbid:
    """Modules (a glob over their path, with all that is inside them) whose ops take no part in these roles."""

    path: str
    forbid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModuleStage:
    """Modules (a glob over their path, with all that is inside them) that run on this stage of the pipeline; 0 is the first."""

    path: str
    stage: int


@dataclass(frozen=True, slots=True)
class StageDegrees:
    """A stage of the pipeline whose devices are divided in another way than those of the others: so many ranks of `dp` and `tp`."""

    number: int
    dp: int
    tp: int


@dataclass(frozen=True, slots=True)
class Constraints:
    """Everything that a plan must be; what is not said stays free. Made by `constrain`, `parse_fix` or `load_constraints`.

    Args:
        degrees: (role, ranks) of `dp`, `tp`, `sp`, `pp`; 1: no axis has the role.
        require: roles that must have an axis, of whatever degree.
        zero: ZeRO stage on the axes of `dp`: 0 to 3.
        dp_shard: so many neighbouring ranks of `dp` share what `zero` cuts, and each group holds it once more (HSDP); None: all ranks of `dp` share it.
        recompute: `none`, `selective`, `full`, `free`.
        sequence_parallel: along the axes of `tp`, what tensor parallelism leaves whole is split by the sequence (or never is).
        only: `data`: all ranks are `dp`.
        vpp, microbatches, microbatch, schedule: of a pipeline. The schedule is a name or the text of a grid (CSV).
        whole: globs over module paths: split along the batch at most.
        alike: globs over module paths: every rank does the same.
        pins, modules, module_stages: see `Pin`, `ModuleForbid`, `ModuleStage`.
        stage_degrees: see `StageDegrees`; `degrees` are those of the other stages.
    """

    degrees: tuple[tuple[str, int], ...] = ()
    require: tuple[str, ...] = ()
    zero: int | None = None
    dp_shard: int | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    only: str | None = None
    vpp: int | None = None
    microbatches: int | None = None
    microbatch: int | None = None
    schedule: str | None = None
    whole: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    modules: tuple[ModuleForbid, ...] = ()
    module_stages: tuple[ModuleStage, ...] = ()
    stage_degrees: tuple[StageDegrees, ...] = ()

    def __bool__(self) -> bool:
        return self != Constraints()


def names_layout(constraints: Constraints) -> bool:
    """True where stages, microbatches and schedule are told: what is left to choose is inside of the stages."""
    stages = dict(constraints.degrees).get(PIPELINE)
    turns = constraints.microbatches is not None or constraints.microbatch is not None
    return turns and (stages == 1 or (stages is not None and (constraints.schedule is not None or constraints.vpp is not None)))


def names_module(glob: str, path: str) -> bool:
    """True where a glob names a module or one around it: `h.*` names `h.3` and `h.3.attn`; only `*` names the root, ""."""
    parts = path.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[: k + 1]), glob) for k in range(len(parts)))


def names_value(glob: str, name: str, storage: str) -> bool:
    """True where a glob names a value; without `@` it names what states are called, too (`storage`; "" for what is no state)."""
    return fnmatch.fnmatchcase(name, glob) or ("@" not in glob and bool(storage) and fnmatch.fnmatchcase(storage, glob))


# --- the three spellings, and the way back -----------------------------------------------------------------------------------------


def constrain(**words: object) -> Constraints:
    """Constraints from Python: `constrain(tp=2, zero=1, whole=["lm_head"], pin=[Pin("wte.weight", "S0", on="tp")])`.

    Args:
        words: the keys of the TOML file (docs/constraints.md); `pin` may also hold `Pin` values, `module` `ModuleForbid` and `ModuleStage`.
    Raises:
        ConstraintError: a word is unknown, or its value cannot be used.
    """
    return _read(words, "constraints")


def parse_fix(text: str, where: str = "--fix") -> Constraints:
    """`tp=2,dp=4,zero=1,recompute=none,sequence_parallel=1,only=data`.

    Raises:
        ConstraintError: see `constrain`.
    """
    words: dict[str, object] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise ConstraintError(f"{where}: expected name=value joined by commas, as in tp=2,zero=1, found {part.strip()!r}")
        if name in words:
            raise ConstraintError(f"{where}: {name} is given twice")
        if name not in _FIX:
            hint = "; it belongs into a file, --constraints FILE.toml" if name in _KEYS else _nearest(name, _FIX)
            raise ConstraintError(f"{where}: unknown word {name!r}; expected one of {', '.join(_FIX)}{hint}")
        words[name] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return _read(words, where)


def load_constraints(path: str | os.PathLike[str]) -> Constraints:
    """Read a TOML file (docs/constraints.md).

    Raises:
        ConstraintError: names the file and the key, what was expected and what was found.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise ConstraintError(f"{where}: cannot be read: {error.strerror}; expected a TOML file of constraints") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConstraintError(f"{where}: not valid TOML: {error}") from None
    return _read(data, where)


def print_constraints(found: Constraints) -> tuple[str, ...]:
    """One line each: `dp=2`, `zero=1`, `whole lm_head`, `pin wte.weight@0 S0 on tp`, `module h.0 forbid tp`, `module h.0 stage 1`."""
    lines = [f"{role}={degree}" for role, degree in found.degrees]
    lines += [f"require {role}" for role in found.require]
    for name in _SCALAR:
        value = getattr(found, name)
        if value is not None:
            shown = value.strip().replace(",", ":").replace("\n", ";") if isinstance(value, str) else value
            lines.append(f"{name}={int(value) if isinstance(value, bool) else shown}")
    lines += [f"{word} {glob}" for word in ("whole", "alike") for glob in getattr(found, word)]
    lines += [f"pin {pin.value} {pin.sharding}" + (f" on {pin.on}" if pin.on else "") for pin in found.pins]
    lines += [f"module {row.path} forbid {','.join(row.forbid)}" for row in found.modules]
    lines += [f"module {row.path} stage {row.stage}" for row in found.module_stages]
    return (*lines, *(f"stage {row.number} dp={row.dp} tp={row.tp}" for row in found.stage_degrees))


def parse_lines(lines: Sequence[str], where: str = "constraints") -> Constraints:
    """Read back what `print_constraints` printed.

    Raises:
        ConstraintError: a line is not of that form.
    """
    found = Constraints()
    for line in lines:
        words = line.split()
        if len(words) == 1 and "=" in line:
            one = parse_fix(line, where)
        elif len(words) == 2 and words[0] in ("require", "whole", "alike"):
            one = _read({words[0]: [words[1]]}, where)
        elif words[:1] == ["pin"] and (len(words) == 3 or (len(words) == 5 and words[3] == "on")):
            one = _read({"pin": [Pin(words[1], words[2], words[4] if len(words) == 5 else "")]}, where)
        elif words[:1] == ["module"] and len(words) == 4 and words[2] == "forbid":
            one = _read({"module": [ModuleForbid(words[1], tuple(words[3].split(",")))]}, where)
        elif words[:1] == ["module"] and len(words) == 4 and words[2] == "stage" and words[3].isdigit():
            one = _read({"module": [ModuleStage(words[1], int(words[3]))]}, where)
        elif (stage := re.fullmatch(r"stage (\d+) dp=(\d+) tp=(\d+)", line)) is not None:
            one = _read({"stage": [StageDegrees(*map(int, stage.groups()))]}, where)
        else:
            raise ConstraintError(f"{where}: expected a line such as tp=2 or `pin wte.weight@0 S0 on tp`, found {line!r}")
        found = merge_constraints(found, one, where)
    return found


def merge_constraints(first: Constraints, second: Constraints, where: str = "--fix and --constraints") -> Constraints:
    """Both together.

    Raises:
        ConstraintError: they contradict each other.
    """
    degrees = dict(first.degrees)
    for role, degree in second.degrees:
        if degrees.setdefault(role, degree) != degree:
            raise ConstraintError(f"{where}: {role} is both {degrees[role]} and {degree}; leave one out")
    words: dict[str, object] = {"degrees": tuple((r, degrees[r]) for r in ROLES if r in degrees)}
    for name in _SCALAR:
        one, other = getattr(first, name), getattr(second, name)
        if one is not None and other is not None and one != other:
            raise ConstraintError(f"{where}: {name} is both {one} and {other}; leave one out")
        words[name] = other if one is None else one
    for name in ("require", "whole", "alike", "pins", "modules", "module_stages", "stage_degrees"):
        words[name] = tuple(dict.fromkeys((*getattr(first, name), *getattr(second, name))))
    return _check(replace(first, **words), where)  # type: ignore[arg-type]


# --- reading one table of words ----------------------------------------------------------------------------------------------------

_FORWARD = re.compile(r"\dF\d")  # of a grid
_SCALAR = ("zero", "dp_shard", "recompute", "sequence_parallel", "only", "vpp", "microbatches", "microbatch", "schedule")
_FIX = (*ROLES, *_SCALAR)
_KEYS = (*_FIX, "forbid", "require", "whole", "alike", "pin", "module", "stage")


def _read(words: Mapping[str, object], where: str) -> Constraints:
    for name in words:
        if name not in _KEYS:
            raise ConstraintError(f"{where}: unknown word {name!r}; expected one of {', '.join(_KEYS)}{_nearest(name, _KEYS)}")
    degrees: dict[str, int] = {}

    def add(role: str, degree: int, key: str) -> None:
        if degrees.setdefault(role, degree) != degree:
            raise ConstraintError(f"{where}: {key}: {role} is {degree} here and {degrees[role]} elsewhere; leave one out")

    for role in ROLES:
        if words.get(role) is not None:
            add(role, _count(words[role], where, role), role)
    for role in _roles(words.get("forbid", ()), where, "forbid"):
        add(role, 1, "forbid")
    modules = [row for k, item in enumerate(_list(words.get("module", ()), where, "module")) for row in _module(item, where, f"module[{k}]")]
    required = words.get("require", ())
    if isinstance(required, Mapping):
        for role, degree in required.items():
            add(_role(role, where, "require"), _count(degree, where, f"require.{role}"), "require")
        required = ()
    return _check(
        Constraints(
            tuple((role, degrees[role]) for role in ROLES if role in degrees),
            _roles(required, where, "require"),
            _one_of(words.get("zero"), (0, 1, 2, 3), where, "zero"),
            _maybe_count(words, "dp_shard", where),
            _one_of(words.get("recompute"), RECOMPUTE, where, "recompute"),
            _flag(words.get("sequence_parallel"), where),
            _one_of(words.get("only"), ("data",), where, "only"),
            _maybe_count(words, "vpp", where), _maybe_count(words, "microbatches", where), _maybe_count(words, "microbatch", where),
            _schedule(words.get("schedule"), where),
            _texts(words.get("whole", ()), where, "whole"), _texts(words.get("alike", ()), where, "alike"),
            tuple(_pin(item, where, f"pin[{k}]") for k, item in enumerate(_list(words.get("pin", ()), where, "pin"))),
            tuple(row for row in modules if isinstance(row, ModuleForbid)), tuple(row for row in modules if isinstance(row, ModuleStage)),
            tuple(_stage(item, where, f"stage[{k}]") for k, item in enumerate(_list(words.get("stage", ()), where, "stage"))),
        ),
        where,
    )  # fmt: skip


def _check(found: Constraints, where: str) -> Constraints:
    """What contradicts itself whatever the model and the cluster are."""
    degrees = dict(found.degrees)
    for role in found.require:
        if degrees.get(role) == 1:
            raise ConstraintError(f"{where}: {role} is both required and forbidden (degree 1); leave one out")
    if found.only is not None:
        others = [f"{role}={degree}" for role, degree in found.degrees if role != DATA and degree > 1] + [r for r in found.require if r != DATA]
        if others:
            raise ConstraintError(f"{where}: only=data leaves no rank for {', '.join(others)}; leave one out")
    if found.zero and degrees.get(DATA) == 1:
        raise ConstraintError(f"{where}: zero={found.zero} is about the axes of dp, but dp=1: there are none; give dp, or leave zero out")
    _check_shard(found, where)
    _check_stages(found, where)
    piped = [f"vpp={found.vpp}"] if (found.vpp or 1) > 1 else []
    piped += [f"module {row.path} stage {row.stage}" for row in found.module_stages if row.stage]
    piped += [f"stage {row.number} dp={row.dp} tp={row.tp}" for row in found.stage_degrees]
    piped += [f"schedule={found.schedule}"] if found.schedule is not None else []
    if piped and (degrees.get(PIPELINE) == 1 or found.only is not None):
        one = "pp=1" if degrees.get(PIPELINE) == 1 else "only=data"
        raise ConstraintError(f"{where}: {', '.join(piped)}: of a pipeline, but {one} leaves one stage; give pp, or leave it out")
    turns = [f"microbatches={found.microbatches}"] if (found.microbatches or 1) > 1 else []
    turns += [f"microbatch={found.microbatch}"] if found.microbatch is not None else []
    turns += [f"pp={degrees[PIPELINE]}"] if degrees.get(PIPELINE, 1) > 1 else []
    turns += ["require pp"] if PIPELINE in found.require else []
    if (piped or turns) and SEQUENCE in found.require and SEQUENCE not in degrees:
        raise ConstraintError(
            f"{where}: require sp and {', '.join([*turns, *piped])}: plans in stages or in several microbatches have an axis of their own for the sequence only "
            "where its degree is named; give sp=2, say, or leave one out"
        )
    if found.schedule in SCHEDULES and ((found.vpp or 1) > 1) != (found.schedule in IN_CHUNKS) and found.vpp is not None:
        raise ConstraintError(f"{where}: vpp={found.vpp} and schedule={found.schedule}: several chunks on a stage and {' or '.join(IN_CHUNKS)} go together; leave one out")
    if found.sequence_parallel and (degrees.get(TENSOR) == 1 or found.only is not None):
        raise ConstraintError(f"{where}: sequence_parallel=1 is about the axes of tp, but there are none; give tp, or leave sequence_parallel out")
    return found


def _check_shard(found: Constraints, where: str) -> None:
    number, dp = found.dp_shard, dict(found.degrees).get(DATA)
    if number is None:
        return
    said = f"{where}: dp_shard={number}"
    if found.zero == 0:
        raise ConstraintError(f"{said} says how many ranks of dp share what zero cuts, but zero=0 cuts nothing; give zero=3, say, or leave dp_shard out")
    if number == 1:
        raise ConstraintError(f"{said}: expected 2 or more ranks that share what zero cuts; give zero=0 where each rank holds everything")
    if dp is not None and dp % number:
        fits = ", ".join(str(n) for n in range(2, dp + 1) if dp % n == 0)
        raise ConstraintError(f"{said}: dp={dp} does not divide into groups of {number}; expected {f'one of {fits}, or ' if fits else ''}another dp")
    if found.stage_degrees:
        raise ConstraintError(f"{said} and stage: stages with degrees of their own have no groups of dp; leave one out")


def _check_stages(found: Constraints, where: str) -> None:
    stages, known = dict(found.degrees).get(PIPELINE), dict[str, int]()
    for row in found.module_stages:
        if known.setdefault(row.path, row.stage) != row.stage:
            raise ConstraintError(f"{where}: module {row.path}: stage is both {known[row.path]} and {row.stage}; leave one out")
        if stages is not None and 1 < stages <= row.stage:
            raise ConstraintError(f"{where}: module {row.path} stage {row.stage}: pp={stages} has the stages 0 to {stages - 1}; take one of these, or another pp")
    numbers = [row.number for row in found.stage_degrees]
    for number in numbers:
        if numbers.count(number) > 1:
            raise ConstraintError(f"{where}: stage {number} is given twice; leave one out")
        if stages is not None and 1 < stages <= number:
            raise ConstraintError(f"{where}: stage {number}: pp={stages} has the stages 0 to {stages - 1}; take one of these, or another pp")


def _nearest(found: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(found), known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _show(found: object) -> str:
    if isinstance(found, bool):
        return str(found).lower()
    return "a table" if isinstance(found, Mapping) else repr(found)


def _count(found: object, where: str, key: str) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ConstraintError(f"{where}: {key}: expected a positive whole number, found {_show(found)}")
    return found


def _maybe_count(words: Mapping[str, object], key: str, where: str) -> int | None:
    return None if words.get(key) is None else _count(words[key], where, key)


def _one_of(found, known: tuple, where: str, key: str):
    if found is None or (not isinstance(found, bool) and found in known):
        return found
    words = ", ".join(map(str, known[:-1])) + (" or " if len(known) > 1 else "") + str(known[-1])
    raise ConstraintError(f"{where}: {key}: expected {words}, found {_show(found)}")


def _schedule(found: object, where: str) -> str | None:
    """A name, or the text of a grid: from a CSV file, or in one line (`0F0:0F1:0B0:0B1;1F0:1B0:1F1:1B1`)."""
    if isinstance(found, str) and found.endswith(".csv"):
        try:
            with open(found, encoding="utf-8-sig") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConstraintError(f"{where}: schedule: cannot read {found}: {getattr(error, 'strerror', None) or error}") from None
        if not _FORWARD.search(text):
            raise ConstraintError(f"{where}: schedule: {found} has no forward, as 0F1 (stage 0, microbatch 1); write one row a rank, as 0F0,0F1,0B0,0B1")
        return text
    if isinstance(found, str) and _FORWARD.search(found):
        return found.replace(":", ",").replace(";", "\n")
    known = (*SCHEDULES, FORWARD_ONLY)
    if found is None or found in known:
        return found  # type: ignore[return-value]
    raise ConstraintError(f"{where}: schedule: expected {', '.join(known)} or a grid in a file ending in .csv, found {_show(found)}{_nearest(found, known)}")


def _flag(found: object, where: str) -> bool | None:
    if found is None or isinstance(found, bool):
        return found
    if found in (0, 1):
        return bool(found)
    raise ConstraintError(f"{where}: sequence_parallel: expected 0 or 1, found {_show(found)}")


def _list(found: object, where: str, key: str) -> Sequence[object]:
    if isinstance(found, (list, tuple)):
        return found
    raise ConstraintError(f"{where}: {key}: expected a list, found {_show(found)}")


def _texts(found: object, where: str, key: str) -> tuple[str, ...]:
    items = _list(found, where, key)
    for item in items:
        if not isinstance(item, str) or not item.strip() or " " in item.strip():
            raise ConstraintError(f"{where}: {key}: expected names or globs without spaces, found {_show(item)}")
    return tuple(dict.fromkeys(str(item).strip() for item in items))


def _role(found: object, where: str, key: str) -> str:
    if found not in ROLES:
        raise ConstraintError(f"{where}: {key}: expected roles ({', '.join(ROLES)}), found {_show(found)}")
    return str(found)


def _roles(found: object, where: str, key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_role(item, where, key) for item in _list(found, where, key)))


def _table(found: object, known: Sequence[str], where: str, key: str) -> Mapping[str, object]:
    if not isinstance(found, Mapping):
        raise ConstraintError(f"{where}: {key}: expected a table with {', '.join(known)}, found {_show(found)}")
    for name in found:
        if name not in known:
            raise ConstraintError(f"{where}: {key}.{name}: unknown key; expected one of {', '.join(known)}{_nearest(name, known)}")
    return found


def _fields(found: Pin | ModuleForbid | ModuleStage | StageDegrees) -> Mapping[str, object]:
    return {f.name: getattr(found, f.name) for f in fields(found)}


def _pin(found: object, where: str, key: str) -> Pin:
    table = _fields(found) if isinstance(found, Pin) else _table(found, ("value", "sharding", "on"), where, key)
    value = _texts((table.get("value"),), where, f"{key}.value")[0]
    sharding, on = table.get("sharding"), table.get("on", "")
    parts = [part.strip() for part in sharding.split(",")] if isinstance(sharding, str) else [""]
    if not all(_PLACEMENT.fullmatch(part) for part in parts):
        raise ConstraintError(
            f"{where}: {key}.sharding: expected R, P, Pmax, Pmin, S<dim> or S<dim>/<stride>, or one per mesh axis joined by commas, "
            f"found {_show(sharding)}"
        )
    if not isinstance(on, str) or " " in on:
        raise ConstraintError(f"{where}: {key}.on: expected a role ({', '.join(ROLES)}) or the name of a mesh axis, found {_show(on)}")
    if on and len(parts) > 1:
        raise ConstraintError(f"{where}: {key}.sharding: expected one placement, as `on` names the axes, found {_show(sharding)}")
    return Pin(value, ",".join(parts), on)


def _module(found: object, where: str, key: str) -> tuple[ModuleForbid | ModuleStage, ...]:
    """What one table says of its modules: roles that they take no part in, the stage that they are on, or both."""
    table = _fields(found) if isinstance(found, (ModuleForbid, ModuleStage)) else _table(found, ("path", "forbid", "stage"), where, key)
    path, stage = _texts((table.get("path"),), where, f"{key}.path")[0], table.get("stage")
    forbid = _roles(table.get("forbid", ()), where, f"{key}.forbid")
    if PIPELINE in forbid or not (forbid or "stage" in table):
        raise ConstraintError(f"{where}: {key}.forbid: expected some of {DATA}, {TENSOR}, {SEQUENCE}, found {_show(table.get('forbid', ()))}")
    if "stage" in table and (not isinstance(stage, int) or isinstance(stage, bool) or stage < 0):
        raise ConstraintError(f"{where}: {key}.stage: expected the number of a stage, 0 for the first, found {_show(stage)}")
    return (*((ModuleForbid(path, forbid),) if forbid else ()), *((ModuleStage(path, stage),) if isinstance(stage, int) else ()))


def _stage(found: object, where: str, key: str) -> StageDegrees:
    table = _fields(found) if isinstance(found, StageDegrees) else _table(found, ("number", DATA, TENSOR), where, key)
    number = table.get("number")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ConstraintError(f"{where}: {key}.number: expected the number of a stage, 0 for the first, found {_show(number)}")
    return StageDegrees(number, _count(table.get(DATA, 1), where, f"{key}.{DATA}"), _count(table.get(TENSOR, 1), where, f"{key}.{TENSOR}"))
