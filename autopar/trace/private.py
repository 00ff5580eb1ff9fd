"""The only file of this floor that imports private parts of torch. Beside each: the versions it was seen in."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (  # 2.11 - 2.13
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.nn.utils.stateless import _reparametrize_module  # 2.11 - 2.13
from torch.utils._python_dispatch import _disable_current_modes  # 2.11 - 2.13
from torch.utils._pytree import tree_flatten, tree_unflatten  # 2.11 - 2.13

__all__ = ["FakeTensor", "FakeTensorMode", "NOT_STATIC", "UNSUPPORTED", "reparametrize", "without_modes"]

NOT_STATIC = (DataDependentOutputException, DynamicOutputShapeException)
UNSUPPORTED = UnsupportedOperatorException
reparametrize = functools.partial(_reparametrize_module, stack_weights=True)  # a module under two names is put back in reverse order
without_modes = _disable_current_modes
flatten_tree, unflatten_tree = tree_flatten, tree_unflatten


@contextlib.contextmanager
def make_fake_mode() -> Iterator[FakeTensorMode]:
    """Fake tensors with concrete sizes; real tensors that meet them are taken for constants.

    torch logs a traceback for each op that fails on them; our error says it once. 2.11 - 2.13: the logger's name.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    finally:
        logger.disabled = before


def storage_key(tensor: torch.Tensor) -> int:
    """One number per storage, valid while the tensor lives. 2.11 - 2.13: `_cdata`."""
    return tensor.untyped_storage()._cdata


def _defining_function(op: str) -> Callable[..., object] | None:
    """The function that torch's `custom_op` was given for an op (`mylib.op.default`). 2.11 - 2.13: `torch._library.custom_ops.OPDEFS`."""
    from torch._library.custom_ops import OPDEFS

    defined = OPDEFS.get("::".join(op.split(".")[:2]))
    return inspect.unwrap(defined._init_fn) if defined is not None else None


def source_file(op: str) -> Path | None:
    """The Python file that defines a custom op; None where torch does not know. 2.11 - 2.13: `torch._library.simple_registry`."""
    from torch._library.simple_registry import singleton

    code = getattr(_defining_function(op), "__code__", None)
    if code is not None:
        return Path(code.co_filename)
    kernel = singleton.find("::".join(op.split(".")[:2])).fake_impl.kernel
    return Path(kernel.source.rpartition(":")[0]) if kernel is not None else None


def is_closure(op: str) -> bool:
    """True where the function that defines a custom op was made inside of another, and may hold values of it."""
    return "<locals>" in getattr(_defining_function(op), "__qualname__", "")


@contextlib.contextmanager
def autograd_inside() -> Iterator[None]:
    """The kernel of a custom op may record and run a backward pass inside; torch switches that off in kernels.

    2.11 - 2.13: `torch._C._dispatch_tls_set_dispatch_key_excluded`.
    """
    keys = (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther)
    before = [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in keys]
    for key in keys:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        for key, excluded in zip(keys, before):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)


def forget_constant(tensor: torch.Tensor) -> None:
    """Fake tensors remember small constant values; a state must not. 2.11 - 2.13: `constant`."""
    if isinstance(tensor, FakeTensor):
        tensor.constant = None


def gradient_hooks(tensor: torch.Tensor) -> tuple[tuple[Callable[..., object], ...], tuple[Callable[..., object], ...]]:
    """The hooks on a parameter's gradient: those that see it, and those that run when it has been added up.

    2.11 - 2.13: `_backward_hooks`, `_post_accumulate_grad_hooks`.
    """
    before, after = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return tuple((before or {}).values()), tuple((after or {}).values())


def autograd_position() -> tuple[int, bool]:
    """(sequence number, True while autograd runs a node of the backward pass).

    In forward: the number of the autograd node made last, which is the one of the op that is being recorded.
    2.11 - 2.13: `torch._C._current_autograd_node`, `torch.autograd._get_sequence_nr`.
    """
    node = torch._C._current_autograd_node()
    if node is None:
        return torch.autograd._get_sequence_nr() - 1, False
    return node._sequence_nr(), True


@contextlib.contextmanager
def compiling(active: bool) -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true inside: optimizers then keep `step` a tensor. 2.11 - 2.13."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = active or before
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def in_function_transform() -> bool:
    """True inside of `torch.func.grad`, `vmap` and their like. 2.11 - 2.13: `_are_functorch_transforms_active`."""
    return bool(torch._C._are_functorch_transforms_active())


@contextlib.contextmanager
def inline_checkpoints() -> Iterator[None]:
    """The user's activation checkpoints do nothing inside: recompute is the solver's business. 2.11 - 2.13."""
    import torch.utils.checkpoint as module

    class Plain:
        @staticmethod
        def apply(function, _preserve, *args):
            return function(*args)

    def plain_generator(fn, _preserve=True, *_args, **_kwargs):
        yield

    saved = module.CheckpointFunction, module._checkpoint_without_reentrant_generator
    module.CheckpointFunction, module._checkpoint_without_reentrant_generator = Plain, plain_generator
    try:
        yield
    finally:
        module.CheckpointFunction, module._checkpoint_without_reentrant_generator = saved


@contextlib.contextmanager
def without_compilers() -> Iterator[None]:
    """`torch.compile` does nothing inside, wherever the user wrote it: the original code runs; `flex_attention` is matmuls and a softmax.

    Flex runs its `score_mod` and `mask_mod` by vmap, on the CPU too, where torch has no backward for it. Where torch's compiler is not in
    memory nothing is compiled, and importing it would cost seconds.
    2.11 - 2.13: `torch._dynamo`; `flex_attention_hop`, `_validate_device`, `_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG`, `math_attention`.
    """
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    before = {}
    if flex is not None:
        from torch._higher_order_ops.flex_attention import math_attention

        plain = {"flex_attention_hop": math_attention, "_validate_device": _no_check, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True}
        before = {name: getattr(flex, name) for name in plain}
        vars(flex).update(plain)
    try:
        with contextlib.ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.enter_context(warnings.catch_warnings())  # our own hooks on all modules are of no concern here
                warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
            yield
    finally:
        if flex is not None:
            vars(flex).update(before)


@contextlib.contextmanager
def inference_as_no_grad() -> Iterator[None]:
    """`torch.inference_mode` is `torch.no_grad` inside: ops made of others are not opened in it. 2.11 - 2.13: `torch._C._InferenceMode`."""
    before = torch._C._InferenceMode
    torch._C._InferenceMode = lambda mode: torch.no_grad() if mode else contextlib.nullcontext()
    try:
        yield
    finally:
        torch._C._InferenceMode = before


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """RNNs run step by step inside: with oneDNN a layer is one op that only a CPU has. 2.11 - 2.13: `_set_mkldnn_enabled`."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _no_check(*_tensors: torch.Tensor) -> None:
    """All devices will do."""


@contextlib.contextmanager
def transformers_as_eager(active: bool) -> Iterator[None]:
    """Hugging Face code takes its eager paths inside: it asks `is_fake_tensor` and then keeps masks that say nothing.

    The tape answers questions about constants by replaying them, so the eager path is safe. transformers 5.23: `is_fake_tensor`.
    """
    module = sys.modules.get("transformers.utils.import_utils") if active else None
    before = getattr(module, "is_fake_tensor", None)
    if before is None:
        yield
        return
    module.is_fake_tensor = lambda _tensor: False
    try:
        yield
    finally:
        module.is_fake_tensor = before


@contextlib.contextmanager
def trunc_normal_by_quantile() -> Iterator[None]:
    """`nn.init.trunc_normal_` draws again until all values fit, which nothing can record; by quantiles it is a chain of simple fills.

    Source: the formula of torch < 2.13, "The Truncated Normal Distribution", J. Burkardt 2014. 2.11 - 2.13: `_no_grad_trunc_normal_`.
    """

    def fill(tensor, mean, std, a, b, generator=None):
        low, high = (math.erf((x - mean) / std / math.sqrt(2.0)) for x in (a, b))
        with torch.no_grad():
            tensor.uniform_(low, high, generator=generator).erfinv_()
            return tensor.mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)

    before = torch.nn.init._no_grad_trunc_normal_
    torch.nn.init._no_grad_trunc_normal_ = fill
    try:
        yield
    finally:
        torch.nn.init._no_grad_trunc_normal_ = before
