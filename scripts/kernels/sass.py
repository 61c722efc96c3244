"""Parses machine code of NVIDIA GPUs from `cuobjdump -sass`; scripts/kernels/sass_walk.py simulates it."""

import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tool(name):
    """A CUDA tool, from the folders in which build.rs looks for nvcc."""
    here = glob.glob(str(ROOT / ".cuda/lib/python*/site-packages/nvidia/cu13/bin"))
    homes = [os.environ[home] + "/bin" for home in ["CUDA_HOME", "CUDA_PATH"] if home in os.environ]
    for folder in [*homes, None, "/usr/local/cuda/bin", "/opt/cuda/bin", *here]:
        found = shutil.which(name, path=folder)
        if found:
            return found
    return None


def fatbins():
    """The fatbins of the build."""
    # A release build has machine code for all GPUs. Only the build script matters: nothing is compiled.
    command = ["cargo", "check", "--quiet", "--release", "--lib", "--locked", "--no-default-features"]
    command += ["--features", "cuda", "--message-format=json"]
    out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in map(json.loads, out.splitlines()):
        if line["reason"] == "build-script-executed" and re.search(
            r"[/#]sterna-backend[@#]", line["package_id"] + "#"
        ):
            return sorted(pathlib.Path(line["out_dir"]).glob("*.fatbin"))
    return []


def remembered(measure, tools, fatbin, *args):
    """Caches measure(tools, fatbin, *args) as JSON in target/. The key is a hash of these scripts, the tools,
    the kernels and the arguments."""
    target = next((folder for folder in fatbin.resolve().parents if (folder / "CACHEDIR.TAG").exists()), None)
    if target is None:
        return measure(tools, fatbin, *args)
    made_of = hashlib.sha256(json.dumps([str(arg) for arg in args]).encode())
    modules = sorted(pathlib.Path(__file__).parent.glob("sass*.py"))
    for path in [measure.__code__.co_filename, *modules, *tools, fatbin]:
        made_of.update(hashlib.sha256(pathlib.Path(path).read_bytes()).digest())
    file = target / "cuda-kernels" / f"{fatbin.stem}-{measure.__name__}-{made_of.hexdigest()[:32]}.json"
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        pass
    result = measure(tools, fatbin, *args)
    if file.parent.is_dir():
        # Renamed, so that no process reads a partial file.
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(result))
        partial.rename(file)
    return json.loads(json.dumps(result))


def kernel_code(cuobjdump, fatbin, arch, kernels):
    """code[kernel]: its instructions, for some kernels of a file."""
    command = [cuobjdump, "-arch", arch, "-sass", "-fun", ",".join(kernels), str(fatbin)]
    text = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    code, kernel, first = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"\s*Function : (\w+)", line):
            kernel = code.setdefault(match[1], [])
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s*/\* 0x", line):
            first = (int(match[1], 16), match[2])
        elif (match := re.match(r"\s*/\* 0x([0-9a-f]{16}) \*/", line)) and first:
            kernel.append(Instruction(*first, int(match[1], 16)))
            first = None
    return code


def ends_before(code, name):
    """True if a path from the start of a kernel ends without passing an instruction of this name."""
    places = {instruction.at: i for i, instruction in enumerate(code)}
    seen, open_ = set(), [0]
    while open_:
        i = open_.pop()
        if i in seen or i == len(code) or code[i].name == name:
            continue
        seen.add(i)
        it = code[i]
        if it.name == "EXIT":
            return True
        if it.name in ("BRX", "JMP", "JMX"):
            raise ValueError(f"a jump to a computed address: {it.text}")
        if it.target is not None:
            open_.append(places[it.target])
        # A branch may also depend on a uniform predicate, which is its first operand.
        if it.name != "BRA" or it.guard or len(it.args) > 1:
            open_.append(i + 1)
    return False


class Instruction:
    """One instruction: its guard, name, operands, and the compiler's timing information."""

    def __init__(self, at, text, control):
        guard = re.match(r"@(!?)(U?)P(\w+)\s+", text)
        self.guard = ("P" if not guard[2] else "UP", register(guard[3]), bool(guard[1])) if guard else None
        text = text[guard.end():] if guard else text
        self.at, self.text = at, text
        name, _, operands = text.partition(" ")
        self.name, *self.mods = name.split(".")
        # Uniform instructions do the same on registers that a warp shares.
        self.base = self.name[1:] if self.name.startswith("U") and self.name[1:] in UNIFORM else self.name
        self.args = [operand(o.strip()) for o in re.split(r",(?![^\[]*\])", operands)] if operands else []
        self.target = int(text.rsplit("0x", 1)[1], 16) if name.startswith(("BRA", "CALL")) else None
        # From bit 41 of the second word on: stall count, yield, scoreboards set for the result and for
        # reading operands (7 means none), scoreboards waited for.
        self.stall = max(control >> 41 & 15, 1)
        self.sets, self.frees = control >> 46 & 7, control >> 49 & 7
        self.waits = [i for i in range(6) if control >> 52 >> i & 1]


UNIFORM = {
    "MOV", "IADD3", "LOP3", "PLOP3", "SHF", "LEA", "ISETP", "SEL", "IMAD", "FLO", "POPC", "I2F", "F2I",
    "PRMT", "VIMNMX", "VIADD", "BREV",
}  # fmt: skip


def register(text):
    return {"Z": 255, "T": 7}[text] if text in ("Z", "T") else int(text)


def operand(text):
    """(kind, value, modifier) of a printed operand."""
    text = text.removesuffix(".reuse")
    sign = text[0] if text[0] in "-~!|" else ""
    plain = text.lstrip("-~!").strip("|").removesuffix(".reuse")
    plain = re.sub(r"\.(64|H\d_H\d|F32|U\d+|B\d|X\d+)$", "", plain)
    if match := re.fullmatch(r"(UR|UP|R|P)(\d+|Z|T)", plain):
        return (match[1], register(match[2]), sign)
    if match := re.fullmatch(r"-?0x[0-9a-f]+|-?\d+", text):
        return ("I", int(text, 0), "")
    if match := re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|[-+]?(INF|QNAN)", text):
        return ("F", text, "")
    if match := re.fullmatch(r"c\[0x0\]\[(?:(U?R\w+)\+?)?(-?0x[0-9a-f]+)?\]", plain):
        return ("C", (match[1] and operand(match[1]), int(match[2] or "0", 16)), sign)
    if match := re.fullmatch(r"(?:desc\[\w+\])?\[(.*)\]", plain):
        parts = [re.sub(r"^\+", "", part) for part in match[1].split("+")]
        return ("M", [(operand(re.sub(r"\.X\d+", "", p)), ".64" in p) for p in parts if p], "")
    return ("S", plain, sign)
