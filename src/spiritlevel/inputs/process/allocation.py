"""Letting the C library keep memory that one batch has freed for the next."""

from __future__ import annotations

import functools

import torch

# glibc gives a freed block back to the system at once unless it has seen one as large freed before, up to 32 MiB.  Each
# batch then pays for its memory anew, page by page: about a tenth of a sweep.
_LARGEST_KEPT = 32 * 2**20 - 2**16


@functools.cache
def keep_freed_memory() -> None:
    """Free one block of the largest size that is kept; it is never touched, so it costs nothing."""
    torch.empty(_LARGEST_KEPT, dtype=torch.uint8)
