"""A step as a graph: when it is captured, on what it is replayed, and what is refused. No GPU is needed: a capture that runs the step again stands for one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from autopar.api import compile_workload  # noqa: E402
from autopar.codegen.cuda_graph import check_capturable  # noqa: E402
from autopar.errors import InputError, OptionsError  # noqa: E402
from autopar.graph.graph import Graph  # noqa: E402
from autopar.graph.node import Node, Phase, Ref  # noqa: E402
from autopar.graph.run_file import load_run  # noqa: E402
from autopar.graph.tensor import Kind, Value  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime import Executable, initial_state, solo_comm  # noqa: E402
from autopar.runtime.cuda_graph import WARM_UPS, CudaCapture, Replayed  # noqa: E402
from autopar.runtime.named_trace import trace_step  # noqa: E402
from autopar.runtime.recording import Recorder  # noqa: E402
from autopar.trace import Workload  # noqa: E402


class Again:
    """What was captured, on the very tensors."""

    def __init__(self, run: Callable[[], Any], result: torch.Tensor) -> None:
        self.run, self.result = run, result

    def replay(self) -> None:
        self.result.copy_(self.run())


class FakeCapture:
    """Runs what it captures again at each replay; capturing changes nothing, as on a GPU."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state, self.said = state, []

    def takes(self, comm: object) -> bool:
        return True

    def warm_up(self, run: Callable[[], Any]) -> Any:
        self.said.append("warm up")
        return run()

    def capture(self, run: Callable[[], Any]) -> tuple[Again, torch.Tensor]:
        self.said.append("capture")
        before = {name: x.clone() for name, x in self.state.items()}
        result = run()
        for name, x in before.items():
            self.state[name].copy_(x)
        return Again(run, result), result


def _step(comm: object, state: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    state["w"].add_(batch["x"].sum())
    return state["w"].sum()


def test_every_step_is_done_once_and_results_stay():
    state = {"w": torch.zeros(3)}
    fake = FakeCapture(state)
    step, plain = Replayed(_step, fake), {"w": torch.zeros(3)}
    found, wanted = [], []
    for number in range(WARM_UPS + 4):
        batch = {"x": torch.full((2,), float(number - 2))}
        found.append(step(solo_comm(), state, batch))
        wanted.append(_step(None, plain, {k: v.clone() for k, v in batch.items()}).clone())
    assert fake.said == ["warm up"] * WARM_UPS + ["capture"]
    assert [x.item() for x in found[WARM_UPS:]] == [x.item() for x in wanted[WARM_UPS:]] and torch.equal(state["w"], plain["w"])


def test_a_state_that_was_replaced_is_captured_again():
    state = {"w": torch.zeros(3)}
    fake = FakeCapture(state)
    step = Replayed(_step, fake)
    for _ in range(WARM_UPS + 2):
        step(solo_comm(), state, {"x": torch.ones(2)})
    state["w"] = torch.full((3,), 100.0)
    assert step(solo_comm(), state, {"x": torch.ones(2)}).item() == 306 and fake.said[-2:] == ["capture", "capture"]


def test_other_shapes_are_refused():
    state = {"w": torch.zeros(3)}
    step = Replayed(_step, FakeCapture(state))
    for _ in range(WARM_UPS + 1):
        step(solo_comm(), state, {"x": torch.ones(2)})
    with pytest.raises(InputError, match=re.escape("x: the step was captured with float32[2], found float32[5]: a graph has fixed shapes")):
        step(solo_comm(), state, {"x": torch.ones(5)})


def test_what_lies_elsewhere_is_refused():
    step = Replayed(_step, FakeCapture({}))
    with pytest.raises(InputError, match="cuda_graph: w lies on meta, the step runs on cpu"):
        step(solo_comm(), {"w": torch.zeros(3, device="meta")}, {"x": torch.ones(2)})


def test_on_a_cpu_the_step_runs_as_it_is_written():
    assert not CudaCapture().takes(solo_comm())
    state = {"w": torch.zeros(3)}
    assert Replayed(_step)(solo_comm(), state, {"x": torch.ones(2)}).item() == 6


def test_an_emitted_step_can_be_recorded_and_traced(tmp_path):
    """Both look up the functions of the program by way of its step, which is a `Replayed` here."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    workload = Workload(torch.nn.Linear(4, 2), (x,), (y,), torch.nn.functional.mse_loss, torch.optim.AdamW)
    compiled = compile_workload(workload, "1xH100-80GB", Options(cuda_graph=True, price=False), cache_path=None)
    assert "step = Replayed(step)" in compiled.files["program.py"]
    program = Executable(None, compiled.files, solo_comm(), {})
    program.state.update(initial_state(program.program, 0, dict(workload.model.named_parameters())))
    recorder = Recorder(program, tmp_path / "run.json")
    for _ in range(4):
        recorder.step(x, y)
    assert recorder.write() is None
    assert [a.phase for a in load_run(tmp_path / "run.json").ranks[0].actions] == ["forward", "backward", "update"]
    trace_step(program, (x, y), tmp_path / "trace.json")
    spans = {e["name"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e.get("cat") == "user_annotation"}
    assert spans >= {"forward", "backward", "update"} and any(span.startswith("kernels.") for span in spans)


def _graph(op: str, dtype: str = "int64") -> Graph:
    values = tuple(Value(n, n, 0, (4,), d, Kind.ACTIVATION) for n, d in (("x", "float32"), ("at", dtype), ("out", "float32")))
    return Graph("g", values, (Node("node_3", op, ("x", "at"), (("self", Ref(0)), ("indices", (Ref(1),))), ("out",), Phase.FORWARD, "h.0", "model.py:7"),), ("x", "at"))


@pytest.mark.parametrize(
    "op, dtype, why",
    [
        ("aten.nonzero.default", "int64", "needs the host to see a number"),
        ("aten.index.Tensor", "bool", "with a mask makes as many elements as the mask has true ones"),
        ("mylib.op.default", "int64", "is not torch's, and nobody knows whether a graph can hold it"),
        ("pipe.send", "int64", "a message between pipeline stages waits for the host"),
    ],
)
def test_what_a_graph_cannot_hold_is_named(op, dtype, why):
    with pytest.raises(OptionsError, match=rf"cuda_graph: node_3 \(h.0, model.py:7\): .*{why}; leave cuda_graph out"):
        check_capturable([_graph(op, dtype)], "cuda", "kernels")


def test_of_messages_between_stages_one_stage_is_the_cure():
    with pytest.raises(OptionsError, match=r"leave cuda_graph out, or plan for one stage \(--fix pp=1\), which has none$"):
        check_capturable([_graph("pipe.receive")], "cuda", "kernels")
    with pytest.raises(OptionsError, match="leave cuda_graph out$"):
        check_capturable([_graph("aten.nonzero.default")], "cuda", "kernels")


def test_what_a_graph_holds_is_taken():
    check_capturable([_graph("aten.index.Tensor"), _graph("kernel.add_layer_norm"), _graph("comm.all_reduce")], "cuda", "kernels")


def test_a_cpu_cluster_is_refused():
    with pytest.raises(OptionsError, match="the cluster's devices are of kind cpu, and a CUDA graph needs cuda"):
        check_capturable([], "cpu", "kernels")
    with pytest.raises(OptionsError, match="say local=kernels"):
        check_capturable([], "cuda", "inductor")
