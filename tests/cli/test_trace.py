"""`autopar trace`: text, JSON, page; and what happens when a word is wrong."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def test_trace_prints_what_the_step_offers(call, model, tmp_path):
    code, out, err = call("trace", f"{model}:build", "--batch", 32, "--html", tmp_path / "t.html")
    assert code == 0, err
    assert out.startswith("build: what the step offers, before any plan\n") and "noise" not in out
    for words in ("batch", "On 8 ranks", "all_reduce", "net.py:", "What is rewritten", "@0 -> @1", f"wrote {tmp_path / 't.html'}"):
        assert words in " ".join(out.split()), words
    assert "tracing build in fp32" in err
    assert "what the step offers" in (tmp_path / "t.html").read_text()


def test_trace_json_is_one_object_and_says_everything(call, model):
    code, out, err = call("trace", f"{model}:build", "--json", "--ranks", 4, "--precision", "bf16")
    assert code == 0, err
    data = json.loads(out)
    assert data["format"] == "autopar-trace-1" and data["model"] == {"name": "build", "num_params": 8 * 32 + 32 + 32 * 4 + 4, "precision": "bf16"}
    assert data["splittable"]["num_ranks"] == 4 and data["splittable"]["flops_share"] > 0.99
    assert {"batch", "features"} <= {f["name"] for f in data["factors"]}
    batch = next(f for f in data["factors"] if f["name"] == "batch")
    assert any(sync["source"].startswith("net.py:") or "net.py:" in sync["source"] for sync in batch["syncs"])
    rewritten = {v["storage"] for v in data["versions"] if v["kind"] == "param"}
    assert rewritten == {"up.weight", "up.bias", "down.weight", "down.bias"}


def test_what_is_wrong_is_said_before_anything_slow(call, model, tmp_path):
    for words, said in (
        (("--ranks", 0), "--ranks: expected a positive whole number, found 0"),
        (("--html", tmp_path), "--html: expected a file to write"),
        (("--html", tmp_path / "no" / "t.html"), "--html: the folder"),
        (("--precision", "fp8"), "precision: expected one of"),
    ):
        code, out, err = call("trace", f"{model}:build", *words)
        assert code == 2 and said in err and "tracing" not in err, err
    code, _, err = call("trace", f"{model}:branches")
    assert code == 2 and "TraceError" in err and "net.py:" in err


def test_the_same_from_python(model):
    import torch
    from torch import nn

    import autopar

    found = autopar.opportunities(nn.Linear(8, 4), example_inputs=(torch.randn(16, 8),), loss=lambda y: y.square().sum(), optimizer=torch.optim.SGD)
    assert str(found).startswith("Linear: what the step offers") and "srcdoc" in found._repr_html_()
    assert found.to_json()["format"] == "autopar-trace-1"
    pytest.importorskip("networkx")
    assert found.graph.to_networkx().number_of_nodes() == len(found.graph.nodes) + len(found.graph.inputs) + 1
