#!/usr/bin/env python3
"""Counts instructions of the benches under callgrind and holds them against benches/instructions.json.

    scripts/instructions.py check     fail where a count moved by more than the tolerance, up or down
    scripts/instructions.py update    take today's counts as the new ones

A count that fell is a failure too: take it on purpose, so that the next slip shows.
Needs valgrind, and `cargo install gungraun-runner` in the version that Cargo.lock names.
"""

import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNTS = ROOT / "benches" / "instructions.json"
# Counts repeat to the instruction on one machine; libc's choice of memcpy moves them a little between two.
TOLERANCE = 0.02


def measure():
    """Instructions of every bench, by name."""
    command = ["cargo", "bench", "--locked", "--quiet", "--bench", "instructions", "--", "--output-format=json"]
    out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    counts = {}
    for line in filter(None, map(str.strip, out.splitlines())):
        bench = json.loads(line)
        metrics = bench["profiles"][0]["data"]["total"]["metrics"]
        counts[f"{bench['function_name']}.{bench['id']}"] = metrics["Ir"]["values"]["new"]
    if not counts:
        sys.exit("no bench was counted")
    return dict(sorted(counts.items()))


def compare(want, got):
    """Lines that say what moved; empty where nothing did."""
    faults = []
    for name in sorted(want.keys() | got.keys()):
        if name not in got:
            faults.append(f"{name}: {want[name]} in the file, not counted any more")
        elif name not in want:
            faults.append(f"{name}: {got[name]} counted, not in the file")
        elif abs(got[name] - want[name]) > TOLERANCE * want[name]:
            faults.append(f"{name}: {want[name]} -> {got[name]} ({got[name] / want[name] - 1:+.1%})")
    return faults


def main():
    if sys.argv[1:] not in (["check"], ["update"]):
        sys.exit(__doc__.strip())
    missing = [tool for tool in ("valgrind", "gungraun-runner") if not shutil.which(tool)]
    if missing:
        message = f"instruction counts not run: {' and '.join(missing)} not found"
        # A plain machine may go without; an update that counted nothing must not look like one.
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
        sys.exit("instruction counts moved; if that is meant: scripts/instructions.py update")
    print(f"{len(got)} instruction counts within {TOLERANCE:.0%}")


main()
