"""Common facts of a release: folders, version, time, features."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
# Downloaded tools, and the folder of an older Debian.
TOOLS = ROOT / ".release"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
# Features of the program in addition to the default ones.
FEATURES = "grpc,tls"


def run(*command, **options):
    """Output of a command. If it fails, the release ends."""
    options = {"stdout": subprocess.PIPE, "cwd": ROOT, "text": True} | options
    return subprocess.run(command, check=True, **options).stdout


def version():
    found = re.search(r'^\[workspace\.package\]\nversion = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    return found[1]


def epoch():
    """Timestamp of all files in dist/, seconds since 1970: SOURCE_DATE_EPOCH, or the time of the commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))


def filled(template, values):
    """A text in which `@NAME@` is replaced by a value."""
    return re.sub(r"@([A-Z0-9_]+)@", lambda found: str(values[found[1]]), template)


def put(name, data):
    """Writes a file to dist/, and prints its size."""
    (DIST / name).write_bytes(data)
    print(f"{name}: {len(data):,} bytes", flush=True)
    return DIST / name
