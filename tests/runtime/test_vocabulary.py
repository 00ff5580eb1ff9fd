"""Local parts of split tables and losses: blocks of tokens change nothing, and rows that are not there are told."""

import pytest

torch = pytest.importorskip("torch")

from autopar.runtime import vocabulary  # noqa: E402
from autopar.runtime.vocabulary import cross_entropy_backward, embedding, embedding_backward, embedding_backward_onto, pick, sum_exp  # noqa: E402

pytestmark = pytest.mark.torch
ROWS = torch.arange(10)


def make(shape, layout):
    x = torch.randn(*shape, 10, dtype=torch.float64)
    if layout == "classes second":  # as strides only
        x = x.movedim(-1, 1).contiguous().movedim(1, -1)
    return x


@pytest.mark.parametrize("block", [1, 10, 25, 1000])
@pytest.mark.parametrize("layout", ["plain", "classes second"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (2, 3, 4)], ids=str)
def test_blocks_of_any_size(shape, layout, block, monkeypatch):
    if layout == "classes second" and len(shape) < 2:
        pytest.skip("one dim has one layout")
    monkeypatch.setattr(vocabulary, "BLOCK", block)
    x = make(shape, layout).requires_grad_()
    target, grad = torch.randint(0, 10, shape), torch.randn(shape, dtype=torch.float64)
    peak = x.detach().amax(-1)
    total = sum_exp(x.detach(), peak, x.shape[-1])
    torch.testing.assert_close(total, (x.detach() - peak[..., None]).exp().sum(-1))
    loss = total.log() + peak - pick(x.detach(), target, ROWS, 10)
    expected = -torch.log_softmax(x, -1).gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(loss, expected.detach())
    (wanted,) = torch.autograd.grad((expected * grad).sum(), x)
    found = cross_entropy_backward(grad, x.detach(), peak, total, target, ROWS, 10)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == x.stride(), "a convolution gets its gradient as it left its result"
    even = torch.randn(shape, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((-torch.log_softmax(x, -1).gather(-1, target[..., None])[..., 0] * grad + torch.log_softmax(x, -1).sum(-1) * even).sum(), x)
    parts = [cross_entropy_backward(grad - 10 * even, x.detach()[..., k], peak, total, target, ROWS[k], 10, grad, even) for k in (slice(10), slice(4), slice(4, 10))]
    torch.testing.assert_close(parts[0], wanted)
    torch.testing.assert_close(torch.cat(parts[1:], -1), wanted)


@pytest.mark.parametrize("classes", [1, 5, 16, 21])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)], ids=str)
def test_shares_of_however_many_classes_wherever_they_lie(classes, order):
    inverse = [order.index(d) for d in range(4)]
    x = torch.randn(2, 3, 4, classes, dtype=torch.float64).permute(order).contiguous().permute(inverse)
    x[0, 0, 0, :] = -torch.inf
    x[0, 1, 0, 0] = -torch.inf
    for some in (x, x[:, 1:], x[1], x[..., ::2]):
        for out in (None, torch.empty_like(some), torch.empty(some.shape, dtype=x.dtype)):
            found = vocabulary._softmax(some, out)
            torch.testing.assert_close(found, torch.softmax(some, -1), equal_nan=True)
            assert out is None or found is out
    assert vocabulary._softmax(x).stride() == x.stride() and vocabulary._softmax(x).isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masked_classes_have_no_share_where_they_are_all_that_a_rank_has(dtype):
    x, target, grad = torch.randn(3, 10).to(dtype), torch.tensor([0, 4, 2]), torch.tensor([1.0, -0.5, 2.0])
    x[:, 6:] = -torch.inf
    x[1, 1] = -torch.inf
    peak = x.amax(-1).float()
    parts = [(x[:, :6], ROWS[:6]), (x[:, 6:], ROWS[6:])]
    total = sum(sum_exp(part, peak, x.shape[-1]) for part, _ in parts)
    torch.testing.assert_close(total, (x.float() - peak[:, None]).exp().sum(-1))
    found = torch.cat([cross_entropy_backward(grad, part, peak, total, target, rows, 10) for part, rows in parts], -1)
    expected = grad[:, None] * (torch.softmax(x.float(), -1) - torch.nn.functional.one_hot(target, 10))
    torch.testing.assert_close(found, expected.to(dtype))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [1, 3, 5, 7, 9], [0, 1, 4, 5, 8]], ids=str)
def test_any_ascending_rows(rows):
    own, table, ids = torch.tensor(rows), torch.randn(10, 3), torch.randint(0, 10, (4, 5))
    here = torch.isin(ids, own)
    assert torch.equal(embedding(table[own], ids, own, 10), table[ids] * here[..., None])
    grad = torch.randn(4, 5, 3)
    whole = torch.ops.aten.embedding_dense_backward(grad, ids, 10, 3, False)
    torch.testing.assert_close(embedding_backward(grad, ids, own, 10, 3), whole[own])


@pytest.mark.parametrize("rows", [list(range(10)), [5, 6, 7, 8, 9], [1, 3, 5, 7, 9]], ids=str)
@pytest.mark.parametrize("padding", [-1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rows_are_added_where_the_sum_lies(rows, padding, dtype):
    own, ids = torch.tensor(rows), torch.randint(0, 10, (4, 5))
    grad, before = torch.randn(5, 4, 3).to(dtype).transpose(0, 1), torch.randn(len(rows), 3).to(dtype)
    wanted = before + embedding_backward(grad, ids, own, 10, padding)
    sum = before.clone()
    assert embedding_backward_onto(sum, grad, ids, own, 10, padding) is sum
    torch.testing.assert_close(sum, wanted)


def test_rows_that_hold_no_numbers_do_not_reach_others():
    table = torch.randn(10, 3)
    table[0] = torch.nan  # the place that rows elsewhere are read from
    assert embedding(table[:5], torch.tensor([7, 2]), ROWS[:5], 10).isfinite().all()


@pytest.mark.parametrize("wrong", [-1, 10])
def test_a_number_that_is_no_row_is_told(wrong):
    with pytest.raises(IndexError, match=r"expected row numbers from 0 to 9, found"):
        embedding(torch.randn(5, 3), torch.tensor([2, wrong]), ROWS[:5], 10)
    with pytest.raises((IndexError, RuntimeError)):
        embedding(torch.randn(10, 3), torch.tensor([2, wrong]), ROWS, 10)
