"""Debian packages, built by dpkg-deb. packaging/debian has their texts."""

import gzip
import hashlib
import os
import pathlib
import tempfile
from email.utils import formatdate

from project import ROOT, epoch, filled, put, run, version
from systems import GLIBC

TEXTS = ROOT / "packaging" / "debian"
SCRIPTS = ["postinst", "prerm", "postrm"]


def files(program, pages):
    """Files that a package installs: `{path: (mode, bytes)}`."""
    doc = "usr/share/doc/sterna"
    unit = (ROOT / "packaging" / "sterna.service").read_bytes()
    found = {
        "usr/share/man/man1/sterna.1.gz": packed(pages["man/sterna.1"]),
        "usr/share/bash-completion/completions/sterna": pages["completions/sterna.bash"],
        "usr/share/zsh/vendor-completions/_sterna": pages["completions/_sterna"],
        "usr/share/fish/vendor_completions.d/sterna.fish": pages["completions/sterna.fish"],
        "usr/lib/systemd/system/sterna.service": unit_of_package(unit),
        f"{doc}/changelog.gz": packed(filled((TEXTS / "changelog").read_text(), values()).encode()),
        f"{doc}/CHANGELOG.md.gz": packed((ROOT / "CHANGELOG.md").read_bytes()),
        f"{doc}/copyright": copyright_text(),
    }
    pages_and_texts = {path: (0o644, data) for path, data in found.items()}
    return {"usr/bin/sterna": (0o755, program.read_bytes())} | pages_and_texts


def values():
    # The variables that Debian's own tools read.
    name = os.environ.get("DEBFULLNAME", "The Sterna developers")
    address = os.environ.get("DEBEMAIL", "sterna@example.invalid")
    return {"VERSION": version(), "MAINTAINER": f"{name} <{address}>", "DATE": formatdate(epoch())}


def unit_of_package(unit):
    """The unit with Debian's path of the program, and without the instructions for manual installation."""
    head, _, rest = unit.partition(b"[Unit]\n")
    assert head.startswith(b"#") and rest.count(b"/usr/local/bin/") == 1
    return b"[Unit]\n" + rest.replace(b"/usr/local/bin/", b"/usr/bin/")


def copyright_text():
    mit = (ROOT / "LICENSE-MIT").read_text().partition("\n\n")[2].partition("\n\n")[2]
    lines = [f" {line}" if line else " ." for line in mit.strip().splitlines()]
    return filled((TEXTS / "copyright").read_text(), {"MIT": "\n".join(lines)}).encode()


def packed(data):
    return gzip.compress(data, 9, mtime=0)


def package(system, program, pages):
    """Writes sterna_VERSION_ARCHITECTURE.deb to dist/."""
    installed = files(program, pages)
    n_bytes = sum(len(data) for _, data in installed.values())
    control = values() | {"ARCHITECTURE": system.debian, "KIB": -(-n_bytes // 1024), "GLIBC": GLIBC}
    sums = [f"{hashlib.md5(data).hexdigest()}  {path}\n" for path, (_, data) in sorted(installed.items())]
    own = {path: (0o755, (TEXTS / path).read_bytes()) for path in SCRIPTS}
    own["control"] = (0o644, filled((TEXTS / "control").read_text(), control).encode())
    own["md5sums"] = (0o644, "".join(sums).encode())
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        everything = installed | {f"DEBIAN/{name}": file for name, file in own.items()}
        for path, (mode, data) in everything.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(mode)
        for parent in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            parent.chmod(0o755)
        deb = pathlib.Path(folder) / f"sterna_{version()}_{system.debian}.deb"
        # Not zstd, which Debian 11's dpkg cannot read.
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, deb]
        run(*command, env=dict(os.environ, SOURCE_DATE_EPOCH=str(epoch())))
        return put(deb.name, deb.read_bytes())
