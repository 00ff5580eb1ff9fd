"""The zoo's small tier: a model of each family through the whole compiler against plain PyTorch; all others traced, with a rule for every op.

A model whose library is not installed is skipped with the library's name. `autopar zoo` (`make zoo`) runs everything.
"""

import pytest

pytest.importorskip("torch")

from autopar.zoo import FOLDER, ZooOptions, list_models, run_zoo, try_model  # noqa: E402

# libraries warn of what they will change; that is not autopar's doing
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

VERIFIED = (
    "huggingface.py:gpt2_eager", "huggingface.py:llama_mha_tied", "huggingface.py:mixtral", "huggingface.py:distilbert", "diffusion.py:dit",
    "vision.py:resnet", "vision.py:vit", "medical.py:dynunet",
)  # fmt: skip
FILES = ("huggingface.py", "diffusion.py", "vision.py", "medical.py")
MODELS = tuple(m.removeprefix(f"{FOLDER}/") for m in list_models([str(FOLDER / f) for f in FILES]))


def tried(model, **options):
    row = try_model(str(FOLDER / model), ZooOptions(plan_for=(), time_limit_s=1.0, **options))
    if row.skipped:
        pytest.skip(f"{row.skipped} is not installed")
    assert not row.problems, "\n".join(f"{p.stage}: {p.message}" for p in row.problems)
    return row


@pytest.mark.parametrize("model", VERIFIED)
def test_verified(model):
    """Planned for cpu:4, run on 4 ranks in float64, equal to plain PyTorch."""
    assert tried(model).verified is True


@pytest.mark.parametrize("model", [m for m in MODELS if m not in VERIFIED])
def test_traced_with_rules(model):
    row = tried(model, verify=False)
    assert row.num_nodes > 0
    assert not set(row.without_rows) - set(row.discovered)
    assert row.flops_share > 0.9, row.kept


def test_every_verified_model_is_in_the_zoo():
    assert set(VERIFIED) <= set(MODELS)
    assert len(MODELS) >= 40


MANY = """
import os, time
import torch
import autopar

def step(model): return autopar.Workload(model, (torch.randn(8, 8),), (torch.randn(8, 8),), torch.nn.functional.mse_loss, torch.optim.SGD)
def fine(): return step(torch.nn.Linear(8, 8, bias=False))
def not_there():
    import some_library.layers
def falls(): os._exit(7)
def raises(): raise ValueError("no weights")
def needs(width): return step(torch.nn.Linear(width, 8))
def _hidden(): return fine()
class Branch(torch.nn.Linear):
    def forward(self, x): return super().forward(x) if x.sum() > 0 else x
def branches(): return step(Branch(8, 8))
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A file of models of which most go wrong, and the row of each."""
    path = tmp_path_factory.mktemp("zoo") / "many.py"
    path.write_text(MANY)
    options = ZooOptions(plan_for=("cpu:2",), cluster="cpu:2")
    return {row.model.rpartition(":")[2]: row for row in run_zoo(list_models([str(path)]), options, jobs=2)}


def test_every_model_has_its_row(many):
    assert set(many) == {"fine", "not_there", "falls", "raises", "branches"}  # `step` and `needs` take arguments


def test_a_good_model_passes_every_stage(many):
    row = many["fine"]
    assert row.problems == () and row.verified is True and row.num_nodes > 0 and row.without_rows == ()
    (plan,) = row.plans
    assert plan.cluster == "cpu:2" and plan.step_s > 0 and plan.gap <= 0.01 and row.flops_share > 0.99


def test_a_missing_library_is_named(many):
    assert many["not_there"].skipped == "some_library" and many["not_there"].problems == ()


@pytest.mark.parametrize(
    "name, stage, text", [("falls", "process", "ended with exit code 7"), ("raises", "load", "no weights"), ("branches", "trace", "many.py:")]
)
def test_what_goes_wrong_is_told_with_its_stage(many, name, stage, text):
    assert [p.stage for p in many[name].problems] == [stage]
    assert text in many[name].problems[0].message


def test_a_model_that_hangs_is_ended(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text("import time\ndef slow(): time.sleep(600)\n")
    (row,) = run_zoo(list_models([str(path)]), ZooOptions(model_limit_s=0.5))
    assert row.problems[0].message.startswith("took longer than 0.5 s")
