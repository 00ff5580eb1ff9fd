"""Where what was measured or found out on this machine is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`autopar` in the user's cache directory: `$XDG_CACHE_HOME` where that is a whole path, else `~/.cache` (XDG Base Directory Specification)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "autopar"
