"""What a collective rearranges for its wire: what it costs is copied once each, what it holds is the more of the two."""

from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.model import build_cost_model
from autopar.cost.wires import AxisLink, estimate_comm_s, step_copied_bytes, step_held_bytes
from autopar.graph.reshard import StepKind
from autopar.graph.transfer import Transfer

INNER, OUTER, NONE = (1, 3), (0, 2), (-1, -1)  # of a tensor [4, 6] that is whole along an axis of two
WHOLE, ROWS, COLS = (4, 6), (2, 6), (4, 3)


@pytest.mark.parametrize(
    ("kind", "before", "after", "ends", "copied", "held"),
    [
        (StepKind.ALL_GATHER, ROWS, WHOLE, (OUTER, NONE), 0, 0),
        (StepKind.ALL_GATHER, COLS, WHOLE, (INNER, NONE), 96, 96),
        (StepKind.REDUCE_SCATTER, WHOLE, COLS, (NONE, INNER), 96, 96),
        (StepKind.ALL_TO_ALL, ROWS, COLS, (OUTER, INNER), 48, 48),  # packed; what comes lies as it should
        (StepKind.ALL_TO_ALL, COLS, ROWS, (INNER, OUTER), 48, 48),  # the other way about
        (StepKind.ALL_TO_ALL, (2, 4, 3), (2, 2, 6), ((2, 3), (1, 2)), 192, 96),  # both: what was packed has gone when the other is unpacked
    ],
)
def test_what_is_copied_and_what_is_held(kind, before, after, ends, copied, held):
    assert step_copied_bytes(kind, before, after, "float32", 2, ends) == copied
    assert step_held_bytes(kind, before, after, "float32", 2, ends) == held


def test_gradients_in_float32_cost_the_cast_and_twice_the_bytes():
    model, link, size = build_cost_model(parse_cluster("8xH100-80GB")), AxisLink(8, 8), 2**28  # more than a bucket: the message is its own
    wide = replace(model, grad_width=2)

    def send(kind, bytes_in, bytes_out, transfer, of):
        return estimate_comm_s(of, kind, link, bytes_in, bytes_out, 0, transfer)

    cast_s = 3 * size / model.memory_bytes_per_s
    for kind, out in ((StepKind.REDUCE_SCATTER, size // 8), (StepKind.ALL_REDUCE, size)):
        assert send(kind, size, out, Transfer.GRAD, wide) == pytest.approx(send(kind, 2 * size, 2 * out, Transfer.GRAD, model) + cast_s)
    assert send(StepKind.ALL_GATHER, size // 8, size, Transfer.GRAD, wide) == send(StepKind.ALL_GATHER, size // 8, size, Transfer.GRAD, model)
    assert send(StepKind.ALL_REDUCE, size, size, Transfer.BLOCKING, wide) == send(StepKind.ALL_REDUCE, size, size, Transfer.BLOCKING, model)
