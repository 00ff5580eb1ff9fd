"""Folded names: `h.{0..11}.w` stands for `h.0.w` ... `h.11.w`, so that a program's length does not depend on the model's depth."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from .spec import State

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def expand_names(*patterns: str) -> list[str]:
    """All names that the patterns stand for, pattern by pattern, numbers ascending."""
    names = []
    for pattern in patterns:
        match = _RANGE.search(pattern)
        if match is None:
            names.append(pattern)
        else:
            low, high = int(match.group(1)), int(match.group(2))
            names += [f"{pattern[: match.start()]}{n}{pattern[match.end() :]}" for n in range(low, high + 1)]
    return names


def expand_states(folded: Mapping[str, State]) -> dict[str, State]:
    """The table of states with every folded name written out; an init that copies another state follows the number."""
    states: dict[str, State] = {}
    for pattern, state in folded.items():
        copied = state.init[1] if state.init[:1] == ("copy",) else ""
        sources = expand_names(copied) if copied else []
        for k, name in enumerate(expand_names(pattern)):
            states[name] = dataclasses.replace(state, init=("copy", sources[k])) if copied else state
    return states
