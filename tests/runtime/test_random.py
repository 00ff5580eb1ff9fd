"""Numbers from a counter and coordinates: against SplitMix64 in Python's integers, on shards, and as random numbers."""

import math

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.mesh import Mesh, MeshAxis  # noqa: E402
from autopar.graph.sharding import parse_sharding  # noqa: E402
from autopar.runtime import random, run_ranks  # noqa: E402
from autopar.runtime.random import poisson, uniform  # noqa: E402
from autopar.runtime.shards import cut  # noqa: E402

pytestmark = pytest.mark.torch
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def whole(count, shape, dtype=torch.float64):
    return uniform(torch.tensor(count), [torch.arange(n) for n in shape], shape, dtype)


@pytest.mark.parametrize("count", [0, 1, 2**47 + 12345])
def test_bits_are_those_of_splitmix64(count):
    found = whole(count, (2, 3, 5)).flatten().tolist()
    key = mix64((count + 1) * GOLDEN & WORD)
    assert found == [(mix64((key + (i + 1) * GOLDEN) & WORD) >> 11) * 2.0**-53 for i in range(30)]


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)])
def test_narrow_numbers_are_the_top_bits_of_wide_ones(dtype, bits):
    wide, narrow = whole(5, (64, 33)), whole(5, (64, 33), dtype)
    assert narrow.dtype == dtype and torch.equal(narrow.double(), (wide * 2**bits).floor() * 2.0**-bits)
    assert float(narrow.double().max()) < 1


def test_size_of_chunks_changes_nothing(monkeypatch):
    expected = whole(9, (7, 3, 50))
    for chunk in (1, 20, 50, 130):
        monkeypatch.setattr(random, "CHUNK", chunk)
        assert torch.equal(whole(9, (7, 3, 50)), expected)


def test_shapes_without_elements_or_dims():
    assert whole(1, ()).shape == () and whole(1, (0, 3)).shape == (0, 3) and whole(1, (3, 0)).shape == (3, 0)


MESHES = {1: [()], 2: [(2,)], 4: [(4,), (2, 2)], 8: [(8,), (2, 4), (2, 2, 2)]}


@pytest.mark.parametrize("ranks", MESHES)
def test_ranks_make_pieces_of_the_same_numbers(ranks):
    """Splits of every dim, two axes on one dim (both orders), and digits inside of a dim."""
    shape = (16, 8, 32)
    expected = whole(77, shape, torch.float32)
    for sizes in MESHES[ranks]:
        mesh = Mesh(tuple(MeshAxis("abc"[k], n) for k, n in enumerate(sizes)))
        for text in shardings(shape, sizes):
            sharding = parse_sharding(text)

            def one(comm):
                coords = []
                for dim, n in enumerate(shape):  # the list of coordinates is cut as the dim is
                    own = ",".join(p.replace(f"S{dim}", "S0") if p.startswith(f"S{dim}") else "R" for p in text.split(",")) if text != "-" else "-"
                    coords.append(cut(torch.arange(n), parse_sharding(own), mesh, comm.rank))
                return uniform(torch.tensor(77), coords, shape)

            for rank, piece in enumerate(run_ranks(mesh, one)):
                assert torch.equal(piece, cut(expected, sharding, mesh, rank)), (sizes, text)


def shardings(shape, sizes):
    if not sizes:
        return ["-"]
    found = []
    for dim, n in enumerate(shape):
        stride, parts = n, []
        for size in sizes:
            stride //= size
            parts.append(f"S{dim}/{stride}")
        if n % math.prod(sizes) == 0:
            found.append(",".join(parts))
            found.append(",".join(f"S{dim}/{math.prod(sizes[:k])}" for k in range(len(sizes))))  # inner digits
        found.append(",".join([f"S{dim}/1", *["R"] * (len(sizes) - 1)]))
    if len(sizes) == 2:
        found += [f"S0/{16 // sizes[0]},S2/{32 // sizes[1]}", f"S2/{32 // sizes[0]},S1/{8 // sizes[1]}"]
    return found


# -- as random numbers: bounds at six standard errors ---------------------------------------------------------------------------------


def correlation(a, b):
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


@pytest.mark.parametrize("shape", [(1000, 400), (400_000,), (20, 20, 1000)])
def test_moments_and_buckets(shape):
    u = whole(2**40 + 3, shape)
    n = u.numel()
    assert abs(float(u.mean()) - 0.5) < 6 / math.sqrt(12 * n)
    assert abs(float(u.var()) - 1 / 12) < 6 / math.sqrt(180 * n)
    counts = torch.histc(u, 256, 0, 1)
    assert float(((counts - n / 256) ** 2 / (n / 256)).sum()) < 255 + 6 * math.sqrt(2 * 255)  # chi squared


@pytest.mark.parametrize("distance", [1, 2, 7, 1000])
def test_neighbours_are_not_correlated(distance):
    u = whole(11, (400_000,))
    assert abs(correlation(u[:-distance], u[distance:])) < 6 / math.sqrt(u.numel())


def test_draws_and_steps_are_not_correlated():
    draws = [whole(2**44 + k, (300, 1000)) for k in range(4)]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert abs(correlation(a, b)) < 6 / math.sqrt(a.numel())
            assert abs(correlation(a.flatten()[1:], b.flatten()[:-1])) < 6 / math.sqrt(a.numel())
            assert not torch.isin(a.flatten(), b.flatten()[:1000]).any()


def test_bits_are_balanced():
    bits = (whole(3, (200_000,)) * 2**53).to(torch.int64)
    for k in range(53):
        share = float(((bits >> k) & 1).double().mean())
        assert abs(share - 0.5) < 6 * 0.5 / math.sqrt(bits.numel()), k


@pytest.mark.parametrize("rate", [0.0, 0.2, 3.5, 80.0, 5000.0])
def test_poisson(rate):
    n = 50_000
    k = poisson(whole(4, (n,)), torch.full((n,), rate, dtype=torch.float64))
    assert torch.equal(k, k.floor()) and float(k.min()) >= 0
    assert abs(float(k.mean()) - rate) <= 6 * math.sqrt(rate / n)
    assert abs(float(k.var()) - rate) <= 6 * math.sqrt((rate + 2 * rate**2) / n)
    assert abs(float((k == 0).double().mean()) - math.exp(-rate)) < 6 * 0.5 / math.sqrt(n)
