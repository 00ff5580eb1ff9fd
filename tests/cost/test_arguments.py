"""What kernels hold: their arguments until they return, and of what their ops make for each other nothing on a GPU, on a CPU one at a time."""

from __future__ import annotations

import functools
import random

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar import Workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.cost.arguments import with_arguments  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.fuse import fuse_program  # noqa: E402
from autopar.graph.liveness import bytes_over_time  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.partition import partition  # noqa: E402
from autopar.graph.random_plans import Assigner, plain_mesh  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime.peak import measure_cpu_peak  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

pytestmark = pytest.mark.torch

SGD = functools.partial(torch.optim.SGD, lr=0.1)


def squares(out, target):
    return ((out - target) ** 2).mean()


class Gates(torch.nn.Module):
    """Of a cell that is written op by op: its kernels read four gates and make one tensor."""

    def __init__(self):
        super().__init__()
        self.norm, self.gates, self.out = torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.Linear(64, 64)

    def forward(self, x):
        keep, forget, give, new = self.gates(self.norm(x)).chunk(4, -1)
        cell = torch.sigmoid(forget) * x + torch.sigmoid(keep) * torch.tanh(new)
        return x + self.out(torch.sigmoid(give) * torch.tanh(cell) * torch.nn.functional.silu(new))


class Neighbours(torch.nn.Module):
    """Tensors shifted by a place and multiplied by themselves."""

    def __init__(self):
        super().__init__()
        self.three, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x):
        a, b, c = self.three(x).split(64, -1)
        y = a * torch.sigmoid(b) + torch.tanh(c)
        z = torch.cat([y[:, 1:], y[:, :1]], 1)
        return x + self.out(y * z + torch.relu(z - y))


class Codes(torch.nn.Module):
    """Squared distances to a table, of which the kernel's last op writes over what its first one made."""

    def __init__(self):
        super().__init__()
        self.into, self.codes, self.out = torch.nn.Linear(32, 16), torch.nn.Parameter(torch.randn(256, 16)), torch.nn.Linear(16, 32)

    def forward(self, x):
        z = self.into(x)
        distances = (z**2).sum(-1, keepdim=True) - 2 * z @ self.codes.t() + (self.codes**2).sum(-1)
        near = torch.nn.functional.embedding(distances.argmin(-1), self.codes)
        return self.out(z + (near - z).detach())


class Edges(torch.nn.Module):
    """Attention along the edges of a graph: the kernel of a weight's gradient waits for others, and what its ops make for each other is not there before."""

    def __init__(self):
        super().__init__()
        self.into, self.weights, self.out = torch.nn.Linear(32, 64), torch.nn.Parameter(torch.randn(4, 16)), torch.nn.Linear(64, 32)
        self.register_buffer("source", torch.arange(4096) * 7 % 256)
        self.register_buffer("target", torch.arange(4096) * 11 % 256)

    def forward(self, x):
        sent = self.into(x).view(256, 4, 16)
        scores = torch.exp((sent * self.weights).sum(-1)[self.source])
        whole = torch.zeros(256, 4).index_add(0, self.target, scores)
        shares = scores / (whole[self.target] + 1e-16)
        return self.out(torch.zeros_like(sent).index_add(0, self.target, sent[self.source] * shares[..., None]).flatten(1))


class Shared(torch.nn.Module):
    """Eight heads of queries whose keys and values are one: they are expanded, and copied for the matmuls."""

    def __init__(self):
        super().__init__()
        self.query, self.both, self.out = torch.nn.Linear(64, 64), torch.nn.Linear(64, 16), torch.nn.Linear(64, 64)

    def forward(self, x):
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, 8, 8).transpose(1, 2)
        key, value = (part[:, None, None].expand(batch, 1, 8, length, 8).reshape(batch, 8, length, 8) for part in self.both(x).chunk(2, -1))
        found = (query @ key.mT).softmax(-1) @ value
        return x + self.out(found.transpose(1, 2).reshape(batch, length, 64))


class Masked(torch.nn.Module):
    """A mask of booleans, which plain torch casts before it multiplies."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.arange(512 * 512).view(512, 512) % 3 > 0)
        self.scale = torch.nn.Parameter(torch.ones(512))

    def forward(self, x):
        return ((x * self.scale).cumsum(1) * self.mask).cumsum(1)


class Pictures(torch.nn.Module):
    """Few channels, a window for each channel between norms over channels, a stride and its way back."""

    def __init__(self):
        super().__init__()
        self.into, self.each, self.norm = torch.nn.Conv2d(6, 20, 3, padding=1), torch.nn.Conv2d(20, 20, 7, padding=3, groups=20), torch.nn.LayerNorm(20)
        self.down, self.up, self.out = torch.nn.Conv2d(20, 24, 3, 2, 1), torch.nn.ConvTranspose2d(24, 12, 2, 2), torch.nn.Conv2d(12, 6, 1)

    def forward(self, x):
        y = self.norm(self.into(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = y + torch.nn.functional.gelu(self.each(y))
        return self.out(torch.relu(self.up(torch.relu(self.down(y)))))


def workload(model, shape):
    x = torch.randn(*shape)
    return Workload(model, (x,), (torch.randn(*shape),), squares, SGD)


CASES = {
    "gates": lambda: workload(torch.nn.Sequential(Gates(), Gates()), (16, 64, 64)),
    "neighbours": lambda: workload(torch.nn.Sequential(Neighbours(), Neighbours()), (16, 64, 64)),
    "edges": lambda: workload(Edges(), (256, 32)),
    "shared": lambda: workload(torch.nn.Sequential(*(Shared() for _ in range(4))), (64, 8, 64)),
    "codes": lambda: workload(Codes(), (2048, 32)),
    "masked": lambda: workload(Masked(), (512, 512)),
    "pictures": lambda: workload(Pictures(), (8, 6, 32, 32)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_on_a_cpu_holds_what_its_plan_says(case):
    given = CASES[case]()
    step = autopar.compile(
        given.model, "cpu:1", example_inputs=given.example_inputs, example_targets=given.example_targets, loss=squares, optimizer=SGD,
        options=Options(price=False, constraints=parse_fix("microbatches=1,recompute=none")),
    )  # fmt: skip
    batch = (*given.example_inputs, *given.example_targets)
    step(*batch)
    held = sum(step.num_bytes().values()) + sum(x.numel() * x.element_size() for x in batch)
    peak, cost = held + measure_cpu_peak(lambda: step(*batch))[1], step.plan.cost
    assert cost.peak_bytes[0] + cost.under_way_bytes[0] == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("case", CASES)
def test_kernels_of_a_gpu_hold_what_goes_in_and_what_comes_out(case):
    """By the law of memory of the program in which each kernel is one node."""
    traced = build_case(trace_step(CASES[case](), "fp32").graph)
    assignment = Assigner(traced.graph, traced.sites, traced.signatures, plain_mesh(())).draw(random.Random(0))
    program = partition(traced.graph, traced.sites, traced.signatures, traced.cuts, assignment)
    sections = phase_sections(program.graph)
    fused = fuse_program(program, sections).program
    plain = bytes_over_time(program.graph)
    held = with_arguments(program, sections, plain, on_cpu=False)
    before, exact, found = (_highest(graph, rows) for graph, rows in ((program.graph, plain), (fused.graph, bytes_over_time(fused.graph)), (program.graph, held)))
    assert exact <= found <= max(1.001 * exact, before)


def _highest(graph, rows):
    """Before the update, whose kernels write over states."""
    return max(size for node, size in zip(graph.nodes, rows) if node.phase is not Phase.UPDATE)


def test_where_the_update_holds_most_it_is_as_the_law_says():
    traced = build_case(trace_step(CASES["codes"](), "fp32").graph)
    assignment = Assigner(traced.graph, traced.sites, traced.signatures, plain_mesh(())).draw(random.Random(0))
    program = partition(traced.graph, traced.sites, traced.signatures, traced.cuts, assignment)
    sections = phase_sections(program.graph)
    held = bytes_over_time(program.graph)
    last = [size if node.phase is Phase.UPDATE else 0 for node, size in zip(program.graph.nodes, held)]
    assert with_arguments(program, sections, last, on_cpu=True) == last
