"""Messages: what is large goes alone on a CPU, everything else together."""

import pytest

from autopar.graph.messages import GATHERED_ALONE_BYTES, REDUCED_ALONE_BYTES, list_in_place, split_bucket

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


@pytest.mark.parametrize(
    ("sizes", "own", "on_a_cpu", "elsewhere"),
    [
        ([SMALL], [0], [0], [0]), ([SMALL], [], [], []), ([SMALL, SMALL], [0, 1], [], []), ([LARGE, SMALL, LARGE], [0, 1], [0], []), ([LARGE, LARGE], [], [], []), ([], [], [], []),
    ],
)  # fmt: skip
def test_what_is_reduced_where_it_lies(sizes, own, on_a_cpu, elsewhere):
    sizes = [REDUCED_ALONE_BYTES - 1 if size == SMALL else REDUCED_ALONE_BYTES for size in sizes]
    assert list_in_place(sizes, own, True) == on_a_cpu
    assert list_in_place(sizes, own, False) == elsewhere
