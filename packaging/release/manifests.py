"""Files for package managers: Homebrew's formula and winget's manifest, from templates in packaging/.

They contain the addresses and checksums of files in dist/.
"""

import datetime
import hashlib
import re

from project import DIST, FEATURES, ROOT, epoch, filled, put, version

MANAGERS = ["homebrew", "winget"]
# `SHA256(FILE)` is replaced by the checksum of a file.
SUM = re.compile(r"SHA256\((.+?)\)")


def make(url):
    """Fills the templates. `url` is the address of the folder to which the files of dist/ are uploaded."""
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in DIST.iterdir()}
    date = datetime.datetime.fromtimestamp(epoch(), datetime.UTC).date()
    values = {"URL": url.rstrip("/"), "VERSION": version(), "DATE": date, "FEATURES": FEATURES}
    for manager in MANAGERS:
        templates = sorted((ROOT / "packaging" / manager).iterdir())
        texts = {path.name: filled(path.read_text(), values) for path in templates}
        missing = set(SUM.findall("".join(texts.values()))) - set(sums)
        if missing:
            print(f"{manager}: skipped, missing {', '.join(sorted(missing))}")
            continue
        for name, text in texts.items():
            put(name, SUM.sub(lambda found: sums[found[1]], text).encode())
