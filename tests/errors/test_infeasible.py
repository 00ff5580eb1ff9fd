"""What does not fit: the text of a shortage with its changes, and the ladder that tries them, by means that take no time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.memory import Memory
from autopar.errors import ConstraintError
from autopar.graph.choice import Assignment
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.plan import Holder
from autopar.solver.infeasible import FITS, LATE, NOT_FOUND, REFUSED, TOO_LARGE, Change, MemoryShortage, add_changes

MIB = 2**20


def make_shortage(limit=8 * MIB, proven=True):
    holders = (Holder("parameters", MIB), Holder("activations", 8 * MIB), Holder("optimizer", 3 * MIB))
    memory = Memory(0, 12 * MIB, 4 * MIB, 8 * MIB, holders, ())
    return MemoryShortage(limit, memory, Assignment(Mesh((MeshAxis("a", 4, "inside"),)), (), ()), proven, "--memory 12.00MiB.")


def test_the_text_names_the_nearest_first_and_says_what_became_of_each():
    found = add_changes(
        make_shortage(),
        [
            Change("batch 4 instead of 16", 4.0, FITS, 35.17),
            Change("without zero=0", 1.0, FITS, 11e-3),
            Change("without dp=4", 1.0, FITS, 9.25e-3),
            Change("--memory 12.00MiB", 1.5, FITS, 8e-3),
            Change("--precision bf16", 2.0, TOO_LARGE, None, 9 * MIB),
            Change("cpu:8 instead of cpu:4", 2.0, NOT_FOUND, None, 10 * MIB),
            Change("without tp=1", 1.0, REFUSED, told="no role is left"),
            Change("without sp=1", 1.0, LATE),
        ],
    )
    assert str(found) == (
        "no plan fits 8.0 MiB per device; the best found needs 12.0 MiB on mesh a=4 (4.0 MiB too much).\n"
        "  largest: activations 8.0 MiB, optimizer 3.0 MiB, parameters 1.0 MiB.\n"
        "  nearest change that fits: without dp=4 (solved: step 9.25 ms).\n"
        "  these fit, too: without zero=0 (solved: step 11 ms); --memory 12.00MiB (solved: step 8 ms); "
        "batch 4 instead of 16 (solved: step 35,170 ms).\n"
        "  these do not: --precision bf16 (smallest plan found: 9.0 MiB).\n"
        "  none was found in the time given for: cpu:8 instead of cpu:4 (smallest plan found: 10.0 MiB).\n"
        "  these cannot be planned: without tp=1 (no role is left).\n"
        "  not tried, as time was up (--time-limit gives more): without sp=1."
    )
    assert [c.status for c in found.changes][:4] == [FITS] * 4 and len(found.changes) == 8
    assert (found.limit_bytes, found.missing_bytes, found.proven) == (8 * MIB, 4 * MIB, True)


def test_where_nothing_fits_that_is_said():
    found = add_changes(make_shortage(), [Change("x", 2.0, TOO_LARGE, None, 9)])
    assert str(found).endswith("\n  nearest change that fits: none was found.\n  these do not: x (smallest plan found: 9 bytes).")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("spec", "text", "hosts", "devices"),
    [
        ("cpu:4", "cpu:8 instead of cpu:4", 1, 8),
        ("8xH100-80GB", "2x8xH100-80GB instead of 8xH100-80GB", 2, 8),
        ("1x4xA100", "8xA100 instead of 1x4xA100", 1, 8),
        ("6xH100", "2x6xH100 instead of 6xH100", 2, 6),
        ("2x8xH100", "4x8xH100 instead of 2x8xH100", 4, 8),
    ],
)
def test_twice_the_devices_in_the_words_of_the_cluster(spec, text, hosts, devices):
    pytest.importorskip("torch")
    from autopar.nearest import double

    made, told = double(parse_cluster(spec))
    assert (told, made.num_hosts, made.devices_per_host) == (text, hosts, devices)
    again = parse_cluster(made.spec)
    assert (again.num_hosts, again.devices_per_host, again.device) == (hosts, devices, made.device)


@pytest.mark.torch
def test_twice_the_hosts_of_a_file(tmp_path):
    pytest.importorskip("torch")
    from autopar.nearest import double

    path = tmp_path / "c.toml"
    path.write_text('[[hosts]]\ncount = 3\ndevices = 4\ndevice = "A100-40GB"\n')
    made, told = double(parse_cluster(path))
    assert told == "6 hosts instead of 3" and made.num_hosts == 6


# -- the ladder ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked():
    """A small step of a batch of 16."""
    torch = pytest.importorskip("torch")
    from autopar.constraints import constrain
    from autopar.graph.case import build_case
    from autopar.nearest import Setting
    from autopar.options import Options
    from autopar.trace import Workload, trace_step

    targets, loss = torch.randint(0, 4, (16,)), torch.nn.functional.cross_entropy
    w = Workload(torch.nn.Linear(8, 4), (torch.randn(16, 8),), (targets,), loss, torch.optim.SGD, name="m")
    options = Options(memory_bytes=8 * MIB, time_limit_s=20, constraints=constrain(dp=4, zero=0))
    return Setting(w, "fp32", parse_cluster("cpu:4"), options, build_case(trace_step(w, "fp32").graph))


def climb(asked, fits, least=13 * MIB):
    """The ladder with a solver that says at once whether a setting fits."""
    from autopar.graph.case import build_case
    from autopar.nearest import Means, find_nearest
    from autopar.trace import trace_step

    tried = []

    def solve(setting):
        if setting.options.memory_bytes != asked.options.memory_bytes:  # what would the least memory be?
            if setting.options.memory_bytes < least:
                raise make_shortage()
            return 6e-3, least
        tried.append(setting)
        if not fits(setting):
            raise make_shortage()
        return 5e-3, 8 * MIB

    means = Means(lambda w, precision: build_case(trace_step(w, precision).graph), solve, lambda setting, assignment: (7e-3, 12 * MIB))
    return find_nearest(make_shortage(), asked, means, lambda line: None), tried


@pytest.mark.torch
def test_every_rung_is_solved_with_its_change(asked):
    found, tried = climb(asked, lambda s: True)
    assert [(c.what, c.size, c.status) for c in found.changes] == [
        ("without dp=4", 1.0, FITS), ("without zero=0", 1.0, FITS), ("--memory 12.00MiB", 1.5, FITS), ("batch 8 instead of 16", 2.0, FITS),
        ("cpu:8 instead of cpu:4", 2.0, FITS), ("--precision bf16", 2.0, FITS),
    ]  # fmt: skip
    assert found.changes[2].step_s == 7e-3  # the smallest plan's own
    from autopar.constraints import print_constraints

    shapes = [tuple(s.workload.example_inputs[0].shape) for s in tried]
    said = [(print_constraints(s.options.constraints), s.precision, s.cluster.spec, shape) for s, shape in zip(tried, shapes)]
    both = ("dp=4", "zero=0")
    assert said == [
        (("zero=0",), "fp32", "cpu:4", (16, 8)), (("dp=4",), "fp32", "cpu:4", (16, 8)), (both, "fp32", "cpu:4", (8, 8)),
        (both, "fp32", "cpu:8", (16, 8)), (both, "bf16", "cpu:4", (16, 8)),
    ]  # fmt: skip
    assert all(s.options.memory_bytes == 8 * MIB and 0 < s.options.time_limit_s <= 20 for s in tried)
    assert tried[2].workload.example_targets[0].shape == (8,) and tried[4].case is not asked.case


@pytest.mark.torch
def test_the_largest_batch_that_fits_is_found_from_both_sides(asked):
    for most in (2, 4, 8):
        found, tried = climb(asked, lambda s: s.workload.example_inputs[0].shape[0] <= most)
        assert [c.what for c in found.changes if c.status == FITS and c.what.startswith("batch")] == [f"batch {most} instead of 16"]
    found, _ = climb(asked, lambda s: False)
    batch = next(c for c in found.changes if c.what.startswith("batch"))
    assert batch == Change("batch 2 instead of 16", 8.0, TOO_LARGE, None, 12 * MIB)


@pytest.mark.torch
def test_the_least_memory_is_that_of_the_smallest_plan_seen(asked):
    found, _ = climb(asked, lambda s: False, least=9 * MIB)  # the search's own smallest plan has 12 MiB; without a limit one has 9
    assert [c for c in found.changes if c.status == FITS] == [Change("--memory 9.00MiB", 1.125, FITS, 6e-3)]


@pytest.mark.torch
def test_more_than_a_device_has_is_told_as_another_device(asked):
    found, _ = climb(replace(asked, cluster=parse_cluster("4xA100-40GB")), lambda s: False, least=50 << 30)
    assert [c.what for c in found.changes if c.status == FITS] == ["--memory 12.00MiB"]
    device = replace(parse_cluster("4xA100-40GB").device, memory_bytes=8 * MIB)
    found, _ = climb(replace(asked, cluster=replace(parse_cluster("4xA100-40GB"), device=device)), lambda s: False, least=9 * MIB)
    assert [c.what for c in found.changes if c.status == FITS] == ["devices of 9.00MiB instead of 8.0 MiB"]


@pytest.mark.torch
def test_all_words_are_dropped_where_one_is_not_enough(asked):
    found, _ = climb(asked, lambda s: not s.options.constraints)
    assert [c.what for c in found.changes if c.status == FITS] == ["without dp=4, zero=0", "--memory 12.00MiB"]


@pytest.mark.torch
def test_what_is_refused_says_why_and_what_is_late_is_not_called_tried(asked):
    def refuse(setting):
        raise ConstraintError("no role is left for the 8 ranks " + "x" * 200)

    found, _ = climb(asked, refuse)
    told = next(c for c in found.changes if c.status == REFUSED)
    assert told.told.startswith("no role is left for the 8 ranks x") and told.told.endswith("...") and len(told.told) <= 160
    late, tried = climb(replace(asked, options=replace(asked.options, time_limit_s=1e-9)), lambda s: True)
    assert not tried and {c.status for c in late.changes if not c.what.startswith("--memory")} == {LATE}
