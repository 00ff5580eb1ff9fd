"""What a trace calls collectives, messages and compiled segments."""

import functools
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import profile  # noqa: E402

from autopar.runtime.named_trace import COLLECTIVES, NamedComm, _describe, _named  # noqa: E402
from autopar.runtime.pending import Pending  # noqa: E402
from autopar.runtime.place import EMITTED  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "name, args, text",
    [
        ("all_reduce", (torch.ones(2, 3), "dp"), "all_reduce along dp of float32[2, 3]"),
        ("start_all_gather", ([torch.ones(2)] * 4, ("dp", "tp"), [0] * 4, [1] * 4), "start_all_gather along dp+tp of float32[2], float32[2], float32[2] and 1 more"),
        ("send", (torch.ones(2), 3, (0, 1)), "send to rank 3 of float32[2]"),
        ("receive", (3, (0, 1)), "receive from rank 3"),  # a message and a turn, no axes
        ("broadcast", (torch.ones(()), "dp", 0), "broadcast along dp of float32[]"),
    ],
)
def test_names(name, args, text):
    assert name in COLLECTIVES and _describe(name, args) == text


def test_messages_of_stages_go_through():
    class Comm:
        def receive(self, source, key):
            return source, key

        def send(self, x, target, key):
            return target, key

    named = NamedComm(Comm())
    assert named.receive(1, (0, 2)) == (1, (0, 2)) and named.send(torch.ones(1), 1, (0, 2)) == (1, (0, 2))


def test_what_is_waited_for_has_a_span_of_its_own():
    """Where a rank stands still shows: the start is short, the wait takes what is left."""
    class Comm:
        def start_all_gather(self, xs, axis, dim, stride, short=()):
            return [Pending(lambda x=x: x + 1) for x in xs]

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        found = NamedComm(Comm()).start_all_gather([torch.ones(2), torch.zeros(2)], "dp", [0, 0], [1, 1])
        assert [x.wait().tolist() for x in found] == [[2.0, 2.0], [1.0, 1.0]]
    names = [event.name for event in profiler.events()]
    text = "all_gather along dp of float32[2], float32[2]"
    assert names.count(f"start_{text}") == 1 and names.count(f"wait for {text}") == 2


def test_where_a_compiled_segment_resumes_is_left_alone():
    """Dynamo puts such functions beside the program's own, and cannot trace what wraps them."""
    table = {"__name__": "emitted"}
    exec("def forward(): pass\ndef __resume_at_12_3(): pass", table)
    forward, resumes = table["forward"], table["__resume_at_12_3"]
    with _named(table):
        assert table["forward"] is not forward and table["__resume_at_12_3"] is resumes
    assert table["forward"] is forward


def test_compiled_segments_have_names():
    """What torch.compile returns is a function of its own that wraps the program's; what others wrap is left alone."""
    kernels = ModuleType("kernels")
    kernels.__file__ = f"{EMITTED} kernels.py"
    exec("def forward_ops(x): return x + 1", vars(kernels))

    @functools.wraps(kernels.forward_ops)
    def compiled(x):
        return kernels.forward_ops(x)

    @functools.wraps(_describe)
    def foreign(x):
        return x

    vars(kernels).update(forward=compiled, foreign=foreign)
    table = {"__name__": "emitted", "kernels": kernels}
    with _named(table), profile() as profiler:
        assert kernels.forward is not compiled and kernels.foreign is foreign
        assert kernels.forward(torch.zeros(1)).item() == 1
    assert kernels.forward is compiled
    assert {"kernels.forward", "kernels.forward_ops"} <= {event.name for event in profiler.events()}
