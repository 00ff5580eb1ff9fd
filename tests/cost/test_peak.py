"""The peak tensor by tensor: rows sum to the holders of the walk, and each is alive for the reason that its row gives."""

from __future__ import annotations

import pytest

from autopar.cost.memory import estimate_memory
from autopar.cost.peak import list_peak
from autopar.graph.graph import value_table
from autopar.graph.liveness import is_view
from autopar.graph.sharding import local_shape
from autopar.graph.tensor import DTYPE_BYTES, num_elements

from .test_estimate import PLANS
from .toy import Made


@pytest.fixture(params=list(PLANS), ids=lambda name: name.replace(" ", "-"))
def program(request):
    return Made(*PLANS[request.param]).program


def test_rows_sum_to_the_holders_wherever_one_looks(program):
    for node, moment in zip(program.graph.nodes, estimate_memory(program, 4096).moments):
        peak = list_peak(program, node.name)
        assert (peak.node, peak.phase, peak.path, peak.source) == (node.name, node.phase, node.path, node.source)
        sums: dict[str, int] = {"reserve": 4096}
        for row in peak.tensors:
            sums[row.holder] = sums.get(row.holder, 0) + row.bytes
        assert sums == {h.name: h.bytes for h in moment.holders}


def test_each_row_is_a_piece_of_its_tensor_and_says_why_it_is_alive(program):
    graph, sizes = program.graph, tuple(a.size for a in program.mesh.axes)
    whole = dict(program.whole)
    dtypes = {name: value.dtype for name, value in value_table(graph).items()}
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    leaving = {graph.loss, *graph.outputs}
    for at, node in enumerate(graph.nodes):
        for row in list_peak(program, node.name).tensors:
            if not row.tensor:
                assert node.op.startswith("comm.") and row.made_by == row.last_read == node.name and row.sharding is None
                continue
            assert row.bytes == num_elements(local_shape(whole[row.tensor], row.sharding, sizes)) * DTYPE_BYTES[dtypes[row.tensor]]
            if not row.made_by:
                assert row.last_read == "" and row.tensor in graph.inputs
                continue
            assert order[row.made_by] <= at
            made = {out for out in graph.nodes[order[row.made_by]].outputs if out}
            for later in graph.nodes:  # what is read through a view is read
                if is_view(later.op) and later.inputs[0] in made:
                    made |= {out for out in later.outputs if out}
            readers = [n.name for n in graph.nodes if made & set(n.inputs)]
            if row.last_read:
                assert order[row.last_read] >= at and row.last_read in (readers or [row.made_by])
            else:
                assert made & leaving or readers[-1:] == [graph.nodes[-1].name]
