"""The runtime gives the same numbers whatever the strides of a shard are: some kernels of torch do not look at them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from autopar.runtime.ops import call  # noqa: E402

from .referee import from_arg  # noqa: E402
from .test_rules import FAMILIES, one_thread  # noqa: E402, F401

pytestmark = pytest.mark.torch

_UNSET = frozenset({"aten.empty_like.default", "aten.empty.memory_format", "aten.new_empty.default"})  # whatever memory held


def reversed_strides(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, the first dim innermost."""
    dims = list(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, other numbers between them."""
    return torch.stack([x, torch.zeros_like(x)], -1)[..., 0]


def run(sample, change):
    tensors = tuple(change(t) for t in sample.inputs)
    torch.default_generator.manual_seed(0)
    made = call(sample.node.op, **{name: from_arg(arg, tensors) for name, arg in sample.node.args})
    return made if isinstance(made, (tuple, list)) else (made,)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("change", [reversed_strides, with_gaps], ids=lambda f: f.__name__)
def test_strides_do_not_count(family, change):
    wrong = []
    for sample in FAMILIES[family]():
        if sample.node.op in _UNSET:
            continue
        try:
            expected = run(sample, lambda t: t)
        except NotImplementedError:
            continue  # torch has no CPU kernel for the op, packed or not
        try:
            found = run(sample, change)
        except RuntimeError as error:
            wrong.append(f"{sample.name} ({sample.node.op}): {error}")
            continue
        for a, b in zip(found, expected):
            if isinstance(b, torch.Tensor) and not torch.allclose(a, b, rtol=1e-6, atol=1e-8, equal_nan=True):
                wrong.append(f"{sample.name} ({sample.node.op})")
                break
    assert not wrong
