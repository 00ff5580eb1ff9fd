"""What a collective rearranges for its wire: what it costs is copied once each, what it holds is the more of the two."""

import pytest

from autopar.cost.wires import step_copied_bytes, step_held_bytes
from autopar.graph.reshard import StepKind

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
