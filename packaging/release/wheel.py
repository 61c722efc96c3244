"""The wheel for Python, by maturin: the module, which has the command line in it.

maturin comes from PyPI, and has zig for its linker as the programs do. The module is for Python 3.9 and all
later ones.
"""

import pathlib

from project import DIST, ROOT, run
from systems import GLIBC, environment


def package(system):
    """sterna-VERSION-cp39-abi3-PLATFORM.whl in dist/."""
    command = ["maturin", "build", "--release", "--zig", "--manifest-path", ROOT / "python" / "Cargo.toml"]
    if not system.is_windows:
        command += ["--compatibility", f"manylinux_{GLIBC.replace('.', '_')}"]
    env = environment(system)
    # maturin has all libraries of a build for Windows export the module's function, and one of a dependency
    # fails to; it goes on where it cannot write that list. python/build.rs has the module's.
    list_of_maturin = pathlib.Path(env["CARGO_TARGET_DIR"]) / "maturin" / "sterna._sterna.def"
    list_of_maturin.mkdir(parents=True, exist_ok=True)
    before = set(DIST.iterdir())
    run(*command, "--target", system.target, "--out", DIST, env=env, stdout=None)
    [wheel] = set(DIST.iterdir()) - before
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
    return wheel
