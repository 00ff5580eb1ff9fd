"""Every error that autopar raises on purpose. Each message says where, what, expected and found, and what to do.

The command line turns them into exit codes: `InfeasibleError` and `VerificationError` are 1, all others 2.
"""


class AutoparError(Exception):
    """Something the user can act on; its text is the whole story, no traceback is needed to understand it."""


class ClusterError(AutoparError):
    """The cluster text or TOML file is wrong."""


class OptionsError(AutoparError):
    """An option has a value that cannot be used."""


class ConstraintError(AutoparError):
    """A constraint cannot be read, contradicts another, or cannot be obeyed: says which, and why."""


class ModelError(AutoparError):
    """The model file, factory or config does not give something that can be compiled."""


class InputError(AutoparError):
    """Example or step inputs do not fit what the model or the plan expects."""


class TraceError(AutoparError):
    """The step cannot be captured as a graph: names the user's line and the usual cure."""


class MicrobatchError(AutoparError):
    """The model cannot take its batch in so many turns; says where it needs the whole batch."""


class NoRuleError(AutoparError):
    """An op has no sharding rule: names the op, the node, the module and the line."""


class RuleError(AutoparError):
    """A rule that was stated is malformed, or is not what the op computes: names the factor and shows numbers."""


class GraphError(AutoparError):
    """A graph breaks the law of its level (`check_graph`)."""


class ProgramError(AutoparError):
    """A program breaks the law of its level (`check_program`)."""


class ScheduleError(AutoparError):
    """A pipeline schedule cannot be built, or cannot run: shows the grid with the place."""


class PlanError(AutoparError):
    """A plan is malformed, or belongs to another format version, model or cluster."""


class RunError(AutoparError):
    """A recorded run cannot be written, is malformed, or has nothing to compare with."""


class InfeasibleError(AutoparError):
    """No plan fits the memory: says how many bytes are missing, who holds them and the nearest change that fits."""


class VerificationError(AutoparError):
    """The distributed numbers differ from plain PyTorch."""


class CheckpointError(AutoparError):
    """A directory is not a checkpoint of this model."""


class RankError(AutoparError):
    """A process group does not match the plan, or another rank is gone."""
