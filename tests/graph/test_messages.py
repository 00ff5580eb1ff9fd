"""Messages: what is large goes alone on a CPU, everything else together."""

import pytest

from autopar.graph.messages import GATHERED_ALONE_BYTES, REDUCED_ALONE_BYTES, split_bucket

SMALL, LARGE = 1, 2


@pytest.mark.parametrize(("gathers", "least"), [(True, GATHERED_ALONE_BYTES), (False, REDUCED_ALONE_BYTES)], ids=["gathers", "reductions"])
@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        ([], []), ([SMALL], [(0,)]), ([LARGE], [(0,)]), ([SMALL] * 3, [(0, 1, 2)]), ([LARGE] * 2, [(0,), (1,)]), ([SMALL, LARGE, 0, 2 * LARGE], [(1,), (3,), (0, 2)]),
    ],
)  # fmt: skip
def test_on_a_cpu(sizes, messages, gathers, least):
    sizes = [least - 1 if size == SMALL else least * size // LARGE for size in sizes]
    assert split_bucket(sizes, gathers, True) == messages
    assert split_bucket(sizes, gathers, False) == ([tuple(range(len(sizes)))] if sizes else [])
