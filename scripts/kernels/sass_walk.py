"""Walks one thread through machine code (scripts/kernels/sass.py), without a GPU.

The walk models two things at once.

Values: integers, predicates, the parameters and shared memory have values, so loops end and branches are
taken as for that thread. Everything else (floats, the content of global memory) is unknown. A branch on an
unknown value follows a rule: it skips a slow path (code with a CALL), and otherwise is not taken; a loop with
an unknown condition ends.

Time: a warp issues in order, after the stall count that the compiler encoded in an instruction, and waits for
the scoreboards that the instruction names. Loads, shuffles, conversions and so on clear their scoreboard
after a latency from a table; everything else takes the compiler's stall count. Contention of warps, caches
and memory, instruction fetch and clocks are left out.
"""

import operator
import re
import struct

LOW = 0xFFFFFFFF


def lut(table, a, b, c, bits):
    """A function of three words, or of three booleans, given by its table."""
    out = 0
    for i in range(8):
        if table >> i & 1:
            x = a if i & 4 else ~a
            y = b if i & 2 else ~b
            out |= x & y & (c if i & 1 else ~c)
    return out & ((1 << bits) - 1)


def signed(value, bits=32):
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def float_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def float_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


COMPARE = {name: getattr(operator, name.lower()) for name in ("LT", "EQ", "LE", "GT", "NE", "GE")}


def both(a, b):
    return False if a is False or b is False else None if None in (a, b) else True


def either(a, b):
    return True if a is True or b is True else None if None in (a, b) else False


class Lost(Exception):
    """The walk reached a case that it has no rule for."""


class Walk:
    """One thread of a kernel. `constants` has the words of constant bank 0 by address, `memory` the known
    words of global memory, `special` the special registers, `latencies` the table of a GPU. An atomic
    operation at an address reads `found(address)`."""

    # Start of shared memory among generic addresses.
    SHARED = 0x7F << 56

    def __init__(self, code, constants, memory, special, latencies, found):
        self.code, self.index = code, {ins.at: i for i, ins in enumerate(code)}
        self.constants, self.memory, self.special = constants, memory, special
        self.latencies, self.found = latencies, found
        # Registers are undefined at first; with 0, code can collect bits in one of them.
        self.files = {"R": [0] * 256, "UR": [0] * 256, "P": [None] * 8, "UP": [None] * 8}
        self.files["R"][255] = self.files["UR"][255] = 0
        self.files["P"][7] = self.files["UP"][7] = True
        self.shared = {}
        # Words of shared memory in which all threads count, and their final values.
        self.counted = {}
        # Cycles, serial round trips to global memory so far, instructions, products of bytes and of f16.
        self.now = self.trips = self.issued = self.imma = self.hmma = 0
        # Per scoreboard: the time when it is clear, and the number of round trips.
        self.boards = [(0, 0)] * 6
        # Asynchronous copies: closed groups, and the open one.
        self.copies, self.open = [], (0, 0)
        self.events = []  # (what, cycle, trips) of barriers and of atomic operations that are waited for.

    # Values. Unknown is None.

    def get(self, arg):
        kind, value, sign = arg
        if kind == "I":
            return value & LOW
        if kind == "F":
            return float_bits(float(value)) if not value.endswith(("INF", "QNAN")) else None
        if kind == "C":
            at = value[1] if value[0] is None else add(self.get(value[0]), value[1])
            out = None if at is None else self.constants.get(at & LOW)
        elif kind == "S":
            return 0 if value == "SRZ" else self.special.get(value)
        else:
            out = self.files[kind][value]
        if out is None or not sign:
            return out
        if kind in ("P", "UP"):
            return not out
        return None if sign == "|" else (-out if sign == "-" else ~out) & LOW

    def get64(self, arg):
        kind, value, sign = arg
        if kind == "I":
            return value & 2**64 - 1
        if kind == "S":
            return self.get(arg)
        if kind == "C":
            parts = self.get(arg), self.get((kind, (value[0], value[1] + 4), ""))
        elif value == 255:
            parts = 0, 0
        else:
            parts = self.files[kind][value], self.files[kind][value + 1]
        if None in parts:
            return None
        out = parts[1] << 32 | parts[0]
        return (-out if sign == "-" else ~out if sign else out) & 2**64 - 1

    def set(self, arg, value):
        kind, at, _ = arg
        last = 7 if kind in ("P", "UP") else 255
        if at != last:
            self.files[kind][at] = value if value is None or last == 7 else value & LOW

    def set64(self, arg, value):
        kind, at, _ = arg
        self.set(arg, value)
        if at != 255:
            self.set((kind, at + 1, ""), None if value is None else value >> 32)

    def set_words(self, arg, words):
        for i, word in enumerate(words):
            if arg[1] != 255:
                self.set((arg[0], arg[1] + i, ""), word)

    def address(self, arg):
        """Address of a memory operand. 64 bits wide if a register pair is part of it."""
        total = 0
        for part, wide in arg[1]:
            total = add(total, self.get64(part) if wide and part[0] != "UR" else self.wide(part, wide))
        return total

    def wide(self, part, is_wide):
        if part[0] == "UR" and is_wide:
            return self.get64(part)
        value = self.get(part)
        return signed(value) if part[0] == "I" and value is not None else value

    # Instructions.

    def run(self):
        """Walks to the end of the kernel."""
        pc = 0
        while True:
            ins = self.code[pc]
            self.wait(ins)
            guard = True
            if ins.guard:
                kind, at, inverted = ins.guard
                guard = self.files[kind][at]
                guard = guard if guard is None else guard != inverted
            self.issued += 1
            # In units of products of 32 columns.
            self.imma += (0.5 if "16816" in ins.mods else 1) * (ins.name == "IMMA")
            self.hmma += ins.name == "HMMA"
            if self.issued > 2_000_000:
                raise Lost(f"no end in sight at {ins.at:#x}")
            taken = self.step(ins, guard, pc) if guard is not False else None
            self.now += ins.stall
            if taken == "end":
                return self
            if taken is not None:
                self.now += self.latencies["branch"]
                pc = self.index[taken]
            else:
                pc += 1

    def wait(self, ins):
        for i in ins.waits:
            self.now, self.trips = max(self.now, self.boards[i][0]), max(self.trips, self.boards[i][1])

    def step(self, ins, guard, pc):
        """Executes one instruction; returns the target of a taken branch, "end", or None for the next
        instruction."""
        base = ins.base
        if base in ("BRA", "EXIT", "CALL", "RET"):
            return self.jump(ins, guard, pc)
        if base == "ACQBULK":
            # The previous kernel has ended, and earlier loads have arrived.
            self.now, self.trips, self.boards = 0, 0, [(0, 0)] * 6
            self.copies, self.open = [(0, 0)] * len(self.copies), (0, 0)
            self.events = []
            return None
        latency, trip = self.cost(ins)
        self.time(ins, latency, trip)
        handler = getattr(self, "do_" + base, None)
        if handler and guard is not None:
            handler(ins)
        else:
            self.forget(ins)
        return None

    def cost(self, ins):
        """Cycles until a scoreboard is clear, and True if it is a round trip to global memory."""
        table, name = self.latencies, ins.name
        if name in ("LDG", "LD", "ATOMG", "ATOM", "MEMBAR", "LDGSTS"):
            if name == "LD":
                at = self.address(ins.args[1])
                if at is not None and at >= self.SHARED:
                    return table["LDS"], False
            streams = name != "MEMBAR" and "NA" in ins.mods
            return table["stream" if streams else name if name in table else "global"], True
        if name in ("LDS", "LDSM") and ("128" in ins.mods or name == "LDSM"):
            return table["LDS"] + 4, False
        return table.get(name, table["other"]), False

    def time(self, ins, latency, trip):
        name = ins.name
        clear = (self.now + latency, self.trips + (1 if trip else 0))
        if name == "BAR":
            self.now += self.latencies["BAR"]
            self.events.append(("barrier", self.now, self.trips))
        elif name == "MEMBAR":
            self.now, self.trips = clear
        elif name == "ATOMG" and ins.args[1][1] != 255:
            self.events.append(("atomic", self.now, self.trips))
        elif name == "LDGSTS":
            self.open = tuple(map(max, self.open, clear))
        elif name == "LDGDEPBAR":
            self.copies.append(self.open)
            self.open = (0, 0)
        elif name == "DEPBAR":
            left = ins.args[1][1] if len(ins.args) > 1 else 0
            for group in self.copies[: len(self.copies) - left]:
                self.now, self.trips = max(self.now, group[0]), max(self.trips, group[1])
            self.copies = self.copies[len(self.copies) - left:] if left else []
        if ins.sets != 7 and name not in ("LDGDEPBAR", "LDGSTS"):
            self.boards[ins.sets] = tuple(map(max, self.boards[ins.sets], clear))
        if ins.frees != 7:
            read = (self.now + self.latencies["read"], 0)
            self.boards[ins.frees] = tuple(map(max, self.boards[ins.frees], read))

    def ends_loop(self, pc):
        """True for the call before a loop's jump with which some loops end."""
        ins, following = self.code[pc], self.code[pc + 1]
        return ins.name == "CALL" and following.name == "BRA" and following.target < ins.at

    def jump(self, ins, guard, pc):
        if ins.name == "EXIT":
            return "end" if guard is True else None
        if ins.name == "RET":
            return self.files["R"][int(re.match(r"RET\.\S+ R(\d+)", ins.text)[1])]
        if "DIV" in ins.mods:
            return None
        conditions = [arg for arg in ins.args if arg[0] in ("P", "UP")]
        for arg in conditions:
            guard = both(guard, self.get(arg))
        if guard is None:
            if self.ends_loop(pc):
                guard = True
            elif ins.target > ins.at:
                between = range(pc + 1, self.index[ins.target])
                guard = any(self.code[at].name == "CALL" and not self.ends_loop(at) for at in between)
            else:
                guard = False
        return ins.target if guard else None

    def forget(self, ins):
        """Marks the results of an instruction as unknown."""
        args = ins.args
        if ins.name == "ATOMS":
            return self.do_ATOMS(ins)
        if ins.name in ("STS", "STG", "ST", "RED", "REDG") or not args:
            at = self.address(args[0]) if ins.name == "STS" else None
            return self.shared.pop(at if at is None else at & LOW, None)
        words = 4 if {"128"} & set(ins.mods) or ins.name in ("HMMA", "IMMA") else 1
        if {"64", "WIDE", "F64", "U64", "RCP64H"} & set(ins.mods) or ins.name in ("DADD", "DMUL", "DFMA"):
            words = 2
        if ins.name in ("LDSM",):
            words = int(ins.mods[-1]) if ins.mods[-1].isdigit() else 1
        for arg in args[:3]:
            if arg[0] in ("P", "UP"):
                self.set(arg, None)
            elif arg[0] in ("R", "UR"):
                self.set_words(arg, [None] * words)
                break
            else:
                break

    # One method per instruction, with its name.

    def nothing(self, ins):
        pass

    do_NOP = do_BSSY = do_BSYNC = do_BREAK = do_YIELD = do_WARPSYNC = do_PREEXIT = do_BAR = nothing
    do_MEMBAR = do_ERRBAR = do_CGAERRBAR = do_CCTL = do_STG = do_ST = do_REDG = do_RED = nothing
    do_LDGDEPBAR = do_DEPBAR = do_LDGSTS = do_ENDCOLLECTIVE = do_FENCE = nothing

    def do_MOV(self, ins):
        if "64" in ins.mods:
            return self.set64(ins.args[0], self.get64(ins.args[1]))
        self.set(ins.args[0], self.get(ins.args[1]))

    def do_R2UR(self, ins):
        args = [arg for arg in ins.args if arg[0] not in ("P", "UP")]
        self.set(args[0], self.get(args[1]))

    def do_S2R(self, ins):
        self.set(ins.args[0], self.get(ins.args[1]))

    do_S2UR = do_S2R

    def do_CS2R(self, ins):
        self.set64(ins.args[0], self.get(ins.args[1]))

    def do_LDC(self, ins):
        if ins.args[1][0] != "C":
            return self.forget(ins)
        register, offset = ins.args[1][1]
        words = 4 if "128" in ins.mods else 2 if "64" in ins.mods else 1
        self.set_words(ins.args[0], [self.get(("C", (register, offset + 4 * i), "")) for i in range(words)])

    do_ULDC = do_LDCU = do_LDC

    def do_HFMA2(self, ins):
        # Only the form in which the compiler writes constants: -RZ RZ + two halves.
        if not all(arg[0] in ("I", "F") for arg in ins.args[3:5]):
            return self.forget(ins)
        high, low = (float(arg[1]) for arg in ins.args[3:5])
        self.set(ins.args[0], struct.unpack("<I", struct.pack("<ee", low, high))[0])

    def do_IMAD(self, ins):
        mods, args = ins.mods, ins.args
        carry = 0
        regs = [arg for arg in args if arg[0] not in ("P", "UP")]
        if "X" in mods:
            carry = self.get(args[-1])
        a, b = self.get(regs[1]), self.get(regs[2])
        product = 0 if a == 0 or b == 0 else None if None in (a, b) else a * b
        if "WIDE" in mods or "HI" in mods:
            c = self.get64(regs[3])
            if product is not None and "U32" not in mods:
                product = signed(a) * signed(b)
            total = add(product, c)
            if "HI" in mods:
                return self.set(regs[0], None if total is None else total >> 32)
            return self.set64(regs[0], None if total is None else total & 2**64 - 1)
        total = add(add(product, self.get(regs[3])), carry)
        self.set(regs[0], total)

    def do_IADD3(self, ins):
        if "64" in ins.mods:
            total = 0
            for arg in ins.args[1:]:
                total = total if arg[0] in ("P", "UP") else add(total, self.get64(arg))
            return self.set64(ins.args[0], None if total is None else total & 2**64 - 1)
        args = list(ins.args)
        to = args.pop(0)
        carries = []
        while args[0][0] in ("P", "UP"):
            carries.append(args.pop(0))
        total = 0
        for arg in args[:3]:
            total = add(total, self.get(arg))
        for arg in args[3:]:
            total = add(total, self.get(arg))
        self.set(to, total)
        for i, carry in enumerate(carries):
            self.set(carry, None if total is None else (total >> 32) > i)

    def do_IADD(self, ins):
        total = add(self.get64(ins.args[1]), self.get64(ins.args[2]))
        self.set64(ins.args[0], None if total is None else total & 2**64 - 1)

    def do_VIADD(self, ins):
        self.set(ins.args[0], add(self.get(ins.args[1]), self.get(ins.args[2])))

    def do_LOP3(self, ins):
        args = list(ins.args)
        predicate = args.pop(0) if args[0][0] in ("P", "UP") else None
        words = [self.get(arg) for arg in args[1:4]]
        table = args[4][1]
        # An unknown word may not affect the result.
        outs = {
            lut(table, *(w if w is not None else guess for w in words), 32) for guess in (0, LOW, 0x5A5A5A5A)
        }
        out = outs.pop() if len(outs) == 1 else None
        self.set(args[0], out)
        if predicate:
            self.set(predicate, None if out is None else out != 0)

    def do_PLOP3(self, ins):
        truths = [self.get(arg) for arg in ins.args[2:5]]
        for to, table in zip(ins.args[:2], ins.args[5:7]):
            outs = {
                lut(table[1], *(-int(t if t is not None else guess) for t in truths), 1)
                for guess in (False, True)
            }
            self.set(to, bool(outs.pop()) if len(outs) == 1 else None)

    def do_SHF(self, ins):
        low, by, high = (self.get(arg) for arg in ins.args[1:4])
        if by is None:
            return self.set(ins.args[0], None)
        by = by & 31 if "W" in ins.mods else min(by, 64)
        wide = "U64" in ins.mods or "S64" in ins.mods
        if "L" in ins.mods:
            if "HI" in ins.mods:
                out = None if None in (low, high) else (high << 32 | low) << by >> 32
            else:
                out = None if low is None else low << by
        elif "HI" in ins.mods and not wide:
            out = None if high is None else (signed(high) if "S32" in ins.mods else high) >> by
        else:
            out = None if None in (low, high) else (high << 32 | low) >> by >> (32 if "HI" in ins.mods else 0)
        self.set(ins.args[0], out)

    def do_LEA(self, ins):
        args = list(ins.args)
        to = args.pop(0)
        carries = []
        while args[0][0] in ("P", "UP"):
            carries.append(args.pop(0))
        carry = self.get(args.pop()) if "X" in ins.mods else 0
        by = args[-1][1]
        a, b = self.get(args[0]), self.get(args[1])
        if "HI" in ins.mods:
            high = self.get(args[2])
            a = None if None in (a, high) else (high << 32 | a) >> (32 - by)
        else:
            a = None if a is None else a << by & LOW
        total = add(add(a, b), carry)
        self.set(to, total)
        for carry in carries[:1]:
            self.set(carry, None if total is None else total >> 32 > 0)

    def do_ISETP(self, ins):
        mods, args = ins.mods, ins.args
        compare = COMPARE[mods[0]]
        bits = 64 if "U64" in mods or "S64" in mods else 32
        a, b = (self.get64(arg) if bits == 64 else self.get(arg) for arg in args[2:4])
        if None in (a, b):
            out = None
        else:
            if "U32" not in mods and "U64" not in mods:
                a, b = signed(a, bits), signed(b, bits)
            out = compare(a, b)
            if "EX" in mods:
                # The upper words of a comparison; the lower words have been compared before.
                lower = self.get(args[5])
                strict = a != b if mods[0] in ("NE",) else compare(a, b) and a != b
                out = strict if a != b else lower
        joined, inverse = self.joined(mods, out, args[4])
        self.set(args[0], joined)
        self.set(args[1], inverse)

    def joined(self, mods, out, third):
        third = self.get(third)
        inverse = out if out is None else not out
        if "AND" in mods:
            return both(out, third), both(inverse, third)
        if "OR" in mods:
            return either(out, third), either(inverse, third)
        if None in (out, third):
            return None, None
        return out != third, inverse != third

    def do_SEL(self, ins):
        get, set_ = (self.get64, self.set64) if "64" in ins.mods else (self.get, self.set)
        first = self.get(ins.args[3])
        a, b = get(ins.args[1]), get(ins.args[2])
        set_(ins.args[0], a if first or a == b else b if first is False else None)

    do_FSEL = do_SEL

    def do_PRMT(self, ins):
        a, select, b = (self.get(arg) for arg in ins.args[1:4])
        if None in (a, select, b):
            return self.set(ins.args[0], None)
        data, out = (b << 32 | a).to_bytes(8, "little"), 0
        for i in range(4):
            pick = select >> 4 * i & 15
            byte = data[pick & 7]
            out |= (255 * (byte >> 7) if pick & 8 else byte) << 8 * i
        self.set(ins.args[0], out)

    def extreme(self, ins, values, largest):
        if None in values or largest is None:
            return None
        if "U32" not in ins.mods:
            values = [signed(value) for value in values]
        return (max if largest else min)(values)

    def do_VIMNMX(self, ins):
        args = [arg for i, arg in enumerate(ins.args) if arg[0] not in ("P", "UP") or i == len(ins.args) - 1]
        values = [self.get(arg) for arg in args[1:-1]]
        largest = self.get(args[-1])
        self.set(args[0], self.extreme(ins, values, None if largest is None else not largest))

    do_VIMNMX3 = do_IMNMX = do_VIMNMX

    def do_VIADDMNMX(self, ins):
        a, b, c = (self.get(arg) for arg in ins.args[1:4])
        smallest = self.get(ins.args[4])
        total = add(a, b)
        total = None if total is None else total & LOW
        self.set(ins.args[0], self.extreme(ins, [total, c], None if smallest is None else not smallest))

    def do_POPC(self, ins):
        value = self.get(ins.args[1])
        self.set(ins.args[0], None if value is None else bin(value).count("1"))

    def do_FLO(self, ins):
        value = self.get(ins.args[1])
        self.set(ins.args[0], None if value is None else (value.bit_length() - 1))

    def do_I2F(self, ins):
        value = self.get(ins.args[1])
        if value is None or "F64" in ins.mods:
            return self.forget(ins)
        bits = float_bits(float(value))
        # Rounded up, as integer division requires.
        self.set(ins.args[0], bits + ("RP" in ins.mods and float_of(bits) < value))

    do_I2FP = do_I2F

    def do_MUFU(self, ins):
        value = self.get(ins.args[1])
        if ins.mods != ["RCP"] or not value:
            return self.forget(ins)
        self.set(ins.args[0], float_bits(1 / float_of(value)))

    def do_F2I(self, ins):
        value = self.get(ins.args[1])
        if value is None or "TRUNC" not in ins.mods:
            return self.forget(ins)
        self.set(ins.args[0], int(float_of(value)))

    def do_FCHK(self, ins):
        # Quotients do not take the slow path.
        self.set(ins.args[0], False)

    def do_P2R(self, ins):
        mask = self.get(ins.args[3])
        bits = [self.files["P"][i] for i in range(7) if mask >> i & 1]
        value = None if None in bits else sum(self.files["P"][i] << i for i in range(7) if mask >> i & 1)
        self.set(ins.args[0], value)

    def do_R2P(self, ins):
        value, mask = self.get(ins.args[1]), self.get(ins.args[2])
        for i in range(7):
            if mask >> i & 1:
                self.set(("P", i, ""), None if value is None else bool(value >> i & 1))

    def do_VOTE(self, ins):
        *to, truth = ins.args
        if "ANY" in ins.mods and truth[:2] in (("P", 7), ("UP", 7)):
            # The active lanes, if one lane does an atomic operation for all: only this lane.
            return self.set(to[0], 1)
        truth = self.get(truth)  # All lanes agree with this one.
        for arg in to:
            word = arg[0] in ("R", "UR")
            self.set(arg, LOW * truth if word and truth is not None else truth)

    do_VOTEU = do_VOTE

    def do_SHFL(self, ins):
        self.set(ins.args[0], None)
        self.set(ins.args[1], self.get(ins.args[2]) if "IDX" in ins.mods else None)

    def load(self, ins, space, to, at):
        words = 4 if "128" in ins.mods else 2 if "64" in ins.mods else 1
        if set(ins.mods) & {"U8", "S8", "U16", "S16"}:
            return self.set(to, None)
        self.set_words(to, [None if at is None else space.get(at + 4 * i) for i in range(words)])

    def do_LDG(self, ins):
        args = ins.args[1:] if ins.args[0][0] == "P" else ins.args
        self.load(ins, self.memory, args[0], self.address(args[1]))

    def do_LD(self, ins):
        at = self.address(ins.args[1])
        if at is not None and at >= self.SHARED:
            return self.load(ins, self.shared, ins.args[0], at & LOW)
        self.load(ins, self.memory, ins.args[0], at)

    def do_LDS(self, ins):
        at = self.address(ins.args[1])
        self.load(ins, self.shared, ins.args[0], None if at is None else at & LOW)

    def do_STS(self, ins):
        at = self.address(ins.args[0])
        if at is None:
            return
        kind, register, _ = ins.args[1]
        words = 4 if "128" in ins.mods else 2 if "64" in ins.mods else 1
        whole = not set(ins.mods) & {"U8", "U16"}
        for i in range(words):
            value = self.files[kind][register + i if register != 255 else 255] if whole else None
            self.shared[at + 4 * i & LOW] = value

    def do_ATOMS(self, ins):
        to, at = [arg for arg in ins.args if arg[0] not in ("P", "UP")][:2]
        at = self.address(at)
        self.set(to, None)
        if at is not None and at & LOW in self.counted:
            self.shared[at & LOW] = self.counted[at & LOW]

    def do_ATOMG(self, ins):
        self.set(ins.args[0], None)
        self.set_words(ins.args[1], [self.found(self.address(ins.args[2])), None][: 1 + ("64" in ins.mods)])


def add(a, b):
    return None if a is None or b is None else a + b
