"""An older Debian in a folder, made by debootstrap, in which the files of dist/ are installed and removed.

It has the oldest glibc and the oldest Python available from Debian's mirrors.
"""

import os
import shutil
import sys

from project import ROOT, TOOLS
from trials import RUN, check_version, compare, not_run, quiet, unpack, verify_unit

RELEASE, MIRROR = "bullseye", "http://deb.debian.org/debian"
# The mirror speaks plain HTTP, so nothing is installed unless Debian's signature can be checked.
SIGNED = ("--force-check-gpg", "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg")
# Packages that minbase lacks: for the manual page, and Python 3.9.
INCLUDED = "man-db,python3-venv"
# Not compared: files that dpkg and man-db write for every package.
KEPT_BY_DEBIAN = ("var/lib/dpkg", "var/cache", "var/log", "proc", "sys", "dev")


def folder_of(packages, *options):
    """Folder of a Debian with some packages."""
    return TOOLS / "-".join([RELEASE, *packages.split(","), *options])


HOME = folder_of(INCLUDED)
# Folder for the files under test.
SCRATCH = HOME / "srv"


def made(name, packages, *options):
    """The folder of a Debian with some packages. Prints the requirements if it cannot be made."""
    if not shutil.which("debootstrap") or os.geteuid() != 0:
        return not_run(f"{RELEASE}: {name}", "root and Debian's debootstrap")
    home = folder_of(packages, *options)
    if not (home / "made").exists():
        shutil.rmtree(home, ignore_errors=True)
        options = [*SIGNED, *options, "--variant=minbase", f"--include={packages}"]
        quiet("debootstrap", *options, RELEASE, home, MIRROR)
        (home / "made").touch()
    return home


def is_there(name):
    """True if the folder exists now."""
    if not made(name, INCLUDED):
        return False
    # An earlier run may have been interrupted.
    inside("dpkg", "--purge", "sterna")
    empty()
    return True


def inside(*command):
    """Output of a command that is run there."""
    env = {"HOME": "/srv", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    return quiet("chroot", HOME, *command, env=env)


def empty():
    shutil.rmtree(SCRATCH)
    SCRATCH.mkdir()


def files():
    found = {str(path.relative_to(HOME)) for path in HOME.rglob("*")}
    return {path for path in found if not path.startswith(KEPT_BY_DEBIAN)}


def archive(path, story):
    """Runs the program of an archive."""
    if is_there(path.name):
        unpack(path, SCRATCH)
        name = path.name.removesuffix(".tar.gz")
        compare(f"{RELEASE}: {path.name}", inside(f"/srv/{name}/sterna", *RUN), story)
        empty()


def deb(path, story):
    """Installs a package, runs its program, and removes it."""
    if not is_there(path.name):
        return
    name, before = f"{RELEASE}: {path.name}", files()
    shutil.copy(path, SCRATCH)
    inside("dpkg", "--install", f"/srv/{path.name}")
    check_version(name, inside("sterna", "--version"))
    compare(name, inside("sterna", *RUN), story)
    if "sterna run" not in inside("man", "sterna"):
        raise SystemExit(f"release: {name} has no manual page")
    verify_unit(name, HOME)
    inside("dpkg", "--purge", "sterna")
    empty()
    if left := files() - before:
        raise SystemExit(f"release: {name} does not remove {sorted(left)}")
    print(f"{name}: has its manual page, and is removed completely", flush=True)


def wheel(path, story):
    """Installs a wheel into an empty environment of the older Python, and runs the package's tests there."""
    if not is_there(path.name):
        return
    python = inside("python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip()
    # With this machine's pip, which has the network's settings, but does not resolve dependencies of older
    # Pythons.
    fetch = ["download", "--quiet", "--only-binary=:all:", "--python-version", python, "--dest", SCRATCH]
    quiet(sys.executable, "-m", "pip", *fetch, "pytest", "exceptiongroup", "tomli")
    shutil.copy(path, SCRATCH)
    shutil.copytree(ROOT / "python" / "tests", SCRATCH / "tests")
    inside("python3", "-m", "venv", "/srv/venv")
    install = ["install", "--quiet", "--no-index", "--find-links=/srv"]
    inside("/srv/venv/bin/pip", *install, "pytest", f"/srv/{path.name}")
    compare(f"{RELEASE}: {path.name}", inside("/srv/venv/bin/sterna", *RUN), story)
    said = inside("/srv/venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "/srv/tests")
    print(f"{RELEASE}: {path.name}: Python {python}: {said.splitlines()[-1]}", flush=True)
    empty()
