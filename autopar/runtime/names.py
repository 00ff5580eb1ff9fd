"""Folded names: `h.{0..11}.w` stands for `h.0.w` ... `h.11.w`, so that a program's length does not depend on the model's depth."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

from .spec import State

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")


def expand_names(*patterns: str) -> list[str]:
    """All names that the patterns stand for, pattern by pattern, numbers ascending, for each number its choices: `h.{0..1}{.w,.b}` -> `h.0.w`, `h.0.b`, `h.1.w`, `h.1.b`."""
    return [name for pattern in patterns for name in _expand(pattern)]


@functools.cache  # the update asks for the same names at each step
def _expand(pattern: str) -> tuple[str, ...]:
    match = _RANGE.search(pattern) or _CHOICE.search(pattern)
    if match is None:
        return (pattern,)
    ways = match.group(1).split(",") if match.re is _CHOICE else range(int(match.group(1)), int(match.group(2)) + 1)
    return tuple(name for way in ways for name in _expand(f"{pattern[: match.start()]}{way}{pattern[match.end() :]}"))


def expand_states(folded: Mapping[str, State]) -> dict[str, State]:
    """The table of states with every folded name written out; an init that copies another state follows the number."""
    states: dict[str, State] = {}
    for pattern, state in folded.items():
        copied = state.init[1] if state.init[:1] == ("copy",) else ""
        sources = expand_names(copied) if copied else []
        for k, name in enumerate(expand_names(pattern)):
            states[name] = dataclasses.replace(state, init=("copy", sources[k])) if copied else state
    return states
