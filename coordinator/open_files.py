"""How many files and connections this process may have open: a Mac gives 256 unless asked. Called by `cli_serve`."""

import contextlib
import resource
from typing import Final

WANTED: Final = 10240
"""macOS refuses more, whatever its hard limit says (OPEN_MAX)."""


def allow_many() -> None:
    """Raise the soft limit as far as the hard one lets, up to WANTED; a higher one stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
