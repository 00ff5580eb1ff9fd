"""Discovery: the sharding rule of an op that has no row, found by running it on small pieces of made-up data.

In: a graph. Out (`find_rows`): a `RuleRow` for every node whose op the table lacks: what the user registered, what a plan already says, what
an earlier run found (a file per op in a cache folder, tried once more before it is believed), else what running the op shows. What
cannot be shown is whole, with the reason. An op that is not the same function twice (random numbers, a state) is whole too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...errors import GraphError
from ...graph.graph import Graph, value_table
from ...graph.node import Node, input_names, packet_of
from ...graph.registry import RuleRow, nodes_without_row, rule_of
from ...graph.rule import LinearSets, Site, resolve
from ...graph.strategy import list_strategies
from ..private import without_modes
from .experiment import Found, Laboratory, OutOfTime, Trial, Way, clock, list_candidates
from .kept import CACHE_PATH, kept_path, read_row, write_row
from .made_up import DOMAINS, KINDS, MAX_ELEMENTS, Args, Shape, Shrinking, count_elements, list_shrinkings, make_inputs, widen
from .referee import Sample, call_op, site_of, why_wrong
from .register import registered_rules
from .rule_text import fits, print_rule

BUDGET_S = 2.0
NOT_FOUND = "not found splittable by discovery"
NOT_THE_SAME = "two runs on the same data differ: it draws random numbers or keeps a state, so every rank runs it whole"
_MAX_CANDIDATES = 2000
_SHARDS = (2, 3)
_MESHES = ((2,), (3,), (2, 2))


def find_rows(
    graph: Graph, known: Iterable[RuleRow] = (), cache: Path | None = CACHE_PATH, budget_s: float = BUDGET_S
) -> tuple[RuleRow, ...]:
    """A row for every node whose op the table lacks.

    Args:
        known: rows of a plan of this very graph: what they say of its nodes is not asked again.
        cache: folder for what was found; None: nothing is kept.
        budget_s: that one op may cost.
    """
    stated, stating = {name: row for row in known for name in row.nodes}, registered_rules()
    rows: dict[object, RuleRow] = {}
    nodes: dict[object, list[str]] = {}
    values = value_table(graph)
    for node in nodes_without_row(graph):
        inputs = tuple((values[name].shape, values[name].dtype) for name in node.inputs)
        outputs = tuple((values[name].shape, values[name].dtype) if name else None for name in node.outputs)
        given = stating.get(node.op) or stating.get(packet_of(node.op)) or stated.get(node.name)
        key: object = (node.op, given) if given else (node.op, node.args, inputs, outputs)
        if key not in rows:
            rows[key] = replace(given, op=node.op) if given else discover_rule(node, inputs, outputs, cache, budget_s)
        nodes.setdefault(key, []).append(node.name)
    merged: dict[object, RuleRow] = {}
    for key, row in rows.items():  # shapes that follow one rule are one row
        same = (row.op, row.origin, row.text, row.linear, row.owed, row.reduce, row.why_whole)
        mine = replace(row, nodes=tuple(nodes[key]))
        merged[same] = _join_rows(merged[same], mine) if same in merged else mine
    return tuple(merged.values())


def _join_rows(one: RuleRow, other: RuleRow) -> RuleRow:
    trials, seconds = one.num_trials + other.num_trials, one.seconds + other.seconds
    if one.origin != "discovered":
        trials, seconds = one.num_trials, one.seconds
    return replace(one, nodes=(*one.nodes, *other.nodes), num_trials=trials, seconds=seconds)


Spec = tuple[Shape, str]  # shape and dtype of a value


def discover_rule(
    node: Node, inputs: tuple[Spec, ...], outputs: tuple[Spec | None, ...], cache: Path | None = CACHE_PATH, budget_s: float = BUDGET_S
) -> RuleRow:
    """The row of one node, with no node named in it yet.

    Args:
        inputs, outputs: shapes and dtypes around the node, whole; None for an output that does not exist.
        cache, budget_s: as in `find_rows`.
    """
    began = clock()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad(), without_modes():
        warnings.simplefilter("ignore")
        return _Study(node, inputs, outputs, began + budget_s).run(cache)


# -- one op -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bench:
    """How the op can be run: small shapes, dtypes, where it is defined."""

    shrinking: Shrinking
    dtypes: tuple[torch.dtype, ...]
    domain: str


class _Study:
    """The study of one node. Lives for one call of `discover_rule`."""

    def __init__(self, node: Node, inputs: tuple[Spec, ...], outputs: tuple[Spec | None, ...], deadline: float) -> None:
        self.node, self.inputs, self.outputs = node, inputs, outputs
        self.shapes = tuple(shape for shape, _ in inputs)
        self.dtypes = tuple(getattr(torch, dtype) for _, dtype in inputs)
        self.began = clock()
        self.reason = NOT_FOUND
        self.lab = Laboratory(node.op, call_op, deadline)
        self.seen: tuple[tuple[Shape | None, ...], ...] = ()  # shapes with which it ran, inputs then outputs

    def run(self, cache: Path | None) -> RuleRow:
        """What the op shows, or what it showed before; whole where it shows nothing."""
        try:
            if not self.inputs:
                return self._row((), (), "sum", "it has no tensor inputs to split")
            bench = self._find_bench()
            if isinstance(bench, str):
                return self._row((), (), "sum", bench)
            if not self._is_repeatable(bench):
                return self._row((), (), "sum", NOT_THE_SAME)
            key = (bench, self.node.args, [o is None for o in self.outputs])  # nodes that are shrunk alike are one experiment
            path = kept_path(cache, self.node.op, key) if cache is not None else None
            row = self._recall(bench, path) if path is not None else None
            if row is None:
                row = self._confirm(bench, *self._explore(bench))
                if path is not None and self.reason == NOT_FOUND:
                    write_row(path, row)
            return row
        except OutOfTime:
            return self._row((), (), "sum", f"{NOT_FOUND}: running it takes too long to try")

    def _recall(self, bench: _Bench, path: Path) -> RuleRow | None:
        """What an earlier run found, if it fits this node and still holds on one sample."""
        row = read_row(path, self.node.op, "discovered")
        try:
            if row is None or self._wrong_choices(bench, row, ((2,),)) is not None:
                return None
            resolve(rule_of(row), Site(self.node, self.shapes, tuple(o[0] for o in self.outputs if o is not None)))
        except (GraphError, OutOfTime):
            return None
        return row

    # -- how to run it -------------------------------------------------------------------------------------------------------------

    def _find_bench(self) -> _Bench | str:
        """The freest way to run the op, or why there is none."""
        problem = ""
        for shrinking in list_shrinkings(self.shapes, self.node.args):
            if max(count_elements(shapes) for shapes in shrinking.shapes) > MAX_ELEMENTS:
                problem = problem or "it does not run on small data"
                continue
            for wide in (True, False):
                dtypes = tuple(widen(dtype, wide) for dtype in self.dtypes)
                bench = _Bench(shrinking, dtypes, "real")
                reason = self._why_unfit(bench)
                if not reason:
                    return next((b for b in (replace(bench, domain=d) for d in DOMAINS) if self._is_telling(b)), bench)
                problem = reason
        return f"discovery could not run it on made-up data ({problem}); state its rule with autopar.register_rule"

    def _why_unfit(self, bench: _Bench) -> str:
        seen: list[tuple[Shape | None, ...]] = []
        for turn in (0, 1):
            inputs = make_inputs(bench.shrinking.shapes[turn], bench.dtypes, "signed", bench.domain, max(_SHARDS), turn)
            if clock() > self.lab.deadline:
                raise OutOfTime
            started = clock()
            try:
                made = self.lab.run(self.node.op, bench.shrinking.args[turn], inputs)
            except Exception as error:
                return f"{type(error).__name__}: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
            finally:
                if self.lab.num_trials == 0:  # torch and the op may load and compile: that is not the op's time
                    self.lab.deadline += clock() - started
                self.lab.num_trials += 1
            expected = [None if o is None else len(o[0]) for o in self.outputs]
            if [None if o is None else o.dim() for o in made] != expected:
                return "its outputs have other ranks than in the model"
            seen.append(tuple(None if t is None else tuple(t.shape) for t in (*inputs, *made)))
        self.seen = tuple(seen)
        return ""

    def _is_telling(self, bench: _Bench) -> bool:
        """True where most numbers that come out are numbers."""
        trial = self._trial(bench, 0, "signed", 0)
        floats = [o for o in trial.outputs if o is not None and o.dtype.is_floating_point and o.numel()] if trial else []
        return trial is not None and all(float(o.isfinite().double().mean()) > 0.5 for o in floats)

    def _is_repeatable(self, bench: _Bench) -> bool:
        """False where two runs on the same data differ."""
        for turn in (0, 1):
            inputs = make_inputs(bench.shrinking.shapes[turn], bench.dtypes, "signed", bench.domain, max(_SHARDS), turn)
            torch.manual_seed(1)
            runs = [self.lab.call(bench.shrinking.args[turn], [t.clone() for t in inputs]) for _ in range(3)]
            first = runs[0]
            for other in runs[1:]:
                if first is None or other is None:
                    return False
                if not all(_same(a, b) for a, b in zip(first, other)):
                    return False
        return True

    def _trial(self, bench: _Bench, turn: int, kind: str, seed: int, num_shards: int = max(_SHARDS)) -> Trial | None:
        inputs = make_inputs(bench.shrinking.shapes[turn], bench.dtypes, kind, bench.domain, num_shards, 7 * seed + turn)
        args = bench.shrinking.args[turn]
        outputs = self.lab.call(args, inputs)
        return None if outputs is None else Trial(args, inputs, outputs)

    # -- what it shows -------------------------------------------------------------------------------------------------------------

    def _explore(self, bench: _Bench) -> tuple[tuple[Found, ...], tuple[tuple[int, ...], ...]]:
        """The factors, no dim in two of them, and the linear sets."""
        first = self._trial(bench, 0, "signed", 1)
        if first is None:
            return (), ()
        trials = [t for turn in (0, 1) for k, kind in enumerate(KINDS) if (t := self._trial(bench, turn, kind, k + 2)) is not None]
        trials += [t for turn in (0, 1) if (t := self._trial(bench, turn, "signed", 9, 1)) is not None]
        factors: list[Found] = []
        try:
            for equal in (True, False):
                for dims in list_candidates(bench.shrinking.shapes[0], equal)[:_MAX_CANDIDATES]:
                    if any(d >= 0 and any(f.dims[k] == d for f in factors) for k, d in enumerate(dims)):
                        continue
                    found = self._try_factor(dims, first, trials)
                    if found is not None and not _collides(found, factors):
                        factors.append(found)
            asked = [(turn, kind) for turn in (0, 1) for kind in ("signed", "large", "small")]
            pairs = [(self._trial(bench, turn, kind, 20), self._trial(bench, turn, kind, 21)) for turn, kind in asked]
            runs = tuple((a, b) for a, b in pairs if a is not None and b is not None)
            linear = self.lab.find_linear(runs) if bench.domain == "real" and runs else ()
        except OutOfTime:
            linear, self.reason = (), f"{NOT_FOUND} in the time that an op may take"
        return tuple(factors), linear

    def _try_factor(self, dims: tuple[int, ...], first: Trial, trials: list[Trial]) -> Found | None:
        owed: tuple[int, ...] = ()
        ways = self.lab.find_ways(dims, [first], (2,))
        if ways is not None:
            ways = self.lab.find_ways(dims, trials, _SHARDS)
        if ways is None or not any(w is not None and w - {"same"} for w in ways):
            if not all(t.is_floating_point() for t in first.outputs if t is not None) or not self.lab.find_owed(dims, [first], (2,)):
                return None
            owed = self.lab.find_owed(dims, trials, _SHARDS)
            if not owed:
                return None
            ways = [None if o is None else {"sum"} for o in first.outputs]
        order: tuple[Way, ...] = ("same", "sum", "max", "min")
        chosen = tuple(None if w is None else next((d for d in sorted(x for x in w if isinstance(x, int))), None) for w in ways)
        full = tuple(c if c is not None or w is None else next(o for o in order if o in w) for c, w in zip(chosen, ways))
        if all(w in (None, "same") for w in full):
            return None
        return Found(dims, full, owed)

    # -- what is said ----------------------------------------------------------------------------------------------------------------

    def _confirm(self, bench: _Bench, factors: tuple[Found, ...], linear: tuple[tuple[int, ...], ...]) -> RuleRow:
        """The row of these findings, after the referee has seen all of it together; what it refuses is dropped."""
        whole_outputs = tuple(None if o is None else o[0] for o in self.outputs)
        factors, reduce = _one_reduction(tuple(f for f in factors if fits(self.shapes, whole_outputs, f)))
        names = input_names(self.node)
        sets = tuple(tuple(dict.fromkeys(names[k] for k in together)) for together in linear)
        sets = tuple(s for s, together in zip(sets, linear) if all((names[k] in s) == (k in together) for k in range(len(names))))
        while True:
            row = self._row(factors, sets, reduce, self.reason)
            try:
                wrong = self._wrong_choices(bench, row, _MESHES)
            except OutOfTime:
                return row  # each factor alone has been shown; together they are one after the other
            if wrong is None:
                return row
            last = wrong[-1] if wrong else ""
            if last.startswith("P("):
                sets = tuple(s for s in sets if f"P({' '.join(s)})" != last)
            elif last.partition("@")[0] in (letters := print_rule(self.shapes, whole_outputs, factors).letters):
                factors = tuple(f for f, letter in zip(factors, letters) if letter != last.partition("@")[0])
            else:
                return self._row((), (), "sum", self.reason)

    def _wrong_choices(self, bench: _Bench, row: RuleRow, meshes: tuple[Shape, ...]) -> tuple[str, ...] | None:
        """The choices of the first strategy that is not what the op does; None where all are. () where the text does not fit."""
        for turn in (0, 1):
            trial = self._trial(bench, turn, "signed", 30)
            if trial is None:
                return ()
            args = trial.args
            outputs = tuple("" if o is None else f"out{k}" for k, o in enumerate(trial.outputs))
            node = Node("op", self.node.op, tuple(f"in{k}" for k in range(len(self.inputs))), args, outputs, self.node.phase)
            sample = Sample(self.node.op, node, trial.inputs, tuple(o for o in trial.outputs if o is not None), run=self._run_counted)
            site = site_of(sample)
            try:
                signature = resolve(rule_of(row), site)
            except GraphError:
                return ()
            for sizes in meshes:
                for strategy in list_strategies(signature, site, sizes, {})[0]:
                    narrow = any(t.dtype in (torch.float32, torch.complex64) for t in trial.inputs)
                    if narrow and any(c.startswith("P(") for c in strategy.choices):
                        continue  # parts of narrow numbers round
                    if why_wrong(sample, signature, strategy, sizes):
                        return tuple(c for c in strategy.choices if c != "R")
        return None

    def _run_counted(self, op: str, args: Args, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor | None, ...]:
        made = self.lab.call(args, [t.contiguous() for t in inputs])
        if made is None:
            raise RuntimeError("the op does not take these pieces")
        return made

    def _row(self, factors: tuple[Found, ...], linear: LinearSets, reduce: str, reason: str) -> RuleRow:
        text = print_rule(self.shapes, tuple(None if o is None else o[0] for o in self.outputs), factors, self.seen).text
        names = input_names(self.node)
        owed = tuple(dict.fromkeys(names[k] for f in factors for k in f.owed))
        seconds = clock() - self.began
        return RuleRow(self.node.op, "discovered", (), text, linear, owed, reduce, 1.0, reason if "[" in text else "", self.lab.num_trials, seconds)


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _collides(found: Found, factors: list[Found]) -> bool:
    """True where another factor has one of its output dims already."""
    return any(isinstance(w, int) and any(f.ways[j] == w for f in factors) for j, w in enumerate(found.ways))


def _one_reduction(factors: tuple[Found, ...]) -> tuple[tuple[Found, ...], str]:
    """The factors that one row can hold together: a row has one way to reduce what is contracted."""
    asked = [{w for w in f.ways if w in ("sum", "max", "min")} for f in factors]
    reduce = next((way for way in ("sum", "max", "min") if {way} in asked), "sum")
    return tuple(f for f, ways in zip(factors, asked) if ways <= {reduce}), reduce
