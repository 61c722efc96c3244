#!/usr/bin/env python3
"""Counts instructions of benches/instructions with callgrind, and compares them with
benches/instructions.json.

    scripts/instructions.py check     fail if a count changed by more than the tolerance, up or down
    scripts/instructions.py update    accept today's counts as the new ones

A decrease is a failure too: accept it explicitly, so that the next regression shows.
Needs valgrind.
"""

import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNTS = ROOT / "benches" / "instructions.json"
# On one machine, counts repeat to the instruction; between machines, libc's choice of memcpy changes them a
# little.
TOLERANCE = 0.02


def build():
    """Builds the program with the cases. As a separate package it links only the parts of the engine that it
    runs."""
    command = [
        "cargo", "build", "--release", "--locked", "--package", "instructions", "--message-format=json"
    ]
    out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return next(line["executable"] for line in map(json.loads, out.splitlines()) if line.get("executable"))


def count(program, case):
    """Instructions of a case's function, including its callees."""
    function = case.split(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind.out"
        callgrind = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}"]
        callgrind += ["--collect-atstart=no", f"--toggle-collect=*instructions::counted::{function}*"]
        # Only PATH: other environment variables move the stack.
        subprocess.run([*callgrind, program, case], env={"PATH": os.environ["PATH"]}, check=True)
        total = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE)
    return int(total[1])


def measure():
    """Instructions of every case, by name."""
    program = build()
    cases = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(cases, pool.map(count, itertools.repeat(program), cases)))
    if uncounted := [name for name, n in counts.items() if n == 0]:
        sys.exit(f"not counted: {', '.join(uncounted)}")
    return dict(sorted(counts.items()))


def compare(want, got):
    """Lines that describe the changes; empty if there are none."""
    faults = []
    for name in sorted(want.keys() | got.keys()):
        if name not in got:
            faults.append(f"{name}: {want[name]} in the file, no longer counted")
        elif name not in want:
            faults.append(f"{name}: {got[name]} counted, not in the file")
        elif abs(got[name] - want[name]) > TOLERANCE * want[name]:
            faults.append(f"{name}: {want[name]} -> {got[name]} ({got[name] / want[name] - 1:+.1%})")
    return faults


def main():
    if sys.argv[1:] not in (["check"], ["update"]):
        sys.exit(__doc__.strip())
    if not shutil.which("valgrind"):
        message = "instruction counts not run: valgrind not found"
        # On a check, a missing valgrind is fine; an update that counted nothing must not look like a success.
        sys.exit(message) if sys.argv[1] == "update" else print(message)
        return
    got = measure()
    if sys.argv[1] == "update":
        COUNTS.write_text(json.dumps(got, indent=2) + "\n")
        print(f"{len(got)} counts written to {COUNTS.relative_to(ROOT)}")
        return
    faults = compare(json.loads(COUNTS.read_text()), got)
    if faults:
        print("\n".join(faults))
        sys.exit("instruction counts changed; if that is intended: scripts/instructions.py update")
    print(f"{len(got)} instruction counts within {TOLERANCE:.0%}")


main()
