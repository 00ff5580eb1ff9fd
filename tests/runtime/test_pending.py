"""How several tensors travel: what nobody else reads goes where it lies, the rest as one copy; and digits of several axes at once."""

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import ProgramError  # noqa: E402
from autopar.graph.messages import REDUCED_ALONE_BYTES  # noqa: E402
from autopar.runtime.digits import merge_digit, merge_digits, open_digits, split_digit, take_digit  # noqa: E402
from autopar.runtime.ops import linear_weight_grad, linear_weight_grad_into  # noqa: E402
from autopar.runtime.pending import Bucket, Flight, give_back, pack_around, pack_whole  # noqa: E402

pytestmark = pytest.mark.torch
LARGE = REDUCED_ALONE_BYTES // 8


def test_large_ones_of_ones_own_go_alone_and_the_rest_as_one():
    xs = [torch.ones(3), torch.ones(LARGE), torch.ones(2, LARGE // 2).to(torch.float64), torch.ones(LARGE, 2)]
    xs = [x.to(torch.float64) for x in xs]
    found = pack_around(xs, (0, 2, 3))
    assert [list(views) for _, views in found] == [[2], [3], [0, 1]]
    for (flat, views), place in zip(found, (2, 3)):
        assert flat.dim() == 1 and flat.data_ptr() == xs[place].data_ptr() and views[place] is xs[place]
    flat, views = found[-1]
    flat.zero_()
    assert flat.numel() == 3 + LARGE and not views[0].any() and views[1].shape == xs[1].shape
    assert all(x.all() for x in xs)


def test_what_has_gaps_goes_alone_as_a_copy():
    """So that the number of messages does not hang on how a rank's tensor lies."""
    x = torch.ones(LARGE, 2, dtype=torch.float64).transpose(0, 1)
    [(flat, views), _] = pack_around([torch.ones(2, dtype=torch.float64), x], (1,))
    flat.zero_()
    assert x.all() and not views[1].any() and views[1].shape == x.shape


@pytest.mark.parametrize("own", [(), (0,)])
def test_a_single_one(own):
    x = torch.ones(5)
    [(flat, views)] = pack_around([x], own)
    assert (flat.data_ptr() == x.data_ptr()) == bool(own) and views[0].shape == x.shape


def draw_digits(rng, shape):
    """Of up to three axes: (dim, stride, size, elements of padding), one after the other."""
    found, local, padded = [], list(shape), set()
    for _ in range(rng.choice((1, 2, 2, 3))):
        dim, size = rng.randrange(len(shape)), rng.choice((2, 3, 4))
        strides = [s for s in range(1, local[dim] + 1) if local[dim] % (s * size) == 0]
        fresh = all(dim != other for other, *_ in found)
        if dim in padded or not (strides or fresh):
            continue
        stride = rng.choice(strides) if strides else -(-local[dim] // size)
        short = max(0, stride * size - local[dim])
        padded |= {dim} if short else set()
        found.append((dim, stride, size, short))
        local[dim] = (local[dim] + short) // size
    return found


@pytest.mark.parametrize("seed", range(40))
def test_digits_of_several_axes_at_once_are_those_of_one_after_the_other(seed):
    rng, done = random.Random(seed), 0
    while done < 20:
        shape = rng.choice([(24, 12), (48,), (16, 9, 8), (12, 10)])
        x, found = torch.arange(torch.Size(shape).numel()).view(shape), draw_digits(rng, shape)
        if not found:
            continue
        dims, strides, sizes, shorts = zip(*found)
        order = rng.sample(range(len(found)), len(found))
        try:
            opened, piece = open_digits(x, dims, strides, sizes, order)
        except ProgramError as error:  # of one dim, and no sharding has them
            assert "overlap" in str(error) and len(set(dims)) < len(dims)
            continue
        done += 1
        split, pieces = opened.reshape(*(sizes[k] for k in order), *piece), x
        for place, (dim, stride, size, _) in enumerate(found):
            pieces = split_digit(pieces, dim + place, stride, size)
        count = len(found)
        assert torch.equal(split, pieces.permute(*(count - 1 - k for k in order), *range(count, pieces.dim())))
        merged = merge_digits(pieces, dims[::-1], strides[::-1], shorts[::-1])
        for left, (dim, stride, _, short) in zip(reversed(range(count)), reversed(found)):
            pieces = merge_digit(pieces, dim + left, stride, short)
        assert torch.equal(merged, pieces) and torch.equal(merged, x) and merged.is_contiguous()


def test_an_empty_dim_is_cut_and_joined_as_any_other():
    x = torch.zeros(3, 0)
    opened, piece = open_digits(x, (1,), (1,), (2,), (0,))
    pieces = split_digit(x, 1, 1, 2)
    assert take_digit(x, 1, 1, 2, 1).shape == (3, 0)
    assert piece == (3, 0) and pieces.shape == (2, 3, 0) == opened.reshape(2, *piece).shape and merge_digit(pieces, 1, 1).shape == (3, 0)


def test_give_back():
    """What only the collective has made goes although another still holds it; what is somebody else's stays."""
    x = torch.arange(12.0).view(3, 4)
    made, view = x.t().contiguous(), x.view(-1)
    held = made.view(-1)
    give_back(made, x)
    assert held.untyped_storage().nbytes() == 0
    give_back(view, x)
    assert torch.equal(x, torch.arange(12.0).view(3, 4))


def test_flight_gives_back_what_it_packed():
    xs = [torch.ones(3), torch.ones(2)]
    packed, _ = pack_whole(xs)
    Flight(lambda: None, [packed], xs).finish()
    assert packed.untyped_storage().nbytes() == 0
    Flight(lambda: None, [xs[0].view(-1)], xs).finish()
    assert xs[0].tolist() == [1, 1, 1]


def test_what_lies_in_its_bucket_is_not_copied():
    shapes = [(2, 3), (4,), (LARGE, 2), ()]
    bucket = Bucket(shapes, torch.float64, (0, 2), torch.device("cpu"))
    assert bucket.flat.numel() == 3 * 8 and [tuple(bucket[k].shape) for k in range(4)] == shapes
    xs = [bucket[0].fill_(1), torch.full((4,), 2.0, dtype=torch.float64), bucket[2].fill_(3), torch.tensor(4.0, dtype=torch.float64)]
    [(large, alone), (flat, views)] = pack_around(xs, (0, 2), bucket)
    assert list(alone) == [2] and large.data_ptr() == xs[2].data_ptr(), "on a CPU what is large travels alone"
    assert flat is bucket.flat and flat.tolist() == [1] * 6 + [0] * 2 + [2] * 4 + [0] * 4 + [4] + [0] * 7 and sorted(views) == [0, 1, 3]
    assert views[0].data_ptr() == xs[0].data_ptr() and views[3].shape == ()


@pytest.mark.parametrize("lies", ["packed", "swapped", "expanded", "cut"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_weight_gradient_is_written_into_its_bucket(dtype, lies):
    grad, input = torch.randn(2, 5, 4).to(dtype), torch.randn(2, 5, 3).to(dtype)
    if lies == "swapped":
        grad, input = grad.transpose(0, 1), input.transpose(0, 1)
    elif lies == "expanded":
        grad = grad[:1].expand(2, 5, 4)
    elif lies == "cut":
        grad, input = grad[:, 1:, ::2], input[:, 1:, :2]
    rows, cols = grad.shape[-1], input.shape[-1]
    for transposed, shape in ((False, (rows, cols)), (True, (cols, rows))):
        bucket = Bucket([(7,), shape], dtype, (1,), torch.device("cpu"))
        made = linear_weight_grad_into(grad, input, bucket, 1, transposed)
        assert made.data_ptr() == bucket[1].data_ptr()
        assert torch.equal(made, linear_weight_grad(grad, input, transposed)), "the same kernel, another place"


def test_what_goes_alone_has_no_room_before_it_is_asked_for():
    bucket = Bucket([(3,), (LARGE,), (LARGE,)], torch.float64, (1, 2), torch.device("cpu"))
    assert bucket.flat.numel() == 8 and list(bucket._views) == [0]
    made = bucket[1]
    assert made.shape == (LARGE,) and bucket[1] is made and list(bucket._views) == [0, 1]
    other = torch.ones(LARGE, dtype=torch.float64)  # that another op made: it travels where it lies
    found = pack_around([torch.ones(3, dtype=torch.float64), made, other], (1, 2), bucket)
    assert [flat.data_ptr() for flat, _ in found] == [made.data_ptr(), other.data_ptr(), bucket.flat.data_ptr()] and list(bucket._views) == [0, 1]
