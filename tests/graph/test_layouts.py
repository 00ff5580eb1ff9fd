"""How values lie in memory: pitches and spans by hand, views against torch's own, and what kernels of a program read and write where it lies."""

import random

from autopar.graph.layouts import packed, span
from autopar.graph.tensor import num_elements


def test_a_packed_value_takes_its_elements():
    """Also where the last dim holds one: there are no rows that something is behind."""
    for seed in range(50):
        rng = random.Random(seed)
        shape = tuple(rng.randint(0, 4) for _ in range(rng.randint(0, 4))) + (1,) * rng.randint(0, 2)
        assert span(shape, packed(shape)) == num_elements(shape), shape
