"""Model states: bytes a device holds of parameters, gradients and optimizer states under each ZeRO stage, beside ZeRO's own table.

In: memory.csv. Out: two groups: model-state bytes (Figure 1, Table 1), and the largest models that they allow (Table 2). Nothing is
computed from a closed form: a matmul's training step is traced in bf16 with AdamW, planned on dp ranks under `dp=N,zero=K`, and the plan
says what it holds. These bytes are proportional to the elements of a parameter, so one matmul stands for a model.

Which plan is which stage:

* none, P_os+g, P_os+g+p: `zero=0`, 2 and 3, one microbatch. Two bytes of parameter, two of gradient, twelve of optimizer (fp32 master, two
  moments): the dtypes are the product's own, and ZeRO's.
* P_os: with one microbatch the product has no program that keeps the reduced gradient whole beside states in pieces (`zero=1` is then the
  same program as `zero=2`), and with several `zero=1` leaves the gradient's sharding to the search, which takes pieces. So the plan of
  `zero=1` with two microbatches is edited by hand: the sum over the turns stays whole, and is reduced into pieces after the last. It is
  built and checked like any plan. Its sum is fp32 (4 bytes, as 2205.05198 counts); ZeRO has it in the gradient's own dtype (2 bytes), so
  the cell takes the plan's share of the elements and the dtype of the traced gradient.

AdamW's step count, a scalar for each tensor, is left out: it does not grow with the parameters.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from benchmarks.fidelity_table import EXACT, PLACES, Aim, Group, Judged
from benchmarks.published import MemoryCell, Published

STAGES = {"": 0, "baseline": 0, "Pos": 1, "Pos+g": 2, "Pos+g+p": 3}
_FEATURES = 1024  # of the matmul: every degree of the tables divides it
_PER_HOST = 16  # a DGX-2, on which ZeRO was measured; bytes do not depend on it


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes that one device holds for each parameter of the model. `grad_held`: of the gradient as the plan's own dtype has it."""

    param: float
    grad: float
    optim: float
    grad_held: float

    @property
    def total(self) -> float:
        return self.param + self.grad + self.optim


def judge_zero(tables: Published) -> tuple[Group, ...]:
    """Model-state bytes, and largest models."""
    cells = [r for r in tables.memory if r.source_id == "zero" and r.kind == "analytic"]
    states = tuple(judge_states(r) for r in cells if r.quantity.startswith("model states"))
    sizes = tuple(_judge_size(r) for r in cells if r.quantity.startswith("max theoretical model size"))
    aim = Aim(
        "ZeRO Figure 1 and Table 1, model-state bytes: exact to print rounding (the last place rounded or cut off)", PLACES, worst=EXACT
    )
    more = Aim("ZeRO Table 2, largest model: nothing is asked (it multiplies rounded figures, and rounds trillions to one place)")
    return Group("zero", aim, states), Group("zero sizes", more, sizes)


def judge_states(cell: MemoryCell) -> Judged:
    """One cell of model-state bytes."""
    try:
        if cell.params_b is None or not cell.unit.startswith("GB"):
            raise ValueError("parameters, or a unit of 1e9 bytes, are not printed")
        found = _bytes_of(cell)
        held = (
            f"the plan's own gradient has {found.grad_held:.4g} bytes a parameter, not {found.grad:.4g}"
            if found.grad_held != found.grad
            else ""
        )
        return Judged(cell.row_id, cell.value, found.total * cell.params_b / (cell.mp or 1), "GB", printed=cell.value_text, note=held)
    except ValueError as error:
        return Judged(cell.row_id, cell.value, None, "GB", str(error), printed=cell.value_text)


def _judge_size(cell: MemoryCell) -> Judged:
    try:
        return Judged(cell.row_id, cell.value, 32.0 / _bytes_of(cell).total * (cell.mp or 1), "1e9 parameters", printed=cell.value_text)
    except ValueError as error:
        return Judged(cell.row_id, cell.value, None, "1e9 parameters", str(error), printed=cell.value_text)


def _bytes_of(cell: MemoryCell) -> StateBytes:
    if cell.zero_stage not in STAGES:
        raise ValueError(f"stage {cell.zero_stage!r} is not among {', '.join(filter(None, STAGES))}")
    stage = STAGES[cell.zero_stage]
    if cell.dp is None and stage:
        raise ValueError("the degree of data parallelism is not printed")
    return plan_states(cell.dp or 1, stage)


@functools.cache
def plan_states(dp: int, stage: int) -> StateBytes:
    """What a plan over `dp` ranks holds under a ZeRO stage.

    Raises:
        ValueError: the degree does not divide the matmul that is planned, or is not one of whole hosts.
    """
    if dp < 1 or _FEATURES % dp:
        raise ValueError(f"dp={dp}: expected a divisor of {_FEATURES}")
    if dp == 1:
        return _read_plan(_plan(1, None, 1), False)
    return _read_plan(_plan(dp, stage, 2), True) if stage == 1 else _read_plan(_plan(dp, stage, 1), False)


def _plan(dp: int, zero: int | None, microbatches: int):  # noqa: ANN202 - torch is imported inside
    import torch

    from autopar.api import plan_workload
    from autopar.constraints import Constraints, constrain
    from autopar.options import Options
    from autopar.trace import Workload

    model = torch.nn.Linear(_FEATURES, _FEATURES, bias=False, device="meta")
    batch = torch.zeros(microbatches * _FEATURES, _FEATURES, device="meta")
    workload = Workload(model, (batch,), (batch,), torch.nn.functional.mse_loss, torch.optim.AdamW)
    cluster = f"{dp // _PER_HOST}x{_PER_HOST}xV100-32GB" if dp % _PER_HOST == 0 else f"1x{dp}xV100-32GB"
    words = {"dp": dp, "zero": zero} if zero is not None else {}
    options = Options(precision="bf16", constraints=constrain(pp=1, microbatches=microbatches, **words), price=False)
    plan = plan_workload(workload, cluster, options, cache_path=None).plan
    if microbatches == 1:
        return plan
    sums = _gradient_sums(plan)
    whole = tuple((name, ("P(x)",) * len(choices) if name in sums else choices) for name, choices in plan.assignment.strategies)
    given = replace(plan, assignment=replace(plan.assignment, strategies=whole))
    return plan_workload(workload, cluster, replace(options, constraints=Constraints()), given_plan=given, cache_path=None).plan


def _gradient_sums(plan) -> dict[str, str]:  # noqa: ANN001
    """Node that sums a gradient over the turns -> the sum."""
    from autopar.graph.tensor import Kind

    grads = {t.name for t in plan.tensors if t.kind is Kind.GRAD}
    return {n.name: n.outputs[0] for n in plan.nodes if n.op == "autopar.accumulate" and n.outputs[0] in grads}


def _read_plan(plan, summed: bool) -> StateBytes:  # noqa: ANN001
    """Bytes for each element of the one parameter."""
    from autopar.graph.tensor import DTYPE_BYTES, Kind, num_elements

    (row,) = plan.params
    count = num_elements(row.shape)
    optim = sum(t.bytes for t in plan.tensors if t.kind is Kind.OPTIM and t.version == 0 and t.shape)
    if not summed:
        return StateBytes(row.param_bytes / count, row.grad_bytes / count, optim / count, row.grad_bytes / count)
    (name,) = _gradient_sums(plan).values()
    held = next(t for t in plan.tensors if t.name == name)
    made = next(t for t in plan.tensors if t.kind is Kind.GRAD and t.name != name)
    share = held.bytes / (count * DTYPE_BYTES[held.dtype])
    return StateBytes(row.param_bytes / count, share * DTYPE_BYTES[made.dtype], optim / count, held.bytes / count)
