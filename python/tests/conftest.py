"""Fixtures of all tests."""

import os
import subprocess
import sys

import pytest

import sterna


def starts_processes():
    """True if this Python can start processes. Under an emulator of another CPU it cannot."""
    try:
        return subprocess.run([sys.executable, "-c", ""]).returncode == 0
    except OSError:
        return False


processes = pytest.mark.skipif(not starts_processes(), reason="an emulator that cannot start processes")
posix = pytest.mark.skipif(os.name != "posix", reason="signals and /proc need POSIX")


@pytest.fixture(scope="session")
def engine():
    with sterna.Engine(backend="cpu", parallel=8) as engine:
        yield engine
