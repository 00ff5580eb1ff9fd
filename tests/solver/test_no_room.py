"""Where not even the states fit, no plan of any kind does: that is proven at once, without a look at stages."""

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import Constraints
from autopar.cost.model import build_cost_model
from autopar.errors import AutoparError
from autopar.graph.sharding import is_uneven, local_elements
from autopar.graph.tensor import DTYPE_BYTES, STATE_KINDS, size_bytes
from autopar.solver.decide import Ask, _Decide, decide
from autopar.solver.infeasible import MemoryShortage

from .blocks import build_block_case

DEVICES = 4


@pytest.mark.parametrize(("share", "asked"), [(0.5, False), (1.2, True)])
def test_states_that_fit_nowhere_are_a_proof(share, asked):
    case = build_block_case(blocks=2, width=64, hidden=128, batch=64, vocab=128, momentum=True)
    model = build_cost_model(parse_cluster(f"1x{DEVICES}xH100-80GB"))
    states = sum(size_bytes(v) for v in case.graph.values if v.kind in STATE_KINDS and v.name in case.graph.inputs)
    limit = model.reserve_bytes + int(states * share / DEVICES)
    decision = _Decide(Ask(case, model, Constraints(), limit, 20.0, None, lambda line: None))
    with pytest.raises(MemoryShortage) as told:
        decision.run()
    assert (decision.layouts is not None) == asked
    assert told.value.proven or asked


@pytest.mark.parametrize(("degree", "told"), [(5, True), (4, False)])
def test_a_degree_that_divides_no_state_is_named(degree, told):
    """Five ranks hold all weights whole: none of 8 and 16 is nearly a multiple of five."""
    case = build_block_case(blocks=2, width=8, hidden=16, batch=80, vocab=16, momentum=True)
    model = build_cost_model(parse_cluster(f"1x{degree}xH100-80GB"))
    states = sum(size_bytes(v) for v in case.graph.values if v.kind in STATE_KINDS and v.name in case.graph.inputs)
    words = Constraints(degrees=(("dp", degree),), microbatches=2)
    with pytest.raises(AutoparError) as error:
        decide(Ask(case, model, words, model.reserve_bytes + int(0.9 * states / (1 if told else degree)), 20.0, None, lambda line: None))
    said = str(error.value)
    assert "nothing fits the memory" in said and (f"dp={degree} divides no dim of" in said) == told


def test_a_degree_that_divides_nearly_cuts_the_states():
    """Three ranks hold a third each, with a little padding, though none of 64, 128 and 256 is a multiple of three."""
    case = build_block_case(blocks=2, width=64, hidden=128, batch=96, vocab=256, momentum=True)
    model = build_cost_model(parse_cluster("1x3xH100-80GB"))
    states = sum(size_bytes(v) for v in case.graph.values if v.kind in STATE_KINDS and v.name in case.graph.inputs)
    words = Constraints(degrees=(("dp", 3),), microbatches=1, zero=3)
    found = decide(Ask(case, model, words, model.reserve_bytes + 10 * states, 20.0, None, lambda line: None))
    entering = {v.name: v for v in found.case.graph.values if v.name in found.case.graph.inputs and v.kind in STATE_KINDS}
    held = {name: sharding for name, sharding in found.assignment.storages if name in entering}
    assert held and all(is_uneven(sharding) for sharding in held.values())
    mine = sum(DTYPE_BYTES[v.dtype] * local_elements(v.shape, held[name], (3,)) for name, v in entering.items())
    assert states / 3 < mine < 1.1 * states / 3
