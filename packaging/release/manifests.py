"""What package managers read: Homebrew's formula and winget's manifest, from templates beside this folder.

They name the addresses and the checksums of files in dist/.
"""

import datetime
import hashlib
import re

from project import DIST, FEATURES, ROOT, epoch, filled, put, version

MANAGERS = ["homebrew", "winget"]
# `SHA256(FILE)` stands for the sum of a file.
SUM = re.compile(r"SHA256\((.+?)\)")


def make(url):
    """Fills the templates. `url` is the folder that the files of dist/ will lie in."""
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in DIST.iterdir()}
    date = datetime.datetime.fromtimestamp(epoch(), datetime.UTC).date()
    values = {"URL": url.rstrip("/"), "VERSION": version(), "DATE": date, "FEATURES": FEATURES}
    for manager in MANAGERS:
        templates = sorted((ROOT / "packaging" / manager).iterdir())
        texts = {path.name: filled(path.read_text(), values) for path in templates}
        missing = set(SUM.findall("".join(texts.values()))) - set(sums)
        if missing:
            print(f"{manager}: not made, without {', '.join(sorted(missing))}")
            continue
        for name, text in texts.items():
            put(name, SUM.sub(lambda found: sums[found[1]], text).encode())
