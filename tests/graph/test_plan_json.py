"""plan.json: what is written comes back, and whatever is wrong with a file is one `PlanError` that says where."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from view.synthetic_plans import make_plan

from autopar.errors import PlanError
from autopar.graph.check_plan import check_plan
from autopar.graph.mesh import Mesh
from autopar.graph.plan_json import load_plan, plan_from_json, plan_to_json, print_plan_json, save_plan
from autopar.graph.sharding import REPLICATE, Sharding

PLAN = make_plan(num_layers=2, update_ops=2)
TINY = make_plan(num_layers=1, update_ops=1)
WRONG = (None, True, -1, 3.5, "x", "S9/7,R", [], {}, ["R"], {"a": 1}, 10**400)


@pytest.mark.parametrize("plan", [PLAN, make_plan(mesh=Mesh(())), make_plan(folded=False)], ids=["mesh", "one-rank", "unfolded"])
def test_what_is_written_comes_back(plan, tmp_path):
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert plan_from_json(json.loads(print_plan_json(plan))) == plan
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_the_fields_have_the_documented_names():
    data = plan_to_json(PLAN)
    assert {"name", "num_params", "graph_hash", "precision", "source"} <= data["model"].keys()
    assert data["cluster"]["num_devices"] == 4
    assert data["mesh"]["num_stages"] == 1 and data["mesh"]["axes"][0] == {"name": "a", "size": 2, "link": "across"}
    assert data["labels"] == {"a": ["data", "zero-3"], "b": ["tensor"]}
    assert {"step_s", "compute_s", "exposed_comm_s", "bubble_s", "peak_bytes", "state_bytes", "activation_bytes", "tokens_per_s", "mfu"} <= data["cost"].keys()
    assert {"objective_s", "lower_bound_s", "gap", "wall_s", "phases", "num_variables", "search_space", "pruned"} == data["solve"].keys()
    assert data["solve"]["phases"] == {"trace_s": 0.4, "rules_s": 0.15, "ilp_s": 0.7}
    assert data["tensors"][0].keys() == {"name", "kind", "version", "shape", "dtype", "stage", "sharding", "bytes"}
    assert {"name", "param", "grad", "optim"} <= data["params"][0].keys()
    assert data["params"][0]["param"] == "S0/256,R"


def test_every_field_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "plan-format.md").read_text()

    def names(data: object) -> Iterator[str]:
        if isinstance(data, list):
            for entry in data[:1]:
                yield from names(entry)
        elif isinstance(data, dict):
            for key, entry in data.items():
                yield key
                if key not in ("args", "labels", "phases", "holders", "storages", "strategies"):
                    yield from names(entry)

    assert [name for name in names(plan_to_json(PLAN)) if f"`{name}`" not in page] == []


def places(data: object, seen: set[str], path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """One path for every kind of place in the data: of equal rows only the first."""
    pattern = "/".join("#" if isinstance(step, int) or (i and path[i - 1] in ("storages", "strategies")) else step for i, step in enumerate(path))
    if pattern in seen:
        return
    seen.add(pattern)
    yield path
    if isinstance(data, dict):
        for key, entry in data.items():
            yield from places(entry, seen, (*path, key))
    elif isinstance(data, list):
        for i, entry in enumerate(data):
            yield from places(entry, seen, (*path, i))


def read(data: object) -> None:
    check_plan(plan_from_json(data, "plan.json"), "plan.json")


def changed(data: object, path: tuple[str | int, ...], change) -> object:
    result = copy.deepcopy(data)
    at = result
    for step in path[:-1]:
        at = at[step]
    change(at, path[-1])
    return result


def test_a_missing_or_unknown_key_is_named():
    data = plan_to_json(TINY)
    free = ("args", "labels", "phases", "holders", "storages", "strategies")
    for path in places(data, set()):
        if not path or isinstance(path[-1], int) or (len(path) > 1 and path[-2] in free):
            continue
        with pytest.raises(PlanError, match=str(path[-1])):
            read(changed(data, path, lambda at, key: at.pop(key)))
        with pytest.raises(PlanError, match="typo"):
            read(changed(data, (*path[:-1], "typo"), lambda at, key: at.update({key: 1})))


def test_a_wrong_value_is_a_plan_error_or_fine_never_another_exception():
    data = plan_to_json(TINY)
    refused = 0
    for path in list(places(data, set()))[1:]:
        at = data
        for step in path[:-1]:
            at = at[step]
        right = at[path[-1]]
        for wrong in WRONG:
            at[path[-1]] = wrong
            try:
                read(data)
            except PlanError as error:
                refused += 1
                assert str(error).startswith("plan.json: ")
        at[path[-1]] = right
    assert refused > 800
    read(data)


@pytest.mark.parametrize(
    ("path", "wrong", "message"),
    [
        (("format",), "autopar-plan-0", "plan.json: format: expected 'autopar-plan-1', which this autopar reads, found \"autopar-plan-0\"; make the plan again"),
        (("cost", "peak_bytes", 0), "80GB", 'plan.json: cost.peak_bytes[0]: expected a whole number, found "80GB"; write the plan again'),
        (("tensors", 0, "sharding"), "S0/4;R", 'plan.json: tensors[0].sharding: expected R, P, Pmax, Pmin or S<dim>/<stride> per mesh axis, joined by commas, found "S0/4;R"'),
        (("tensors", 0, "sharding"), "S0/4,S5/1", "plan.json: tensors[0] (tokens).sharding: S0/4,S5/1 is not legal for shape [8, 32]: dim 5 of a 2-dim tensor"),
        (("tensors", 0, "bytes"), 7, "plan.json: tensors[0] (tokens).bytes: expected 1024 (int64[8, 32] as S0/4,R), found 7"),
        (("nodes", 3, "phase"), "sideways", 'plan.json: nodes[3].phase: expected one of prepare, forward, backward, update, found "sideways"'),
        (("nodes", 3, "inputs", 0), "nobody", "plan.json: nodes[3] (view_3).inputs: expected names of tensors, found 'nobody', which is not listed"),
        (("nodes", 3, "choices", 1), "n", "plan.json: assignment.strategies['view_3']: expected ['b', 'n'] as in nodes[3].choices, found ['b', 'h']"),
        (("assignment", "microbatches"), 2, "plan.json: assignment.microbatches: expected 1 as in num_microbatches, found 2"),
        (("assignment", "microbatches"), "two", 'plan.json: assignment.microbatches: expected a whole number, found "two"'),
        (("num_microbatches",), 0, "plan.json: num_microbatches: expected at least 1, found 0"),
        (("cost", "step_s"), 99.0, "plan.json: cost.step_s: expected "),
        (("cost", "exposed_comm_s"), 1.0, "plan.json: cost.step_s: expected "),
        (("comms", 0, "hidden_s"), 0.0, "plan.json: cost.exposed_comm_s: expected "),
        (("comms", 0, "hidden_s"), 9.0, "plan.json: comms[0] (all_gather_0).hidden_s: expected 0 to its "),
        (("cost", "compute_s"), -1.0, "plan.json: cost.compute_s: expected a finite number of at least 0, found -1.0"),
        (("solve", "lower_bound_s"), 1e3, "plan.json: solve.lower_bound_s: expected at most the objective of "),
        (("solve", "gap"), 0.5, "plan.json: solve.gap: expected 0.00"),
        (("model", "num_params"), 1, "plan.json: model.num_params: expected "),
        (("cost", "holders", "gathered"), 1, "plan.json: cost.holders: expected a sum of "),
        (("peak", "node"), "view_3", "plan.json: peak.node: expected the node of the moment that holds the peak of "),
        (("peak", "tensors", 0, "bytes"), 7, "plan.json: peak.tensors[0] (tokens).bytes: expected 1024 (int64[8, 32] as S0/4,R), found 7"),
        (("peak", "tensors", 0, "sharding"), None, "plan.json: peak.tensors[0] (tokens).sharding: expected a sharding, found none"),
        (("peak", "tensors", 0, "sharding"), "S3/1,R", "plan.json: peak.tensors[0] (tokens).sharding: S3/1,R is not legal for shape [8, 32]"),
        (("peak", "tensors", 0, "tensor"), "nobody", "plan.json: peak.tensors[0] (nobody).tensor: expected the name of a tensor, found 'nobody'"),
        (("peak", "tensors", 0, "holder"), "luggage", "plan.json: peak.tensors[0] (tokens).holder: expected a holder of the peak (parameters, "),
        (("peak", "tensors"), [], "plan.json: peak.tensors: expected 199808 bytes of parameters together, as in cost.holders, found 0"),
    ],
)  # fmt: skip
def test_the_error_says_where_expected_and_found(path, wrong, message):
    with pytest.raises(PlanError) as error:
        read(changed(plan_to_json(PLAN), path, lambda at, key: at.__setitem__(key, wrong)))
    assert str(error.value).startswith(message)
    assert "write the plan again" in str(error.value) or "make the plan again" in str(error.value)


def test_a_file_cut_short_anywhere_is_a_plan_error(tmp_path):
    text = print_plan_json(PLAN).rstrip()
    path = tmp_path / "plan.json"
    for at in [*range(0, 40), *range(40, len(text), len(text) // 150), len(text) - 1]:
        path.write_text(text[:at])
        with pytest.raises(PlanError, match="plan.json"):
            load_plan(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file ends too early"), (b"\xff\xfe", "not UTF-8"), (b"[" * 200_000, "not a plan"), (b"[]", "expected a JSON object"),
        (b'{"format": NaN}', "found NaN"), (b'{"a": 1, "a": 2}', "key 'a' stands twice"), (b"1" * 6000, "not a plan"), (b"{}", "no such key"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_told(tmp_path, content, message):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(PlanError, match=message):
        load_plan(tmp_path / "plan.json")


def test_no_file_and_no_place(tmp_path):
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        load_plan(tmp_path / "none.json")
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path)
    with pytest.raises(PlanError, match="cannot be written"):
        save_plan(PLAN, tmp_path / "none" / "plan.json")


def test_an_edit_is_noticed_and_can_be_meant(tmp_path):
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    text = path.read_text().replace('"summary": "Batch', '"summary": "My batch')
    path.write_text(text)
    with pytest.raises(PlanError, match=r'checksum: .* set "checksum": ""'):
        load_plan(path)
    path.write_text(text.replace(plan_to_json(PLAN)["checksum"], ""))
    assert load_plan(path).summary.startswith("My batch")
    path.write_text(json.dumps(json.loads(print_plan_json(PLAN)), indent=4))  # another layout is no edit
    assert load_plan(path) == PLAN


def test_nothing_infinite_is_written(tmp_path):
    for number in (math.nan, math.inf):
        plan = dataclasses.replace(PLAN, cost=dataclasses.replace(PLAN.cost, mfu=number))
        with pytest.raises(PlanError, match="cost.mfu: expected a finite number"):
            plan_to_json(plan)
        with pytest.raises(PlanError, match="cost.mfu"):
            save_plan(plan, tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(PlanError, match="No space left"):
        save_plan(make_plan(3), path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_microbatches_come_back():
    turned = dataclasses.replace(PLAN, num_microbatches=4, assignment=dataclasses.replace(PLAN.assignment, microbatches=4))
    check_plan(turned)
    assert plan_from_json(plan_to_json(turned)) == turned


def test_an_assignment_that_misses_a_node_is_told():
    assignment = dataclasses.replace(PLAN.assignment, strategies=PLAN.assignment.strategies[:-1])
    with pytest.raises(PlanError, match="assignment.strategies: expected one entry per node"):
        check_plan(dataclasses.replace(PLAN, assignment=assignment))
    storages = ((PLAN.assignment.storages[0][0], Sharding((REPLICATE, REPLICATE))), *PLAN.assignment.storages[1:])
    with pytest.raises(PlanError, match=r"assignment.storages\['tokens'\]: expected S0/4,R as in tensor tokens, found R,R"):
        check_plan(dataclasses.replace(PLAN, assignment=dataclasses.replace(PLAN.assignment, storages=storages)))
