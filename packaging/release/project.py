"""Facts that every part of a release asks for: folders, version, time, features."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
# Tools and the folder of an older Debian: what is fetched once.
TOOLS = ROOT / ".release"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
# Features of the program beside the usual ones.
FEATURES = "grpc,tls"


def run(*command, **options):
    """What a command writes to stdout. One that fails ends the release."""
    options = {"stdout": subprocess.PIPE, "cwd": ROOT, "text": True} | options
    return subprocess.run(command, check=True, **options).stdout


def version():
    found = re.search(r'^\[workspace\.package\]\nversion = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    return found[1]


def epoch():
    """Seconds since 1970 that everything in dist/ carries: SOURCE_DATE_EPOCH, or the time of the commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))


def filled(template, values):
    """A text in which `@NAME@` stands for a value."""
    return re.sub(r"@([A-Z0-9_]+)@", lambda found: str(values[found[1]]), template)


def put(name, data):
    """Writes a file of dist/, and says so."""
    (DIST / name).write_bytes(data)
    print(f"{name}: {len(data):,} bytes", flush=True)
    return DIST / name
