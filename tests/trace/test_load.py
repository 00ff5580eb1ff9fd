"""MODEL on the command line: `file.py:factory` and Hugging Face configs, built without memory, values kept."""

from __future__ import annotations

import json

import pytest
import torch

from autopar.errors import ModelError
from autopar.trace import load_workload, trace_step

pytestmark = pytest.mark.torch

FILE = '''
import torch
from torch import nn
from autopar.trace import Workload

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(50, width, padding_idx=0)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2, 16, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 50, bias=False)
        self.register_buffer("angles", 10.0 ** -torch.arange(width))
        self.scale = torch.tensor([2.0])
        nn.init.trunc_normal_(self.head.weight, std=0.02)
    def forward(self, ids):
        return self.head(self.body(self.embed(ids) + self.angles * self.scale))

def make(batch=4, seq=6, width=8):
    ids = torch.full((batch, seq), 3)
    loss = lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten())
    return Workload(model=Model(width), example_inputs=(ids,), example_targets=(ids,), loss=loss, optimizer=torch.optim.AdamW)

def bare(): return nn.Linear(2, 2)
def three(): return 3
def fails():
    raise ValueError("no such data")
built = nn.Linear(2, 2)
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(FILE)
    return path


def test_factory_takes_no_memory_and_keeps_values(file):
    workload = load_workload(f"{file}:make", {"width": "16"}, batch=2, seq=5)
    model = workload.model
    assert model.head.weight.is_meta and model.body.layers[1].linear1.weight.is_meta
    assert torch.allclose(model.angles, 10.0 ** -torch.arange(16)) and model.scale.tolist() == [2.0]
    assert workload.example_inputs[0].tolist() == [[3] * 5] * 2
    assert [op for op, _ in workload.init["head.weight"]] == ["uniform_", "erfinv_", "mul_", "add_", "clamp_"]
    assert workload.init["body.layers.0.norm1.weight"] == (("fill_", (1.0,)),)
    assert "embed.weight" not in workload.init and not model.embed.weight.is_meta  # a row was zeroed: made for real
    assert float(model.embed.weight[0].detach().abs().max()) == 0.0
    assert trace_step(workload).graph.loss


@pytest.mark.parametrize(
    "spec, args, options, text",
    [
        ("{file}:bare", {}, {}, "returns a bare module (Linear), so the inputs of a training step are not known. Return a workload"),
        ("{file}:three", {}, {}, "expected an autopar.Workload, found int"),
        ("{file}:fails", {}, {}, ": fails() raises ValueError: no such data"),
        ("{file}:built", {}, {}, "is a module that is already built"),
        ("{file}:missing", {}, {}, "the file has no missing; functions in it: make, bare, three, fails"),
        ("{file}", {}, {}, "which function builds the model?"),
        ("{file}:", {}, {}, "{file}: which function builds the model? Expected {file}:FACTORY; functions in the file: make, bare"),
        ("{file}:make", {"widht": "3"}, {}, "got an unexpected keyword argument 'widht'. It takes batch, seq, width; given: widht"),
        ("{file}:bare", {}, {"batch": 3}, "--batch 3 was given, but the function takes no parameter `batch`"),
        ("{file}:make", {"batch": "2"}, {"batch": 3}, "--batch 3 and --arg batch=2 say the same thing twice; leave one of them out"),
        ("{file}:make", {}, {"seq": 0}, "--seq: expected a positive number, found 0"),
        ("{file}x.py:make", {}, {}, "no such file"),
        ("gpt2", {}, {}, "'gpt2': expected file.py:factory or a Hugging Face config.json"),
        ("{file}.json", {}, {}, "no such file"),
    ],
)
def test_bad_specs(file, spec, args, options, text):
    with pytest.raises(ModelError) as caught:
        load_workload(spec.format(file=file), args, **options)
    assert text.replace("{file}", str(file)) in str(caught.value)


def test_files_that_do_not_import_name_the_line(tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "raising.py").write_text("x = 1\nimport no_such_module_at_all\n")
    with pytest.raises(ModelError, match=r"broken.py:2: cannot be read as Python"):
        load_workload(f"{tmp_path}/broken.py:f")
    with pytest.raises(ModelError, match=r"raising.py:2: importing the file raises ModuleNotFoundError"):
        load_workload(f"{tmp_path}/raising.py:f")


def test_hugging_face_config(tmp_path):
    path = tmp_path / "config.json"
    fields = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 53, "max_position_embeddings": 16}  # fmt: skip
    path.write_text(json.dumps(fields))
    workload = load_workload(str(path), {"num_hidden_layers": "1"}, batch=2)
    assert workload.example_inputs["input_ids"].shape == (2, 16) and len(workload.model.model.layers) == 1
    assert all(p.is_meta for p in workload.model.parameters()) and not workload.model.model.rotary_emb.inv_freq.is_meta
    assert trace_step(workload).graph.loss
    plan = '{"format": "autopar-plan-1", "model": {"source": "m.py:f"}}'
    wrong = {
        "{]": "not a JSON file",
        "{}": "expected a Hugging Face model config",
        plan: "is a plan, expected the model that it was made of: m.py:f",
        '{"model_type": "vit"}': "is no causal language model",
    }
    for text, expected in wrong.items():
        path.write_text(text)
        with pytest.raises(ModelError, match=expected):
            load_workload(str(path))
    path.write_text(json.dumps(fields))
    with pytest.raises(ModelError, match="--arg depth: a llama config has no such field"):
        load_workload(str(path), {"depth": "3"})
    with pytest.raises(ModelError, match="--seq 99: the config's longest sequence is 16"):
        load_workload(str(path), seq=99)


def test_bare_modules_that_say_enough(tmp_path):
    """A Hugging Face language model needs no more; any other module may have its inputs beside it in the file."""
    file = tmp_path / "bare_models.py"
    file.write_text(
        "import torch, transformers\n"
        "from torch.nn import functional as F\n"
        "def llama():\n"
        "    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=1, hidden_size=16, intermediate_size=24,\n"
        "        num_attention_heads=4, num_key_value_heads=2, vocab_size=53, max_position_embeddings=16))\n"
    )
    made = load_workload(f"{file}:llama", batch=2, seq=8)
    assert made.example_inputs["input_ids"].shape == (2, 8) and made.optimizer is torch.optim.AdamW and made.name == "LlamaForCausalLM"
    beside = tmp_path / "beside.py"
    beside.write_text(
        "import torch\nexample_inputs = (torch.zeros(8, 6),)\nexample_targets = (torch.zeros(8, 2),)\nloss = torch.nn.functional.mse_loss\n"
        "def build():\n    return torch.nn.Linear(6, 2)\n"
    )
    made = load_workload(f"{beside}:build")
    assert made.example_inputs[0].shape == (8, 6) and made.loss is torch.nn.functional.mse_loss
