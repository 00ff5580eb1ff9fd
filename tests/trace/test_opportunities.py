"""On real models: what the report says of each factor is what the compiler does when a plan splits that factor alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from autopar.demo.model import Gpt, token_loss  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402
from tests.graph.followed import Followed, as_program  # noqa: E402
from tests.trace import zoo  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def gpt():
    tokens = torch.randint(0, 48, (4, 17))
    return Workload(
        model=Gpt(48, 16, 2, 32, 4), example_inputs=(tokens[:, :-1],), example_targets=(tokens[:, 1:],), loss=token_loss, optimizer=zoo.ADAMW
    )  # fmt: skip


def resnet():
    return Workload(
        model=zoo.ResNet(), example_inputs=(torch.randn(8, 3, 32, 32),), example_targets=(torch.randint(0, 5, (8,)),), loss=F.cross_entropy,
        optimizer=zoo.ADAMW,
    )  # fmt: skip


@pytest.fixture(scope="module", params=[gpt, resnet], ids=lambda make: make.__name__)
def found(request):
    return Followed(trace_step(request.param(), "fp32").graph)


def test_every_synchronisation_is_a_collective_of_the_program_and_there_is_no_other(found):
    names = set()
    for span, run, name in zip(found.spans, found.runs, found.names):
        if name.digit.size % 2 == 0 and run.nodes:
            assert as_program(found, run) == sorted((s.kind, s.value) for s in run.syncs), (name.name, name.start)
            names.add(name.name)
    assert {"batch", "features", "heads", "sequence"} <= names or {"batch", "channels", "space: height"} <= names


def test_a_transformer_has_the_factors_that_people_know():
    found = Followed(trace_step(gpt(), "fp32").graph)
    reaches = {(r.name, r.sizes): r for r in found.reaches()}
    values = {v.name: v for v in found.graph.values}
    heads, wide = reaches["heads", (4, 4)], reaches["features", (128, 128)]
    for reach in (heads, wide):  # Megatron: one all-reduce of a layer in the forward, one in the backward
        assert [s.kind for s in reach.syncs] == ["all_reduce"] * 4
        assert {values[s.value].shape for s in reach.syncs} == {(4, 16, 32)}
    assert {grad for _, grad in found.graph.grads} <= {sync.value for sync in reaches["batch", (4,)].syncs}  # data parallelism
    assert reaches["sequence", (16,)].syncs and reaches["vocabulary", (48,)].syncs
