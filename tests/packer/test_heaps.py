"""The choice of heaps is one that this C library knows."""

import platform
import subprocess
import sys

import pytest


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_glibc_takes_the_choice() -> None:
    asked = "from packer.heaps import tune; print(tune())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
