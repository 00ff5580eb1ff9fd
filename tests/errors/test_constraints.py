"""One test per message about constraints as text, and what good texts mean in all three spellings."""

from __future__ import annotations

import pytest

from autopar.constraints import (
    Constraints,
    ModuleForbid,
    ModuleStage,
    Pin,
    constrain,
    load_constraints,
    merge_constraints,
    names_module,
    names_value,
    parse_fix,
    parse_lines,
    print_constraints,
)
from autopar.errors import ConstraintError, OptionsError
from autopar.options import Options

WORDS = "dp, tp, sp, pp, zero, dp_shard, recompute, sequence_parallel, only, vpp, microbatches, microbatch, schedule"

SAME = [
    ("tp=2,dp=4", "tp = 2\ndp = 4", {"tp": 2, "dp": 4}, ("dp=4", "tp=2")),
    ("zero=0", "zero = 0", {"zero": 0}, ("zero=0",)),
    ("dp=8,zero=3,dp_shard=4", "dp = 8\nzero = 3\ndp_shard = 4", {"dp": 8, "zero": 3, "dp_shard": 4}, ("dp=8", "zero=3", "dp_shard=4")),
    ("only=data,zero=3", 'only = "data"\nzero = 3', {"only": "data", "zero": 3}, ("zero=3", "only=data")),
    (
        "sp=2, recompute=full ,sequence_parallel=1",
        'sp = 2\nrecompute = "full"\nsequence_parallel = true',
        {"sp": 2, "recompute": "full", "sequence_parallel": True},
        ("sp=2", "recompute=full", "sequence_parallel=1"),
    ),
    (
        "pp=2,vpp=2,microbatches=8,schedule=interleaved",
        'pp = 2\nvpp = 2\nmicrobatches = 8\nschedule = "interleaved"',
        {"pp": 2, "vpp": 2, "microbatches": 8, "schedule": "interleaved"},
        ("pp=2", "vpp=2", "microbatches=8", "schedule=interleaved"),
    ),
    ("tp=1", 'forbid = ["tp"]', {"forbid": ["tp"]}, ("tp=1",)),
    ("dp=4", "require = { dp = 4 }", {"require": {"dp": 4}}, ("dp=4",)),
]


@pytest.mark.parametrize(("fix", "toml", "words", "lines"), SAME)
def test_three_spellings_are_one_value(tmp_path, fix, toml, words, lines):
    path = tmp_path / "c.toml"
    path.write_text(toml + "\n")
    found = parse_fix(fix)
    assert found == load_constraints(path) == constrain(**words) == parse_lines(lines)
    assert print_constraints(found) == lines
    assert bool(found) and not Constraints()


def test_finer_words_in_file_and_python(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        'tp = 2\nwhole = ["lm_head*"]\nalike = ["router"]\nrequire = ["dp"]\n[[pin]]\nvalue = "h.*.w@0"\nsharding = "S0"\non = "tp"\n'
        '[[pin]]\nvalue = "x"\nsharding = "S0/4, R"\n[[module]]\npath = "embed"\nforbid = ["tp", "sp"]\n'
    )
    found = load_constraints(path)
    assert found == constrain(
        tp=2, whole=["lm_head*"], alike=("router",), require=["dp"], pin=[Pin("h.*.w@0", "S0", "tp"), Pin("x", "S0/4, R")],
        module=[ModuleForbid("embed", ("tp", "sp"))],
    )  # fmt: skip
    lines = ("tp=2", "require dp", "whole lm_head*", "alike router", "pin h.*.w@0 S0 on tp", "pin x S0/4,R", "module embed forbid tp,sp")
    assert print_constraints(found) == lines and parse_lines(lines) == found


def test_the_stage_of_a_module_in_file_and_python(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('pp = 2\n[[module]]\npath = "h.0"\nstage = 1\n[[module]]\npath = "head"\nstage = 0\nforbid = ["tp"]\n')
    found = load_constraints(path)
    assert found == constrain(pp=2, module=[ModuleStage("h.0", 1), ModuleForbid("head", ("tp",)), ModuleStage("head", 0)])
    lines = ("pp=2", "module head forbid tp", "module h.0 stage 1", "module head stage 0")
    assert print_constraints(found) == lines and parse_lines(lines) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"module": [{"path": "h.0", "stage": -1}]}, "module[0].stage: expected the number of a stage, 0 for the first, found -1"),
        ({"module": [{"path": "h.0", "stage": True}]}, "module[0].stage: expected the number of a stage, 0 for the first, found true"),
        ({"module": [{"path": "h.0", "stages": 1}]}, "module[0].stages: unknown key; expected one of path, forbid, stage; did you mean stage?"),
        ({"module": [ModuleStage("h.0", 1), ModuleStage("h.0", 0)]}, "module h.0: stage is both 1 and 0; leave one out"),
        ({"pp": 2, "module": [ModuleStage("h.0", 2)]}, "module h.0 stage 2: pp=2 has the stages 0 to 1; take one of these, or another pp"),
        ({"pp": 1, "module": [ModuleStage("h.0", 1)]}, "module h.0 stage 1: of a pipeline, but pp=1 leaves one stage; give pp, or leave it out"),
        ({"only": "data", "module": [ModuleStage("h.0", 1)]}, "module h.0 stage 1: of a pipeline, but only=data leaves one stage; give pp, or leave it out"),
    ],
)
def test_bad_stages_of_modules(words, message):
    with pytest.raises(ConstraintError) as error:
        constrain(**words)
    assert str(error.value) == f"constraints: {message}"


def test_globs():
    assert names_module("h.*", "h.3.attn") and names_module("h.3", "h.3.attn") and names_module("*", "")
    assert not names_module("h.3", "h.30") and not names_module("attn", "h.3.attn") and not names_module("h*", "")
    assert names_value("h.*.w@0", "h.3.w@0", "h.3.w") and names_value("h.*.w", "h.3.w@0", "h.3.w")
    assert not names_value("h.*.w@1", "h.3.w@0", "h.3.w") and not names_value("mm", "mm_0", "")


def test_two_together():
    assert merge_constraints(parse_fix("tp=2"), parse_fix("dp=2,zero=1")) == parse_fix("dp=2,tp=2,zero=1")
    for one, other, text in (("tp=2", "tp=4", "tp is both 2 and 4"), ("zero=1", "zero=2", "zero is both 1 and 2")):
        with pytest.raises(ConstraintError, match=f"--fix and --constraints: {text}; leave one out"):
            merge_constraints(parse_fix(one), parse_fix(other))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--fix: expected name=value joined by commas, as in tp=2,zero=1, found ''"),
        ("tp", "--fix: expected name=value joined by commas, as in tp=2,zero=1, found 'tp'"),
        ("tp=2,tp=2", "--fix: tp is given twice"),
        ("tpp=2", f"--fix: unknown word 'tpp'; expected one of {WORDS}; did you mean tp?"),
        ("whole=lm_head", f"--fix: unknown word 'whole'; expected one of {WORDS}; it belongs into a file, --constraints FILE.toml"),
        ("tp=0", "--fix: tp: expected a positive whole number, found 0"),
        ("tp=two", "--fix: tp: expected a positive whole number, found 'two'"),
        ("dp=-2", "--fix: dp: expected a positive whole number, found -2"),
        ("zero=5", "--fix: zero: expected 0, 1, 2 or 3, found 5"),
        ("recompute=some", "--fix: recompute: expected none, selective, full or free, found 'some'"),
        ("sequence_parallel=2", "--fix: sequence_parallel: expected 0 or 1, found 2"),
        ("only=tensor", "--fix: only: expected data, found 'tensor'"),
        ("schedule=fast", "--fix: schedule: expected gpipe, 1f1b, interleaved, zero-bubble, zbv, forward-only or a grid in a file ending in .csv, found 'fast'"),
        ("schedule=none.csv", "--fix: schedule: cannot read none.csv: No such file or directory"),
        ("microbatches=0", "--fix: microbatches: expected a positive whole number, found 0"),
        ("only=data,tp=2", "--fix: only=data leaves no rank for tp=2; leave one out"),
        ("dp=1,zero=1", "--fix: zero=1 is about the axes of dp, but dp=1: there are none; give dp, or leave zero out"),
        ("zero=0,dp_shard=2", "--fix: dp_shard=2 says how many ranks of dp share what zero cuts, but zero=0 cuts nothing; give zero=3, say, or leave dp_shard out"),
        ("zero=2,dp_shard=1", "--fix: dp_shard=1: expected 2 or more ranks that share what zero cuts; give zero=0 where each rank holds everything"),
        ("zero=3,dp=12,dp_shard=8", "--fix: dp_shard=8: dp=12 does not divide into groups of 8; expected one of 2, 3, 4, 6, 12, or another dp"),
        ("dp=1,dp_shard=8", "--fix: dp_shard=8: dp=1 does not divide into groups of 8; expected another dp"),
        ("zero=3,dp_shard=half", "--fix: dp_shard: expected a positive whole number, found 'half'"),
        ("pp=1,vpp=2", "--fix: vpp=2: of a pipeline, but pp=1 leaves one stage; give pp, or leave it out"),
        ("only=data,schedule=1f1b", "--fix: schedule=1f1b: of a pipeline, but only=data leaves one stage; give pp, or leave it out"),
        ("vpp=2,schedule=1f1b", "--fix: vpp=2 and schedule=1f1b: several chunks on a stage and interleaved or zbv go together; leave one out"),
        ("vpp=1,schedule=interleaved", "--fix: vpp=1 and schedule=interleaved: several chunks on a stage and interleaved or zbv go together; leave one out"),
        ("tp=1,sequence_parallel=1", "--fix: sequence_parallel=1 is about the axes of tp, but there are none; give tp, or leave sequence_parallel out"),
    ],
)
def test_bad_fix(text, message):
    with pytest.raises(ConstraintError) as error:
        parse_fix(text)
    assert str(error.value) == message


def test_a_file_without_a_schedule(tmp_path):
    (tmp_path / "own.csv").write_text("hello,world\n")
    with pytest.raises(ConstraintError, match=r"--fix: schedule: .*own\.csv has no forward, as 0F1 .*; write one row a rank, as 0F0,0F1,0B0,0B1"):
        parse_fix(f"schedule={tmp_path / 'own.csv'}")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("tp 2", "not valid TOML: "),
        ("wole = ['a']", "unknown word 'wole'; expected one of " + WORDS + ", forbid, require, whole, alike, pin, module, stage; did you mean whole?"),
        ("tp = true", "tp: expected a positive whole number, found true"),
        ("zero = true", "zero: expected 0, 1, 2 or 3, found true"),
        ('whole = "lm_head"', "whole: expected a list, found 'lm_head'"),
        ("whole = [3]", "whole: expected names or globs without spaces, found 3"),
        ('forbid = ["ep"]', "forbid: expected roles (dp, tp, sp, pp), found 'ep'"),
        ('tp = 2\nforbid = ["tp"]', "forbid: tp is 1 here and 2 elsewhere; leave one out"),
        (
            'microbatch = 1\npp = 2\nrequire = ["sp"]',
            "require sp and microbatch=1, pp=2: plans in stages or in several microbatches have an axis of their own for the sequence only where its degree is named; "
            "give sp=2, say, or leave one out",
        ),
        ('forbid = ["tp"]\nrequire = ["tp"]', "tp is both required and forbidden (degree 1); leave one out"),
        ("[[pin]]\nvalue = 'w'", "pin[0].sharding: expected R, P, Pmax, Pmin, S<dim> or S<dim>/<stride>, or one per mesh axis joined by commas, found None"),
        ("[[pin]]\nsharding = 'R'", "pin[0].value: expected names or globs without spaces, found None"),
        ("[[pin]]\nvalue = 'w'\nsharding = 'S'", "found 'S'"),
        ("[[pin]]\nvalue = 'w'\nsharding = 'R'\non = 3", "pin[0].on: expected a role (dp, tp, sp, pp) or the name of a mesh axis, found 3"),
        ("[[pin]]\nvalue = 'w'\nsharding = 'R,R'\non = 'tp'", "pin[0].sharding: expected one placement, as `on` names the axes, found 'R,R'"),
        ("[[pin]]\nvalue = 'w'\nshard = 'R'", "pin[0].shard: unknown key; expected one of value, sharding, on; did you mean sharding?"),
        ("pin = ['w']", "pin[0]: expected a table with value, sharding, on, found 'w'"),
        ("[[module]]\npath = 'h'", "module[0].forbid: expected some of dp, tp, sp, found ()"),
        ("[[module]]\npath = 'h'\nforbid = ['pp']", "module[0].forbid: expected some of dp, tp, sp, found ['pp']"),
    ],
)
def test_bad_files(tmp_path, toml, message):
    path = tmp_path / "c.toml"
    path.write_text(toml + "\n")
    with pytest.raises(ConstraintError) as error:
        load_constraints(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def test_no_file():
    with pytest.raises(ConstraintError) as error:
        load_constraints("/nowhere/c.toml")
    assert str(error.value) == "/nowhere/c.toml: cannot be read: No such file or directory; expected a TOML file of constraints"


def test_a_line_that_is_none():
    with pytest.raises(ConstraintError) as error:
        parse_lines(("pin w",))
    assert str(error.value) == "constraints: expected a line such as tp=2 or `pin wte.weight@0 S0 on tp`, found 'pin w'"


@pytest.mark.parametrize("fix", ["pp=2", "pp=2,vpp=1,schedule=1f1b", "pp=1,vpp=1,microbatches=4", "microbatch=1,dp=2,zero=1", "sp=2,pp=1,microbatches=1", "vpp=2"])
def test_words_of_a_pipeline_go_together(fix):
    assert parse_lines(print_constraints(parse_fix(fix))) == parse_fix(fix)


def test_options_take_constraints():
    assert Options(constraints=constrain(tp=2)).constraints == parse_fix("tp=2")
    with pytest.raises(OptionsError) as error:
        Options(constraints="tp=2")
    assert str(error.value) == "constraints: expected autopar.constrain(tp=2, ...), found str"
