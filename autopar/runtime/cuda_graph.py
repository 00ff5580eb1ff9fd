"""A step as a CUDA graph: captured once, then replayed, so that the host does nothing per layer.

In: the `step` of a program that was emitted with `Options(cuda_graph=True)`. Out: a step of the same meaning. The first `WARM_UPS` steps run as they are written (they
make what is made lazily, and measure sizes of blocks); the next one is captured on copies of its batch and replayed, and so are all after it. What makes that safe is checked
here: every tensor lies on the device, the batch has the shapes with which the step was captured, and the states lie where they lay then; where a state has been replaced (a
loaded checkpoint) the step is captured again. What a graph cannot hold at all is refused when the program is made (`codegen.cuda_graph`).

On a CPU, and where somebody listens to the collectives (a recording, a trace), every step runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import InputError, RankError
from ..graph.mesh import num_ranks
from .comm import Comm, ProcessComm
from .threads import ThreadComm
from .together import Together

WARM_UPS = 3
Step = Callable[[Comm, dict[str, Tensor], dict[str, Tensor]], Any]


class Captured(Protocol):
    """What has been captured."""

    def replay(self) -> None:
        """Do it again, on the tensors that it was captured with."""


class Capture(Protocol):
    """How a device captures; `CudaCapture`, or what stands for it in a test."""

    def takes(self, comm: Comm) -> bool:
        """True where steps of this rank are captured."""

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """Run as a step before the capture runs."""

    def capture(self, run: Callable[[], Any]) -> tuple[Captured, Any]:
        """Record what `run` launches, without running it; what it returns is there after each replay."""


class CudaCapture:
    """CUDA graphs as torch has them."""

    def takes(self, comm: Comm) -> bool:
        alone = type(comm) is ThreadComm and num_ranks(comm.mesh) == 1
        if comm.device.type != "cuda" or type(comm) is not ProcessComm and not alone:
            return False
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            spoken = str(torch.distributed.get_backend_config())
            if "cuda:nccl" not in spoken:
                raise RankError(
                    f"cuda_graph: a graph holds nccl's collectives only, and these ranks speak {spoken}: start them with nccl, or emit the program without cuda_graph"
                )
        return True

    def warm_up(self, run: Callable[[], Any]) -> Any:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            result = run()
        torch.cuda.current_stream().wait_stream(beside)
        return result

    def capture(self, run: Callable[[], Any]) -> tuple[Captured, Any]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph has memory of its own
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = run()
        return graph, result


class Replayed:
    """A step that is replayed.

    Args:
        step: as the program has it.
        capture: how; None: CUDA graphs.
    """

    def __init__(self, step: Step, capture: Capture | None = None) -> None:
        self._step, self._capture = step, capture or CudaCapture()
        self.__globals__ = step.__globals__
        self._steps = 0
        self._graph: Captured | None = None
        self._batch: dict[str, Tensor] = {}
        self._states: tuple[int, ...] = ()
        self._result: Any = None

    def __call__(self, comm: Comm, state: dict[str, Tensor], batch: dict[str, Tensor]) -> Any:
        """One step.

        Raises:
            InputError: the batch or a state cannot be what a graph reads: it says which one, and why.
        """
        if not self._capture.takes(comm):
            return self._step(comm, state, batch)
        _check_places(comm.device, {**state, **batch})
        if self._steps < WARM_UPS:
            self._steps += 1
            for kernel in _list_kernels(self._step):
                kernel.begin_step()
            return self._capture.warm_up(lambda: self._step(comm, state, batch))
        places = tuple(x.data_ptr() for x in state.values())
        if self._graph is None or places != self._states:
            self._graph = None  # its memory goes before the new one's comes
            self._batch = {name: x.clone() for name, x in batch.items()}
            kernels = _list_kernels(self._step)
            for kernel in kernels:
                kernel.reserve()
            self._graph, self._result = self._capture.capture(lambda: self._step(comm, state, dict(self._batch)))
            self._states = places
            for kernel in kernels:
                kernel.fill()
        self._read(batch)
        self._graph.replay()
        return _copied(self._result)

    def _read(self, batch: Mapping[str, Tensor]) -> None:
        """Copy a batch to where the graph reads it."""
        for name, held in self._batch.items():
            x = batch.get(name)
            if x is None or (x.shape, x.dtype) != (held.shape, held.dtype):
                found = "nothing" if x is None else _describe(x)
                raise InputError(f"{name}: the step was captured with {_describe(held)}, found {found}: a graph has fixed shapes")
            held.copy_(x)


def _check_places(device: torch.device, tensors: Mapping[str, Tensor]) -> None:
    for name, x in tensors.items():
        if x.device.type != device.type:
            raise InputError(
                f"cuda_graph: {name} lies on {x.device.type}, the step runs on {device.type}: a graph would copy it in every step; emit the program "
                f"without cuda_graph"
            )


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def _list_kernels(step: Step) -> list[Together]:
    """The launches of many tensors in the `kernels` that a step calls: their tables are filled when the capture is over."""
    kernels = getattr(step, "__globals__", {}).get("kernels")
    return [one for one in vars(kernels).values() if isinstance(one, Together)] if kernels is not None else []


def _copied(result: Any) -> Any:
    """What a step returns, out of the way of the next replay."""
    if isinstance(result, Tensor):
        return result.clone()
    return tuple(_copied(x) for x in result) if isinstance(result, tuple) else result
