"""Every plan of a tiny graph: the truth that the solver is tested against.

It shares with the solver the options of each chooser and nothing else: seconds and bytes are added up here again, over the whole graph, by
the laws of `graph.partition` and `graph.liveness`, with every choice of what is recomputed (`graph.recompute`), and in turns where the
graph takes its batch in turns (`graph.microbatch`). Each cost depends on what a few choosers decide (who makes a value, who reads it): it
is computed once for each combination of theirs, and spread over all plans.

Bytes are those of the program, or a little more: where several readers bring copies at one node, all are counted as if brought at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product

import numpy as np

from ..graph.graph import Graph, producer_table, use_table, value_table
from ..graph.liveness import is_view, storage_bases
from ..graph.node import Phase
from ..graph.recompute import Recomputed, recompute_graph
from ..graph.sharding import Sharding, local_elements, replicated
from ..graph.small_reductions import share_meetings
from ..graph.strategy import Strategy
from ..graph.tensor import DTYPE_BYTES, Value
from ..graph.transfer import HIDING_PHASES, may_hide, outside_blocks
from ..graph.turns import GROWN, count_microbatches, loop_span, times_of
from ..graph.view_strides import find_copied
from .prices import Prices
from .problem import Problem
from .transients import transient_bytes

BRINGS, RUNS, LEAVES = 0, 1, 2  # moments of a node: its inputs are brought, it runs, what leaves is brought
Options = Sequence[Strategy] | Sequence[Sharding]
Pick = Mapping[str, Strategy | Sharding]  # by node or input: what it decides


@dataclass(frozen=True, slots=True)
class Truth:
    """Seconds and peak bytes of every plan that recomputes the same nodes: one dimension per chooser, in its order of options.

    Seconds are infinite where a value cannot be brought to where it is wanted.
    """

    again: tuple[str, ...]
    seconds: np.ndarray
    peaks: np.ndarray


def search_all(problem: Problem, prices: Prices, sizes: tuple[int, ...], limit_bytes: float | None) -> tuple[float, float]:
    """(fewest seconds within the limit, fewest bytes at the peak) without recompute; infinity where nothing fits."""
    return best_of((try_all(problem, prices, sizes),), limit_bytes)


def best_of(truths: Sequence[Truth], limit_bytes: float | None) -> tuple[float, float]:
    """(fewest seconds within the limit, fewest bytes at the peak) of all these plans."""
    fastest = smallest = float("inf")
    for truth in truths:
        possible = np.isfinite(truth.seconds)
        smallest = min(smallest, float(truth.peaks[possible].min(initial=np.inf)))
        fits = possible if limit_bytes is None else possible & (truth.peaks <= limit_bytes)
        fastest = min(fastest, float(truth.seconds[fits].min(initial=np.inf)))
    return fastest, smallest


def try_all(problem: Problem, prices: Prices, sizes: tuple[int, ...], again: Sequence[str] = ()) -> Truth:
    """Every plan that recomputes these nodes."""
    return _Trial(problem, prices, sizes, tuple(again)).run()


def try_everything(problem: Problem, prices: Prices, sizes: tuple[int, ...], recomputable: Sequence[str]) -> tuple[Truth, ...]:
    """Every plan with every subset of what may be recomputed (`graph.recompute.list_recomputable`)."""
    subsets = chain.from_iterable(combinations(recomputable, count) for count in range(len(recomputable) + 1))
    return tuple(try_all(problem, prices, sizes, names) for names in subsets)


@dataclass(frozen=True, slots=True)
class _Read:
    """Who wants a value: input `place` of a node, the storage of a state (-1), or the end of the step, which wants it whole (`who` empty).

    A copy made for it is held from `first` to `last`, moments of the graph.
    """

    who: str
    place: int
    first: int
    last: int


class _Trial:
    """All plans with one choice of what is recomputed; lives for one call."""

    def __init__(self, problem: Problem, prices: Prices, sizes: tuple[int, ...], again: tuple[str, ...]) -> None:
        self.prices, self.sizes, self.again = prices, sizes, again
        self.found: Recomputed = recompute_graph(problem.graph, again)
        self.graph: Graph = self.found.graph
        self.values = value_table(self.graph)
        self.makers = producer_table(self.graph)
        self.original = {node.name: i for i, node in enumerate(problem.graph.nodes)}
        self.counts = [c.num_kept or len(c.seconds) for c in problem.choosers]
        self.chooser: dict[str, int] = {}
        self.options: dict[str, Options] = {}
        for number, chooser in enumerate(problem.choosers):
            for part in chooser.parts:
                for member in part.members:
                    self.chooser[member], self.options[member] = number, part.options[: self.counts[number]]
        self.turns = count_microbatches(self.graph)
        self.span = loop_span(self.graph)
        self.end = 3 * len(self.graph.nodes)
        self.made = {name: -1 for name in self.graph.inputs} | {name: 3 * i + RUNS for name, (i, _) in self.makers.items()}
        self.shares = share_meetings(self.graph.nodes, {name: value.shape for name, value in self.values.items()}, self.graph.sequences)
        self.reads, self.stands = self._list_reads()

    def run(self) -> Truth:
        """Add everything up."""
        return Truth(self.again, self._add_seconds(), self._add_bytes())

    # --- who decides

    def _who(self, name: str) -> str:
        """Who decides for a node of the graph with copies, or an input."""
        return self.found.original.get(name, name)

    def _maker(self, value: str) -> str:
        return self._who(self.graph.nodes[self.makers[value][0]].name) if value in self.makers else value

    def _made(self, value: str, option: Strategy | Sharding) -> Sharding:
        """How its maker's option makes a value."""
        if isinstance(option, Sharding):
            return option
        i, place = self.makers[value]
        node = self.graph.nodes[i]
        return option.outputs[sum(1 for out in node.outputs[:place] if out)]

    def _wanted(self, read: _Read, option: Strategy | Sharding | None) -> Sharding:
        if isinstance(option, Strategy):
            return option.inputs[read.place]
        return option if isinstance(option, Sharding) else replicated(len(self.sizes))

    def _spread(self, total: np.ndarray, names: Sequence[str], cost: Callable[[Pick], np.ndarray | float]) -> None:
        """Add to every plan what these nodes and inputs cost together; the first dimensions of `total` may be those of the cost."""
        choosers = sorted({self.chooser[name] for name in names})
        rows = []
        for picks in product(*(range(self.counts[c]) for c in choosers)):
            pick = dict(zip(choosers, picks))
            rows.append(cost({name: self.options[name][pick[self.chooser[name]]] for name in names}))
        table = np.array(rows)
        shape = [self.counts[k] if k in choosers else 1 for k in range(len(self.counts))]
        if table.ndim == 1:
            total += table.reshape(shape)
        else:
            total += np.moveaxis(table, 0, -1).reshape(-1, *shape)

    # --- who reads what, and when

    def _list_reads(self) -> tuple[dict[tuple[str, Phase], list[_Read]], dict[tuple[str, Phase], Phase]]:
        """Per (value, phase of the readers that share reshards) who wants it; and the phase in which those reshards stand."""
        reads: dict[tuple[str, Phase], list[_Read]] = defaultdict(list)
        stands: dict[tuple[str, Phase], Phase] = {}
        until, grads = self._view_ends(), {g for _, g in self.graph.grads}
        last_read: dict[str, int] = {}
        for i, node in enumerate(self.graph.nodes):
            for k, name in enumerate(node.inputs):
                last = until[i] if k == 0 else 3 * i + RUNS
                last_read[name] = max(last, last_read.get(name, -1))
                early = name in grads and node.phase is Phase.UPDATE and self.span is None
                stands[name, node.phase] = self._phase_of(name) if early else node.phase
                reads[name, node.phase].append(_Read(self._who(node.name), k, self._leaves(self.made[name]) if early else 3 * i + BRINGS, last))
        for old, new in self.graph.updates:
            at = self._leaves(self.made[new])
            stands.setdefault((new, Phase.UPDATE), self._phase_of(new))
            reads[new, Phase.UPDATE].append(_Read(old, -1, at, max(at, self._leaves(last_read.get(old, -1)))))
        for name in dict.fromkeys((self.graph.loss, *self.graph.outputs)):
            if name:
                stands.setdefault((name, Phase.UPDATE), self._phase_of(name))
                reads[name, Phase.UPDATE].append(_Read("", -1, self._leaves(self.made[name]), self.end))
        return reads, stands

    def _phase_of(self, name: str) -> Phase:
        """In which what brings a value stands that leaves where it is made; of the turns, after them."""
        if name not in self.makers:
            return Phase.UPDATE
        phase = self.graph.nodes[self.makers[name][0]].phase
        return Phase.UPDATE if self.span is not None and self._in_turns(self.made[name]) else phase

    def _in_turns(self, moment: int) -> bool:
        return self.span is not None and 3 * self.span[0] <= moment <= 3 * self.span[1] + LEAVES

    def _leaves(self, moment: int) -> int:
        """When what is made at a moment is brought to where the update or the end wants it."""
        if self.span is not None and self._in_turns(moment):
            return 3 * self.span[1] + LEAVES
        return moment - RUNS + LEAVES if moment >= 0 else 0

    def _kept(self, made: int, last: int) -> int:
        """What comes from before the turns and is read in them stays to their end."""
        if self.span is not None and made < 3 * self.span[0] and self._in_turns(last):
            return 3 * self.span[1] + LEAVES
        return last

    def _view_ends(self) -> list[int]:
        """For each node: the moment of the last read of the views that it makes of its first input, through further views, but for those that are copies; views may leave."""
        uses, nodes, copied = use_table(self.graph), self.graph.nodes, find_copied(self.graph)
        leaves = {new: self._leaves(self.made[new]) for _, new in self.graph.updates}
        leaves |= {name: self.end for name in (self.graph.loss, *self.graph.outputs)}

        def last(index: int) -> int:
            ends = [3 * index + RUNS]
            if is_view(nodes[index].op):
                for out in (o for o in nodes[index].outputs if o and o not in copied):
                    ends += [leaves.get(out, -1), *(last(i) if k == 0 else 3 * i + RUNS for i, k in uses[out])]
            return max(ends)

        return [self._kept(3 * i + RUNS, last(i)) for i in range(len(nodes))]

    # --- seconds

    def _add_seconds(self) -> np.ndarray:
        """Every node; one reshard per (value, phase, wanted sharding); every new state written; less what hides behind compute."""
        total = np.zeros(self.counts)
        hidden = {phase: np.zeros(self.counts) for phase in HIDING_PHASES}
        compute = {phase: np.zeros(self.counts) for phase in HIDING_PHASES}
        outside = outside_blocks(self.graph)
        for node in self.graph.nodes:
            who, times = self._who(node.name), times_of(node.phase, self.turns)
            for part in (total, *([compute[node.phase]] if node.phase in compute else [])):
                self._spread(part, (who,), lambda pick, who=who, times=times: times * self.prices.node_seconds(self.original[who], [pick[who]])[0])
        for old in (old for old, new in self.graph.updates if new != old):
            self._spread(total, (old,), lambda pick, old=old: self.prices.write_seconds(self.values[old], pick[old]))
        for key, reads in self.reads.items():
            value, phase = self.values[key[0]], self.stands[key]
            self._spread(total, self._around(key), lambda pick, key=key, reads=reads: self._bring(self.prices.reshard_seconds, key, reads, pick))
            made = self.graph.nodes[self.makers[key[0]][0]].phase if key[0] in self.makers else None
            if may_hide(value, phase, outside, made):
                self._spread(hidden[phase], self._around(key), lambda pick, key=key, reads=reads: self._bring(self.prices.hidden_seconds, key, reads, pick))
        for phase in HIDING_PHASES:
            total -= np.minimum(hidden[phase], compute[phase])
        return total

    def _around(self, key: tuple[str, Phase]) -> tuple[str, ...]:
        return (self._maker(key[0]), *(read.who for read in self.reads[key] if read.who))

    def _bring(
        self, price: Callable[[Value, Sharding, Sharding], float], key: tuple[str, Phase], reads: Sequence[_Read], pick: Pick
    ) -> float:
        value, times = self.values[key[0]], self.shares.get(key, 1.0) * times_of(self.stands[key], self.turns)
        made = self._made(key[0], pick[self._maker(key[0])])
        return times * sum(price(value, made, wanted) for wanted in {self._wanted(r, pick.get(r.who)) for r in reads} - {made})

    # --- bytes

    def _add_bytes(self) -> np.ndarray:
        """The peak over all moments."""
        held = np.zeros((max(3, self.end), *self.counts))
        base = storage_bases(self.graph, copied=find_copied(self.graph))
        sums = {node.outputs[0] for node in self.graph.nodes if node.op in GROWN}
        for name in (n for n, owner in base.items() if n == owner):
            mine = [(key, read) for key, reads in self.reads.items() if key[0] == name for read in reads]
            who = (self._maker(name), *(read.who for _, read in mine if read.who))
            self._spread(held, who, lambda pick, name=name, mine=mine: self._hold_made(name, mine, name in sums, pick))
        for key, reads in self.reads.items():
            self._spread(held, self._around(key), lambda pick, key=key, reads=reads: self._hold_copies(key, reads, pick))
        return held.max(axis=0)

    def _hold(self, row: np.ndarray, value: Value, sharding: Sharding, first: int, last: int) -> None:
        row[max(0, first) : last + 1] += local_elements(value.shape, sharding, self.sizes) * DTYPE_BYTES[value.dtype]

    def _hold_made(self, name: str, reads: Sequence[tuple[tuple[str, Phase], _Read]], is_sum: bool, pick: Pick) -> np.ndarray:
        """A value as it was made: until the last who brings a copy could do so, and on to the last who takes it as it is."""
        row = np.zeros(max(3, self.end))
        made, at = self._made(name, pick[self._maker(name)]), self.made[name]
        last = max([at, *(r.first for _, r in reads), *(r.last for _, r in reads if self._wanted(r, pick.get(r.who)) == made)])
        last = self.end if name not in self.makers else self._kept(at, last)
        self._hold(row, self.values[name], made, 3 * self.span[0] if is_sum and self.span is not None else at, last)
        return row

    def _hold_copies(self, key: tuple[str, Phase], reads: Sequence[_Read], pick: Pick) -> np.ndarray:
        """Its copies, each from the first to the last who wants it, and what is held on the way to them."""
        row, value = np.zeros(max(3, self.end)), self.values[key[0]]
        made = self._made(key[0], pick[self._maker(key[0])])
        wanted: dict[Sharding, list[_Read]] = defaultdict(list)
        for read in reads:
            wanted[self._wanted(read, pick.get(read.who))].append(read)
        for target in wanted.keys() - {made}:
            if self.prices.reshard_seconds(value, made, target) == float("inf"):
                continue
            self._hold(row, value, target, min(r.first for r in wanted[target]), max(r.last for r in wanted[target]))
            for first in {r.first for r in wanted[target]}:
                row[min(first, len(row) - 1)] += transient_bytes(value, made, target, self.sizes)
        return row
