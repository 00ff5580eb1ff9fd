"""Shardings: what is legal, what a rank holds, and the text that parses back."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.errors import PlanError
from autopar.graph.mesh import Mesh, axis_groups, axis_sizes, coordinates, num_ranks, print_mesh
from autopar.graph.sharding import (
    PARTIAL,
    REPLICATE,
    Partial,
    Shard,
    Sharding,
    chunk,
    dim_digits,
    has_partial,
    is_replicated,
    is_uneven,
    local_elements,
    local_shape,
    pad_shape,
    parse_sharding,
    replicated,
    why_illegal,
)  # fmt: skip

from .drafts import make_mesh

placements = st.one_of(st.just(REPLICATE), st.sampled_from([PARTIAL, Partial("max")]), st.builds(Shard, st.integers(0, 9), st.integers(0, 10**6)))


@given(st.lists(placements, max_size=4).map(tuple).map(Sharding))
def test_text_parses_back(sharding):
    assert parse_sharding(str(sharding)) == sharding


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("-", ()),
        ("R", (REPLICATE,)),
        ("P,Pmax", (PARTIAL, Partial("max"))),
        ("S0/4,R", (Shard(0, 4), REPLICATE)),
        ("S12/345", (Shard(12, 345),)),
        ("S0/18-2,R", (Shard(0, 18, 2), REPLICATE)),
    ],
)
def test_texts(text, wanted):
    assert parse_sharding(text).placements == wanted and str(Sharding(wanted)) == text


@pytest.mark.parametrize("text", ["", "S", "S0", "S/4", "S0/", "R,", "r", "Psum", "S-1/4", "S0/4x", "T0/4", " R", "R, R", "S0/4/2", "-,-", "S0/4-", "S0/-4", "S0/4-1-1"])
def test_bad_texts(text):
    with pytest.raises(PlanError) as error:
        parse_sharding(text, "plan.json: storage of x")
    bad = next(part for part in text.split(",") if part not in ("R", "P"))
    assert str(error.value) == f"plan.json: storage of x: expected R, P, Pmax, Pmin, S<dim>/<stride> or S<dim>/<stride>-<padding> per mesh axis, found {bad!r}"


@pytest.mark.parametrize(
    ("shape", "text", "sizes", "reason"),
    [
        ((8, 6), "S0/4", (2,), ""),
        ((8, 6), "S0/1", (2,), ""),
        ((8, 6), "S0/2,S0/4", (2, 2), ""),
        ((8, 6), "S0/4,S0/1", (2, 4), ""),
        ((2304,), "S0/384", (2,), ""),
        ((), "R,P", (2, 3), ""),
        ((), "-", (), ""),
        ((8,), "R", (2, 2), "1 placements for 2 mesh axes"),
        ((8,), "S1/4", (2,), "dim 1 of a 1-dim tensor"),
        ((), "S0/1", (2,), "dim 0 of a 0-dim tensor"),
        ((8,), "S0/0", (2,), "dim 0 of size 8 is not a multiple of 0 x 2"),
        ((8,), "S0/3", (2,), "dim 0 of size 8 is not a multiple of 3 x 2"),
        ((6,), "S0/2", (2,), "dim 0 of size 6 is not a multiple of 2 x 2"),
        ((1,), "S0/1", (2,), "dim 0 of size 1 is not a multiple of 1 x 2"),
        ((8,), "S0/4,S0/4", (2, 2), "dim 0: the digits at strides 4 and 4 overlap"),
        ((16,), "S0/1,S0/2", (4, 2), "dim 0: the digits at strides 1 and 2 overlap"),
        ((36,), "S0/2,S0/3", (2, 2), "dim 0: the digits at strides 2 and 3 overlap"),
    ],
)
def test_why_illegal(shape, text, sizes, reason):
    assert why_illegal(shape, parse_sharding(text), sizes) == reason


def test_a_negative_dim_is_illegal():
    assert why_illegal((8,), Sharding((Shard(-1, 4),)), (2,)) == "dim -1 of a 1-dim tensor"


@pytest.mark.parametrize(
    ("shape", "text", "sizes", "local", "pieces"),
    [
        ((8, 6), "S0/4,S1/2", (2, 3), (4, 2), 6),
        ((8, 6), "S0/4,S0/1", (2, 4), (1, 6), 8),
        ((8, 6), "R,P", (2, 3), (8, 6), 1),
        ((8, 6), "P,S0/2", (2, 4), (2, 6), 4),
        ((), "R", (2,), (), 1),
        ((8, 6), "-", (), (8, 6), 1),
    ],
)
def test_local_shape(shape, text, sizes, local, pieces):
    assert local_shape(shape, parse_sharding(text), sizes) == local
    assert local_elements(shape, parse_sharding(text), sizes) * pieces == prod(shape)


@pytest.mark.parametrize(
    ("shape", "text", "sizes", "reason"),
    [
        ((52, 6), "S0/18-2", (3,), ""),
        ((52, 6), "S0/18-2,S1/2", (3, 3), ""),
        ((9,), "S0/2-7", (8,), ""),  # three ranks hold padding alone
        ((52, 6), "S0/18-2,S0/13", (3, 2), "dim 0 is cut into chunks that do not divide it, and by a second axis"),
        ((52, 6), "S0/18-2,S0/26", (3, 2), "dim 0 is cut into chunks that do not divide it, and by a second axis"),
        ((52,), "S0/18-1", (3,), "dim 0 of size 52 and 1 of padding is not a multiple of 18 x 3"),
        ((52,), "S0/19-5", (3,), "dim 0 of size 52 needs no padding of 5 to be cut into 3 chunks"),
        ((54,), "S0/20-6", (3,), "dim 0 of size 54 needs no padding of 6 to be cut into 3 chunks"),
    ],
)
def test_chunks_that_do_not_divide(shape, text, sizes, reason):
    sharding = parse_sharding(text)
    assert why_illegal(shape, sharding, sizes) == reason and is_uneven(sharding)
    if not reason:
        short, chunk_size = sharding.placements[0].short, sharding.placements[0].stride
        assert local_shape(shape, sharding, sizes)[0] == chunk_size and chunk_size * sizes[0] == shape[0] + short
        assert pad_shape(shape, sharding)[0] == shape[0] + short == prod(radix for radix, _ in dim_digits(shape[0], 0, sharding, sizes))


def test_digits_are_the_local_piece():
    """Reshaping to the digits and picking the coordinate is the definition (i // stride) % N == c."""
    x = np.arange(48)
    for text, sizes in [("S0/24", (2,)), ("S0/1", (3,)), ("S0/4", (2,)), ("S0/12,S0/3", (2, 2)), ("S0/2,S0/16", (4, 3)), ("R,S0/6", (2, 4)), ("R", (2,))]:
        sharding = parse_sharding(text)
        digits = dim_digits(48, 0, sharding, sizes)
        assert prod(radix for radix, _ in digits) == 48
        for place in np.ndindex(*sizes):
            held = x
            for p, n, c in zip(sharding.placements, sizes, place):
                if isinstance(p, Shard):
                    held = held[(held // p.stride) % n == c]
            by_digits = x.reshape([radix for radix, _ in digits])[tuple(slice(None) if axis is None else place[axis] for _, axis in digits)]
            assert (by_digits.ravel() == held).all()


def test_chunk_takes_the_outer_digit_first():
    assert str(chunk(0, (8, 6), (0, 1), (2, 4))) == "S0/4,S0/1"
    assert str(chunk(0, (8, 6), (1, 0), (2, 4))) == "S0/1,S0/2"
    assert str(chunk(1, (8, 6), (1,), (2, 3))) == "R,S1/2"


def test_kinds_of_shardings():
    assert is_replicated(replicated(2)) and is_replicated(Sharding(())) and not is_replicated(parse_sharding("R,P"))
    assert has_partial(parse_sharding("R,P")) and not has_partial(parse_sharding("R,S0/1"))


def test_mesh_coordinates_and_groups():
    mesh = make_mesh(2, 3)
    assert (num_ranks(mesh), axis_sizes(mesh), print_mesh(mesh)) == (6, (2, 3), "a=2 b=3")
    assert [coordinates(mesh, r) for r in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert axis_groups(mesh, 0) == ((0, 3), (1, 4), (2, 5))
    assert axis_groups(mesh, 1) == ((0, 1, 2), (3, 4, 5))
    assert (num_ranks(Mesh(())), coordinates(Mesh(()), 0), print_mesh(Mesh(()))) == (1, (), "1 rank")
