"""The systems for which programs are built, and the build: cargo with zig as its C compiler and linker.

zig comes from PyPI. Programs for Linux are linked against an old glibc, and paths of this machine are
replaced, so that builds in other folders give the same bytes.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

from project import FEATURES, ROOT, TARGET, TOOLS, epoch, run
from sass import tool

WANTED = ["cargo-zigbuild==0.24.1", "maturin==1.16.0", "ziglang==0.17.1"]
# Debian 10, Ubuntu 18.10, RHEL 8 and all later ones have it.
GLIBC = "2.28"
SHELLS = {"bash": "sterna.bash", "zsh": "_sterna", "fish": "sterna.fish", "powershell": "_sterna.ps1"}


@dataclasses.dataclass
class System:
    name: str
    target: str
    # True if the program contains CUDA kernels.
    has_kernels: bool
    # Debian's name of the architecture; None for other systems.
    debian: str | None

    @property
    def is_windows(self):
        return "windows" in self.target

    @property
    def program(self):
        return "sterna.exe" if self.is_windows else "sterna"


# The first is this machine's.
SYSTEMS = [
    System("x86_64-linux", "x86_64-unknown-linux-gnu", True, "amd64"),
    System("aarch64-linux", "aarch64-unknown-linux-gnu", False, "arm64"),
    System("x86_64-windows", "x86_64-pc-windows-gnu", True, None),
]


def tools():
    """The folder of zig's programs."""
    venv, wanted = TOOLS / "zig", "\n".join(WANTED)
    if not (venv / "wanted").exists() or (venv / "wanted").read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", venv)
        run(venv / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *WANTED)
        (venv / "wanted").write_text(wanted)
    return venv / "bin"


def environment(system):
    """Variables of a system's build, which has its own target folder: its flags would rebuild others."""
    target_dir = TARGET / "release-build"
    cargo_home = os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo")
    env = dict(os.environ, CARGO_TARGET_DIR=str(target_dir), SOURCE_DATE_EPOCH=str(epoch()))
    env["PATH"] = f"{tools()}:{env['PATH']}"
    # Later ones take precedence.
    remapped = [(cargo_home, "cargo"), (ROOT, "sterna"), (target_dir, "target")]
    flags = [f"--remap-path-prefix={path}={name}" for path, name in remapped]
    env["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join(flags)
    if not system.has_kernels:
        env["STERNA_CUDA_ARCHS"] = "none"
    elif env.get("STERNA_CUDA_ARCHS") != "none" and not tool("nvcc"):
        sys.exit("release: no nvcc: scripts/setup-cuda installs it; or set STERNA_CUDA_ARCHS=none")
    # GPU code is the same for all systems: build.rs finds it in the folder of the first one.
    kernels, kept = (target_dir / of.target / "cuda-kernels" for of in [system, SYSTEMS[0]])
    if system.has_kernels and system != SYSTEMS[0] and not kernels.exists():
        kept.mkdir(parents=True, exist_ok=True)
        kernels.parent.mkdir(exist_ok=True)
        kernels.symlink_to(kept)
    run("rustup", "target", "add", system.target, stderr=subprocess.DEVNULL)
    return env


def build(system):
    """Builds the program for a system, and returns its file."""
    env = environment(system)
    target = system.target if system.is_windows else f"{system.target}.{GLIBC}"
    command = ["cargo", "zigbuild", "--release", "--locked", "--bin", "sterna", "--features", FEATURES]
    run(*command, "--target", target, env=env, stdout=None)
    program = pathlib.Path(env["CARGO_TARGET_DIR"]) / system.target / "release" / system.program
    if not system.is_windows:
        check_glibc(program.read_bytes())
    return program


def check_glibc(program):
    """Ends the release if a program requires symbols of a newer glibc."""
    versions = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", program)}
    if not versions:
        sys.exit("release: a program without glibc versions")
    if max(versions) > tuple(map(int, GLIBC.split("."))):
        sys.exit(f"release: the program requires glibc {max(versions)}, want at most {GLIBC}")


def pages_of(program):
    """The manual page and the completions, the same on all systems, written by this machine's program."""
    pages = {"man/sterna.1": run(program, "man")}
    for shell, name in SHELLS.items():
        pages[f"completions/{name}"] = run(program, "completions", shell)
    return {name: text.encode() for name, text in pages.items()}
