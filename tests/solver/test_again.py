"""What may be recomputed: whole classes of nodes, with the views that go with them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autopar.graph.node import Phase
from autopar.solver.again import find_again
from tests.graph.test_fusion import Maker


@pytest.mark.parametrize("alike", [True, False])
def test_views_of_which_some_look_at_what_is_made_again_are_no_class_of_theirs(alike):
    """Two views that decide alike, one of what may be made again, the other of what enters: a copy of the first alone would have nobody to decide for it."""
    make = Maker()
    given = make.enter("x")
    base = make.add("aten.sigmoid.default", given)
    other = make.add("aten.tanh.default", given)
    seen = [make.add("aten.view.default", value) for value in (base, given)]
    back = [make.add("aten.mul.Tensor", value, other, phase=Phase.BACKWARD) for value in (*seen, other)]
    graph = make.graph(*back)
    names = [node.name for node in graph.nodes]
    classes = list(range(len(names)))
    if alike:
        classes[names.index(graph.nodes[3].name)] = classes[2]
    found = find_again(graph, SimpleNamespace(node_class=tuple(classes)), names[:2])
    copied = {names.index(name) for name in found.found.original.values()}
    assert {classes[i] for i in copied} == set(found.classes), "each copy has a class that decides for it"
    assert copied == ({1} if alike else {0, 1, 2})
