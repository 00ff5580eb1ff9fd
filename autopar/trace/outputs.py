"""What a model returns: tensors inside tuples, dicts and dataclasses (Hugging Face outputs are dicts with attributes)."""

from __future__ import annotations

import torch

from .precision import HALVES


def output_tensors(prefix: str, output: object) -> list[tuple[str, torch.Tensor]]:
    if hasattr(output, "__dataclass_fields__") and not isinstance(output, dict):
        output = {k: getattr(output, k) for k in output.__dataclass_fields__}
    if isinstance(output, torch.Tensor):
        return [(prefix, output)]
    if isinstance(output, dict):
        return [f for k, v in output.items() for f in output_tensors(f"{prefix}.{k}".lstrip("."), v)]
    if isinstance(output, (tuple, list)):
        return [f for k, v in enumerate(output) for f in output_tensors(f"{prefix}.{k}".lstrip("."), v)]
    return []


def output_spec(output: object, tensors: list[torch.Tensor]) -> object:
    """The output as plain tuples and dicts, with an index into `tensors` for each tensor and None for what is not one."""
    if hasattr(output, "__dataclass_fields__") and not isinstance(output, dict):
        output = {k: getattr(output, k) for k in output.__dataclass_fields__}
    if isinstance(output, torch.Tensor):
        return next(k for k, t in enumerate(tensors) if t is output)
    if isinstance(output, dict):
        return {k: output_spec(v, tensors) for k, v in output.items()}
    if isinstance(output, (tuple, list)):
        return tuple(output_spec(v, tensors) for v in output)
    return None


def widen_output(output: object) -> object:
    """Outputs in halves to float32 before the loss, as Megatron does."""
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in HALVES.values() else output
    if isinstance(output, dict):
        for key, value in list(output.items()):
            if isinstance(value, torch.Tensor) and value.dtype in HALVES.values():
                output[key] = value.float()
        return output
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(widen_output(v) for v in output)
    return output
