"""A turn of one sample, and a model of one sample: the sequence is never taken for the batch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar import Workload  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.constraints import constrain, parse_fix  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.errors import ConstraintError  # noqa: E402
from autopar.graph.case import build_case, case_roles, decided_case, split_case  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.partition import assigned_strategies  # noqa: E402
from autopar.graph.sharding import Shard  # noqa: E402
from autopar.graph.stages import cut_stages, list_units  # noqa: E402
from autopar.graph.turns import LOOP  # noqa: E402
from autopar.solver.decide import Ask, decide  # noqa: E402
from autopar.solver.obeyed import check_obeyed  # noqa: E402
from autopar.solver.recognise import recognise  # noqa: E402
from autopar.solver.steer import Steer  # noqa: E402
from autopar.solver.unit_costs import find_units, part_roles  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

pytestmark = pytest.mark.torch
TOKENS, WIDTH, VOCAB = 6, 8, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v))


class Decoder(nn.Module):
    def __init__(self, first: bool = False):
        super().__init__()
        self.embed, self.h, self.head = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(Block() for _ in range(2)), nn.Linear(WIDTH, VOCAB)
        self.first = first  # the sequence comes first

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x.transpose(0, 1) if self.first else x
        for block in self.h:
            x = block(x)
        return self.head(x.transpose(0, 1) if self.first else x)


def case_of(model, *inputs, targets, loss=F.cross_entropy):
    return build_case(trace_step(Workload(model, inputs, targets, loss, torch.optim.SGD), "fp32").graph)


def decoder(batch, first=False):
    shape = (TOKENS, batch) if first else (batch, TOKENS)
    tokens = torch.randint(0, VOCAB, shape)
    return case_of(Decoder(first), tokens, targets=(tokens,), loss=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))


def decide_on(case, cluster, fix):
    ask = Ask(case, build_cost_model(parse_cluster(cluster)), parse_fix(fix), 2**40, 60.0, 1, lambda line: None)
    return decide(ask)


def in_turns(case, assignment):
    """(case, strategy of each node) of what was decided."""
    found = decided_case(case, assignment)
    return found, assigned_strategies(found.graph, found.sites, found.signatures, found.cuts, assignment)


# --- turns -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [False, True])
def test_the_roles_of_a_turn_follow_from_those_of_the_batch(first):
    case = decoder(4, first)
    whole = case_roles(case)
    assert {size for *_, size in whole.batch} == {4} and {size for *_, size in whole.sequence} == {TOKENS}
    for count in (2, 4):
        turned = split_case(case, count)
        roles = case_roles(turned)
        assert (roles.batch, roles.sequence) == (whole.batch, whole.sequence)
        found = {role for node in turned.graph.nodes if node.phase in LOOP for out in node.outputs for *_, role in roles.pieces.get(out, ())}
        assert found == ({"dp", "sp"} if count == 2 else {"sp"})  # of one sample no digit is left
        before = dict(zip((n.name for n in case.graph.nodes), whole.splits))
        now = dict(zip((n.name for n in turned.graph.nodes), roles.splits))
        assert all(now[name] <= own and ("sp" in now[name]) == ("sp" in own) for name, own in before.items())
        assert whole.samples <= roles.samples


def test_so_do_those_of_stages_and_units():
    turned = split_case(decoder(4), 4)
    roles = case_roles(turned)
    starts = [turned.graph.nodes[row[0]].name for row in list_units(turned.graph)[1:2]]
    parts = [build_case(stage.graph) for stage in cut_stages(turned.graph, starts)]
    units = find_units(turned, roles)
    for part, found in [*((part, part_roles(roles, turned, part)) for part in parts), *zip(units.cases, units.roles)]:
        assert (found.batch, found.sequence) == (roles.batch, roles.sequence)
        assert {role for node, split in zip(part.graph.nodes, found.splits) if node.phase in LOOP for role in split} == {"sp"}
        assert any(name.partition("#")[0] in roles.samples for name in found.samples)


def test_one_sample_in_a_turn_is_tensor_parallel_as_two_are():
    """What Megatron-LM runs: micro batch 1, norms split by the sequence, matmuls by weights."""
    case = decoder(4)
    for samples in (1, 2):
        decision = decide_on(case, "1x2xH100-80GB", f"dp=1,tp=2,microbatch={samples},sequence_parallel=1")
        found, strategies = in_turns(case, decision.assignment)
        norms = [n for n in found.graph.nodes if n.phase is Phase.FORWARD and "layer_norm" in n.op]
        assert norms and all(isinstance(strategies[n.name].outputs[0].placements[0], Shard) for n in norms)
        assert all(strategies[n.name].outputs[0].placements[0].dim == 1 for n in norms)
        labels, _ = recognise(found.graph, found.sites, found.signatures, found.cuts, decision.assignment, case_roles(found))
        assert "tensor" in dict(labels)["tp"] and "data" not in dict(labels)["tp"]
    decision = decide_on(case, "1x2xH100-80GB", "dp=1,tp=2,microbatch=1,sequence_parallel=0")
    found, strategies = in_turns(case, decision.assignment)
    norms = [n for n in found.graph.nodes if n.phase is Phase.FORWARD and "layer_norm" in n.op]
    roles = case_roles(found)
    assert not any(isinstance(strategies[n.name].outputs[0].placements[0], Shard) and strategies[n.name].outputs[0].placements[0].dim == 1 for n in norms)
    assert check_obeyed(found.graph, found.sites, found.signatures, found.cuts, decision.assignment, Steer(constrain(dp=1, tp=2), roles)) == ()


def test_matmuls_of_a_turn_of_one_row_are_still_over_samples():
    """No dim of [1, features] is a span, yet tensor parallelism splits the weights."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    case = case_of(model, torch.randn(4, 8), targets=(torch.randn(4, 8),), loss=F.mse_loss)
    turned = split_case(case, 4)
    roles = case_roles(turned)
    assert {place[:2] for place in roles.batch} == {("input:0", 0), ("target:0", 0)} and roles.sequence == ()
    decision = decide_on(case, "1x2xH100-80GB", "dp=1,tp=2,microbatch=1")
    found, strategies = in_turns(case, decision.assignment)
    products = [n for n in found.graph.nodes if n.phase is Phase.FORWARD and n.op.startswith(("aten.mm", "aten.addmm", "aten.linear", "autopar.linear"))]
    assert products and all(strategies[n.name].choices != ("R",) for n in products)


# --- one sample --------------------------------------------------------------------------------------------------------------------


class Siamese(nn.Module):
    """Scores of every sample against every other: the batch mixes, and images have one channel."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 8)

    def forward(self, x, y):
        a, b = (self.head(F.relu(self.conv(z)).mean((2, 3))) for z in (x, y))
        return a @ b.t()


class Recurrent(nn.Module):
    """The state that it starts from is [layers, batch, width], of one layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.carry, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x, state):
        h = state[0]
        for k in range(x.shape[1]):
            h = torch.tanh(self.inner(x[:, k]) + self.carry(h))
        return self.head(h)


@pytest.mark.parametrize("first", [False, True])
def test_a_model_of_one_sample_has_no_batch(first):
    roles = case_roles(decoder(1, first))
    assert roles.batch == () and {size for *_, size in roles.sequence} == {TOKENS}
    assert roles.available() == ("tp", "sp")


def test_dims_of_one_element_that_are_no_samples():
    images = torch.randn(6, 1, 4, 4)
    roles = case_roles(case_of(Siamese(), images, images, targets=(torch.arange(6),)))
    assert {place[:2] for place in roles.batch} == {("input:0", 0), ("input:1", 0), ("target:0", 0)}
    roles = case_roles(case_of(Recurrent(), torch.randn(6, 4, 5), torch.zeros(1, 6, 8), targets=(torch.randint(0, 3, (6,)),)))
    assert {place[:2] for place in roles.batch} == {("input:0", 0), ("input:1", 1), ("target:0", 0)}


def test_what_one_sample_allows():
    case = decoder(1)
    with pytest.raises(ConstraintError) as error:
        decide_on(case, "1x2xH100-80GB", "dp=2")
    assert str(error.value).startswith("dp=2: the model has no batch to split: no dim of its batch inputs is one")
    for fix in ("tp=2", "tp=2,sequence_parallel=1", "sp=2", "tp=2,microbatch=1", ""):
        decision = decide_on(case, "1x2xH100-80GB", fix) if fix else decide(
            Ask(case, build_cost_model(parse_cluster("1x2xH100-80GB")), constrain(), 2**40, 60.0, 1, lambda line: None)
        )
        assert decision.assignment is not None and decision.assignment.microbatches == 1
    ask = Ask(case, build_cost_model(parse_cluster("1x2xH100-80GB")), parse_fix("pp=2"), 2**40, 60.0, None, lambda line: None)
    assert decide(ask).staged.layout.num_microbatches == 1
    with pytest.raises(ConstraintError, match="microbatches=2: the batch of 1 samples does not divide so"):
        decide_on(case, "1x2xH100-80GB", "tp=2,microbatches=2")
