"""Messages: what is large goes alone on a CPU, everything else together."""

import pytest

from autopar.graph.messages import ALONE_BYTES, split_bucket

SMALL, LARGE = ALONE_BYTES - 1, ALONE_BYTES


@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        ([], []), ([SMALL], [(0,)]), ([LARGE], [(0,)]), ([SMALL] * 3, [(0, 1, 2)]), ([LARGE] * 2, [(0,), (1,)]), ([SMALL, LARGE, 0, 2 * LARGE], [(1,), (3,), (0, 2)]),
    ],
)  # fmt: skip
def test_on_a_cpu(sizes, messages):
    assert split_bucket(sizes, True) == messages
    assert split_bucket(sizes, False) == ([tuple(range(len(sizes)))] if sizes else [])
