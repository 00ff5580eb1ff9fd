"""Containers whose entries take turns are one row."""

from __future__ import annotations

import pytest

from autopar.graph.in_step import find_leads


@pytest.mark.parametrize(
    "order, together",
    [
        ("q0 k0 o0 q1 k1 o1", ["qko"]),
        ("q0 q0 o0 q0 q1 o1", ["qo"]),  # what comes again is not another
        ("q2 o2 q1 o1", ["qo"]),  # any order of the numbers
        ("a0 a1 b0 b1", ["a", "b"]),  # an encoder and its decoder
        ("a0 b0 a1 b1 c0 d0 c1 d1", ["ab", "cd"]),
        ("a0 b0 a1 b1 a2", ["a", "b"]),  # one has an entry more
        ("a0 b1 a1 b0", ["a", "b"]),
        ("a0 a1 b1 b0", ["a", "b"]),
        ("a0 b0", ["a", "b"]),  # a turn alone says nothing
    ],
)
def test_leads(order, together):
    leads = find_leads((word[0], int(word[1])) for word in order.split())
    assert leads == {family: group[0] for group in together for family in group}
