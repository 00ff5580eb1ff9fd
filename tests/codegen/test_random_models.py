"""Random models under random plans: any legal plan of any small graph gives the numbers of the plain step."""

import random

import pytest

torch = pytest.importorskip("torch")

from .random_models import make_random_workload  # noqa: E402
from .random_plans import Assigner, Control  # noqa: E402

pytestmark = pytest.mark.torch

MESHES = ((2,), (3,), (4,), (2, 2))


@pytest.mark.filterwarnings("ignore:var\\(\\). degrees of freedom")
@pytest.mark.parametrize("seed", [5, 111, *range(1000, 1030)])  # 5, 111: group norm's kernels read packed tensors only
def test_random_plans_of_a_random_model(seed):
    workload = make_random_workload(seed, 12)
    control = Control(workload)
    for number, sizes in enumerate(MESHES):
        assigner = Assigner(control.graph, sizes, recompute=random.Random(seed) if number % 2 else None)
        for draw in range(2):
            difference, whose = control.worst(assigner.program(assigner.draw(random.Random(1000 * seed + 10 * number + draw)), keep_grads=draw == 0))
            assert difference < 1e-8, f"mesh {sizes}, draw {draw}: {whose} is {difference:.1e} off; model {workload.model.words}"


def test_a_seed_is_a_model():
    first, again, other = (make_random_workload(seed, 12).model for seed in (7, 7, 8))
    assert first.words == again.words and torch.equal(first.x, again.x)
    assert first.words != other.words
