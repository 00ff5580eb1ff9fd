"""Loading: from what the user names on the command line to a `Workload`.

MODEL is `file.py:factory` (a function that returns a module or a `Workload`), or a Hugging Face `config.json`. In: text. Out: a workload
whose parameters take no memory. Whatever is wrong is a `ModelError` that says where, what was expected and what to do.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from ..errors import AutoparError, ModelError, TraceError
from .build import build_lightly
from .place import exception_frames
from .workload import Workload

_EXAMPLE = (
    "`return autopar.Workload(model=model, example_inputs=(tokens,), example_targets=(targets,), loss=loss_fn, "
    "optimizer=torch.optim.AdamW)`"
)


def load_workload(spec: str, args: dict[str, str] | None = None, batch: int | None = None, seq: int | None = None) -> Workload:
    """Load MODEL.

    Args:
        spec: `file.py:factory` or a path to a `config.json`.
        args: keyword arguments of the factory (or fields of the config) as text; read as Python literals where they are such.
        batch, seq: global batch size and sequence length, instead of the factory's own.

    Raises:
        ModelError: anything about it is wrong.
    """
    for name, value in (("batch", batch), ("seq", seq)):
        if value is not None and value < 1:
            raise ModelError(f"--{name}: expected a positive number, found {value}")
        if value is not None and name in (args or {}):
            raise ModelError(f"--{name} {value} and --arg {name}={args[name]} say the same thing twice; leave one of them out")
    values = {name: _parse_literal(text) for name, text in (args or {}).items()}
    if spec.endswith(".json"):
        return _load_config(Path(spec), values, batch, seq)
    if spec.endswith(".pt2"):
        raise ModelError(f"{spec}: exported .pt2 programs carry no loss and no optimizer and cannot be loaded yet; pass file.py:factory")
    file, colon, factory = spec.rpartition(":")
    if not colon or not file.endswith(".py") or not factory:
        alone = spec.removesuffix(":")
        if alone.endswith(".py"):
            found = ", ".join(_list_factories(_import_file(Path(alone)))) or "none"
            raise ModelError(f"{alone}: which function builds the model? Expected {alone}:FACTORY; functions in the file: {found}")
        raise ModelError(f"{spec!r}: expected file.py:factory or a Hugging Face config.json")
    return _load_factory(Path(file), factory, values, batch, seq)


def _parse_literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# -- file.py:factory -----------------------------------------------------------------------------------------------------------------


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"{path}: no such file (looked in {Path.cwd()})")
    name = f"autopar_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ModelError(f"{path}:{error.lineno}: cannot be read as Python: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{_line_in(path, error)}: importing the file raises {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
    return module


def _line_in(path: Path, error: BaseException) -> str:
    """The innermost line of this file through which the error came."""
    lines = [line for name, line in exception_frames(error) if name and Path(name).name == path.name]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _list_factories(module: ModuleType) -> list[str]:
    return [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__ and not n.startswith("_")]


def _load_factory(path: Path, name: str, values: dict[str, object], batch: int | None, seq: int | None) -> Workload:
    module = _import_file(path)
    where = f"{path}:{name}"
    factory = getattr(module, name, None)
    if factory is None:
        found = ", ".join(_list_factories(module)) or "none"
        raise ModelError(f"{where}: the file has no {name}; functions in it: {found}")
    if not callable(factory):
        raise ModelError(f"{where}: expected a function that builds the model, found {type(factory).__name__}")
    if isinstance(factory, torch.nn.Module):
        raise ModelError(f"{where}: is a module that is already built; expected a function that builds and returns it")
    values = dict(values)
    accepted = inspect.signature(factory).parameters
    left_over = {}
    for key, value in (("batch", batch), ("seq", seq)):
        if value is not None and (key in accepted or _takes_any(factory)):
            values[key] = value
        elif value is not None:
            left_over[key] = value
    try:
        inspect.signature(factory).bind(**values)
    except TypeError as error:
        takes = ", ".join(accepted) or "nothing"
        raise ModelError(f"{where}: {error}. It takes {takes}; given: {', '.join(values) or 'nothing'} (--arg name=value)") from None
    try:
        made, init = _build(lambda: factory(**values))
    except AutoparError as error:
        raise ModelError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{_line_in(path, error)}: {name}() raises {type(error).__name__}: {error}") from error
    if isinstance(made, torch.nn.Module):
        return _complete_module(made, module, where, type(made).__name__, init, batch, seq)
    for key, value in left_over.items():
        raise _no_parameter(where, key, value)
    if not isinstance(made, Workload):
        raise ModelError(f"{where}: expected an autopar.Workload, found {type(made).__name__}. Return one: {_EXAMPLE}")
    return replace(made, init=dict(made.init) or init, name=made.name or name)


def _complete_module(
    model: torch.nn.Module, module: ModuleType, where: str, name: str, init: dict[str, tuple], batch: int | None, seq: int | None
) -> Workload:
    """A bare module becomes a workload: by what the file says beside it, or because it is a Hugging Face language model."""
    said = {key: getattr(module, key) for key in ("example_inputs", "example_targets", "loss", "optimizer") if hasattr(module, key)}
    if "example_inputs" in said:
        if batch is not None or seq is not None:
            raise ModelError(f"{where}: --batch and --seq were given, but the file's example_inputs have their shape already")
        return Workload(model=model, init=init, name=name, **said)
    if said:
        raise ModelError(f"{where}: the file says {', '.join(said)}, but no example_inputs beside it. Add them, or return {_EXAMPLE}")
    config = getattr(model, "config", None)
    if type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")) and hasattr(config, "get_text_config"):
        return _token_workload(model, config, where, batch, seq, init, name)
    for key, value in (("batch", batch), ("seq", seq)):
        if value is not None:
            raise _no_parameter(where, key, value)
    raise ModelError(
        f"{where}: returns a bare module ({type(model).__name__}), so the inputs of a training step are not known. Return a workload: "
        f"{_EXAMPLE}, or set `example_inputs` (and `example_targets`, `loss`, `optimizer`) in the file beside the function"
    )


def _no_parameter(where: str, key: str, value: object) -> ModelError:
    return ModelError(f"{where}: --{key} {value} was given, but the function takes no parameter `{key}`. Add it, with a default.")


def _takes_any(factory: Callable[..., object]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values())


def _build(factory: Callable[[], object]) -> tuple[object, dict[str, tuple]]:
    """Lightly where possible; a factory that fake tensors disturb runs under the meta device, or for real."""
    try:
        return build_lightly(factory)
    except Exception as first:
        try:
            with torch.device("meta"):
                made = factory()
            model = made.model if isinstance(made, Workload) else made
            if not isinstance(model, torch.nn.Module) or not any(b.is_meta for b in model.buffers()):
                return made, {}
        except Exception:
            if not isinstance(first, TraceError):
                raise first from None
    return factory(), {}  # it reads values while it builds, or its buffers need them


# -- Hugging Face --------------------------------------------------------------------------------------------------------------------


def token_cross_entropy(output: object, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of `output.logits [batch, seq, vocab]` against `targets [batch, seq]` (already shifted; -100 is ignored)."""
    logits = output.logits  # type: ignore[attr-defined]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _load_config(path: Path, values: dict[str, object], batch: int | None, seq: int | None) -> Workload:
    if not path.is_file():
        raise ModelError(f"{path}: no such file (looked in {Path.cwd()})")
    try:
        fields = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not a JSON file: {error}") from None
    if isinstance(fields, dict) and str(fields.get("format", "")).startswith("autopar-plan"):
        source = fields.get("model", {}).get("source") or "file.py:FACTORY"
        raise ModelError(f"{path}: is a plan, expected the model that it was made of: {source}")
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise ModelError(f'{path}: expected a Hugging Face model config with a "model_type", found none')
    try:
        import transformers
    except ImportError:
        raise ModelError(f"{path}: Hugging Face configs need transformers: pip install 'autopar[hf]'") from None
    kind = fields["model_type"]
    try:
        config = transformers.AutoConfig.for_model(**fields)
    except Exception as error:
        raise ModelError(f"{path}: transformers {transformers.__version__} cannot read it: {type(error).__name__}: {error}") from error
    for name, value in values.items():
        if not hasattr(config, name):
            raise ModelError(f"{path}: --arg {name}: a {kind} config has no such field")
        setattr(config, name, value)
    config.use_cache = False
    try:
        model, init = _build(lambda: transformers.AutoModelForCausalLM.from_config(config))
    except ValueError as error:
        if "AutoModelForCausalLM" in str(error):
            raise ModelError(
                f"{path}: a {kind} is no causal language model, so its loss is not known. Write a file.py with a factory: {_EXAMPLE}"
            ) from None
        raise ModelError(f"{path}: building the {kind} raises ValueError: {error}") from error
    except Exception as error:
        raise ModelError(f"{path}: building the {kind} raises {type(error).__name__}: {error}") from error
    return _token_workload(model, config, str(path), batch, seq, init, str(fields.get("_name_or_path") or kind))


def _token_workload(
    model: torch.nn.Module, config: object, where: str, batch: int | None, seq: int | None, init: dict[str, tuple], name: str
) -> Workload:
    """A Hugging Face causal language model with random tokens, cross-entropy and AdamW."""
    config.use_cache = False  # type: ignore[attr-defined]
    longest = getattr(config, "max_position_embeddings", None) or 1024
    if seq is not None and seq > longest:
        raise ModelError(f"{where}: --seq {seq}: the config's longest sequence is {longest}")
    shape = (batch or 8, seq or min(1024, longest))
    vocab = config.get_text_config().vocab_size  # type: ignore[attr-defined]
    tokens, targets = (torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    return Workload(model, {"input_ids": tokens}, (targets,), token_cross_entropy, torch.optim.AdamW, init, name)
