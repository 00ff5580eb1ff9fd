"""What a plan says of its messages is what its program sends: how many, in which dtype, and how far ahead."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo.model import build  # noqa: E402
from autopar.graph.turns import times_of  # noqa: E402
from autopar.graph.sharding import parse_sharding  # noqa: E402
from autopar.runtime import compile_program, here, open_stages, read_program, run_ranks  # noqa: E402
from autopar.runtime.initial import initial_state, state_of_module  # noqa: E402
from autopar.runtime.shards import cut  # noqa: E402

pytestmark = pytest.mark.torch
small = functools.partial(build, batch=8, seq=16, vocab=64, layers=4, hidden=32, heads=4)
CALLS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "start_all_gather", "start_reduce_scatter", "start_all_reduce")


def compiled(fix, cluster="1x4xH100-80GB", precision="bf16"):
    return compile_workload(small(), cluster, autopar.Options(constraints=parse_fix(fix), price=False, time_limit_s=20.0, precision=precision))


def sent(found):
    """(kind, dtype) -> calls of the first rank of each stage, all of them together, as the program is run."""
    spec = read_program(compile_program(found.files))
    per_stage = len(run_ranks(spec.mesh, lambda comm: None)) // found.plan.num_stages
    generator, given = torch.Generator().manual_seed(0), state_of_module(small().model)
    batch = {n: torch.randint(0, 64, b.shape, generator=generator) for n, b in spec.batch.items()}
    calls: list[Counter] = []

    def main(comm):
        counts, inside = Counter(), []
        for name in CALLS:

            def watched(xs, *args, call=getattr(comm, name), name=name, **kwargs):
                first = xs if isinstance(xs, torch.Tensor) else next(iter(xs), None)
                if first is not None and not inside:  # threads send what starts together one by one; a lot may be empty
                    counts[name.removeprefix("start_"), str(first.dtype).removeprefix("torch.")] += 1
                inside.append(name)
                try:
                    return call(xs, *args, **kwargs)
                finally:
                    inside.pop()

            setattr(comm, name, watched)
        open_stages(comm, spec)
        own = here(spec, comm.rank)
        parts = {n: cut(batch[n], parse_sharding(b.sharding), spec.mesh, comm.rank) for n, b in own.batch.items()}
        spec.step(comm, initial_state(spec, comm.rank, given), parts)
        if comm.rank % per_stage == 0:
            calls.append(counts)

    run_ranks(spec.mesh, main)
    return sum(calls, Counter())


def planned(plan):
    """(kind, dtype) -> messages of a step that the plan names."""
    first = {c.message: c for c in plan.comms if c.kind not in ("slice", "keep")}
    found = Counter()
    for c in first.values():
        found[c.kind, c.dtype] += int(times_of(c.phase, plan.num_microbatches))
    return found


@pytest.mark.parametrize("fix", [
    "dp=4,zero=0", "dp=4,zero=1", "dp=4,zero=3", "dp=4,zero=1,microbatches=2", "dp=4,zero=2,microbatches=2", "dp=4,zero=3,microbatches=2,recompute=full", "tp=2,dp=2,zero=3", "tp=4",
    "pp=2,dp=2,zero=1,microbatches=4,schedule=1f1b", "pp=2,dp=2,zero=2,microbatches=4,schedule=zero-bubble",
])  # fmt: skip
def test_a_program_sends_the_messages_of_its_plan(fix):
    found = compiled(fix)
    assert sent(found) == planned(found.plan)


def test_a_plan_tells_how_far_ahead_a_block_is_gathered():
    plan = compiled("dp=4,zero=3").plan
    path, place = {n.name: n.path for n in plan.nodes}, {n.name: i for i, n in enumerate(plan.nodes)}
    ahead = {}
    for c in plan.comms:
        if c.kind == "all_gather" and c.phase.value == "forward" and path[c.reader].startswith("blocks."):
            assert place[c.starts_at] <= place[c.waits_at] <= place[c.reader]
            ahead.setdefault(int(path[c.reader].split(".")[1]), set()).add((path[c.starts_at].split(".")[1] if path[c.starts_at].startswith("blocks.") else "", c.message))
    assert [{start for start, _ in ahead[i]} for i in sorted(ahead)] == [{"0"}, {"0"}, {"1"}, {"2"}], "one block ahead"
    assert all(len({message for _, message in ahead[i]}) == 1 for i in ahead), "a block's weights are one message"


def test_what_the_update_sends_starts_a_lot_ahead(monkeypatch):
    """In lots of at most a bucket; the reductions of the next lot start before a lot is updated."""
    from autopar.graph import update_lots

    monkeypatch.setattr(update_lots, "BUCKET_BYTES", 32 * 128 * 4)
    found = compiled("dp=4,zero=1,microbatches=2")
    made_by = {n.outputs[0]: n for n in found.plan.nodes}
    reduced = [c for c in found.plan.comms if c.kind == "reduce_scatter" and c.dtype == "float32" and c.bytes == 32 * 128 * 4]
    ups = [c for c in reduced if made_by[c.value.removesuffix("_sum1")].path.endswith(".up")] if reduced else []
    assert len(ups) == 4 and len({c.message for c in ups}) == 4
    assert [c.starts_at for c in ups] == [ups[0].waits_at, *(c.waits_at for c in ups[:-1])]
    assert sent(found) == planned(found.plan)
