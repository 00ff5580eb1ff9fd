"""Plans as JSON: `plan.json` is this, and so is what `autopar plan --json` prints. Every field is told in docs/plan-format.md.

In: a plan. Out: plain JSON data in the words of the documentation, and the way back. Invariants: `plan_from_json(plan_to_json(p)) == p`;
no NaN and no infinity; whatever is wrong with a file ends in one `PlanError` that says file, key path, expected and found, and what to do.
A file is written whole or not at all. What is read is checked (`check_plan`), so that a plan that was loaded keeps its laws.

The fields are read off the dataclasses, so a noun and its JSON cannot drift apart. Pairs (name, x) and holders become objects
{name: x}, shardings their text, enums their value.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Union

from ..errors import PlanError
from .check_plan import check_plan
from .choice import Assignment
from .mesh import Mesh, MeshAxis
from .plan import (
    FORMAT,
    Certificate,
    ClusterInfo,
    CommPlan,
    Cost,
    Holder,
    ModelInfo,
    NodePlan,
    ParamPlan,
    Peak,
    Pipeline,
    Plan,
    RepeatPlan,
    TensorPlan,
)
from .registry import RuleRow
from .sharding import Sharding, parse_sharding

Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]
MAX_INT = 1 << 63  # no count of bytes or elements comes near; larger ones would not fit other readers of the file
CURE = "write the plan again with `autopar plan`, or repair this entry (docs/plan-format.md)"


@dataclass(frozen=True, slots=True)
class _MeshPart:
    axes: tuple[MeshAxis, ...]
    num_stages: int


@dataclass(frozen=True, slots=True)
class _AssignmentPart:
    storages: tuple[tuple[str, Sharding], ...]
    strategies: tuple[tuple[str, tuple[str, ...]], ...]
    again: tuple[str, ...]
    microbatches: int


@dataclass(frozen=True, slots=True)
class _Document:
    """The top level of the file, in the order in which it is written."""

    format: str
    checksum: str
    model: ModelInfo
    cluster: ClusterInfo
    mesh: _MeshPart
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    summary: str
    num_microbatches: int
    schedule: str
    cost: Cost
    peak: Peak | None
    solve: Certificate
    constraints: tuple[str, ...]
    free_step_s: float | None
    pipeline: Pipeline | None
    params: tuple[ParamPlan, ...]
    assignment: _AssignmentPart
    rules: tuple[RuleRow, ...]
    tensors: tuple[TensorPlan, ...]
    nodes: tuple[NodePlan, ...]
    comms: tuple[CommPlan, ...]
    repeats: tuple[RepeatPlan, ...]


class _WrongEntry(Exception):
    """One entry is not what its type says; the key path grows while the error travels outwards."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path = ""

    def below(self, step: str) -> _WrongEntry:
        joint = "." if self.path and not self.path.startswith("[") else ""
        self.path = f"{step}{joint}{self.path}"
        return self


@dataclass(frozen=True, slots=True)
class _Codec:
    encode: Callable[[object], Json]
    decode: Callable[[object], object]


def plan_to_json(plan: Plan) -> dict[str, Json]:
    """The plan as JSON data, with its checksum.

    Raises:
        PlanError: a number is not finite or a name stands twice where names are keys.
    """
    document = _Document(
        plan.format, "", plan.model, plan.cluster, _MeshPart(plan.assignment.mesh.axes, plan.num_stages), plan.labels, plan.summary,
        plan.num_microbatches, plan.schedule, plan.cost, plan.peak, plan.solve, plan.constraints, plan.free_step_s, plan.pipeline, plan.params,
        _AssignmentPart(plan.assignment.storages, plan.assignment.strategies, plan.assignment.again, plan.assignment.microbatches), plan.rules, plan.tensors, plan.nodes, plan.comms, plan.repeats,
    )  # fmt: skip
    try:
        data = typing.cast(dict[str, Json], _codec(_Document).encode(document))
    except _WrongEntry as wrong:
        raise PlanError(f"plan: {wrong.path}: {wrong}; this cannot be written") from None
    data["checksum"] = _checksum(data)
    return data


def plan_from_json(data: object, where: str = "plan") -> Plan:
    """The plan of JSON data, its types checked, its laws not (`check_plan`).

    Args:
        data: what a JSON parser returned.
        where: the file's name, for errors.
    Raises:
        PlanError: something is missing, unknown, of another type, or of another format version.
    """
    if not isinstance(data, dict):
        raise PlanError(f"{where}: expected a JSON object with the fields of a plan, found {_show(data)}; {CURE}")
    found = data.get("format")
    if found != FORMAT:
        raise PlanError(
            f"{where}: format: expected {FORMAT!r}, which this autopar reads, found {_show(found) if 'format' in data else 'no such key'}; "
            "make the plan again with this version, or read it with the one that wrote it"
        )
    try:
        document = typing.cast(_Document, _codec(_Document).decode(data))
    except _WrongEntry as wrong:
        raise PlanError(f"{where}: {wrong.path or 'the whole file'}: {wrong}; {CURE}") from None
    return Plan(
        document.format, document.model, document.cluster,
        Assignment(
            Mesh(document.mesh.axes), document.assignment.storages, document.assignment.strategies, document.assignment.again,
            document.assignment.microbatches,
        ),
        document.mesh.num_stages, document.labels, document.summary, document.num_microbatches, document.schedule, document.cost,
        document.solve, document.tensors, document.params, document.nodes, document.comms, document.repeats, document.rules, document.peak,
        document.constraints, document.free_step_s, document.pipeline,
    )  # fmt: skip


def print_plan_json(plan: Plan) -> str:
    """The text of `plan.json`: tables one row per line, so that two plans can be compared line by line."""
    return _print_json(plan_to_json(plan), 0) + "\n"


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write `plan.json`, whole or not at all.

    Raises:
        PlanError: the plan breaks a law (`check_plan`) or the file cannot be written.
    """
    check_plan(plan)
    text = print_plan_json(plan)
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True) if unfinished.parent.is_dir() else None
        raise PlanError(f"{path}: cannot be written: {error.strerror}; choose another place with -o") from None


def load_plan(path: str | Path) -> Plan:
    """Read `plan.json`, check every entry and every law.

    A plan that was edited keeps its old `checksum` and is refused, so that no accident goes unnoticed; who edits on purpose sets
    `"checksum": ""`, and the laws alone are checked.

    Raises:
        PlanError: the file is missing, cut short, of another format, inconsistent, or edited by accident.
    """
    where = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise PlanError(f"{where}: cannot be read: {error.strerror}; expected a plan that `autopar plan -o` wrote") from None
    except UnicodeDecodeError as error:
        raise PlanError(f"{where}: byte {error.start}: not UTF-8 text; expected a plan that `autopar plan -o` wrote") from None
    data = _parse_json(text, where)
    plan = plan_from_json(data, where)
    check_plan(plan, where)
    found = typing.cast(dict[str, Json], data)["checksum"]
    expected = plan_to_json(plan)["checksum"]
    if found not in ("", expected):
        raise PlanError(
            f"{where}: checksum: expected {expected!r} for this content, found {found!r}: the file was changed after autopar wrote it. "
            'If on purpose, set "checksum": "" and load again; if not, write the plan again with `autopar plan`'
        )
    return plan


def _checksum(data: dict[str, Json]) -> str:
    content = json.dumps({**data, "checksum": ""}, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _parse_json(text: str, where: str) -> object:
    def refuse_constant(name: str) -> None:
        raise PlanError(f"{where}: expected finite numbers, found {name}; {CURE}")

    def build_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        data = dict(pairs)
        if len(data) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise PlanError(f"{where}: key {twice!r} stands twice in one object; {CURE}")
        return data

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=build_object)
    except json.JSONDecodeError as error:
        ending = "the file ends too early" if error.pos >= len(text.rstrip()) else "the file is cut short or damaged"
        raise PlanError(
            f"{where}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}): {ending}; write the plan again with `autopar plan`"
        ) from None
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{where}: not a plan ({error}); write the plan again with `autopar plan`") from None


def _print_json(value: Json, depth: int) -> str:
    """Broken into lines down to the rows of tables."""
    if depth < 2 or (depth == 2 and isinstance(value, (list, dict)) and len(value) > 12):
        pad, end = " " * (depth + 1), " " * depth
        if isinstance(value, dict) and value:
            rows = ",\n".join(f"{pad}{json.dumps(key)}: {_print_json(entry, depth + 1)}" for key, entry in value.items())
            return f"{{\n{rows}\n{end}}}"
        if isinstance(value, list) and value:
            rows = ",\n".join(pad + json.dumps(entry, allow_nan=False) for entry in value)
            return f"[\n{rows}\n{end}]"
    return json.dumps(value, allow_nan=False)


def _show(found: object) -> str:
    """What was found, short enough for one line."""
    if isinstance(found, dict):
        return f"an object of {len(found)} keys"
    if isinstance(found, list):
        return f"a list of {len(found)}"
    try:
        text = json.dumps(found)
    except ValueError:
        text = "a number of too many digits"
    return text if len(text) <= 60 else text[:57] + "..."


@lru_cache(maxsize=256)
def _codec(kind: object) -> _Codec:
    """How values of one type become JSON and come back."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        (inner,) = (a for a in args if a is not type(None))
        return _optional_codec(_codec(inner))
    if origin is tuple and args[-1] is Ellipsis:
        item = args[0]
        if item is Holder:
            return _mapping_codec(_codec(int), Holder, lambda holder: (holder.name, holder.bytes))
        pair = typing.get_args(item)
        if typing.get_origin(item) is tuple and len(pair) == 2 and pair[0] is str and pair[1] is not Ellipsis:
            return _mapping_codec(_codec(pair[1]), lambda name, entry: (name, entry), lambda entry: entry)
        return _list_codec(_codec(item))
    if kind is Sharding:
        return _Codec(str, _decode_sharding)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_codec(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass_codec(kind)
    if kind in _SCALARS:
        return _SCALARS[typing.cast(type, kind)]
    raise TypeError(f"no JSON form for {kind}")


def _decode_str(data: object) -> str:
    if not isinstance(data, str):
        raise _WrongEntry(f"expected a text, found {_show(data)}")
    return data


def _decode_int(data: object) -> int:
    if isinstance(data, bool) or not isinstance(data, int):
        raise _WrongEntry(f"expected a whole number, found {_show(data)}")
    if abs(data) >= MAX_INT:
        raise _WrongEntry(f"expected a whole number below 2^63, found {_show(data)}")
    return data


def _decode_float(data: object) -> float:
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        raise _WrongEntry(f"expected a number, found {_show(data)}")
    try:
        number = float(data)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _WrongEntry("expected a finite number, found one that is too large")
    return number


def _encode_float(value: object) -> Json:
    number = float(typing.cast(float, value))
    if not math.isfinite(number):
        raise _WrongEntry(f"expected a finite number, found {number}")
    return number


@lru_cache(maxsize=4096)
def _parse_text(text: str) -> Sharding:
    return parse_sharding(text)


def _decode_sharding(data: object) -> Sharding:
    if not isinstance(data, str):
        raise _WrongEntry(f'expected a sharding such as "S0/4,R", found {_show(data)}')
    try:
        return _parse_text(data)
    except (PlanError, ValueError):
        raise _WrongEntry(f"expected R, P, Pmax, Pmin or S<dim>/<stride> per mesh axis, joined by commas, found {_show(data)}") from None


_SCALARS: typing.Final[types.MappingProxyType[type, _Codec]] = types.MappingProxyType({
    str: _Codec(lambda value: typing.cast(str, value), _decode_str),
    int: _Codec(lambda value: int(typing.cast(int, value)), _decode_int),
    float: _Codec(_encode_float, _decode_float),
})  # fmt: skip


def _optional_codec(inner: _Codec) -> _Codec:
    return _Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda data: None if data is None else inner.decode(data),
    )


def _enum_codec(kind: type[enum.Enum]) -> _Codec:
    known = {member.value: member for member in kind}

    def decode(data: object) -> enum.Enum:
        if not isinstance(data, str) or data not in known:
            raise _WrongEntry(f"expected one of {', '.join(known)}, found {_show(data)}")
        return known[data]

    return _Codec(lambda value: typing.cast(enum.Enum, value).value, decode)


def _list_codec(item: _Codec) -> _Codec:
    def encode(value: object) -> Json:
        result: list[Json] = []
        for entry in typing.cast(tuple[object, ...], value):
            try:
                result.append(item.encode(entry))
            except _WrongEntry as wrong:
                raise wrong.below(f"[{len(result)}]") from None
        return result

    def decode(data: object) -> tuple[object, ...]:
        if not isinstance(data, list):
            raise _WrongEntry(f"expected a list, found {_show(data)}")
        result: list[object] = []
        for entry in data:
            try:
                result.append(item.decode(entry))
            except _WrongEntry as wrong:
                raise wrong.below(f"[{len(result)}]") from None
        return tuple(result)

    return _Codec(encode, decode)


def _mapping_codec(
    entry: _Codec, join: Callable[[str, typing.Any], object], split: Callable[[typing.Any], tuple[str, object]]
) -> _Codec:
    def encode(value: object) -> Json:
        result: dict[str, Json] = {}
        for pair in typing.cast(tuple[object, ...], value):
            name, inner = split(pair)
            if name in result:
                raise _WrongEntry(f"{name!r} stands twice")
            try:
                result[name] = entry.encode(inner)
            except _WrongEntry as wrong:
                raise wrong.below(f"[{name!r}]") from None
        return result

    def decode(data: object) -> tuple[object, ...]:
        if not isinstance(data, dict):
            raise _WrongEntry(f"expected an object, found {_show(data)}")
        result: list[object] = []
        for name, inner in data.items():
            try:
                result.append(join(name, entry.decode(inner)))
            except _WrongEntry as wrong:
                raise wrong.below(f"[{name!r}]") from None
        return tuple(result)

    return _Codec(encode, decode)


def _dataclass_codec(kind: type) -> _Codec:
    hints = typing.get_type_hints(kind)
    codecs = [(f.name, _codec(hints[f.name])) for f in fields(kind)]
    names = frozenset(name for name, _ in codecs)

    def encode(value: object) -> Json:
        result: dict[str, Json] = {}
        for name, codec in codecs:
            try:
                result[name] = codec.encode(getattr(value, name))
            except _WrongEntry as wrong:
                raise wrong.below(name) from None
        return result

    def decode(data: object) -> object:
        if not isinstance(data, dict):
            raise _WrongEntry(f"expected an object with the keys {', '.join(name for name, _ in codecs)}, found {_show(data)}")
        unknown = next((key for key in data if key not in names), None)
        if unknown is not None:
            raise _WrongEntry(f"expected the keys {', '.join(name for name, _ in codecs)}, found {unknown!r}, which is none of them")
        result: list[object] = []
        for name, codec in codecs:
            if name not in data:
                raise _WrongEntry("missing").below(name)
            try:
                result.append(codec.decode(data[name]))
            except _WrongEntry as wrong:
                raise wrong.below(name) from None
        return kind(*result)

    return _Codec(encode, decode)
