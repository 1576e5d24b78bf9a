"""glibc's heaps: few of them, and what they gave once is used again.

Each thread that allocates has a heap of its own, up to eight a core, and none gives back what lies
under something alive. With 16 requests at once `packer pack` of 750 MiB of 64 KiB objects grew to
390 MiB; with two heaps to 176, in the same time. And what is larger than 128 KiB comes from the
kernel anew each time, page by page and zeroed: that was 450 of the 500 µs that LMDB takes to be
handed an extent of 1 MiB.
"""

import ctypes

# From malloc.h: the choices, and what is chosen.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_CHOICES = (
    (_M_ARENA_MAX, 2),
    # Extents and small objects are reused; parts of uploads go back to the kernel.
    (_M_MMAP_THRESHOLD, 4 * 1024**2),
    (_M_TRIM_THRESHOLD, 64 * 1024**2),
)


def tune() -> bool:
    """Chooses for all threads of this process; False where its C library has no such choice."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return all(bool(mallopt(choice, value)) for choice, value in _CHOICES)
