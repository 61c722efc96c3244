"""What package managers read: Homebrew's formula and winget's manifest, from templates beside this folder.

They name the addresses and the checksums of archives in dist/.
"""

import datetime
import hashlib
import re

from project import DIST, ROOT, epoch, filled, put, version

FOLDERS = ["homebrew", "winget"]


def make(url):
    """The files of all templates whose archives are in dist/. `url` is the folder that these will lie in."""
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in DIST.iterdir()}
    values = {"URL": url.rstrip("/"), "VERSION": version()}
    values["DATE"] = datetime.datetime.fromtimestamp(epoch(), datetime.UTC).date().isoformat()
    for template in sorted(path for folder in FOLDERS for path in (ROOT / "packaging" / folder).iterdir()):
        text = filled(template.read_text(), values)
        # `SHA256(FILE)` stands for the sum of a file.
        wanted = set(re.findall(r"SHA256\((.+?)\)", text))
        if missing := sorted(wanted - set(sums)):
            print(f"{template.name}: not made: it wants {', '.join(missing)}")
            continue
        put(template.name, re.sub(r"SHA256\((.+?)\)", lambda found: sums[found[1]], text).encode())
