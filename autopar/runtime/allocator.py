"""The C allocator of a CPU: memory that a step lets go stays with the process, for the next step asks for the same.

By default glibc gives large blocks back to the system at once, and each of their pages is made anew, zeroed, when it is asked for again: a third of the time of a
step of small matrices. Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD. Where the C library knows nothing of this, nothing happens.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of malloc.h
_NEVER = 2**31 - 1


def keep_pages() -> bool:
    """Keep what is freed; True where the C library obeyed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
