"""Plans made by hand, of any depth: a GPT on a mesh a x b, data parallel with ZeRO-3 along a, tensor parallel along b.

The numbers are a simple arithmetic of their own (no solver, no cost model), but they keep every law of `check_plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autopar.graph.choice import Assignment
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.node import Phase
from autopar.graph.plan import (
    FORMAT,
    Alternative,
    Certificate,
    ClusterInfo,
    CommPlan,
    Cost,
    Holder,
    ModelInfo,
    Moment,
    NodePlan,
    ParamPlan,
    Peak,
    PeakTensor,
    Plan,
    Pruned,
    RepeatPlan,
    TensorPlan,
)
from autopar.graph.registry import RuleRow
from autopar.graph.sharding import REPLICATE, Partial, Shard, Sharding, local_shape
from autopar.graph.tensor import DTYPE_BYTES, Kind, num_elements

FLOPS_PER_S, BYTES_PER_S = 2e12, 5e10


@dataclass
class _Builder:
    """Collects the tables of a plan, node by node."""

    mesh: Mesh
    hidden: int = 64
    batch: int = 8
    seq: int = 32
    tensors: dict[str, TensorPlan] = field(default_factory=dict)
    nodes: list[NodePlan] = field(default_factory=list)
    comms: list[CommPlan] = field(default_factory=list)
    storages: list[tuple[str, Sharding]] = field(default_factory=list)
    blocks: dict[Phase, dict[int, list[str]]] = field(default_factory=dict)
    layer: int | None = None
    params: list[ParamPlan] = field(default_factory=list)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.mesh.axes)

    def split(self, shape: tuple[int, ...], a: int | None, b: int | None) -> Sharding:
        """Axis a splits dim `a`, axis b dim `b` (None: replicated)."""
        if not self.mesh.axes:
            return Sharding(())
        stride = {}
        for dim in {a, b} - {None}:
            parts = (self.sizes[0] if a == dim else 1) * (self.sizes[1] if b == dim else 1)
            stride[dim] = shape[dim] // parts
        low = {dim: s for dim, s in stride.items()}
        first = REPLICATE if a is None else Shard(a, low[a] * (self.sizes[1] if a == b else 1))
        return Sharding((first, REPLICATE if b is None else Shard(b, low[b])))

    def owed(self, sharding: Sharding, axis: int) -> Sharding:
        if not self.mesh.axes:
            return sharding
        return Sharding(tuple(Partial() if i == axis else p for i, p in enumerate(sharding.placements)))

    def tensor(self, name: str, shape: tuple[int, ...], sharding: Sharding, kind: Kind, version: int = 0, dtype: str = "float32") -> str:
        size = num_elements(local_shape(shape, sharding, self.sizes)) * DTYPE_BYTES[dtype]
        self.tensors[name] = TensorPlan(name, kind, version, shape, dtype, 0, sharding, size)
        return name

    def enter(self, name: str, shape: tuple[int, ...], sharding: Sharding, kind: Kind, dtype: str = "float32") -> str:
        self.storages.append((name, sharding))
        return self.tensor(name, shape, sharding, kind, 0, dtype)

    def node(self, op: str, inputs: list[str], out: tuple[int, ...], sharding: Sharding, phase: Phase, path: str, choices: tuple[str, ...],
             flops: float = 0.0, kind: Kind = Kind.ACTIVATION, name: str = "", version: int = 0) -> str:  # fmt: skip
        own = f"{op.split('.')[1]}_{len(self.nodes)}"
        value = self.tensor(name or own, out, sharding, kind, version)
        moved = sum(self.tensors[i].bytes for i in (*inputs, value))
        seconds = max(flops / FLOPS_PER_S / max(1, self.sizes[0] * self.sizes[1] if self.sizes else 1), moved / BYTES_PER_S) + 1e-6
        choices = choices if self.mesh.axes else ()
        others = tuple(
            Alternative(c, seconds * k) for c, k in ((("R", "R"), 4.0), (("R", choices[1]), 2.0)) if c != choices
        ) if choices else ()  # fmt: skip
        line = {"forward": 40, "backward": 40, "update": 112}[phase.value] + len(op) % 7
        self.nodes.append(
            NodePlan(
                own, op, tuple(inputs), (value,), phase, path, f"gpt.py:{line}", choices, seconds, flops,
                f"{','.join(choices) or 'one rank'}: {seconds * 1e3:.3f} ms; the next best needs an all_gather of its input",
                others, ("n of size 3 does not divide by 2, axis of 2",) if op == "autopar.linear" and self.mesh.axes else (),
            )
        )  # fmt: skip
        if self.layer is not None:
            self.blocks.setdefault(phase, {}).setdefault(self.layer, []).append(own)
        return value

    def comm(self, kind: str, axis: int, value: str, reader: str, phase: Phase, source: Sharding, target: Sharding) -> None:
        if not self.mesh.axes:
            return
        t = self.tensors[value]
        whole = num_elements(local_shape(t.shape, target if kind == "all_gather" else source, self.sizes)) * DTYPE_BYTES[t.dtype]
        moved = int(whole * (self.sizes[axis] - 1) / self.sizes[axis]) * (2 if kind == "all_reduce" else 1)
        a = self.mesh.axes[axis]
        speed = 2.5e10 if a.link == "inside" else 6e9
        seconds = 5e-6 + moved / speed
        name = f"{kind}_{len(self.comms)}"
        self.comms.append(CommPlan(name, kind, a.name, value, reader, phase, source, target, moved, t.dtype, seconds, 0.4 * seconds, name, reader, reader))


def make_plan(num_layers: int = 2, update_ops: int = 4, mesh: Mesh | None = None, folded: bool = True, memory_bytes: int = 1 << 30,
              seq: int = 32, hidden: int = 64) -> Plan:  # fmt: skip
    """A GPT's plan.

    Args:
        num_layers: transformer blocks.
        update_ops: nodes per parameter in the optimizer's update.
        mesh: two axes, or none.
        folded: False lists no repeats: nothing folds.
    """
    mesh = Mesh((MeshAxis("a", 2, "across"), MeshAxis("b", 2, "inside"))) if mesh is None else mesh
    b = _Builder(mesh, seq=seq, hidden=hidden)
    h, n, s = b.hidden, b.batch, b.seq
    act, wide, vocab = (n, s, h), (n, s, 4 * h), 512
    batch = ("b", "R")
    tokens = b.enter("tokens", (n, s), b.split((n, s), 0, None), Kind.BATCH, "int64")
    targets = b.enter("targets", (n, s), b.split((n, s), 0, None), Kind.BATCH, "int64")
    weights: dict[str, tuple[tuple[int, ...], int | None]] = {}

    def weight(name: str, shape: tuple[int, ...], tensor_dim: int | None) -> str:
        """A parameter, its bytes split along a in dim 0 (ZeRO-3) and along b in `tensor_dim`."""
        weights[name] = (shape, tensor_dim)
        return b.enter(f"{name}@0", shape, b.split(shape, 0, tensor_dim), Kind.PARAM)

    def gather(value: str, reader: str, phase: Phase) -> None:
        stored = b.tensors[value].sharding
        if mesh.axes:
            b.comm("all_gather", 0, value, reader, phase, stored, Sharding((REPLICATE, stored.placements[1])))

    def linear(x: str, path: str, out: int, split_out: bool, phase: Phase = Phase.FORWARD) -> str:
        fan_in = b.tensors[x].shape[-1]
        w = weight(f"{path}.weight", (out, fan_in), 0 if split_out else 1)
        bias = weight(f"{path}.bias", (out,), 0 if split_out else None)
        shape = (n, s, out)
        sharding = b.split(shape, 0, 2) if split_out else b.owed(b.split(shape, 0, None), 1)
        y = b.node("autopar.linear", [x, w, bias], shape, sharding, phase, path, ("b", "o" if split_out else "i"), 2.0 * n * s * fan_in * out)
        gather(w, b.nodes[-1].name, phase)
        return y

    def norm(x: str, path: str) -> str:
        w = weight(f"{path}.weight", (h,), None)
        bias = weight(f"{path}.bias", (h,), None)
        y = b.node("aten.layer_norm.default", [x, w, bias], act, b.split(act, 0, None), Phase.FORWARD, path, batch, 8.0 * n * s * h)
        gather(w, b.nodes[-1].name, Phase.FORWARD)
        return y

    def add(x: str, y: str, path: str) -> str:
        out = b.node("aten.add.Tensor", [x, y], act, b.split(act, 0, None), Phase.FORWARD, path, batch, 1.0 * n * s * h)
        source = b.tensors[y].sharding
        b.comm("all_reduce", 1, y, b.nodes[-1].name, Phase.FORWARD, source, b.split(act, 0, None))
        return out

    table = weight("transformer.wte.weight", (vocab, h), None)
    x = b.node("aten.embedding.default", [table, tokens], act, b.split(act, 0, None), Phase.FORWARD, "transformer.wte", batch)
    gather(table, b.nodes[-1].name, Phase.FORWARD)
    for i in range(num_layers):
        b.layer = i
        path = f"transformer.h.{i}"
        qkv = linear(norm(x, f"{path}.ln_1"), f"{path}.attn.c_attn", 3 * h, True)
        heads = b.node("aten.view.default", [qkv], (n, s, 3, h), b.split((n, s, 3, h), 0, 3), Phase.FORWARD, f"{path}.attn", ("b", "h"))
        y = b.node("aten.scaled_dot_product_attention.default", [heads], act, b.split(act, 0, 2), Phase.FORWARD, f"{path}.attn", ("b", "h"), 4.0 * n * s * s * h)
        x = add(x, linear(y, f"{path}.attn.c_proj", h, False), path)
        y = linear(norm(x, f"{path}.ln_2"), f"{path}.mlp.c_fc", 4 * h, True)
        y = b.node("aten.gelu.default", [y], wide, b.split(wide, 0, 2), Phase.FORWARD, f"{path}.mlp", ("b", "h"), 10.0 * n * s * 4 * h)
        x = add(x, linear(y, f"{path}.mlp.c_proj", h, False), path)
    b.layer = None
    x = norm(x, "transformer.ln_f")
    logits = linear(x, "lm_head", vocab, True)
    loss = b.node("aten.cross_entropy_loss.default", [logits, targets], (), b.owed(Sharding((REPLICATE, REPLICATE) if mesh.axes else ()), 0), Phase.FORWARD, "", batch, kind=Kind.LOSS)

    flow = loss  # the gradient that travels back
    for fwd in [m for m in reversed(b.nodes)]:
        layer = fwd.path.split(".")[2] if fwd.path.startswith("transformer.h.") else ""
        b.layer = int(layer) if layer else None
        first = fwd.inputs[0]
        for name in fwd.inputs:
            if name.endswith("@0"):
                own = name[:-2]
                shape, dim = weights[own]
                grad = b.node("aten.mm.default" if len(shape) == 2 else "aten.sum.dim_IntList", [flow, first], shape, b.owed(b.split(shape, None, dim), 0), Phase.BACKWARD, fwd.path, ("b", "o" if dim == 0 else "R"), fwd.flops, Kind.GRAD, f"grad:{own}")
                del grad
        if b.tensors[first].kind is Kind.ACTIVATION:
            shape = b.tensors[first].shape
            flow = b.node("autopar.linear_backward" if fwd.op == "autopar.linear" else fwd.op.replace(".default", "_backward.default"), [flow, *fwd.inputs], shape, b.split(shape, 0, None), Phase.BACKWARD, fwd.path, batch, fwd.flops)
            for name in fwd.inputs:
                if name.endswith(".weight@0"):
                    gather(name, b.nodes[-1].name, Phase.BACKWARD)
    order = list(weights)
    for own in order:
        layer = own.split(".")[2] if own.startswith("transformer.h.") else ""
        b.layer = int(layer) if layer else None
        shape, dim = weights[own]
        stored = b.tensors[f"{own}@0"].sharding
        states = [b.enter(f"{state}:{own}@0", shape, stored, Kind.OPTIM) for state in ("exp_avg", "exp_avg_sq")]
        path = own.rpartition(".")[0]
        value = f"grad:{own}"
        for k in range(update_ops):
            last = k == update_ops - 1
            op = ("aten.lerp.Scalar", "aten.addcmul.default", "aten.sqrt.default", "aten.addcdiv.default")[k % 4]
            inputs = [value, states[k % 2]] if not last else [value, f"{own}@0"]
            value = b.node(op, inputs, shape, stored, Phase.UPDATE, path, ("k", "R"), 2.0 * num_elements(shape), Kind.PARAM if last else Kind.OPTIM, f"{own}@1" if last else "", 1 if last else 0)
            if k == 0:
                b.comm("reduce_scatter", 0, f"grad:{own}", b.nodes[-1].name, Phase.UPDATE, b.tensors[f"grad:{own}"].sharding, stored)
        b.params.append(ParamPlan(own, stored, stored, stored, shape, *(b.tensors[f"{own}@0"].bytes,) * 2, 2 * b.tensors[f"{own}@0"].bytes))
    return _finish(b, num_layers, folded, memory_bytes)


@dataclass
class _Held:
    """What is held while one node runs, beside the states and the batch."""

    acts: list[str]
    grads: dict[str, None]
    act_bytes: int = 0
    grad_bytes: int = 0
    gathered: list[PeakTensor] = field(default_factory=list)
    temporaries: list[PeakTensor] = field(default_factory=list)


def _walk(b: _Builder) -> Iterator[tuple[NodePlan, _Held]]:
    """Activations come to be in the forward phase and go one after the other in the backward; a gradient goes with its parameter's update."""
    num_backward = sum(n.phase is Phase.BACKWARD for n in b.nodes)
    comms: dict[str, list[CommPlan]] = {}
    for c in b.comms:
        comms.setdefault(c.reader, []).append(c)
    held, done, most = _Held([], {}), 0, 0
    for node in b.nodes:
        out = b.tensors[node.outputs[0]]
        held.temporaries = []
        if node.phase is Phase.FORWARD:
            held.acts.append(out.name)
            held.act_bytes, most = held.act_bytes + out.bytes, len(held.acts)
        elif out.kind is Kind.GRAD:
            held.grads[out.name] = None
            held.grad_bytes += out.bytes
        else:
            held.temporaries = [PeakTensor(out.name, out.sharding, "temporaries", out.bytes, node.name, node.name)]
        if node.phase is Phase.BACKWARD:
            done += 1
            while len(held.acts) > most * (num_backward - done) // num_backward:
                held.act_bytes -= b.tensors[held.acts.pop()].bytes
        elif out.kind is Kind.PARAM:
            del held.grads[f"grad:{out.name[:-2]}"]
            held.grad_bytes -= b.tensors[f"grad:{out.name[:-2]}"].bytes
        held.gathered = [
            PeakTensor(c.value, c.target_sharding, "gathered", _piece_bytes(b, c.value, c.target_sharding), c.name, node.name)
            for c in comms.get(node.name, ()) if c.kind == "all_gather"
        ]  # fmt: skip
        yield node, held


def _piece_bytes(b: _Builder, name: str, sharding: Sharding) -> int:
    t = b.tensors[name]
    return num_elements(local_shape(t.shape, sharding, b.sizes)) * DTYPE_BYTES[t.dtype]


def _list_peak(b: _Builder, at: str) -> Peak:
    made = {n.outputs[0]: n.name for n in b.nodes}
    readers = {name: n.name for n in b.nodes for name in n.inputs}
    states = {Kind.PARAM: "parameters", Kind.OPTIM: "optimizer", Kind.BATCH: "batch"}
    rows = [PeakTensor(name, s, states[b.tensors[name].kind], b.tensors[name].bytes, "", "") for name, s in b.storages]
    node, held = next((node, held) for node, held in _walk(b) if node.name == at)
    for holder, names in (("activations", held.acts), ("gradients", held.grads)):
        rows += [PeakTensor(name, b.tensors[name].sharding, holder, b.tensors[name].bytes, made[name], readers.get(name, "")) for name in names]
    return Peak(node.name, node.phase, node.path, node.source, (*rows, *held.gathered, *held.temporaries))


def _finish(b: _Builder, num_layers: int, folded: bool, memory_bytes: int) -> Plan:
    params, optim = (sum(getattr(p, f) for p in b.params) for f in ("param_bytes", "optim_bytes"))
    batch = sum(t.bytes for t in b.tensors.values() if t.kind is Kind.BATCH)
    moments = []
    for node, held in _walk(b):
        rows = (("parameters", params), ("gradients", held.grad_bytes), ("optimizer", optim), ("batch", batch), ("activations", held.act_bytes),
                ("gathered", sum(r.bytes for r in held.gathered)), ("temporaries", sum(r.bytes for r in held.temporaries)))  # fmt: skip
        holders = tuple(Holder(name, count) for name, count in rows)
        moments.append(Moment(node.name, node.phase, sum(x.bytes for x in holders), holders))
    peak = max(moments, key=lambda m: m.bytes)
    repeats = []
    if folded:
        for phase, blocks in b.blocks.items():
            repeats.append(RepeatPlan("transformer.h", phase, tuple(tuple(blocks[i]) for i in sorted(blocks))))
    compute = sum(n.seconds for n in b.nodes)
    comm = sum(c.seconds for c in b.comms)
    step = compute + 0.6 * comm
    flops = sum(n.flops for n in b.nodes)
    tokens = b.batch * b.seq
    mesh = b.mesh
    ranks = 4 if mesh.axes else 1
    bound = step * 0.9 * 0.9987
    return Plan(
        format=FORMAT,
        model=ModelInfo("GPT", sum(num_elements(p.shape) for p in b.params), "0123456789abcdef", "fp32", "gpt.py:make", (("layers", str(num_layers)),), b.batch, b.seq),
        cluster=ClusterInfo(f"cpu:{ranks}", ranks, 1, "cpu", memory_bytes, FLOPS_PER_S, BYTES_PER_S, 1e-6, 2.5e10, 8e-6, 6e9, "made up for tests"),
        assignment=Assignment(mesh, tuple(b.storages), tuple((n.name, n.choices) for n in b.nodes)),
        num_stages=1,
        labels=tuple((a.name, label) for a, label in zip(mesh.axes, (("data", "zero-3"), ("tensor",)))),
        summary="Batch split along a, where parameters, gradients and optimizer state are split too; matmuls split along b." if mesh.axes else "One rank.",
        num_microbatches=1,
        schedule="one step",
        cost=Cost(step, compute, step - compute, 0.0, (peak.bytes,), (params + optim,), (dict((x.name, x.bytes) for x in peak.holders)["activations"],), (0,),
                  flops, tokens / step, flops / step / FLOPS_PER_S / ranks, peak.holders, tuple(moments), 0.08, "autopar's own tables, none of this model"),
        solve=Certificate(step * 0.9, bound, (step * 0.9 - bound) / (step * 0.9), 1.25, (("trace_s", 0.4), ("rules_s", 0.15), ("ilp_s", 0.7)), 4321,
                          "2 mesh shapes, all strategies that the rules allow, folded over equal blocks",
                          (Pruned("mesh a=4", "its bound of 31.2 ms is above the best plan"), Pruned("strategies of view_*", "dominated by a neighbour's strategy"))),
        tensors=tuple(b.tensors.values()),
        params=tuple(b.params),
        nodes=tuple(b.nodes),
        comms=tuple(b.comms),
        repeats=tuple(repeats),
        rules=(RuleRow(b.nodes[0].op, "discovered", (b.nodes[0].name,), "b s, [v] d -> b s d", (("weight",),), ("bias",), "sum", 1.0,
                       "not found splittable by discovery", 216, 0.4),),
        peak=_list_peak(b, peak.node),
    )  # fmt: skip
