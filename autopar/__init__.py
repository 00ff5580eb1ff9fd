"""autopar: a compiler that decides how a PyTorch training step is split over a cluster, and proves how good the answer is.

    step = autopar.compile(model, "4x8xH100", example_inputs=(tokens,), loss=loss_fn, optimizer=torch.optim.AdamW)

Names are imported when they are first used, so that `import autopar` costs nothing.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "api": ("compile", "opportunities", "plan", "compile_workload", "plan_workload", "launch", "Compiled"),
    "alternatives": ("explain", "Explained"),
    "trace": ("Workload",),
    "trace.discovery.region": ("region",),
    "trace.discovery.register": ("register_rule",),
    "trace.load": ("load_workload",),
    "options": ("Options",),
    "constraints": ("Constraints", "ModuleForbid", "ModuleStage", "Pin", "StageDegrees", "constrain", "load_constraints", "parse_fix"),
    "cluster": ("Cluster", "parse_cluster"),
    "graph.plan": ("Plan",),
    "view.shown": ("load_plan", "ShownOpportunities", "ShownPlan"),
    "runtime": ("Executable",),
    "verify": ("verify_workload", "VerifyReport"),
    "view.html": ("save_html",),
    "view.terminal": ("plan_text",),
    "errors": (
        "AutoparError", "CheckpointError", "ClusterError", "ConstraintError", "GraphError", "InfeasibleError", "InputError", "ModelError", "NoRuleError",
        "OptionsError", "PlanError", "ProgramError", "RankError", "RuleError", "TraceError", "VerificationError",
    ),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *sorted(_WHERE)]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
