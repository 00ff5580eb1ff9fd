"""Users steer: what is named is obeyed or refused, and the answer is the best of what obeys."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autopar.constraints import Constraints, ModuleForbid, Pin, axis_role, constrain, parse_fix
from autopar.errors import ConstraintError
from autopar.graph.choice import Assignment
from autopar.graph.graph import Graph, value_table
from autopar.graph.mesh import Mesh, axis_sizes
from autopar.graph.node import Phase
from autopar.graph.repeats import identity_fold
from autopar.graph.roles import find_roles
from autopar.graph.tensor import Kind
from autopar.solver.brute_force import try_all
from autopar.solver.build import build_problem
from autopar.solver.obeyed import check_obeyed, require_obeyed
from autopar.solver.one_mesh import build_assignment, solve_mesh
from autopar.solver.role_meshes import label_meshes
from autopar.solver.search import Question, search
from autopar.solver.steer import prepare_steer, refine_fold, zero_law

from .tiny import Sketch, TinyPrices, make_mesh, prepare, training_step

FOUR = (make_mesh(4), make_mesh(2, 2))


def random_step(seed: int) -> Graph:
    """Two layers at most, a loss, the gradient of the first weight and its update: small enough to try everything."""
    rng = random.Random(seed)
    s = Sketch(f"step_{seed}")
    batch, width, hidden = rng.choice([4, 8]), rng.choice([2, 3, 4]), rng.choice([2, 4, 6])
    w, x = s.enter("w@0", (width, hidden)), s.enter("x", (batch, width), Kind.BATCH)
    m = s.enter("m:w@0", (width, hidden), Kind.OPTIM) if rng.random() < 0.5 else ""
    if rng.random() < 0.4:
        x = s.call(rng.choice(["aten.relu", "aten.neg"]), x, path="stem")
    y = s.call("aten.mm", x, w, path="layer")
    loss = s.call("tiny.total", y, kind=Kind.LOSS)
    s.phase = Phase.BACKWARD
    g = s.call("aten.mm", s.call("aten.permute", x, path="layer"), y, kind=Kind.GRAD, path="layer")
    s.phase = Phase.UPDATE
    m1 = s.call("aten.add", m, g, kind=Kind.OPTIM, name="m:w@1", path="layer") if m else g
    w1 = s.call("aten.add", w, m1, kind=Kind.PARAM, name="w@1", path="layer")
    return s.finish([("w@0", w1), *([("m:w@0", m1)] if m else [])], loss, (), [("w@0", g)])


def solve(graph: Graph, constraints: Constraints, mesh: Mesh, cluster: bool = True, wire: float = 3.0):
    """(answer, assignment, steer) of one mesh."""
    sites, signatures, cuts = prepare(graph)
    steer = prepare_steer(graph, sites, signatures, cuts, constraints)
    fold = refine_fold(graph, identity_fold(graph), constraints)
    prices = TinyPrices(graph, mesh, wire)
    problem = build_problem(graph, sites, signatures, cuts, fold, mesh, prices, cluster=cluster, steer=steer)
    answer = solve_mesh(problem, None, time_limit_s=20, gap=1e-6)
    return answer, build_assignment(problem, answer.decisions), steer


def label(graph: Graph, fix: str | Constraints, meshes=FOUR) -> tuple[Mesh, ...]:
    constraints = parse_fix(fix) if isinstance(fix, str) else fix
    return label_meshes(meshes, constraints, find_roles(graph, *prepare(graph)))


def faults(graph: Graph, assignment: Assignment, steer) -> tuple[str, ...]:
    return check_obeyed(graph, *prepare(graph), assignment, steer)


def best_of_all_that_obey(graph: Graph, mesh: Mesh, steer, wire: float) -> float:
    """Brute force that shares no menu with `steer`: of the free options those against which `check_obeyed` has nothing to say.

    What it says is about one node or input at a time, so that the options are judged one by one with the others as they are.
    """
    sites, signatures, cuts = prepare(graph)
    prices = TinyPrices(graph, mesh, wire)
    free = build_problem(graph, sites, signatures, cuts, identity_fold(graph), mesh, prices, cluster=False)
    first = [0] * len(free.choosers)
    menus = []
    for k, chooser in enumerate(free.choosers):
        counts = [
            len(check_obeyed(graph, sites, signatures, cuts, build_assignment(free, tuple(first[:k] + [o] + first[k + 1 :])), steer))
            for o in range(len(chooser.seconds))
        ]
        menus.append([o for o, n in enumerate(counts) if n == min(counts)])
    seconds = try_all(free, prices, axis_sizes(mesh)).seconds
    return float(seconds[np.ix_(*menus)].min())


FIXES = ("dp=2", "tp=2", "dp=2,zero=0", "dp=2,zero=1", "dp=2,zero=3", "tp=1", "only=data", "dp=1", "zero=0,tp=2", "zero=1,tp=1", "sequence_parallel=0")


@pytest.mark.parametrize("seed", range(33))
def test_the_answer_is_the_best_of_all_that_obey(seed):
    graph, fix, wire = random_step(seed), FIXES[seed % len(FIXES)], (3.0, 300.0)[seed // len(FIXES) % 2]
    for mesh in label(graph, fix, (make_mesh(2),)):
        answer, assignment, steer = solve(graph, parse_fix(fix), mesh, cluster=False, wire=wire)
        assert answer.status == "solved" and faults(graph, assignment, steer) == ()
        assert answer.objective_s == pytest.approx(best_of_all_that_obey(graph, mesh, steer, wire), rel=1e-6)


@pytest.mark.parametrize("fix", ["dp=2,tp=2,zero=1", "dp=4,zero=0", "dp=4,zero=3", "dp=4,zero=1,dp_shard=2", "dp=4,zero=2,dp_shard=2", "dp=4,zero=3,dp_shard=2", "tp=4", "tp=2"])
def test_on_two_axes_too(fix):
    graph = training_step(4, 2, 4)
    sites, signatures, cuts = prepare(graph)
    for mesh in label(graph, fix, (make_mesh(2, 2),)):
        answer, assignment, steer = solve(graph, parse_fix(fix), mesh, cluster=False)
        assert faults(graph, assignment, steer) == ()
        free = build_problem(graph, sites, signatures, cuts, identity_fold(graph), mesh, TinyPrices(graph, mesh), cluster=False)
        assert solve_mesh(free, None, time_limit_s=20).objective_s <= answer.objective_s * (1 + 1e-9)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_are_shared_by_groups_of_neighbours(zero):
    """What ZeRO cuts lies in pieces among the two nearest ranks alone, and a plan that cuts it further is told."""
    graph = training_step(4, 2, 4)
    (mesh,) = label(graph, f"dp=4,zero={zero},dp_shard=2", (make_mesh(2, 2),))
    values = value_table(graph)
    _, assignment, _ = solve(graph, parse_fix(f"dp=4,zero={zero},dp_shard=2"), mesh, cluster=False)
    for name, storage in assignment.storages:
        outer, inner = map(str, storage.placements)
        assert outer == "R" and inner.startswith("S") == (zero_law(zero, values[name].kind) == "pieces"), (name, storage)
    _, everywhere, _ = solve(graph, parse_fix(f"dp=4,zero={zero}"), mesh, cluster=False)
    steer = prepare_steer(graph, *prepare(graph), parse_fix(f"dp=4,zero={zero},dp_shard=2"))
    assert any("in pieces along more of dp" in fault for fault in faults(graph, everywhere, steer))


def test_groups_of_what_is_not_cut():
    graph = training_step(4, 2, 4)
    with pytest.raises(ConstraintError, match="^dp_shard=2 says how many ranks of dp share what zero cuts, but zero is not given; give zero=3, say, or leave dp_shard out$"):
        prepare_steer(graph, *prepare(graph), parse_fix("dp=4,dp_shard=2"))


def test_random_constraints_are_obeyed_or_refused():
    outcomes = [_obeyed_or_refused(seed) for seed in range(60)]
    assert outcomes.count("obeyed") >= 20 and outcomes.count("refused") >= 10


def _obeyed_or_refused(seed: int) -> str:
    rng = random.Random(seed)
    graph = random_step(seed)
    words: dict[str, object] = {}
    if rng.random() < 0.6:
        words[rng.choice(["dp", "tp"])] = rng.choice([1, 2, 4])
    if rng.random() < 0.4:
        words["zero"] = rng.randrange(4)
    if words.get("zero") and rng.random() < 0.5:
        words["dp_shard"] = rng.choice([2, 4])
    if rng.random() < 0.3:
        words[rng.choice(["whole", "alike"])] = [rng.choice(["layer", "*", "stem"])]
    if rng.random() < 0.3:
        words["module"] = [ModuleForbid("layer", (rng.choice(["dp", "tp"]),))]
    if rng.random() < 0.5:
        words["pin"] = [Pin(rng.choice(["w", "mm_*", "w@1"]), rng.choice(["R", "S0", "S1", "S0,R"]), "")]
    try:
        constraints = constrain(**words)
        for mesh in label(graph, constraints):
            answer, assignment, steer = solve(graph, constraints, mesh)
            assert answer.status == "solved" and faults(graph, assignment, steer) == ()
            require_obeyed(graph, *prepare(graph), assignment, steer)
    except ConstraintError as error:
        assert any(word in str(error) for word in ("dp", "tp", "pin", "whole", "alike", "module", "zero"))
        return "refused"
    return "obeyed"


def test_every_kind_of_fault_is_seen():
    """A free plan on axes with roles breaks what a steered one obeys: `check_obeyed` must not be blind."""
    graph, mesh = training_step(8, 4, 8), label(training_step(8, 4, 8), "dp=2,tp=2", (make_mesh(2, 2),))[0]
    sites, signatures, cuts = prepare(graph)
    free = build_problem(graph, sites, signatures, cuts, identity_fold(graph), mesh, TinyPrices(graph, mesh), cluster=False)
    nothing = build_assignment(free, tuple(0 for _ in free.choosers))
    told = {
        "dp=2,tp=2": "dp: n0 () chooses R R, although m can be split there",
        "dp=4": "dp=4: the axes of dp have 2 ranks",
        "zero=1,dp=2,tp=2": "zero=1: m:w@0 [4, 8] is stored as R,R, whole along dp",
        "zero=3,dp=2,tp=2": "zero=3: w@0 [4, 8] is stored as R,R, whole along dp",
        "zero=3,dp=2,tp=2,dp_shard=2": "zero=3: w@0 [4, 8] is stored as R,R, whole along dp",
    }
    for fix, text in told.items():
        steer = prepare_steer(graph, sites, signatures, cuts, parse_fix(fix))
        assert any(text in fault for fault in faults(graph, nothing, steer)), fix
    steer = prepare_steer(graph, sites, signatures, cuts, constrain(pin=[Pin("w", "S0", "dp")]))
    assert faults(graph, nothing, steer) == ("pin w S0 on dp: w@0 is R,R",)
    with pytest.raises(ConstraintError, match=r"pin w S0 on dp: w@0 is R,R: the search did not obey"):
        require_obeyed(graph, sites, signatures, cuts, nothing, steer)
    split = Assignment(mesh, nothing.storages, tuple((n, ("m", "R") if n == "n0" else c) for n, c in nothing.strategies))
    steer = prepare_steer(graph, sites, signatures, cuts, constrain(alike=["*"]))
    assert "alike: n0 () chooses m R" in faults(graph, split, steer)


# --- meshes ------------------------------------------------------------------------------------------------------------------------


def names(meshes) -> list[str]:
    return [" ".join(f"{a.name}={a.size}" for a in mesh.axes) for mesh in meshes]


def test_a_degree_is_the_product_of_its_axes():
    graph = training_step(8, 4, 8)
    assert names(label(graph, "dp=4")) == ["dp=4", "dp=2 dp_2=2"]
    assert names(label(graph, "dp=2,tp=2")) == ["dp=2 tp=2"]
    assert names(label(graph, "tp=2")) == ["tp=2 b=2"]
    assert names(label(graph, "zero=1")) == ["dp=4", "dp=2 dp_2=2", "dp=2 b=2"]
    assert names(label(graph, "zero=0")) == ["dp=4", "a=4", "dp=2 dp_2=2", "dp=2 b=2", "a=2 b=2"]
    assert names(label(graph, "dp=4,zero=3,dp_shard=2")) == ["dp=2 dp_2=2"]
    assert names(label(graph, "zero=3,dp_shard=2")) == ["dp=2 dp_2=2", "dp=2 b=2"]
    assert names(label(graph, "zero=3,dp_shard=4")) == ["dp=4", "dp=2 dp_2=2"]
    assert names(label(graph, constrain(require=["tp"]))) == ["tp=4", "tp=2 tp_2=2", "tp=2 b=2"]
    assert names(label(graph, constrain(whole=["*"]))) == ["a=4", "a=2 b=2"]
    assert [axis_role(n) for n in ("dp", "dp_2", "a", "tp_3")] == ["dp", "dp", "", "tp"]


@pytest.mark.parametrize(
    ("fix", "message"),
    [
        ("dp=2,tp=4", "dp=2 x tp=4 make 8 ranks, the cluster has 4; what fits: dp=2,tp=2; or leave one of them out"),
        ("tp=3", "tp=3 cannot be laid out on the 4 ranks of the cluster; what fits: tp=4; tp=2; or leave it out"),
        ("dp=2,tp=1", "dp=2 makes 2 ranks, the cluster has 4, and no other role may take the rest; what fits: dp=4; or leave one of them out"),
        ("dp=1,tp=1", "dp=1, tp=1: no role is left for the 4 ranks of the cluster; leave one of them free"),
        ("dp=16", "dp=16: the batch has size 8 (dim 0 of x), which does not divide by 16; what divides it: dp=2, dp=4, or give another --batch or --seq"),
        ("sp=2", "sp=2: the model has no sequence to split: no dim of its batch inputs is one (docs/constraints.md says how it is found); leave it out"),
        ("zero=1,dp_shard=3", "dp_shard=3: no mesh of this cluster has groups of 3 neighbours among the ranks of dp; expected one of 2, 4, or another dp"),
        ("zero=1,dp_shard=2,tp=4", "tp=4 x dp (2 or more) cannot be laid out on the 4 ranks of the cluster; what fits: tp=2; or leave one of them out"),
        ("zero=1,tp=4", "tp=4 x dp (2 or more) cannot be laid out on the 4 ranks of the cluster; what fits: tp=2; or leave one of them out"),
    ],
)
def test_degrees_that_do_not_fit(fix, message):
    with pytest.raises(ConstraintError) as error:
        label(training_step(8, 4, 8), fix)
    assert str(error.value) == message


# --- names -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"pin": [Pin("ww@0", "R")]}, "pin ww@0 R: names no value of step_1; near names: "),
        ({"pin": [Pin("w", "S2")]}, "pin w S2: w@0 has 2 dims ["),
        ({"pin": [Pin("w", "P")]}, "pin w P: w@0 enters the step: it is stored whole or in pieces, never as a Partial"),
        ({"whole": ["lay"]}, "whole lay: names no module of step_1 that runs an op; near names: layer"),
        ({"alike": ["zzz"]}, "alike zzz: names no module of step_1 that runs an op; some that there are: "),
        ({"module": [ModuleForbid("h.*", ("tp",))]}, "module h.*: names no module of step_1 that runs an op"),
    ],
)
def test_names_that_name_nothing(words, message):
    graph = random_step(1)
    with pytest.raises(ConstraintError) as error:
        prepare_steer(graph, *prepare(graph), constrain(**words))
    assert str(error.value).startswith(message)


def test_a_pin_that_no_mesh_or_rule_allows():
    graph = training_step(8, 3, 8)
    with pytest.raises(ConstraintError) as error:
        solve(graph, constrain(pin=[Pin("w", "S0")]), make_mesh(2))
    assert str(error.value) == "pin w S0: w@0 [3, 8] cannot be stored so on mesh a=2; what it can be: R, S1/4"
    with pytest.raises(ConstraintError) as error:
        solve(graph, constrain(pin=[Pin("w", "S1,R")]), make_mesh(2))
    assert str(error.value) == "pin w S1,R: expected a mesh with 2 axes, found a=2 (axes a)"
    with pytest.raises(ConstraintError) as error:
        solve(graph, constrain(pin=[Pin("w", "S1", "c")]), make_mesh(2))
    assert str(error.value) == "pin w S1 on c: expected a mesh with axis c, found a=2 (axes a)"
    with pytest.raises(ConstraintError) as error:
        solve(graph, constrain(pin=[Pin("loss_*", "S0"), Pin("total_1", "S0")]), make_mesh(2))
    assert "names no value" in str(error.value)
    with pytest.raises(ConstraintError) as error:
        solve(graph, constrain(pin=[Pin("mm_0", "Pmax")]), make_mesh(2))
    assert str(error.value).startswith(
        "pin mm_0 Pmax (mm_0): cannot be obeyed on mesh a=2 by n0 (aten.mm, the root module, no source line): what is left to it: R; m; n"
    )


def test_a_pin_that_contradicts_a_role():
    graph = training_step(8, 4, 8)
    constraints = constrain(tp=2, pin=[Pin("mm_0", "S0", "tp")])
    with pytest.raises(ConstraintError) as error:
        solve(graph, constraints, label(graph, constraints, (make_mesh(2),))[0])
    assert "an axis of tp does not split by dp, and other constraints leave n0 nothing else" in str(error.value)


def test_a_pin_with_strides_that_nobody_offers():
    graph = training_step(8, 4, 8)
    _, assignment, _ = solve(graph, constrain(pin=[Pin("w@0", "S1/1"), Pin("m:w", "R")]), make_mesh(2))
    stored = dict(assignment.storages)
    assert str(stored["w@0"]) == "S1/1" and str(stored["m:w@0"]) == "R"


# --- what the words do -------------------------------------------------------------------------------------------------------------


def test_named_blocks_leave_the_fold():
    graph = random_step(1)
    fold = identity_fold(graph)
    assert refine_fold(graph, fold, parse_fix("tp=2")) == fold
    same = type(fold)(tuple(0 for _ in graph.nodes), fold.value_class)
    apart = refine_fold(graph, same, constrain(whole=["layer"]))
    inside = {apart.node_class[i] for i, n in enumerate(graph.nodes) if n.path == "layer"}
    outside = {apart.node_class[i] for i, n in enumerate(graph.nodes) if n.path != "layer"}
    assert len(inside) == len(outside) == 1 and not inside & outside


def test_whole_and_alike_and_module():
    graph = random_step(3)
    mesh = label(graph, "tp=2", (make_mesh(2),))[0]
    _, plain, _ = solve(graph, parse_fix("tp=2"), mesh)
    forward = next(n.name for n in graph.nodes if n.op == "aten.mm")
    assert dict(plain.strategies)[forward] != ("R",)
    for words in ({"whole": ["layer"]}, {"alike": ["layer"]}, {"module": [ModuleForbid("layer", ("tp",))]}):
        _, assignment, _ = solve(graph, constrain(tp=2, **words), mesh)
        assert dict(assignment.strategies)[forward] == ("R",)
    data = label(graph, "dp=2", (make_mesh(2),))[0]
    _, assignment, _ = solve(graph, constrain(dp=2, whole=["layer"]), data)
    assert dict(assignment.strategies)[forward] == ("m",)  # the batch is split around a whole module


@pytest.mark.parametrize(("fix", "splits"), [("dp=2", True), ("dp=2,zero=2", True), ("dp=2,zero=0", False)])
def test_what_finishes_a_gradient_may_be_split_as_it_is_stored(fix, splits):
    s = Sketch("tail")
    w, x = s.enter("w@0", (4, 6)), s.enter("x", (8, 4), Kind.BATCH)
    y = s.call("aten.mm", x, w)
    loss = s.call("tiny.total", y, kind=Kind.LOSS)
    s.phase = Phase.BACKWARD
    g = s.call("aten.permute", s.call("aten.mm", s.call("aten.permute", y), x), kind=Kind.GRAD)
    s.phase = Phase.UPDATE
    graph = s.finish([("w@0", s.call("aten.add", w, g, kind=Kind.PARAM, name="w@1"))], loss, (), [("w@0", g)])
    sites, signatures, cuts = prepare(graph)
    mesh = label(graph, fix, (make_mesh(2),))[0]
    steer = prepare_steer(graph, sites, signatures, cuts, parse_fix(fix))
    problem = build_problem(graph, sites, signatures, cuts, identity_fold(graph), mesh, TinyPrices(graph, mesh), cluster=False, steer=steer)
    offered = {p.node: {o.choices for o in p.options} for c in problem.choosers for p in c.parts if p.node >= 0}
    assert (("a",) in offered[4]) == splits and ("R",) in offered[4]
    assert offered[0] == {("m",)} and offered[3] == {("k",)}  # what has the batch splits it


def test_states_that_do_not_divide_are_exempt_and_named():
    graph = training_step(8, 3, 3)
    sites, signatures, cuts = prepare(graph)
    constraints = parse_fix("dp=2,zero=1")
    mesh = label(graph, constraints, (make_mesh(2),))[0]
    steer = prepare_steer(graph, sites, signatures, cuts, constraints)
    problem = build_problem(graph, sites, signatures, cuts, identity_fold(graph), mesh, TinyPrices(graph, mesh), steer=steer)
    told = [(p.what, p.why) for p in problem.pruned if "exempt" in p.why]
    assert told == [("m:w@0 in more pieces", "its shape does not divide by all of dp, or another constraint holds it: exempt from zero=1")]


def test_the_search_says_what_it_obeys_and_refuses_when_no_mesh_can():
    graph = training_step(8, 4, 8)
    sites, signatures, cuts = prepare(graph)
    constraints = parse_fix("dp=2,tp=2,zero=1")
    steer = prepare_steer(graph, sites, signatures, cuts, constraints)
    question = Question(graph, sites, signatures, cuts, identity_fold(graph), None, steer=steer)
    found = search(question, label(graph, constraints), lambda mesh: TinyPrices(graph, mesh), time_limit_s=20)
    assert names([found.assignment.mesh]) == ["dp=2 tp=2"]
    assert "; only what obeys dp=2, tp=2, zero=1" in found.certificate.search_space
    assert faults(graph, found.assignment, steer) == ()
    pinned = constrain(pin=[Pin("w", "S0,S0")])
    steer = prepare_steer(graph, sites, signatures, cuts, pinned)
    found = search(Question(graph, sites, signatures, cuts, identity_fold(graph), None, steer=steer), FOUR, lambda m: TinyPrices(graph, m), time_limit_s=20)
    assert names([found.assignment.mesh]) == ["a=2 b=2"]
    assert any(p.what == "mesh a=4" and "expected a mesh with 2 axes" in p.why for p in found.certificate.pruned)
    with pytest.raises(ConstraintError, match="expected a mesh with 2 axes, found a=4"):
        search(Question(graph, sites, signatures, cuts, identity_fold(graph), None, steer=steer), FOUR[:1], lambda m: TinyPrices(graph, m), time_limit_s=20)
