"""One parameter, tensor or op of a plan: what was chosen for it, what else was offered and at which price, and what it touches.

In: a plan and a name as a person types it: whole, the end of one (`c_fc.weight`), or with `*`. Out: `NameReport`s, equal ones of equal
blocks folded. Everything is an entry of the plan; the prices of its alternatives (`offers`) are those that were stored, with the neighbours
as they are. What alternatives cost when all else may follow is found by solving again (`autopar.alternatives`), which fills `again`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from ..errors import OptionsError
from ..graph.node import Phase
from ..graph.plan import CommPlan, NodePlan, ParamPlan, Peak, Plan, TensorPlan
from ..graph.sharding import Sharding
from ..graph.stages import COPY
from ..graph.tensor import Kind
from ..graph.turns import times_of
from .fold import fold_names, fold_places
from .split_text import print_choices, print_op, print_split
from .stages import comm_times
from .why_dearer import Difference

PARAM, TENSOR, OP = "parameter", "tensor", "op"
NUM_NEAR, NUM_LISTED = 5, 8
_JOINTS = (".", ":", "/")  # before the end of a name that is given without the rest


@dataclass(frozen=True, slots=True)
class Chosen:
    """How one thing lies on a rank, or works."""

    what: str
    split: str
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A strategy that was not taken; the seconds as the plan has them: of the node with its reshards, its neighbours as they are."""

    strategy: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An op or tensor beside it. `role`: `made by`, `read by`, `reads`; `split`: how the tensor is made, `strategy`: how the op works."""

    role: str
    tensor: str
    node: str
    op: str
    phase: str
    split: str
    strategy: str


@dataclass(frozen=True, slots=True)
class CommAt:
    """A communication of it or before it. `times`: in a step; the bytes are of one time, the seconds of all."""

    name: str
    kind: str
    axis: str
    phase: str
    value: str
    reader: str
    source: str
    target: str
    bytes: int
    seconds: float
    times: int = 1


FITS, TOO_LARGE, NOT_FOUND, REFUSED = "fits", "does not fit", "nothing found", "refused"


@dataclass(frozen=True, slots=True)
class Priced:
    """An alternative, and the fastest step with it when all else may follow.

    Args:
        what: how the thing would lie or work.
        status: `fits`; `does not fit` (proven); `nothing found` (that fits, in the time given); `refused` (it cannot be; `told` says why).
        step_s: None where there is no plan.
        extra_s: against the step of the chosen plan.
        at_least_s: it is proven to be no less than so much dearer (negative: than so much cheaper); None where no plan fits.
        missing_bytes: by how much the smallest plan found is too large; 0 where one fits.
        free_extra_s: `extra_s` without a memory limit, None where the limit plays no part or nothing was found.
        because: what makes it so: `memory`, `compute`, `communication along a`; "" where it is no dearer.
        difference: of its step and the chosen one, None where there is no plan.
    """

    what: str
    status: str
    step_s: float | None
    extra_s: float | None
    at_least_s: float | None
    missing_bytes: int
    free_extra_s: float | None
    because: str
    difference: Difference | None
    told: str = ""


@dataclass(frozen=True, slots=True)
class SolvedAgain:
    """Alternatives of one name, each the best of all plans on the plan's own mesh that have it.

    Args:
        mesh: as text.
        members: names that go with it, because equal blocks decide alike.
        step_s: of the chosen plan, by today's figures.
        gap: the plan is proven to be within this share of the best; None: today's figures are not those it was planned with.
        time_limit_s: of each.
        priced: the few that cost least with their neighbours as they are; after solving, the cheapest first.
        others: not solved with.
    """

    mesh: str
    members: tuple[str, ...]
    step_s: float
    gap: float | None
    time_limit_s: float
    priced: tuple[Priced, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NameReport:
    """What the plan knows of one name.

    Args:
        name: with the numbers of equal blocks folded; `members`: all of them, the first of which is told.
        sort: `parameter`, `tensor` or `op`.
        about: shape, dtype, place.
        peak_bytes: what it holds at the peak of the plan, or of its stage.
        times: how often an op runs in a step: `seconds` are of all, those of `offers` of one time.
        again: its alternatives after solving again; None where nobody did, and `why_not` says why ("": nobody asked).
    """

    name: str
    members: tuple[str, ...]
    sort: str
    about: tuple[tuple[str, str], ...]
    chosen: tuple[Chosen, ...]
    seconds: float | None
    reason: str
    offers: tuple[Offer, ...]
    refused: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]
    comms: tuple[CommAt, ...]
    peak_bytes: int
    again: SolvedAgain | None = None
    why_not: str = ""
    times: int = 1


def explain_name(plan: Plan, word: str) -> tuple[NameReport, ...]:
    """Tell what was chosen for what a word names.

    Raises:
        OptionsError: nothing has this name, or several have this end; names that are near are listed.
    """
    tables = _Tables(plan)
    reports = [tables.report(name) for name in _find(tables, word)]
    places = [tables.nodes[r.name].path if r.sort == OP else r.name for r in reports]
    return tuple(_folded(fold.name, [reports[i] for i in fold.members]) for fold in fold_places(places, [_equality(r) for r in reports]))


def _find(tables: _Tables, word: str) -> list[str]:
    names, states = tables.names, tables.states
    if word in names or word in states:
        return [states.get(word, word)]
    if any(c in word for c in "*?["):
        found = [name for name in names if fnmatchcase(name, word)] or [states[name] for name in states if fnmatchcase(name, word)]
        if found:
            return found
    by_sort = ([states.get(name, name) for name in sort if _ends(name, word)] for sort in (tables.params, tables.nodes, tables.tensors, states))
    ends = next((found for found in by_sort if found), [])  # the first sort that has it is meant
    if len(ends) == 1:
        return ends
    if ends:
        listed = [fold.name for fold in fold_names(ends, [None] * len(ends))]
        more = f", and {len(listed) - NUM_LISTED} more" if len(listed) > NUM_LISTED else ""
        raise OptionsError(
            f"{word!r}: {len(ends)} names end so: {', '.join(listed[:NUM_LISTED])}{more}; give one of them whole, or '*{word}' for all"
        )
    near = _near([*(name for name in names if "@" not in name), *states], word)
    told = f"near: {', '.join(near)}" if near else "`autopar show` and the page (--html) list names"
    raise OptionsError(
        f"{word!r}: the plan of {tables.plan.model.name} has no parameter, tensor or op of this name; {told}. Names may be given "
        "whole, by their end (c_fc.weight), or with * for any part"
    )


def _ends(name: str, word: str) -> bool:
    return name.endswith(word) and name[: -len(word)].endswith(_JOINTS)


def _near(names: Iterable[str], word: str) -> list[str]:
    """Names that a mistyped word may mean; of equal blocks one."""
    inside = [name for name in names if word.lower() in name.lower()]
    close = inside or get_close_matches(word, list(names), NUM_NEAR * 4, 0.6)
    ends = {name: name.rpartition(".")[2] for name in names}
    if not close:
        tails = set(get_close_matches(word.rpartition(".")[2], list(set(ends.values())), NUM_NEAR, 0.6))
        close = [name for name in names if ends[name] in tails]
    folds = fold_names(close, [None] * len(close))
    return [close[fold.members[0]] for fold in folds][:NUM_NEAR]


def _equality(report: NameReport) -> Hashable:
    """What members of one fold have in common: all that is decided, not the names of neighbours."""
    beside = tuple((n.role, n.op, n.phase, n.split, n.strategy) for n in report.neighbours)
    comms = tuple((c.kind, c.axis, c.phase, c.source, c.target, c.bytes, c.seconds) for c in report.comms)
    about = tuple(pair for pair in report.about if pair[0] not in ("in", "stage"))
    chosen = tuple((c.split, c.bytes) for c in report.chosen)
    return (report.sort, about, chosen, report.seconds, report.reason, report.offers, report.refused, beside, comms, report.peak_bytes, report.times)


def _folded(place: str, reports: list[NameReport]) -> NameReport:
    first = reports[0]
    name = place
    if first.sort == OP:
        name = first.name + (" and its like" if len(reports) > 1 else "") + (f" in {place}" if len(reports) > 1 and place else "")
    return NameReport(
        name, tuple(r.name for r in reports), first.sort, first.about, first.chosen, first.seconds, first.reason, first.offers,
        first.refused, first.neighbours, first.comms, first.peak_bytes, times=first.times,
    )  # fmt: skip


class _Tables:
    """The plan's tables by name, made once."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.mesh = plan, plan.assignment.mesh
        self.params = {p.name: p for p in plan.params}
        self.nodes = {n.name: n for n in plan.nodes}
        self.tensors = {t.name: t for t in plan.tensors}
        self.states = {name[:-2]: name for name in self.tensors if name.endswith("@0") and name[:-2] not in self.params}  # buffers, optimizer states
        self.names = tuple(dict.fromkeys((*self.params, *self.nodes, *self.tensors)))
        self.maker: dict[str, NodePlan] = {}
        self.readers: dict[str, list[NodePlan]] = {}
        for node in plan.nodes:
            self.maker.update((out, node) for out in node.outputs if out)
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)
        peaks = [s.peak for s in plan.pipeline.stages if s.peak is not None] if plan.pipeline is not None else [plan.peak] if plan.peak is not None else []
        self.held = [_sum_tensors(peak) for peak in peaks]

    def report(self, name: str) -> NameReport:
        """A parameter before an op before a tensor, where several bear the name."""
        if name in self.params:
            return self._param(self.params[name])
        return self._op(self.nodes[name]) if name in self.nodes else self._tensor(self.tensors[name])

    def _param(self, p: ParamPlan) -> NameReport:
        tensor = self.tensors.get(f"{p.name}@0") or self.tensors[p.name]
        states = [
            t.name
            for t in self.plan.tensors
            if t.kind is Kind.OPTIM and t.version == 0 and t.name.partition(":")[2] in (f"{p.name}@0", p.name)
        ]
        mine = {tensor.name, *states}
        updates = [node for node in self.plan.nodes if node.phase is Phase.UPDATE and not mine.isdisjoint(node.inputs)]
        mine |= {name for node in updates for name in node.inputs if self._is_grad(name, p)}
        chosen = [Chosen("stored", self._split(p.shape, p.param), p.param_bytes)]
        if p.grad is not None:
            chosen.append(Chosen("gradient", self._split(p.shape, p.grad), p.grad_bytes))
        if p.optim is not None:
            chosen.append(Chosen("optimizer state", self._split(p.shape, p.optim), p.optim_bytes))
        copies = [t for t in self.plan.tensors if t.name.startswith(f"{tensor.name}{COPY}")]
        chosen += [Chosen(f"copy on stage {t.stage}", self._split(t.shape, t.sharding), t.bytes) for t in copies]
        readers = tuple(self._reader(t, node) for t in (tensor, *copies) for node in self.readers.get(t.name, ()))
        mine.update(t.name for t in copies)
        return NameReport(
            p.name, (p.name,), PARAM, (("is", f"{tensor.dtype} {_print_shape(p.shape)}"), *self._stage(tensor)), tuple(chosen), None, "", (), (), readers,
            self._comms(c for c in self.plan.comms if c.value in mine), self._held(mine),
        )  # fmt: skip

    def _stage(self, tensor: TensorPlan | None) -> tuple[tuple[str, str], ...]:
        """For `about`: where it is, if there are stages."""
        return (("stage", f"stage {tensor.stage}"),) if self.plan.pipeline is not None and tensor is not None else ()

    def _held(self, names: Iterable[str]) -> int:
        """On one device, of several stages the one on which it is most."""
        mine = tuple(names)
        return max((sum(held.get(name, 0) for name in mine) for held in self.held), default=0)

    def _is_grad(self, name: str, p: ParamPlan) -> bool:
        """True for what the backward phase made in the shape of the parameter (the sum of two gradients is of no kind of its own)."""
        return name in self.maker and self.maker[name].phase is Phase.BACKWARD and self.tensors[name].shape == p.shape

    def _tensor(self, t: TensorPlan) -> NameReport:
        about = (("is", f"{t.kind.value}, {t.dtype} {_print_shape(t.shape)}"), *self._stage(t))
        maker = (self._maker(t),) if t.name in self.maker else ()
        readers = tuple(self._reader(t, node) for node in self.readers.get(t.name, ()))
        chosen = Chosen("made" if maker else "enters", self._split(t.shape, t.sharding), t.bytes)
        return NameReport(
            t.name, (t.name,), TENSOR, about, (chosen,), None, "", (), (), maker + readers,
            self._comms(c for c in self.plan.comms if c.value == t.name), self._held((t.name,)),
        )  # fmt: skip

    def _op(self, n: NodePlan) -> NameReport:
        about = [
            ("is", f"{print_op(n.op)}, {n.phase.value}"),
            *([("in", n.path)] if n.path else []),
            *([("at", n.source)] if n.source else []),
        ]
        outputs = [self.tensors[name] for name in n.outputs if name]
        about += self._stage(next((t for t in (*outputs, *(self.tensors[name] for name in n.inputs))), None))
        chosen = [Chosen("strategy", print_choices(n.choices, self.mesh))]
        chosen += [Chosen(f"makes {t.name}", self._split(t.shape, t.sharding), t.bytes) for t in outputs]
        reads = tuple(self._maker(self.tensors[name], "reads") for name in dict.fromkeys(n.inputs))
        readers = tuple(self._reader(t, node) for t in outputs for node in self.readers.get(t.name, ()))
        mine = {t.name for t in outputs}
        offers = tuple(Offer(print_choices(other.choices, self.mesh), other.seconds) for other in n.alternatives)
        return NameReport(
            n.name, (n.name,), OP, tuple(about), tuple(chosen), n.seconds, n.reason, offers, n.refused, reads + readers,
            self._comms(c for c in self.plan.comms if c.reader == n.name or c.value in mine), self._held(mine),
            times=int(times_of(n.phase, self.plan.num_microbatches)),
        )  # fmt: skip

    def _split(self, shape: tuple[int, ...], sharding: Sharding) -> str:
        return print_split(shape, sharding, self.mesh)

    def _maker(self, t: TensorPlan, role: str = "made by") -> Neighbour:
        node = self.maker.get(t.name)
        split = self._split(t.shape, t.sharding)
        if node is None:
            return Neighbour(role, t.name, "", "", "", split, "")
        return Neighbour(role, t.name, node.name, print_op(node.op), node.phase.value, split, print_choices(node.choices, self.mesh))

    def _reader(self, t: TensorPlan, node: NodePlan) -> Neighbour:
        split = self._split(t.shape, t.sharding)
        return Neighbour("read by", t.name, node.name, print_op(node.op), node.phase.value, split, print_choices(node.choices, self.mesh))

    def _comms(self, comms: Iterable[CommPlan]) -> tuple[CommAt, ...]:
        rows = []
        for c in comms:
            shape = self.tensors[c.value].shape
            ends = self._split(shape, c.source_sharding), self._split(shape, c.target_sharding)
            rows.append(CommAt(c.name, c.kind, c.axis, c.phase.value, c.value, c.reader, *ends, c.bytes, c.seconds, comm_times(self.plan, c)))
        return tuple(rows)


def _sum_tensors(peak: Peak) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in peak.tensors:
        found[row.tensor] = found.get(row.tensor, 0) + row.bytes
    return found


def _print_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
