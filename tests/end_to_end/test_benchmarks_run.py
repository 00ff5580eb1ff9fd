"""`benchmarks/step_time.py` and `benchmarks/gpu.py`: they run at tiny sizes, count as they say, and fail where contenders differ. And what benchmarks say of cases and models that are not there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from benchmarks import gpu, kernel_compile, overlap, step_time, zoo_kernels  # noqa: E402
from benchmarks.kernels import Measured, _find_unread, _is_helper, measure_kernels  # noqa: E402
from benchmarks.step_time import Case, Row  # noqa: E402
from benchmarks.weigh import weigh  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "benchmarks" / script), *words], capture_output=True, text=True, cwd=ROOT, timeout=280)


@pytest.mark.gloo
def test_step_time_of_two_ranks(tmp_path):
    words = "--quick --models mlp --ranks 2 --seconds 0.1 --json --profile".split()
    done = run("step_time.py", *words, str(tmp_path / "no-profile.json"), "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    [case] = json.loads(done.stdout)["cases"]
    names = {row["name"] for row in case["rows"]}
    peers = {f"{kind}, {optimizer}" for kind in ("DDP", "FSDP2", "DDP + ZeRO-1") for optimizer in ("AdamW", "fused AdamW")}
    assert names == peers | {"autopar", "autopar dp, zero=0", "autopar dp, zero=3"}
    assert case["rounds"] == 3 and all(row["step_s"] > 0 and row["peak_bytes"] > 2**17 for row in case["rows"])
    assert {p.name for p in (tmp_path / "kept").iterdir()} == {"mlp-2-autopar", "mlp-2-autopar-dp-zero=0", "mlp-2-autopar-dp-zero=3"}


def test_contenders_that_compute_something_else_end_the_run():
    step_time.check_losses({"autopar": {"losses": [2.0, 1.0]}, "DDP": {"losses": [2.0, 1.0001]}, "late": {"missing": "why"}}, "here")
    with pytest.raises(SystemExit, match=r"^here: the contenders do not compute the same \(first losses, tolerance 0.001\):\n  autopar +2.0+ 1.0+\n  DDP +2.0+ 1.01"):
        step_time.check_losses({"autopar": {"losses": [2.0, 1.0]}, "DDP": {"losses": [2.0, 1.01]}}, "here")


def test_a_peer_over_the_limit_is_shown_and_not_counted():
    rows = (
        Row("autopar", "", 1.0, 0.01, 2.0, 90),
        Row("DDP, AdamW", "over the limit", 0.5, 0.01, 1.0, 110),
        Row("FSDP2, AdamW", "", 0.8, 0.01, 1.6, 100),
        Row("autopar dp, zero=3", "no plan fits the limit"),
    )
    case = Case("mlp", 2, {"batch": 4}, 100, 3, rows)
    lines = list(step_time.print_case(case))
    assert lines[0] == "mlp, 2 ranks: batch=4; limit 0 MiB a rank; 3 rounds"
    assert lines[2].split() == ["autopar", "1000.0", "1.0%", "2000.0", "0.00", "1.250", "1.250", "0.900"]
    assert lines[3].endswith("0.625  0.625    1.100  over the limit") and lines[5].split(maxsplit=3)[3] == "no plan fits the limit"
    assert list(step_time.print_aims([case])) == [
        "mlp, 2 ranks: step 1.250 of FSDP2, AdamW's (aim 1; autopar); peak 0.900 of FSDP2's (aim 1; autopar)"
    ]


def test_what_another_thread_gives_back_is_not_held():
    """As gloo's threads do; torch's profiler by itself does not see it."""
    device = torch.device("cpu")

    def build():
        own = torch.ones(2**18)  # 1 MiB

        def step():
            box = [own * 2]
            thread = threading.Thread(target=box.clear)
            thread.start()
            thread.join()
            return torch.zeros(())

        return step

    _, losses, peak = weigh(build, 12, device)
    assert losses == [0.0] * 12 and 2**21 <= peak < 2**21 + 2**12


def test_sizes_that_are_none():
    assert step_time.parse_sizes("layers=2", {"batch": 4, "layers": 1}) == {"batch": 4, "layers": 2}
    with pytest.raises(SystemExit, match=r"^expected sizes such as batch=4, found 'width' in 'width=2'$"):
        step_time.parse_sizes("width=2", {"batch": 4})


def test_gpu_goes_its_way_on_the_cpu():
    done = run("gpu.py", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    for text in ("gpt2-medium: batch=2,", "llama-blocks: ", "autopar", "eager, fused AdamW", "torch.compile, fused AdamW", "/ eager at most 0.75"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("words", "batches"),
    [
        (("--batch", "3"), {"gpt2-medium": 2, "llama-blocks": 3}), ((), {"gpt2-medium": 2, "llama-blocks": None}),
        (("--cuda-graph", "--models", "gpt-small", "llama-blocks"), {"gpt-small": 2, "llama-blocks": None}),
    ],
)  # fmt: skip
def test_a_batch_that_is_asked_for_is_that_of_the_llama(monkeypatch, capsys, words, batches):
    """Otherwise one is found that fills its share of the memory. A CUDA graph is timed where it is asked for."""
    asked, graphs = {}, set()

    def measure_case(name, build, batch, sizes, setting, graph):
        asked[name] = batch
        graphs.add(graph)
        return gpu.Case(name, {**sizes, "batch": batch}, tuple(gpu.Row(who, 1.0, 0.0, 1, 2.0) for who in ("autopar", "eager", "compile")), (), ())

    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    monkeypatch.setattr(gpu, "measure_case", measure_case)
    gpu.main(["--dry-run", "--json", *words])
    assert asked == batches and [case["sizes"]["batch"] for case in json.loads(capsys.readouterr().out)["cases"]] == list(batches.values())
    assert graphs == {"--cuda-graph" in words}


def test_weights_begin_as_bf16_holds_them():
    model = torch.nn.Linear(7, 5)
    before = [p.clone() for p in model.parameters()]
    gpu._round_weights(model)
    assert all(torch.equal(p, old.bfloat16().float()) and not torch.equal(p, old) for p, old in zip(model.parameters(), before))


def test_a_kernel_is_shown_beside_both_copies():
    case = gpu.Case("gpt2-medium", {"batch": 2}, tuple(gpu.Row(who, 1.0, 0.0, 1, 2.0) for who in ("autopar", "eager", "compile")), (Measured("norm", "layer_norm", 2**20, 2e-6, 1.8e-6),), ())
    text = "\n".join(gpu.print_case(case, 2**20 / 1e-6))
    assert "50.0% of copy, 90.0% of one as large" in text
    assert list(gpu.print_aims([case], 2**20 / 1e-6))[-1] == "kernels at 85% of a copy of 1 GiB: 0 of 1; of one of as many bytes: 1"


def test_gpu_without_one():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    assert ended.value.code == 2


def test_the_preset_of_a_gpu():
    assert gpu.find_preset("NVIDIA H100 80GB HBM3") == "H100-80GB"
    assert gpu.find_preset("NVIDIA H100 PCIe") == "H100-PCIe"
    assert gpu.find_preset("NVIDIA A100-SXM4-40GB") == "A100-40GB"
    with pytest.raises(SystemExit, match="no preset, or more than one, for 'Voodoo 2'"):
        gpu.find_preset("Voodoo 2")


def test_kernels_are_found_by_name_and_weighed_by_what_they_move():
    kernels = ModuleType("kernels")

    def layer_norm(x, weight):
        return x * weight

    def update_param(param, grad, lr):
        param.sub_(grad, alpha=lr)

    vars(kernels).update(layer_norm=layer_norm, update_param=update_param, _norm_grid=layer_norm, silu=torch.nn.functional.silu)
    program = {"norm": layer_norm, "kernels": kernels}

    def step():
        program["norm"](torch.ones(2, 8), torch.ones(8) * 2)  # under a name of the program's own
        program["norm"](torch.ones(4, 8), torch.ones(8) * 2)  # the larger one counts
        kernels.update_param(torch.ones(16), torch.ones(16), lr=0.5)

    found, missing = measure_kernels(kernels, program, step, torch.device("cpu"))
    assert {(k.kind, k.name, k.num_bytes) for k in found} == {("norm", "layer_norm", 4 * (32 + 8 + 32)), ("update_param", "update_param", 4 * (16 + 16 + 16))}
    assert missing == ["no kernel with 'cross_entropy' in its name"] and all(k.seconds > 0 for k in found)
    assert kernels.layer_norm is program["norm"] is layer_norm


def test_a_function_that_another_calls_is_no_kernel():
    """What runs where no Triton does stands beside the kernel of its name."""
    names = ["layer_norm", "layer_norm_ops", "update_param", "update_param_adam", "update_param_seen", "update_param_together", "norm_ops", "rms_norm_2"]
    assert [name for name in names if _is_helper(name, names)] == ["layer_norm_ops", "update_param_adam", "update_param_seen", "update_param_together"]
    kernels = ModuleType("kernels")
    exec("def update_param(x):\n    return update_param_ops(x)\n\ndef update_param_ops(x):\n    return x * 2\n", vars(kernels))
    found, missing = measure_kernels(kernels, {"kernels": kernels}, lambda: kernels.update_param(torch.ones(4)), torch.device("cpu"))
    assert [k.name for k in found] == ["update_param"] and missing == ["no kernel with 'norm' in its name", "no kernel with 'cross_entropy' in its name"]


def test_what_a_kernel_does_not_load_is_not_counted_as_read():
    """What it only writes, and places that it knows; without a Triton function all is read."""
    kernels = ModuleType("kernels")

    def update_param(param, param_2, grad, arange):
        param.add_(grad)

    vars(kernels)["update_param"] = update_param
    assert _find_unread(kernels, "update_param") == set()
    tensors = [torch.ones(16), torch.ones(16), torch.ones(16) * 2, torch.arange(16)]

    def measure():
        [found], _ = measure_kernels(kernels, {}, lambda: kernels.update_param(*tensors), torch.device("cpu"))
        return found

    assert measure().num_bytes == 4 * 16 * 3 + 8 * 16 + 4 * 16
    text = "grad = tl.load(grad_ptr + row)\nother = tl.load(param_2_ptr)\ntl.store(param_ptr + row, grad + other)"
    vars(kernels)["update_param_kernel"] = SimpleNamespace(src=text)
    assert _find_unread(kernels, "update_param") == {0, 3}
    found = measure()
    assert found.num_bytes == 4 * 16 * 2 + 4 * 16 and found.copy_s > 0


def test_what_emitted_kernels_do_not_load():
    """Of a GPT in bf16: the update only writes the working copy of a parameter, the loss reads all that its rows are made of but the numbers of their classes."""
    pytest.importorskip("triton")
    from codegen.kernel_cases import CASES, kernels_of
    from codegen.kernel_numbers import functions_of

    kernels = {k.name: k for k in kernels_of(CASES["gpt"](), "bf16")}
    module = ModuleType("kernels")
    vars(module).update(functions_of(list(kernels.values())))

    def unread(name):
        return {kernels[name].graph.inputs[k] for k in _find_unread(module, name)}

    assert unread("update_param_exp_avg_exp_avg_sq_master") == {"param"}
    assert unread("add_layer_norm") == set()
    assert unread("cross_entropy_where_sum") == {"arange"}


def test_a_case_that_is_not_there(capsys):
    with pytest.raises(SystemExit) as ended:
        overlap.main(["medium dp", "large dp", "small"])
    assert ended.value.code == 2
    assert "error: case large dp, small: expected some of medium dp, medium zero=1, " in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", [kernel_compile, zoo_kernels])
@pytest.mark.parametrize("word", ["nowhere.py", "nowhere.py:build"])
def test_a_model_that_is_not_there(benchmark, word, capsys):
    assert benchmark.main([word]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"{Path(benchmark.__file__).name}: nowhere.py: no such file (looked in ") and len(err.splitlines()) == 1


def test_a_model_that_is_not_there_is_no_traceback():
    done = run("kernel_compile.py", "nowhere.py:build")
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
