"""The wheels for Python: the module, which includes the command line, built by maturin; a plugin of `llm`.

maturin comes from PyPI, and uses zig as its linker. The module is for Python 3.9 and later.
"""

import pathlib
import sys

from project import DIST, ROOT, run, version
from systems import GLIBC, environment


def package(system):
    """sterna-VERSION-cp39-abi3-PLATFORM.whl in dist/."""
    command = ["maturin", "build", "--release", "--zig", "--manifest-path", ROOT / "python" / "Cargo.toml"]
    if not system.is_windows:
        command += ["--compatibility", f"manylinux_{GLIBC.replace('.', '_')}"]
    env = environment(system)
    # On Windows, maturin makes all libraries export the module's function, which fails for a dependency. It
    # continues if it cannot write that list; python/build.rs exports the module's function.
    list_of_maturin = pathlib.Path(env["CARGO_TARGET_DIR"]) / "maturin" / "sterna._sterna.def"
    list_of_maturin.mkdir(parents=True, exist_ok=True)
    before = set(DIST.iterdir())
    run(*command, "--target", system.target, "--out", DIST, env=env, stdout=None)
    [wheel] = set(DIST.iterdir()) - before
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
    return wheel


def plugin():
    """llm_sterna-VERSION-py3-none-any.whl in dist/: the plugin of `llm`."""
    before = set(DIST.iterdir())
    folder = ROOT / "python" / "llm-sterna"
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", DIST, folder)
    [wheel] = set(DIST.iterdir()) - before
    if f"-{version()}-" not in wheel.name:
        sys.exit(f"release: python/llm-sterna has another version than Cargo.toml: {wheel.name}")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
    return wheel
