"""The wheel for Python on Linux, by maturin: the module, which has the command line in it.

maturin comes from PyPI, and has zig for its linker as the programs do. The module is for Python 3.9 and all
later ones.
"""

from project import DIST, ROOT, run
from systems import GLIBC, environment


def package(system):
    """sterna-VERSION-cp39-abi3-manylinux_*.whl in dist/."""
    command = ["maturin", "build", "--release", "--zig", "--manifest-path", ROOT / "python" / "Cargo.toml"]
    command += ["--compatibility", f"manylinux_{GLIBC.replace('.', '_')}"]
    before = set(DIST.iterdir())
    run(*command, "--target", system.target, "--out", DIST, env=environment(system), stdout=None)
    [wheel] = set(DIST.iterdir()) - before
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
    return wheel
