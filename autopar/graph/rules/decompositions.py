"""Linear algebra on matrices: batch dims are free, the dims of a matrix are whole; the columns of a right-hand side are free too."""

from __future__ import annotations

from collections.abc import Callable

from ..rule import Rule, Shape, Site
from .dims import letters, operand

_MATRIX = "each number of the result depends on the whole matrix"


def _batch_rank(site: Site, dims: tuple[int, ...]) -> int:
    return max(len(shape) - own for shape, own in zip(site.inputs, dims))


def _batched(*dims: int) -> Callable[[Site], str]:
    """Inputs whose last 2, 1 or 0 dims belong to a matrix, vector or number; outputs lead with the same batch, or are empty."""

    def text(site: Site) -> str:
        rank = _batch_rank(site, dims)
        batch = letters(rank)
        left = []
        for k, (shape, own) in enumerate(zip(site.inputs, dims)):
            own = min(own, len(shape))
            left.append(operand(batch[rank - len(shape) + own :] + [f"[i{k}x{d}]" for d in range(own)]))
        return f"{', '.join(left)} -> {', '.join(_after(site, shape, k, batch) for k, shape in enumerate(site.outputs))}"

    return text


def _after(site: Site, shape: Shape, k: int, batch: list[str]) -> str:
    if shape == (0,):  # not asked for
        return f"[none{k}]"
    return operand(batch + [f"[o{k}x{d}]" for d in range(len(shape) - len(batch))])


def _solve(matrix: int, right: int, own: tuple[int, ...], rest: tuple[int, ...] = ()) -> Callable[[Site], str]:
    """`A X = B`: the columns of B and of the solution (output 0) are free; the other outputs are of A alone, with A's batch.

    Args:
        matrix, right: which inputs are A and B.
        own: dims of each input that are no batch.
        rest: the same of each output but the solution.
    """

    def text(site: Site) -> str:
        a, b = site.inputs[matrix], site.inputs[right]
        is_vector = len(b) == 1 or (len(b) == len(a) - 1 and b == a[:-1])
        rank = _batch_rank(site, tuple(1 if k == right and is_vector else n for k, n in enumerate(own)))
        batch = letters(rank)
        left = []
        for k, (shape, dims) in enumerate(zip(site.inputs, own)):
            if k == right and not is_vector:
                inner = ["[rows]", "columns"] if site.arg("left", True) else ["columns", "[rows]"]
            else:
                inner = [f"[i{k}x{d}]" for d in range(1 if k == right else dims)]
            left.append(operand(batch[rank - len(shape) + len(inner) :] + inner))
        x = operand(batch + (["[xrows]"] if is_vector else ["[xrows]", "columns"] if site.arg("left", True) else ["columns", "[xrows]"]))
        seen = [k for k, name in enumerate(site.node.outputs) if name]
        outs = [x]
        same = " ".join(f"{{{name}}}" for name in (*batch, *(() if is_vector else ("columns",))))
        for k, dims in enumerate(rest, 1):
            shape = site.outputs[seen.index(k)] if k in seen else ()
            outs.append(f"{operand(batch[rank - len(shape) + dims :] + [f'[o{k}x{d}]' for d in range(dims)])} {same}" if k in seen else "")
        return f"{', '.join(left)} -> {', '.join(outs)}"

    return text


def _cubic(site: Site) -> float:
    """Rough: n^3 for each matrix of the first input. Source: Golub and Van Loan, Matrix Computations (the leading term, constants vary)."""
    size = 1.0
    for n in site.inputs[0]:
        size *= n
    return size * (site.inputs[0][-1] if site.inputs[0] else 1)


_ROWS = {
    "linalg_cholesky_ex": (2,), "cholesky": (2,), "cholesky_inverse": (2,), "linalg_inv_ex": (2,), "_linalg_det": (2,),
    "_linalg_slogdet": (2,), "linalg_qr": (2,), "_linalg_svd": (2,), "_linalg_eigh": (2,), "linalg_eig": (2,), "_linalg_eigvals": (2,),
    "linalg_lu_factor_ex": (2,), "linalg_lu": (2,), "linalg_ldl_factor_ex": (2,), "linalg_matrix_exp": (2,), "linalg_pinv": (2, 0, 0),
    "linalg_householder_product": (2, 1), "geqrf": (2,), "ormqr": (2, 1, 2), "lu_unpack": (2, 1), "linalg_lstsq": (2, 2),
}  # fmt: skip

ROWS = (
    *(Rule(f"aten.{name}", _batched(*dims), flops=_cubic, why_whole=_MATRIX) for name, dims in _ROWS.items()),
    Rule("aten._linalg_solve_ex", _solve(0, 1, (2, 2), (2, 1, 0)), flops=_cubic, why_whole=_MATRIX),
    Rule("aten.linalg_solve_triangular", _solve(0, 1, (2, 2)), (("B",),), flops=_cubic, why_whole=_MATRIX),
    Rule("aten.triangular_solve", _solve(1, 0, (2, 2), (2,)), flops=_cubic, why_whole=_MATRIX),
    Rule("aten.linalg_lu_solve", _solve(0, 2, (2, 1, 2)), (("B",),), flops=_cubic, why_whole=_MATRIX),
    Rule("aten.linalg_ldl_solve", _solve(0, 2, (2, 1, 2)), (("B",),), flops=_cubic, why_whole=_MATRIX),
    Rule("aten.cholesky_solve", _solve(1, 0, (2, 2)), (("self",),), flops=_cubic, why_whole=_MATRIX),
)
