"""Every factor of a graph, followed; and what the compiler itself inserts when a plan splits as a run says."""

from autopar.graph.cuts import find_cuts, resolve_all
from autopar.graph.graph import check_graph
from autopar.graph.opportunities.reach import find_reaches
from autopar.graph.opportunities.span_names import name_spans
from autopar.graph.opportunities.span_run import AFTER_LAST, Sum, build_tables, run_span
from autopar.graph.opportunities.spans import Digit, find_spans
from autopar.graph.rules import RULES
from autopar.graph.sharding import parse_sharding
from autopar.graph.work import count_work

from .drafts import Assigner

LOCAL = ("comm.slice", "comm.keep")  # each rank cuts what it has: nobody waits for anybody


class Followed:
    """Every span of a graph by where it starts, with its run."""

    def __init__(self, graph, rules=RULES):
        check_graph(graph)
        self.graph = graph
        self.sites, self.signatures = resolve_all(graph, rules)
        self.cuts = find_cuts(graph, self.signatures)
        self.spans = find_spans(graph, self.sites, self.signatures, self.cuts)
        tables = build_tables(graph, self.signatures)
        self.runs = [run_span(tables, span) for span in self.spans]
        self.names = name_spans(graph, self.spans)

    def at(self, value_name, dim, size=None):
        for span, run in zip(self.spans, self.runs):
            for name, digit in span.places:
                if name == value_name and digit.dim == dim and size in (None, digit.size):
                    return span, run
        raise AssertionError(f"no span at {value_name} dim {dim}")

    def syncs(self, value_name, dim, size=None):
        names = [n.name for n in self.graph.nodes]
        _, run = self.at(value_name, dim, size)
        return [(s.kind, s.value, "end" if s.reader == AFTER_LAST else names[s.reader]) for s in run.syncs]

    def reaches(self):
        return find_reaches(self.graph, self.sites, self.signatures, self.cuts, count_work(self.graph, self.sites, self.signatures))


def as_program(found, run, ranks=2):
    """(kind, value) of what the compiler itself inserts if a plan does what a run says, over one mesh axis."""
    assigner = Assigner(found.graph, ranks)
    held = dict(run.held)

    def lies(name):
        state = held.get(name)
        if isinstance(state, Sum):
            return "P" if state.reduce == "sum" else f"P{state.reduce}"
        return f"S{state.dim}/{state.upper // ranks}" if isinstance(state, Digit) else "R"

    choices = {}
    for i, n in enumerate(found.graph.nodes):
        wanted = tuple(map(parse_sharding, map(lies, (o for o in n.outputs if o))))
        fitting = [s for s in assigner.strategies(i) if s.outputs == wanted]
        assert fitting, f"{n.name} = {n.op}{n.inputs}: no strategy gives {wanted}"
        best = min(fitting, key=lambda s: sum(str(mine) != lies(name) for mine, name in zip(s.inputs, n.inputs)))
        choices[n.name] = best.choices[0]
    stored = {name: lies(name) for name in found.graph.inputs}
    program = assigner.program(assigner.assign(stored, choices))
    return sorted((n.op.removeprefix("comm."), n.inputs[0]) for n in program.graph.nodes if n.op.startswith("comm.") and n.op not in LOCAL)
