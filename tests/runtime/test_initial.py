"""First values do not depend on the plan, and no rank holds the whole."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import weakref

from torch.utils._python_dispatch import TorchDispatchMode

from autopar.errors import InputError, ProgramError
from autopar.graph.mesh import num_ranks
from autopar.graph.sharding import parse_sharding
from autopar.runtime import initial
from autopar.runtime.initial import initial_state, state_of_module
from autopar.runtime.shards import join
from autopar.runtime.spec import ProgramSpec, State

from .conftest import all_shardings, mesh_of, some

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
NORMAL = (("normal_", 1.0, 0.02),)
TRUNCATED = (("uniform_", -0.9, 0.9), ("erfinv_",), ("mul_", 0.02), ("add_", 0.5), ("clamp_", 0.49, 0.51))


def program(mesh, states, aliases=None):
    return ProgramSpec(mesh, states, {}, (), aliases or {}, lambda *_: None)


def whole_states(spec, **options):
    parts = [initial_state(spec, rank, **options) for rank in range(num_ranks(spec.mesh))]
    return {n: join([p[n] for p in parts], s.shape, parse_sharding(s.sharding), spec.mesh) for n, s in spec.states.items()}


@pytest.mark.parametrize("sizes", [(), (2,), (4,), (2, 2), (8,), (2, 2, 2)])
def test_same_values_under_every_plan(sizes, monkeypatch):
    monkeypatch.setattr(initial, "CHUNK", 37)
    shape = (12, 16)
    one = program(mesh_of(), {"w": State("param", shape, "float32", "-", NORMAL), "t": State("param", shape, "float32", "-", TRUNCATED)})
    want = whole_states(one)
    mesh = mesh_of(*sizes)
    for sharding in some(random.Random(0), all_shardings(shape, mesh), 40):
        got = whole_states(program(mesh, {n: replace(s, sharding=str(sharding)) for n, s in one.states.items()}))
        assert all(torch.equal(got[n], want[n]) for n in want)


def test_values_look_as_asked():
    spec = program(mesh_of(), {"w": State("param", (1000, 1500), "float32", "-", NORMAL), "t": State("param", (1000,), "float32", "-", TRUNCATED)})
    made = whole_states(spec)
    assert abs(made["w"].mean() - 1) < 1e-3 and abs(made["w"].std() - 0.02) < 1e-3
    assert len(made["w"].unique()) > 400_000  # chunks differ
    assert made["t"].min() >= 0.49 and made["t"].max() <= 0.51 and made["t"].std() > 0.005
    assert not torch.equal(made["w"], whole_states(spec, seed=1)["w"])


def test_masters_are_what_parameters_were_rounded_from():
    mesh = mesh_of(2)
    states = {
        "w": State("param", (6, 4), "bfloat16", "S1/2", NORMAL),
        "master:w": State("optim", (6, 4), "float32", "S0/3", ("copy", "w")),
    }
    for given in (None, {"w": torch.randn(6, 4)}):
        made = whole_states(program(mesh, states), given=given)
        assert torch.equal(made["w"], made["master:w"].bfloat16())
        assert not torch.equal(made["w"].float(), made["master:w"])


def test_constants():
    states = {
        "z": State("optim", (4,), "float32", "S0/2", ("zeros",)),
        "f": State("optim", (), "float32", "R", ("fill", 3.5)),
        "t": State("buffer", (2, 2), "int64", "S1/1", ("tensor", (1, 2, 3, 4))),
    }
    made = whole_states(program(mesh_of(2), states))
    assert made["z"].tolist() == [0] * 4 and float(made["f"]) == 3.5 and made["t"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("shape", [(6, 6), (4, 6), (7, 5)])
def test_a_multiple_of_the_identity_under_every_plan(shape, monkeypatch):
    monkeypatch.setattr(initial, "CHUNK", 11)
    for mesh in (mesh_of(), mesh_of(2), mesh_of(2, 2)):
        for sharding in some(random.Random(1), all_shardings(shape, mesh), 12):
            made = whole_states(program(mesh, {"e": State("optim", shape, "float64", str(sharding), ("eye", 0.1))}))["e"]
            assert torch.equal(made, 0.1 * torch.eye(*shape, dtype=torch.float64))


def test_values_from_a_module_with_tied_weights():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    module[1].weight = module[0].weight
    states = {n: State("param", tuple(t.shape), str(t.dtype).removeprefix("torch."), "R") for n, t in module.state_dict().items() if n != "1.weight"}
    states["0.weight"] = replace(states["0.weight"], sharding="S1/1")
    spec = program(mesh_of(2), states, {"1.weight": "0.weight"})
    values = state_of_module(module)
    assert set(values) == set(module.state_dict())
    made = whole_states(spec, given=values)
    assert all(torch.equal(made[n], module.state_dict()[n]) for n in states)
    del values["0.weight"]
    assert torch.equal(whole_states(spec, given=values)["0.weight"], module[0].weight)


class Peak(TorchDispatchMode):
    """Bytes of the tensors that ops make, while they live."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in self.seen:
                self.hold(t.untyped_storage())
        return out

    def hold(self, storage):
        key, size = storage._cdata, storage.nbytes()
        self.seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone():
            self.seen.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


@pytest.mark.parametrize("sharding", ["S0/1024", "S1/512", "S1/1"])
def test_a_rank_holds_its_quarter_and_a_chunk(sharding, monkeypatch):
    monkeypatch.setattr(initial, "CHUNK", 1 << 16)
    spec = program(mesh_of(4), {f"w{k}": State("param", (4096, 2048), "float32", sharding, NORMAL) for k in range(2)})
    with Peak() as held:
        made = initial_state(spec, 1)
    quarter = 2 * 4096 * 2048 * 4 // 4
    assert sum(t.untyped_storage().nbytes() for t in made.values()) == quarter
    assert held.peak < quarter + 40 * (1 << 16), (held.peak, quarter)


@pytest.mark.parametrize(
    "state, given, text",
    [
        (State("param", (2,), "float32", "R"), None, "w: its first value cannot be made again from a recipe"),
        (State("param", (2,), "float32", "R"), {"w": torch.empty(2, device="meta")}, "w: its first value cannot be made"),
        (State("param", (2,), "float32", "R"), {"w": torch.zeros(3)}, r"w: expected shape \[2\], found \[3\]"),
    ],
)
def test_values_that_are_missing(state, given, text):
    with pytest.raises(InputError, match=text):
        initial_state(program(mesh_of(2), {"w": state}), 0, given)


@pytest.mark.parametrize(
    "init, text",
    [((("system", "ls"),), r"w: its recipe has \('system', 'ls'\), expected one of add_"), (("copy", "x"), "w copies x, which leads to no value"), (("copy", "w"), "w copies w, which")],
)
def test_recipes_that_are_wrong(init, text):
    with pytest.raises(ProgramError, match=text):
        initial_state(program(mesh_of(2), {"w": State("param", (2,), "float32", "R", init)}), 0)
