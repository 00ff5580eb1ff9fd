"""Linears made whole: what tracing flattened (view, t, mm, view; of an einsum a bmm of one) is again one op on `[..., i]`.

    autopar.linear(input [..., i], weight [o, i], bias [o]) -> [..., o]
    autopar.linear_input_grad(grad [..., o], weight) -> [..., i]
    autopar.linear_weight_grad(grad [..., o], input [..., i]) -> weight's shape

`transposed=True`: the weight is stored [i, o]. In: `mm`, `addmm` and `bmm` calls of forward and backward. Batch and sequence stay separate dims,
whatever the model's author flattened. In the update (Muon) products of matrices stay `aten.mm`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ...graph.node import Phase
from ...graph.tensor import Kind
from .draft import Draft, Val, view_chain

Rule = Callable[[Draft, dict], object]


def _untransposed(x: Val) -> Val | None:
    """W where x is W.t(), else None."""
    if x.node is not None and x.node.op == "aten.permute.default":
        return dict(x.node.args)["self"]
    return None


def _turned_line(b: Draft, x: Val, other: Val) -> Val | None:
    """W where x is W.t() and W has one row or one column: turning it moved nothing, so it is a view. In gradients of weights: None where either of the two factors is a weight."""
    if 1 not in x.shape or any(base in b.leads or base.kind is Kind.PARAM for v in (x, other) for base in view_chain(v)):
        return None
    return b.view(x, (x.shape[1], x.shape[0]))


def _nd(x: Val) -> Val:
    """The oldest value of which this [n, k] is a view that merges leading dims only."""
    best = x
    for base in view_chain(x):
        if base.shape and base.shape[-1] == x.shape[-1]:
            best = base
    return best


def _flat(b: Draft, x: Val) -> Val:
    return b.view(x, (-1, x.shape[-1])) if len(x.shape) != 2 else x


def write_linear(b: Draft, x: Val, weight: Val, bias: Val | None, transposed: bool) -> Val:
    """A forward linear on the unflattened input; the result as the flat [n, o] that the program has."""
    x = _nd(x)
    lead = x.shape[:-1]
    b.leads.setdefault(weight, lead)
    out_features = weight.shape[1 if transposed else 0]
    args: dict[str, object] = {"input": x, "weight": weight}
    if bias is not None:
        args["bias"] = bias
    if transposed:
        args["transposed"] = True
    y = b.emit_one("autopar.linear", args, (*lead, out_features), x.dtype)
    return _flat(b, y)


def write_input_grad(b: Draft, grad: Val, weight: Val, transposed: bool) -> Val:
    """The gradient that flows on; as the flat [n, i] that the program has."""
    nd = _nd(grad)
    lead = b.leads.get(weight)
    if lead is not None and prod(lead) == prod(grad.shape[:-1]):
        nd = b.view(grad, (*lead, grad.shape[-1]))
    in_features = weight.shape[0 if transposed else 1]
    args: dict[str, object] = {"grad": nd, "weight": weight} | ({"transposed": True} if transposed else {})
    return _flat(b, b.emit_one("autopar.linear_input_grad", args, (*nd.shape[:-1], in_features), nd.dtype))


def write_weight_grad(b: Draft, grad: Val, x: Val, transposed: bool) -> Val:
    """The weight's gradient, summed over all leading dims."""
    nd_x = _nd(x)
    lead = nd_x.shape[:-1]
    nd_grad = b.view(grad, (*lead, grad.shape[-1]))
    shape = (x.shape[-1], grad.shape[-1]) if transposed else (grad.shape[-1], x.shape[-1])
    args: dict[str, object] = {"grad": nd_grad, "input": nd_x} | ({"transposed": True} if transposed else {})
    return b.emit_one("autopar.linear_weight_grad", args, shape, grad.dtype)


def _from_backward(x: Val) -> bool:
    base = view_chain(x)[-1]
    return base.node is not None and base.node.phase is Phase.BACKWARD


def rule_mm(b: Draft, a: dict) -> object:
    """`mm(A, B)`."""
    left, right = a["self"], a["mat2"]
    if b.phase is Phase.UPDATE:
        return b.call("aten.mm.default", left, right)
    if b.phase is Phase.BACKWARD:
        inner = _untransposed(left)
        if inner is None:
            inner = _turned_line(b, left, right)
        if inner is not None:
            if _from_backward(right) and not _from_backward(inner):
                return write_weight_grad(b, right, inner, transposed=True)
            return write_weight_grad(b, inner, right, transposed=False)
        weight = _untransposed(right)
        if weight is not None:
            return write_input_grad(b, left, weight, transposed=True)
        return write_input_grad(b, left, right, transposed=False)
    weight = _untransposed(right)
    if weight is not None:
        return write_linear(b, left, weight, None, transposed=False)
    return write_linear(b, left, right, None, transposed=True)


def rule_addmm(b: Draft, a: dict) -> object:
    """`beta * self + alpha * A @ B`."""
    bias, left, right, beta, alpha = a["self"], a["mat1"], a["mat2"], a["beta"], a["alpha"]
    if b.phase is Phase.UPDATE:
        return b.call("aten.addmm.default", bias, left, right, beta=beta, alpha=alpha)
    if b.phase is Phase.FORWARD and beta == 1 and alpha == 1 and bias.shape == (right.shape[1],):
        weight = _untransposed(right)
        return write_linear(b, left, weight if weight is not None else right, bias, transposed=weight is None)
    product = rule_mm(b, {"self": left, "mat2": right})
    return b.add(product if alpha == 1 else b.mul(product, alpha), bias if beta == 1 else b.mul(bias, beta))


def rule_bmm(b: Draft, a: dict) -> object:
    """Products of a batch; of a batch of one (`torch.einsum` of an activation with a weight makes it) as that of two matrices."""
    left, right = a["self"], a["mat2"]
    if left.shape[0] != 1 or b.phase is Phase.UPDATE:
        return b.call("aten.bmm.default", left, right)
    product = rule_mm(b, {"self": _only(b, left), "mat2": _only(b, right)})
    return b.view(product, (1, *product.shape))


def rule_baddbmm(b: Draft, a: dict) -> object:
    """`beta * self + alpha * A @ B` of a batch, as it is written in two ops: scores with a bias before a softmax."""
    bias, left, right, beta, alpha = a["self"], a["batch1"], a["batch2"], a["beta"], a["alpha"]
    product = rule_bmm(b, {"self": left, "mat2": right})
    product = product if alpha == 1 else b.mul(product, alpha)
    return product if beta == 0 else rule_add(b, {"self": product, "other": bias if beta == 1 else b.mul(bias, beta), "alpha": 1})


def _only(b: Draft, x: Val) -> Val:
    """The only matrix of [1, n, k]; where that is made of another one by turning it, a turned one, too."""
    if x.node is not None and x.node.op == "aten.permute.default":
        args = dict(x.node.args)
        if args["dims"] == (0, 2, 1):
            return b.permute(b.view(args["self"], args["self"].shape[1:]), (1, 0))
    return b.view(x, x.shape[1:])


def rule_add(b: Draft, a: dict) -> object:
    """`linear(x) + bias` written as two ops is one linear with a bias."""
    x, bias, alpha = a["self"], a["other"], a["alpha"]
    if isinstance(x, Val) and isinstance(bias, Val) and alpha == 1 and len(bias.shape) == 1 and x.dtype == bias.dtype:
        for base in view_chain(x):
            node = base.node
            if node is None or node.op != "autopar.linear" or base.shape[-1:] != bias.shape or x.shape[-1:] != bias.shape:
                continue
            args = dict(node.args)
            if "bias" not in args and b.num_uses.get(x, 2) <= 1 and not bias.node:
                whole = {"input": args["input"], "weight": args["weight"], "bias": bias}
                whole |= {"transposed": True} if "transposed" in args else {}
                return b.view(b.emit_one("autopar.linear", whole, base.shape, base.dtype), x.shape)
    return b.call("aten.add.Tensor", x, bias, alpha=alpha)


def rule_mv(b: Draft, a: dict) -> object:
    """`mv(A, x)` as a matrix product."""
    return b.view(rule_mm(b, {"self": a["self"], "mat2": b.view(a["vec"], (-1, 1))}), (a["self"].shape[0],))


def rule_dot(b: Draft, a: dict) -> object:
    """`dot(x, y)` as a sum of products."""
    return b.sum(b.mul(a["self"], a["tensor" if "tensor" in a else "other"]), None)


def rule_sum_dims(b: Draft, a: dict) -> object:
    """A sum; over the rows of a flattened [n, o] it is a sum over all leading dims (bias gradients)."""
    x, dims, keepdim = a["self"], a["dim"], a["keepdim"]
    dtype = a["dtype"]
    if b.phase is Phase.BACKWARD and len(x.shape) == 2 and list(dims or []) == [0] and dtype is None:
        nd = _nd(x)
        for node in reversed(b.nodes[-8:]):  # the same autograd node has just used the gradient unflattened
            if node.op in ("autopar.linear_weight_grad", "autopar.linear_input_grad"):
                grad = dict(node.args)["grad"]
                if any(base in view_chain(x) for base in view_chain(grad)) and grad.shape[-1] == x.shape[-1]:
                    nd = grad
                    break
        flat = b.sum(nd, list(range(len(nd.shape) - 1))) if len(nd.shape) > 1 else nd
        return b.view(flat, (1, x.shape[1])) if keepdim else flat
    if not keepdim:
        return b.sum(x, dims, False, dtype)
    # a kept dim of size 1 is a view, so that `sum(keepdim).view` and `sum` are the same
    thin = b.sum(x, dims, False, dtype)
    wanted = sorted(d % max(len(x.shape), 1) for d in dims) if dims else range(len(x.shape))
    return b.view(thin, tuple(1 if k in wanted else s for k, s in enumerate(x.shape)))


LINEAR_RULES: dict[str, Rule] = {
    "aten.mm.default": rule_mm,
    "aten.addmm.default": rule_addmm,
    "aten.bmm.default": rule_bmm,
    "aten.baddbmm.default": rule_baddbmm,
    "aten.add.Tensor": rule_add,
    "aten.mv.default": rule_mv,
    "aten.dot.default": rule_dot,
    "aten.vdot.default": rule_dot,
    "aten.sum.dim_IntList": rule_sum_dims,
    "aten.sum.default": lambda b, a: b.sum(a["self"], None, False, a["dtype"]),
}


def rule_attention(b: Draft, a: dict) -> object:
    """Scaled dot product attention, whatever the device calls it; a causal one knows the numbers of its rows."""
    out, lse = b.specs
    args = {k: a[k] for k in ("query", "key", "value")}
    if a.get("attn_mask") is not None:
        args["attn_mask"] = a["attn_mask"]
    if a["is_causal"]:
        args |= {"is_causal": True, "rows": b.row_numbers(a["query"].shape[2])}
    if a.get("scale") is not None:
        args["scale"] = a["scale"]
    return b.emit("autopar.attention", args, [out, lse])


def rule_attention_backward(b: Draft, a: dict) -> object:
    """Its gradient."""
    args = {k: a[k] for k in ("grad_out", "query", "key", "value", "out", "logsumexp")}
    if a["is_causal"]:
        args |= {"is_causal": True, "rows": b.row_numbers(a["query"].shape[2])}
    if a.get("attn_mask") is not None:
        args["attn_mask"] = a["attn_mask"]
    if a.get("scale") is not None:
        args["scale"] = a["scale"]
    return b.emit("autopar.attention_backward", args, list(b.specs))


LINEAR_RULES |= {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": rule_attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": rule_attention_backward,
}


