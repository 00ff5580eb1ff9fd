"""Activation memory: a traced layer's own liveness, beside the figures and closed forms of 2205.05198.

In: memory.csv and formulas.csv. Out: two groups. What a layer holds comes from `fidelity_megatron`; how many layers' worth the first stage
holds at once, from the schedule (`graph.schedules.held`). The closed forms are evaluated as printed, for the paper's four models.

What our trace holds of a layer and the paper does not count: the norms' two statistics a token, and 28 bytes of scalars. Nothing else
differs. The causal mask is made once for all layers and belongs to none.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from dataclasses import dataclass

from autopar.graph.schedules.held import count_held, peak_held
from autopar.graph.schedules.known import build_order
from benchmarks.fidelity_table import Aim, Group, Judged
from benchmarks.fidelity_zero import plan_states
from benchmarks.published import Formula, MemoryCell, Published

_GIB = 2**30
_WITHIN = 0.02


@dataclass(frozen=True, slots=True)
class Setting:
    """A model and how it is run. `chunks`: interleaved, per stage."""

    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    batch: int
    chunks: int
    seq: int = 2048
    vocab: int = 51200


# Source: arXiv:2205.05198 Table 3, and section 6 (m = 3 for 175B and 530B); sequence and vocabulary are section 6's.
SETTINGS: Mapping[str, Setting] = {
    "22B": Setting(64, 6144, 48, 8, 1, 4, 1),
    "175B": Setting(96, 12288, 96, 8, 8, 1, 3),
    "530B": Setting(128, 20480, 105, 8, 35, 1, 3),
    "1T": Setting(160, 25600, 128, 8, 64, 1, 1),
}
# closed form -> degree of tensor parallelism (None: the setting's), sequence parallel, recompute
_FORMS = {
    "act_layer": (1, False, "none"),
    "act_layer_tp": (None, False, "none"),
    "act_layer_tpsp": (None, True, "none"),
    "act_layer_tpsel": (None, False, "selective"),
    "act_layer_tpspsel": (None, True, "selective"),
    "act_layer_full": (None, False, "full"),
}
# what a row of memory.csv is about -> the same
_CELLS = {
    "act_tp": "act_layer_tp",
    "act_spsel": "act_layer_tpspsel",
    "act_sp": "act_layer_tpsp",
    "act_sel": "act_layer_tpsel",
    "act_full": "act_layer_full",
}
_PERCENTS = {"seq": "act_layer_tpsp", "sel": "act_layer_tpsel", "seqsel": "act_layer_tpspsel", "full": "act_layer_full"}


def judge_activations(tables: Published) -> tuple[Group, ...]:
    """Figures 1 and 7, and the closed forms."""
    cells = tuple(_judge_cell(r) for r in tables.memory if r.row_id.startswith("seqpar_"))
    forms = tuple(
        row
        for f in tables.formulas
        if f.source_id == "seqpar" and f.id.startswith("act_")
        for model in SETTINGS
        for row in _judge_formula(f, model)
    )
    return (
        Group("activations", Aim("2205.05198 Figures 1 and 7: within 2 %", worst=_WITHIN), cells),
        Group("activations closed forms", Aim("2205.05198 closed forms: within 2 %", worst=_WITHIN), forms),
    )


def form_bytes(form: str, setting: Setting) -> int:
    """What one layer holds on one device, in a form of the paper."""
    from benchmarks.fidelity_megatron import layer_bytes

    tp, sequence_parallel, recompute = _FORMS[form]
    return layer_bytes(_layer(setting, tp), sequence_parallel, recompute)


def _layer(setting: Setting, tp: int | None = None):  # noqa: ANN202 - torch is imported inside
    from benchmarks.fidelity_megatron import Layer

    return Layer(setting.seq, setting.batch, setting.hidden, setting.heads, tp or setting.tp)


def layers_held(setting: Setting, chunks: int = 1) -> float:
    """How many layers' activations the first stage holds at most, each of one microbatch."""
    if setting.pp == 1:
        return setting.layers
    microbatches = 4 * setting.pp  # enough for the steady state
    if chunks == 1:
        return count_held(build_order("1f1b", setting.pp, microbatches))[0] * setting.layers / setting.pp
    stages = setting.pp * chunks
    order = build_order("interleaved", setting.pp, microbatches, chunks)
    return peak_held(order, (setting.layers / stages,) * stages)[0]


def _judge_cell(cell: MemoryCell) -> Judged:
    """seqpar_f1_22B_act_tp, seqpar_f7_22B_seq, seqpar_f1_22B_paramopt."""
    _, figure, model, *rest = (*cell.row_id.split("_", 3), "", "")
    what, setting = rest[0], SETTINGS.get(model)
    if setting is None:
        return Judged(cell.row_id, cell.value, None, cell.unit, f"the sizes of {cell.model} are not known here")
    if cell.unit == "%" and what in _PERCENTS:
        share = form_bytes(_PERCENTS[what], setting) / form_bytes("act_layer_tp", setting)
        return Judged(cell.row_id, cell.value, 100 * share, "%")
    if cell.unit == "GiB" and what in _CELLS:
        note = f"interleaved {layers_held(setting, setting.chunks) / layers_held(setting):.4f} times this" if setting.chunks > 1 else ""
        return Judged(cell.row_id, cell.value, form_bytes(_CELLS[what], setting) * layers_held(setting) / _GIB, "GiB", note=note)
    if cell.unit == "GiB" and what == "paramopt":
        return Judged(cell.row_id, cell.value, _states_bytes(setting) / _GIB, "GiB")
    return Judged(cell.row_id, cell.value, None, cell.unit, f"{figure} {what or cell.quantity}: no such quantity is computed here")


def _states_bytes(setting: Setting) -> float:
    """Parameters, fp32 gradients, optimizer states of a stage's layers: bytes a parameter as a plan in several microbatches holds them."""
    from benchmarks.fidelity_megatron import layer_params

    held = plan_states(1, 0)
    summed = plan_states(2, 1).grad_held  # a gradient's sum over microbatches, whole
    return layer_params(_layer(setting)) * (held.param + summed + held.optim) * setting.layers / setting.pp


def _judge_formula(row: Formula, model: str) -> tuple[Judged, ...]:
    setting, name = SETTINGS[model], f"{row.id} {model}"
    if row.id not in (*_FORMS, "act_first_stage", "act_interleave"):
        return (Judged(name, None, None, "bytes", "layers alone are traced here, no embedding and no head"),)
    names = {"s": setting.seq, "b": setting.batch, "h": setting.hidden, "a": setting.heads, "L": setting.layers}
    names |= {"t": setting.tp, "p": setting.pp, "m": setting.chunks, "v": setting.vocab}
    try:
        published = evaluate(row.formula, names)
    except ValueError as error:
        return (Judged(name, None, None, "bytes", str(error)),)
    if row.id in _FORMS:
        return (Judged(name, published, float(form_bytes(row.id, setting)), "bytes"),)
    if row.id == "act_first_stage":
        return (Judged(name, published, form_bytes("act_layer_tpsp", setting) * layers_held(setting), "bytes"),)
    if setting.chunks == 1:
        return ()
    return (Judged(name, published, layers_held(setting, setting.chunks) / layers_held(setting), "times 1F1B"),)


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow}


def evaluate(formula: str, names: Mapping[str, float]) -> float:
    """A closed form as it is printed: numbers, names and arithmetic.

    Raises:
        ValueError: it has something else in it.
    """

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        raise ValueError(f"{formula!r} is not arithmetic over {', '.join(names)}")

    try:
        return value(ast.parse(formula, mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{formula!r} is not arithmetic over {', '.join(names)}") from None
