"""Samples of special functions, complex numbers, Fourier transforms, distances and matrix decompositions."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import torch

from autopar.graph.rules import pointwise

from .referee import Sample, make_sample
from .samples_core import F64, below, numbers

aten = torch.ops.aten


def complexes(*shape: int, seed: str = "") -> torch.Tensor:
    """Signed parts, zeros and one large value."""
    return torch.complex(numbers(*shape, seed=f"{seed} real"), numbers(*shape, seed=f"{seed} imaginary"))


def _tensor_count(name: str) -> tuple[str, int]:
    """(overload that takes tensors only, how many)."""
    packet = getattr(aten, name)
    for overload in ("default", "Tensor"):
        if overload in packet.overloads():
            types = [str(a.type) for a in getattr(packet, overload)._schema.arguments if not a.has_default_value()]
            if "Tensor" in types:
                return f"aten.{name}.{overload}", types.count("Tensor")
    raise AssertionError(name)


def special_samples() -> Iterator[Sample]:
    x, row = numbers(6, 9).clamp(-9, 9), numbers(9, seed="row").clamp(-9, 9)
    few, fewer = below(9, 6, 9) - 4, below(5, 9)
    for name in pointwise.SPECIAL:
        op, count = _tensor_count(name)
        if name in ("gcd", "lcm"):
            yield make_sample(op, few, fewer)
        elif name in ("__lshift__", "__rshift__"):
            yield make_sample(op, few.abs(), fewer)
        elif name == "polygamma":
            yield make_sample(op, 1, x.abs() + 0.5)
        elif name == "mvlgamma":
            yield make_sample(op, x.abs() + 3, 2)
        elif name.startswith("fake_quantize"):
            yield make_sample(op, x, 0.1, 3, -10, 20)
        elif name in ("igamma", "igammac", "special_zeta"):
            yield make_sample(op, x.abs() + 1.5, row.abs() + 0.5)
        elif name in ("isneginf", "isposinf"):
            yield make_sample(op, torch.tensor([0.0, 1.0, -2.0, inf, -inf, torch.nan], dtype=F64)[below(6, 6, 9)])
        elif "polynomial" in name:
            yield make_sample(op, x / 9, fewer.to(F64))
        elif count == 2:
            yield make_sample(op, x, row.abs() + 0.5)
        else:
            yield make_sample(op, x.abs() + 0.5 if name.startswith("special") else x)
    g = numbers(6, 9, seed="g")
    yield make_sample("aten.hardshrink_backward", g, x, 0.5)
    yield make_sample("aten.fake_quantize_per_tensor_affine_cachemask_backward", g, numbers(6, 9, kind="bool"))
    yield make_sample("aten.angle", complexes(6, 9), label="complex")


def complex_samples() -> Iterator[Sample]:
    z = complexes(4, 6)
    for op in ("_conj", "_conj_physical", "conj_physical"):
        yield make_sample(f"aten.{op}", z)
    yield make_sample("aten._neg_view", numbers(4, 6))
    yield make_sample("aten.polar", numbers(4, 6, kind="positive"), numbers(4, 6, seed="angle"))
    yield make_sample("aten.complex", numbers(4, 6), numbers(6, seed="imaginary"))
    yield make_sample("aten.mul.Tensor", z, complexes(6, seed="b"), label="complex")
    yield make_sample("aten.add.Tensor", z, complexes(6, seed="b"), label="complex")
    yield make_sample("aten.abs", z, label="complex")
    yield make_sample("aten.sum.dim_IntList", z, [1], label="complex")
    yield make_sample("aten.mm", z, complexes(6, 3), label="complex")
    for end in ("", "_copy"):
        yield make_sample(f"aten.view_as_real{end}", z)
        yield make_sample(f"aten.view_as_complex{end}", numbers(4, 6, 2))
    x = numbers(4, 6, 8)
    for dims in ([2], [0, 2]):
        yield make_sample("aten._fft_r2c", x, dims, 0, True, label=str(dims))
        yield make_sample("aten._fft_c2c", complexes(4, 6, 8), dims, 1, True, label=str(dims))
        yield make_sample("aten._fft_c2r", complexes(4, 6, 5), dims, 2, 8, label=str(dims))
    yield make_sample("aten._fft_r2c", x, [1], 0, False, label="two-sided")


def distance_samples() -> Iterator[Sample]:
    a, b = numbers(2, 6, 4), numbers(2, 9, 4, seed="b")
    for p in (0.0, 1.0, 2.0, 3.0, inf):
        label = f"{p}-norm"
        sample = make_sample("aten._cdist_forward", a, b, p, None, label=label)
        yield sample
        yield make_sample("aten._cdist_backward", numbers(2, 6, 9, seed="g"), a, b, p, sample.outputs[0], label=label)
        yield make_sample("aten.dist", a, numbers(6, 4, seed="other"), p, label=label)
        yield make_sample("aten._pdist_forward", a[0], p, label=label)
        pairs = aten._pdist_forward(a[0], p)
        yield make_sample("aten._pdist_backward", numbers(15, seed="g"), a[0], p, pairs, label=label)
        yield make_sample("aten.linalg_vector_norm", numbers(4, 6, 9), p, [1], label=label)
        yield make_sample("aten.norm.ScalarOpt_dim", numbers(4, 6, 9), p, [0, 2], True, label=label)
    yield make_sample("aten.linalg_vector_norm", numbers(4, 6), -inf, [1], label="smallest")
    yield make_sample("aten._euclidean_dist", a, b)
    yield make_sample("aten.renorm", numbers(4, 6, 9), 2, 1, 5.0)
    yield make_sample("aten.renorm", numbers(4, 6, 9), 1, -1, 5.0, label="last")
    for dim, shape in ((0, (6, 4, 3)), (2, (4, 3, 6))):
        v, g = numbers(*shape), numbers(*[s if k == dim else 1 for k, s in enumerate(shape)], seed="g")
        sample = make_sample("aten._weight_norm_interface", v, g, dim, label=str(dim))
        yield sample
        grad = numbers(*shape, seed="grad")
        yield make_sample("aten._weight_norm_interface_backward", grad, v, g, sample.outputs[1], dim, label=str(dim))


def _matrices(*shape: int, seed: str = "") -> torch.Tensor:
    """Well-conditioned square matrices, not symmetric."""
    return numbers(*shape, seed=seed).clamp(-2, 2) + 4 * torch.eye(shape[-1], dtype=F64)


def _symmetric(*shape: int) -> torch.Tensor:
    m = _matrices(*shape)
    return m @ m.mT


def decomposition_samples() -> Iterator[Sample]:
    m, s, b = _matrices(6, 4, 4), _symmetric(6, 4, 4), numbers(6, 4, 6, seed="b")
    two = _matrices(2, 3, 4, 4)
    for op in ("linalg_inv_ex", "_linalg_det", "_linalg_slogdet", "linalg_lu_factor_ex", "linalg_lu", "linalg_matrix_exp", "linalg_qr"):
        yield make_sample(f"aten.{op}", m)
        yield make_sample(f"aten.{op}", two, label="two batch dims")
        yield make_sample(f"aten.{op}", m[0], label="one matrix")
    for op in ("geqrf", "_linalg_svd", "linalg_qr"):
        yield make_sample(f"aten.{op}", numbers(6, 5, 4).clamp(-2, 2), label="tall")
    yield make_sample("aten.linalg_qr", m, "r", label="r only")
    yield make_sample("aten._linalg_svd", m, False, False, label="values only")
    for op in ("linalg_eig", "_linalg_eigvals"):
        yield make_sample(f"aten.{op}", s)
    yield make_sample("aten._linalg_eigh", s)
    yield make_sample("aten._linalg_eigh", s, "L", False, label="values only")
    for op in ("cholesky", "linalg_cholesky_ex", "linalg_ldl_factor_ex"):
        yield make_sample(f"aten.{op}", s)
    low = torch.linalg.cholesky(s)
    yield make_sample("aten.cholesky_inverse", low)
    yield make_sample("aten.cholesky_solve", b, low)
    yield make_sample("aten.linalg_pinv.atol_rtol_tensor", m, rtol=torch.full((6,), 1e-9, dtype=F64))
    yield make_sample("aten.linalg_pinv.atol_rtol_tensor", m[0], label="one matrix")
    reflected, tau = torch.geqrf(m)
    yield make_sample("aten.linalg_householder_product", reflected, tau)
    yield make_sample("aten.ormqr", reflected, tau, numbers(6, 4, 3, seed="other"))
    lu, pivots, _ = torch.linalg.lu_factor_ex(m)
    yield make_sample("aten.lu_unpack", lu, pivots)
    yield make_sample("aten.linalg_lstsq", m, b, driver="gelsd")
    ld, places = torch.linalg.ldl_factor(s)
    yield make_sample("aten.linalg_ldl_solve", ld, places, b)
    yield make_sample("aten.linalg_lu_solve", lu, pivots, b)
    yield make_sample("aten.linalg_lu_solve", lu, pivots, b.mT.contiguous(), left=False, label="right")
    yield make_sample("aten.linalg_solve_triangular", m, b, upper=True)
    yield make_sample("aten.linalg_solve_triangular", m, b.mT.contiguous(), upper=False, left=False, label="right")
    yield make_sample("aten.triangular_solve", b, m)
    yield make_sample("aten._linalg_solve_ex", m, b)
    yield make_sample("aten._linalg_solve_ex", m, b.mT.contiguous(), left=False, label="right")
    yield make_sample("aten._linalg_solve_ex", m, numbers(6, 4, seed="vectors"), label="vectors")
    yield make_sample("aten._linalg_solve_ex", m[0], numbers(4, seed="vector"), label="vector")
    yield make_sample("aten._linalg_solve_ex", m[0], b, label="one matrix, many sides")
    yield make_sample("aten._linalg_solve_ex", m[:1], b, label="a matrix for all")
    yield make_sample("aten._linalg_solve_ex", m, b[0], label="many matrices, one side")
    yield make_sample("aten.linalg_solve_triangular", m[0], b, upper=True, label="one matrix, many sides")
    yield make_sample("aten.triangular_solve", b, m[0], label="one matrix, many sides")
    yield make_sample("aten.linalg_lu_solve", lu[0], pivots[0], b, label="one matrix, many sides")
    yield make_sample("aten.cholesky_solve", b, low[0], label="one matrix, many sides")
    yield make_sample("aten.linalg_cross", numbers(6, 3, 4), numbers(1, 3, 4, seed="b"), dim=1)
