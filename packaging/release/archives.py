"""Archives of the program with its documentation, and of the source. The same files give the same bytes."""

import gzip
import io
import sys
import tarfile
import time
import zipfile

from project import ROOT, epoch, put, run

# Maximum size of an archive.
MAX_BYTES = 60 << 20
# Files next to the program, and one that is only for Linux.
INCLUDED = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"]
SERVICE = "packaging/sterna.service"


def tar_gz(folder, files):
    """A .tar.gz of `{path: (mode, bytes)}` in a folder."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as out:
        for path, (mode, data) in sorted(files.items()):
            info = tarfile.TarInfo(f"{folder}/{path}")
            info.size, info.mode, info.mtime = len(data), mode, epoch()
            out.addfile(info, io.BytesIO(data))
    return gzip.compress(tar.getvalue(), mtime=0)


def zipped(folder, files):
    """A .zip of `{path: (mode, bytes)}` in a folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for path, (mode, data) in sorted(files.items()):
            info = zipfile.ZipInfo(f"{folder}/{path}", time.gmtime(epoch())[:6])
            info.external_attr, info.create_system = mode << 16, 3
            out.writestr(info, data, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def of_program(name, system, program, pages):
    """Writes the archive of a system's program to dist/."""
    included = INCLUDED if system.is_windows else [*INCLUDED, SERVICE]
    files = {system.program: (0o755, program.read_bytes())}
    files |= {path.rpartition("/")[2]: (0o644, (ROOT / path).read_bytes()) for path in included}
    # Each system gets the completions that its shells read.
    is_ours = {path: path.endswith(".ps1") == system.is_windows for path in pages}
    files |= {path: (0o644, data) for path, data in pages.items() if is_ours[path]}
    file, pack = (f"{name}.zip", zipped) if system.is_windows else (f"{name}.tar.gz", tar_gz)
    packed = pack(name, files)
    if len(packed) > MAX_BYTES:
        sys.exit(f"release: {file} has {len(packed)} bytes, more than {MAX_BYTES}")
    return put(file, packed)


def of_source(name):
    """Writes the archive of the commit's files to dist/."""
    tar = run("git", "archive", "--format=tar", f"--prefix={name}/", "HEAD", text=False)
    return put(f"{name}.tar.gz", gzip.compress(tar, mtime=0))
