"""How far one factor runs: what happens when a span, and nothing else, is split wherever the rules allow it.

In: a graph and one of its spans. Out: the nodes that it divides, how each value then lies, and each place where ranks must synchronise,
with the reason. The walk follows the graph's order: a node splits the span if one of its letters may be split; a contraction leaves a
Partial, which passes through linear ops and is reduced before the first node that needs the sum, or before its readers part; what must be
whole is gathered before its reader. Both once in each phase, as `partition` does it. Going back to a split is free: every rank cuts its own
piece. It is a walk, not a search: a plan may do better.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from ..graph import Graph, final_values, producer_table, use_table, value_table
from ..node import Node, Phase, input_names
from ..rule import Signature
from ..tensor import STATE_KINDS, Value, size_bytes
from .spans import Digit, Letter, Span

AFTER_LAST = -1  # stands for a reader: what must be in place when the step ends


@dataclass(frozen=True, slots=True)
class Sum:
    """A value of which each rank holds a part; `maker` is the node that contracted the span, `reduce` how the parts are joined."""

    reduce: str
    maker: int


Held = Union[Digit, Sum, None]  # split at this digit, Partial, or whole


@dataclass(frozen=True, slots=True)
class Sync:
    """One synchronisation.

    Args:
        kind: `all_reduce`, `reduce_scatter`, `all_gather` or `all_to_all`.
        value: what is brought into place, whole `bytes` of it.
        maker: the node that leaves a Partial, or else the node whose output this is; -1 for what enters the step.
        reader: the node that needs it, `AFTER_LAST` where the end of the step does.
        reason: why, for people.
    """

    kind: str
    value: str
    bytes: int
    maker: int
    reader: int
    reason: str


@dataclass(frozen=True, slots=True)
class SpanRun:
    """How far a span runs.

    Args:
        nodes: that it divides, ascending.
        held: (value, how it lies when it is made) for every value that is split or Partial.
        syncs: in the order of their readers.
    """

    nodes: tuple[int, ...]
    held: tuple[tuple[str, Held], ...]
    syncs: tuple[Sync, ...]


@dataclass(frozen=True, slots=True)
class GraphTables:
    """What every walk over one graph looks up (`build_tables`)."""

    graph: Graph
    signatures: tuple[Signature, ...]
    values: Mapping[str, Value]
    makers: Mapping[str, tuple[int, int]]
    readers: Mapping[str, tuple[tuple[int, int], ...]]
    final: frozenset[str]
    replaced: Mapping[str, str]  # a state's last version -> the one that entered


def build_tables(graph: Graph, signatures: tuple[Signature, ...]) -> GraphTables:
    """The tables of a graph."""
    replaced = {new: old for old, new in graph.updates}
    return GraphTables(
        graph, signatures, value_table(graph), producer_table(graph), use_table(graph), frozenset(final_values(graph)), replaced
    )


def run_span(tables: GraphTables, span: Span) -> SpanRun:
    """Follow one span through the graph."""
    walk = _Walk(tables, span)
    walk.run()
    kept = tuple((v, h) for v, h in walk.made.items() if h is not None)
    return SpanRun(tuple(walk.divided), kept, tuple(walk.syncs))


class _Walk:
    def __init__(self, tables: GraphTables, span: Span) -> None:
        self.tables = tables
        self.letters: dict[int, list[Letter]] = {}
        for i, letter in span.letters:
            self.letters.setdefault(i, []).append(letter)
        self.held: dict[str, Held] = {}  # now
        self.made: dict[str, Held] = {}  # when it was made, or how a state is stored
        self.unfixed: set[str] = set()  # states that may still be stored at another digit of the span
        self.in_place: set[tuple[str, Digit | None, Phase | None]] = set()  # brought so already, for this phase
        entering = frozenset(tables.graph.inputs)
        for value, digit in span.places:
            if value in entering and value not in self.held:
                self.held[value] = digit
                if tables.values[value].kind in STATE_KINDS:
                    self.unfixed.add(value)
        self.made |= self.held
        self.divided: list[int] = []
        self.syncs: list[Sync] = []

    def run(self) -> None:
        graph = self.tables.graph
        todo = sorted(self.letters)
        waiting = set(todo)
        while todo:
            i = heapq.heappop(todo)
            for out in self._visit(i, graph.nodes[i]):
                for j, _ in self.tables.readers[out]:  # a Partial goes where the span itself does not
                    if j not in waiting:
                        waiting.add(j)
                        heapq.heappush(todo, j)
        self._finish()

    def _visit(self, i: int, node: Node) -> list[str]:
        """One node; returns the outputs that are Partial."""
        letters = self.letters.get(i, [])
        outputs = [o for o in node.outputs if o]
        states = [self.held.get(name) for name in node.inputs]
        names = input_names(node)
        parts = {k for k, state in enumerate(states) if isinstance(state, Sum)}
        if parts and not any(isinstance(state, Digit) for state in states) and self._passes(i, names, parts, states):
            maker = next(state.maker for state in states if isinstance(state, Sum))
            for out in outputs:
                self.held[out] = self.made[out] = Sum("sum", maker)
            return outputs
        free = [letter for letter in letters if not letter.whole]
        letter = min(free, key=lambda one: self._price(node, states, one)) if free else None
        rule = self.tables.signatures[i].rule
        contracts = letter is not None and any(digit is None for digit in letter.outputs)
        for k, name in enumerate(node.inputs):
            want = letter.inputs[k] if letter else None
            if isinstance(states[k], Sum) and want is None and contracts and names[k] in rule.owed:
                continue
            if self._is_lacking(name, want, node.phase):
                self._bring(i, name, want, self._why(letters, letter, k))
        partial = []
        for place, out in enumerate(outputs):
            digit = letter.outputs[place] if letter else None
            self.held[out] = self.made[out] = Sum(rule.reduce, i) if letter and digit is None else digit
            if letter and digit is None:
                partial.append(out)
        if letter is not None:
            self.divided.append(i)
        return partial

    def _passes(self, i: int, names: tuple[str, ...], parts: set[int], states: list[Held]) -> bool:
        """True where a node may take these inputs as Partial sums and give one."""
        node, values, readers = self.tables.graph.nodes[i], self.tables.values, self.tables.readers
        if any(isinstance(state, Sum) and state.reduce != "sum" for state in states):
            return False
        if any(j != i for k in parts for j, _ in readers[node.inputs[k]]):
            return False  # each reader would leave a Partial of its own
        if sum(size_bytes(values[o]) for o in node.outputs if o) > sum(size_bytes(values[node.inputs[k]]) for k in parts):
            return False  # reducing now moves less than reducing later
        sets = [together for together in self.tables.signatures[i].linear if all(name in names for name in together)]
        return any({k for k, name in enumerate(names) if name in together} == parts for together in sets)

    def _price(self, node: Node, states: list[Held], letter: Letter) -> int:
        """Bytes to be moved if this letter is the one that is split."""
        values = self.tables.values
        price = sum(size_bytes(values[o]) for o, digit in zip((o for o in node.outputs if o), letter.outputs) if digit is None)
        for name, state, want in zip(node.inputs, states, letter.inputs):
            if name in self.unfixed and want is not None:
                continue
            if isinstance(state, Digit) and state != want and (name, want, node.phase) not in self.in_place:
                price += size_bytes(values[name])
        return price

    def _why(self, letters: list[Letter], chosen: Letter | None, k: int) -> str:
        """Why input k must lie otherwise than split at a digit of the span."""
        others = [letter for letter in letters if letter is not chosen and letter.inputs[k] is not None]
        whole = next((letter for letter in others if letter.whole), None)
        if whole is not None:
            return whole.whole
        if chosen is not None and others:
            return f"the factor meets itself: {chosen.factor} is split, so {others[0].factor} is whole"
        return "the op needs all of it" if chosen is None else f"{chosen.factor} is split here, and this input lacks it"

    def _is_lacking(self, name: str, want: Digit | None, phase: Phase | None) -> bool:
        """True where a value does not lie so yet; of what is whole each rank cuts its own piece."""
        state = self.held.get(name)
        return state is not None and state != want and (name, want, phase) not in self.in_place

    def _bring(self, reader: int, name: str, want: Digit | None, reason: str) -> None:
        """Bring a value to how a reader wants it, and count that; a state whose place is not fixed yet is stored so from the start."""
        state = self.held[name]
        phase = self.tables.graph.nodes[reader].phase if reader != AFTER_LAST else None
        if name in self.unfixed:
            self.unfixed.discard(name)
            if want is not None:
                self.held[name] = self.made[name] = want
                return
        value = self.tables.values[name]
        maker = self.tables.makers[name][0] if name in self.tables.makers else -1
        if isinstance(state, Sum):
            kind, maker = "all_reduce" if want is None else "reduce_scatter", state.maker
            op = self.tables.graph.nodes[maker].op
            reason = f"contracted by {op}: each rank holds a part of the {'sum' if state.reduce == 'sum' else state.reduce}"
        else:
            kind = "all_gather" if want is None else "all_to_all"
        self.in_place.add((name, want, phase))
        self.syncs.append(Sync(kind, name, size_bytes(value), maker, reader, reason))

    def _finish(self) -> None:
        """What the user gets back is whole, and a state's new version lies as the old one."""
        for name, state in tuple(self.held.items()):
            if name not in self.tables.final:
                continue
            old = self.held.get(self.tables.replaced.get(name, ""))
            reason = "the state is stored otherwise than it was updated" if name in self.tables.replaced else "the user gets it whole"
            want = old if isinstance(old, Digit) else None
            if self._is_lacking(name, want, None):
                self._bring(AFTER_LAST, name, want, reason)


def sync_place(graph: Graph, sync: Sync) -> Node | None:
    """The node whose line is to be shown: where a Partial is made, else where a value must be otherwise than it is; None: the end of the step."""
    at = sync.maker if sync.kind in ("all_reduce", "reduce_scatter") or sync.reader == AFTER_LAST else sync.reader
    return graph.nodes[at] if at >= 0 else None
