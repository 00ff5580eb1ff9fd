"""Which stage units of the forward pass must be on, and which cuts obey.

In: a graph, what the user said of the stages of modules. Out: per unit its stage, and for a stage the segments of units that it may run. A module is
where its forward pass is: backward and update follow (`graph.stages`). Cuts lie between units, so all of a unit is where any part of it must be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..constraints import Constraints, ModuleStage, names_module
from ..errors import ConstraintError
from ..graph.graph import Graph
from ..graph.stages import list_units
from .stage_cuts import some_units

ANY = -1  # of a unit that may be on any stage


def unit_homes(graph: Graph, constraints: Constraints) -> tuple[int, ...]:
    """Per unit the stage that it must be on, or `ANY`; () where nothing is said of any.

    Raises:
        ConstraintError: a module has no op that is on one stage alone, or one unit must be on two stages.
    """
    if not constraints.module_stages:
        return ()
    units = [{graph.nodes[i].path for i in unit} for unit in list_units(graph)]
    said: list[ModuleStage | None] = [None] * len(units)
    for row in constraints.module_stages:
        mine = [k for k, paths in enumerate(units) if any(names_module(row.path, path) for path in paths)]
        if not mine:
            raise ConstraintError(
                f"{_print(row)}: its forward pass has no op that is on one stage alone: what depends on the batch inputs alone, or is prepared "
                "before the microbatches, runs on every stage that reads it; leave it out, or name the module that reads it"
            )
        for k in mine:
            other = said[k]
            if other is not None and other.stage != row.stage:
                raise ConstraintError(
                    f"{_print(row)} and {_print(other)}: both are about {_print_unit(units[k])}, which is not cut; give both the same stage, or leave one out"
                )
            said[k] = row
    return tuple(ANY if row is None else row.stage for row in said)


def segment_fits(homes: Sequence[int], stage: int) -> np.ndarray:
    """True at [a, b] where a stage may run the units from `a` to before `b`."""
    strange = np.concatenate([[0], np.cumsum([home not in (ANY, stage) for home in homes])])
    return some_units(len(homes)) & (strange[None, :] == strange[:, None])


def count_cuts(num_units: int, ranks: Sequence[int], homes: Sequence[int] = ()) -> int:
    """How many cuts into chunks obey.

    Args:
        ranks: the stage of each chunk.
        homes: of the units; (): any.
    """
    tables = [segment_fits(homes or (ANY,) * num_units, rank).astype(object) for rank in ranks]  # Python's numbers do not overflow
    ways = tables[0][0]
    for table in tables[1:]:
        ways = ways @ table
    return int(ways[num_units])


def obey_homes(cuts: Sequence[int], ranks: Sequence[int], homes: Sequence[int]) -> bool:
    """True where cuts put every unit on its stage."""
    ends = zip((0, *cuts), (*cuts, len(homes)), ranks)
    return all(home in (ANY, rank) for first, last, rank in ends for home in homes[first:last])


def why_no_cuts(graph: Graph, constraints: Constraints, ranks: Sequence[int]) -> str:
    """Why no cuts obey."""
    names = [_print_unit({graph.nodes[i].path for i in unit}) for unit in list_units(graph)]
    return (
        f"{', '.join(map(_print, constraints.module_stages))}: expected stages in the order in which the model runs ({', '.join(names)}), cut into a part for "
        f"each of the stages {', '.join(map(str, ranks))} in this order, found no such cuts; give other stages, or more chunks (vpp)"
    )


def _print(row: ModuleStage) -> str:
    return f"module {row.path} stage {row.stage}"


def _print_unit(paths: set[str]) -> str:
    """What all its ops have in common of their paths."""
    parts = [path.split(".") for path in sorted(paths)]
    common = [column[0] for column in zip(*parts) if len(set(column)) == 1]
    return ".".join(common) or " and ".join(sorted({path[0] for path in parts}))
