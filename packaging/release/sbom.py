"""The SBOM of a program, a CycloneDX file: the crates in it, and those used to build it ("excluded").

cargo-cyclonedx comes from crates.io.
"""

import io
import os
import pathlib
import tarfile
import tempfile

from project import FEATURES, TOOLS, epoch, run

VERSION = "0.5.9"


def tools():
    """The folder of cargo-cyclonedx."""
    install = ["cargo", "install", "--quiet", "--locked", "--root", TOOLS / "cargo"]
    run(*install, "--version", VERSION, "cargo-cyclonedx")
    return TOOLS / "cargo" / "bin"


def of(system):
    """The SBOM of the commit's program for a system, as bytes."""
    env = dict(os.environ, PATH=f"{tools()}:{os.environ['PATH']}", SOURCE_DATE_EPOCH=str(epoch()))
    command = ["cargo", "cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"]
    command += ["--describe", "binaries", "--features", FEATURES, "--target", system.target]
    with tempfile.TemporaryDirectory() as folder:
        # It writes a file next to every Cargo.toml.
        tar = io.BytesIO(run("git", "archive", "--format=tar", "HEAD", text=False))
        with tarfile.open(fileobj=tar) as files:
            files.extractall(folder, filter="data")
        run(*command, cwd=folder, env=env)
        made = (pathlib.Path(folder) / "sterna_bin.cdx.json").read_bytes()
        return made.replace(f"file://{folder}".encode(), b"file:///sterna")
