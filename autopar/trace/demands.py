"""Demands: what to say where a program asks for something that only real data could give.

In: the op that asked and the tensors it asked about, or an exception that torch raised for want of data. Out: the sentences of a
`TraceError`: the value that was needed, and the usual cure.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..graph.node import Phase

_NUMBER = (
    "its value as a Python number (.item(), float(), int(), .tolist())",
    "Keep it a tensor; a number that is only logged is better logged outside of the step. A function of fixed shapes may be one opaque op: "
    "autopar.region.",
)
_TRUTH = (
    "whether it is true (`if`, `while`, `assert`, `bool()`)",
    "Keep it a tensor: torch.where instead of `if`, a fixed number of rounds instead of `while`, no assert on values. A function of fixed "
    "shapes may be one opaque op: autopar.region.",
)
_DEMANDS: dict[str, tuple[str, str]] = {
    "index": (
        "how many elements a mask selects",
        "Keep the shape: multiply by the mask or use torch.where(mask[..., None], x, 0) and divide by mask.sum(); for `x[mask] = y` write "
        "x = torch.where(mask[..., None], y, x).",
    ),
    "masked_select": (
        "how many elements a mask selects",
        "Keep the shape: multiply by the mask or use torch.where, and divide by mask.sum().",
    ),
    "nonzero": (
        "how many elements are not zero",
        "Keep the shape: use the mask itself with torch.where, or torch.topk for a fixed number of places.",
    ),
    "unique": (
        "how many different values there are",
        "Find them before the step and pass them as an input, or count with F.one_hot(x, n).sum(0).",
    ),
    "bincount": ("its largest value", "Use F.one_hot(x, n).sum(0), or torch.zeros(n).index_add(0, x, weights)."),
    "repeat_interleave": (
        "how often each element is repeated",
        "Repeat by one Python number, or build the index before the step and pass it as an input.",
    ),
    "_pack_padded_sequence": (
        "the length of each sequence",
        "Run the RNN on the padded batch, take the last valid step with gather, and mask the loss.",
    ),
    "_ctc_loss": (
        "the lengths of inputs and targets",
        'Make a function of F.ctc_loss(..., reduction="none") one op with a rule: autopar.region(fn, "b [t] [c], b [s], b, b -> b").',
    ),
    "allclose": ("whether all values are close", "Leave the comparison out of the step."),
    "equal": ("whether all values are equal", "Leave the comparison out of the step."),
    "tensor_split": ("where to split", "Split at Python numbers."),
}
_ALIASES = {
    "_unique2": "unique", "unique_dim": "unique", "unique_consecutive": "unique", "_unique": "unique", "nonzero_static": "nonzero",
    "_use_cudnn_ctc_loss": "_ctc_loss", "_cudnn_ctc_loss": "_ctc_loss", "argwhere": "nonzero",
}  # fmt: skip
_OTHER = ("its values", "Keep shapes fixed and values in tensors: masks instead of selections, torch.where instead of `if`.")
_DRAWN = (
    "Switch the random choice off (LayerDrop of a library: layerdrop=0.0), or apply it with tensors: torch.where(drawn, x, y)."
)
_IN_UPDATE = "Write the update with tensor operations only (no .item(), float(tensor) or `if tensor`), or choose another optimizer."

# what torch says where fake tensors have no data -> (what the line needed, the cure)
_RAISED: tuple[tuple[str, str, str], ...] = (
    (
        ".numpy() is not supported for tensor subclasses",
        "the values of a tensor as a numpy array",
        "numpy runs on real data and has no gradient: write it with torch operations, compute it before the step and pass it as an input, "
        "or make it one opaque op with autopar.region.",
    ),
    ("unsupported format string passed to FakeTensor", "the value of a tensor as text", "Print and log outside of the step."),
    ("self.shape_env must not be None", "a size that depends on data (a nested or ragged tensor?)", "Use a padded tensor and a mask."),
    ("data is not allocated yet", "the values of a tensor", "Pass Python numbers, or keep it a tensor throughout."),
    ("Cannot access data pointer of Tensor", "the memory of a tensor", "Wrap the kernel with library.custom_op and register_fake (from torch import library)."),
)
# what torch says where a program names a device -> what to do
_DEVICES = ("support for cuda", "compiled with CUDA enabled", "No CUDA GPUs are available", "Found no NVIDIA driver")
_NAMES_DEVICE = (
    "the program moves a tensor to a device by name, while each rank of a compiled step has its own. Take the device of what is there: "
    "x.to(self.weight.device), torch.zeros(n, device=x.device)."
)


def explain_demand(op: torch._ops.OpOverload, tensors: Sequence[torch.Tensor], phase: Phase, is_drawn: bool = False) -> str:
    """The message, without its place, for an op that needs real values of tensors which depend on data.

    Args:
        op: which asks.
        tensors: about which.
        phase: in which part of the step.
        is_drawn: their values are random numbers, no data.
    """
    packet = op._schema.name.split("::")[1]
    if packet in ("_local_scalar_dense", "item", "is_nonzero"):
        need, cure = _TRUTH if tensors and tensors[0].dtype == torch.bool else _NUMBER
    else:
        need, cure = _DEMANDS.get(_ALIASES.get(packet, packet), _OTHER)
    shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors)
    what, drawn, on_data = ("values of tensors", "are drawn", "depend on data") if len(tensors) > 1 else ("value of a tensor", "is drawn", "depends on data")
    return (
        f"the program asks for the {what} ({shapes}, by {op}) that "
        f"{f'{drawn} in every step, while a step is compiled once for all draws' if is_drawn else f'{on_data}, while a step is compiled once for all data'}. "
        f"It needs to know {need}. {_IN_UPDATE if phase is Phase.UPDATE else _DRAWN if is_drawn else cure}"
    )


def explain_raised(error: BaseException) -> str:
    """The same for an exception that torch raised for want of data or of a device; "" for any other."""
    text = str(error)
    if any(mark in text for mark in _DEVICES):
        return _NAMES_DEVICE
    for mark, need, cure in _RAISED:
        if mark in text:
            return f"the program asks for {need}, which depends on data, while a step is compiled once for all data. {cure}"
    return ""
