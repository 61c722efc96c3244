"""Parses a story: finds the event of each sentence, and checks that the story obeys the simulation's rules.

The expressions are built from the tellers' own table (sentences.py), so the parser knows exactly the
sentences that a teller can generate. Other sentences count as unread; the parser does not guess.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

import lexicon as lex
from plot import article
from sentences import EVENTS, HABIT, INTRO, LINKS, MANNERS, SCENE
from teller import EITHER, SLOT, VERB, bare, conjugate

KINDS = "|".join(lex.KINDS)
TRAITS = "|".join(lex.TRAITS)
PLACES = "|".join(lex.PLACES)
NAME = r"[A-Z][a-z]+"
NO_NAME = (
    r"(?!(?:The|So|But|And|Then|In|At|On|One|It|There|Soon|First|Now|After|A|An|His|Her|To|For|With|That)\b)"
)
PHRASE = rf"(?:{NO_NAME}{NAME}|[Hh]e|[Ss]he|[Tt]he (?:{KINDS}))"
WORDS = "[A-Za-z][a-z' ]*?"
STUFF = {bare(x) for both in lex.DISHES.values() for x in both}
NOUN = (
    f"(?:(?:{'|'.join(lex.LOOKS)}) )?(?:"
    + "|".join(sorted({*lex.THINGS, *lex.FOODS, *lex.DISHES, *STUFF}, key=len, reverse=True))
    + ")"
)
WANT = (
    f"to (?:find the {NOUN}|eat an? {NOUN}|make an? {NOUN}|give {NAME} the {NOUN}|have a friend|sleep"
    f"|see the (?:{'|'.join(lex.FAR_PLACES)})|learn to (?:{'|'.join(lex.SKILLS)})|get (?:warm|dry))"
)
SOLVED = {
    "manage",
    "dare",
    "dare_alone",
    "use_tool",
    "got_together",
    "helper_does",
    "pass_self",
    "pass_both",
    "show_way",
    "share",
    "found_at",
    "accept_play",
    "work",
    "teach",
    "practise",
    "stop_noise",
    "sorry",
    "bed_away",
    "fire",
    "hand_over",
    "give",
}
"""Events by which a want is fulfilled."""
FAILED = {
    "gone",
    "refuse_duty",
    "still_no",
    "stop_practice",
    "not_quiet",
    "bed_away",
    "cannot",
    "alone_fails",
}
"""Events by which a want fails."""
ABLE = {how: {ability} for ability, how in lex.HOW.items()}


CLOSED = {
    "how": [*lex.HOW.values(), *lex.FAILURES],
    "reason": lex.LOSSES,
    "noise": lex.NOISES,
    "barrier": [*lex.BARRIERS, *(bare(b) for b in lex.BARRIERS)],
    "scene": [s for group in lex.SCENES.values() for s in group],
    "lesson": sum(lex.LESSONS.values(), []),
    "spot": [*sum(lex.SPOTS.values(), []), *lex.WRONG_SPOTS],
    "spot2": lex.WRONG_SPOTS,
    "hobby": lex.HOBBIES,
    "hobby2": lex.HOBBIES,
    "duty": lex.DUTIES,
    "why": lex.WHY_NOT.values(),
    "fear": lex.FEARS,
    "skill": lex.SKILLS,
    "season": lex.SEASONS,
    "weather": sum(lex.WEATHER.values(), []),
    "days": lex.PRACTICE,
    "incident": lex.INCIDENTS,
    "where": [*lex.MEETINGS, *lex.MISHAPS],
    "tree": lex.BAD_SHELTER,
    "far": lex.FAR_PLACES,
    "tool": lex.TOOLS.values(),
    "storm": ["rain", "snow"],
    "state": ["warm", "dry"],
}
"""Slots that contain an entry of one of these tables."""


@dataclass
class Sentence:
    text: str
    readings: list[tuple[str, dict]] = field(default_factory=list)
    """(event, its roles) for every event that this sentence can describe; empty if none."""

    def role(self, kind: str) -> dict | None:
        return next((roles for name, roles in self.readings if name == kind), None)


def verb(match: re.Match) -> str:
    forms = {conjugate(match[1], bool(match[2]), tense) for tense in ("past", "present")}
    return "(?:" + "|".join(sorted(forms)) + ")"


def expression(pattern: str) -> str:
    """A regular expression for one pattern of the tables; roles are named groups."""
    seen: set[str] = set()

    def group(name: str, inner: str) -> str:
        if name in seen:
            return f"(?:{inner})"
        seen.add(name)
        return f"(?P<{name}>{inner})"

    def slot(text: str) -> str:
        if text in ("A", "B"):
            return group(text, PHRASE)
        if text[:2] in ("A.", "B."):
            return "(?:[Hh]is|[Hh]er|[Hh]im|[Hh]e|[Ss]he)"
        if text in ("hero.a", "other.a", "self.a"):
            return f"[Aa]n? {group('trait', TRAITS)} (?:little |young |old )?{group('kind', KINDS)}"
        if text in ("in place", "to place", "the place"):
            word = {"in": "(?:[Ii]n|[Aa]t|[Oo]n) ", "to": "to ", "th": ""}[text[:2]]
            return f"{word}[Tt]he {group('place', PLACES)}"
        name, _, form = text.partition(".")
        before = {"a": "(?:an? )?", "the": "[Tt]he ", "my": "my "}.get(form, "[Tt]he " if text == "t" else "")
        known = tuple(CLOSED.get(name, ()))
        inner = "|".join(expression(entry) for entry in known) if known else WORDS
        return before + group(name, {"want": WANT, "t": NOUN}.get(name, inner))

    parts, at = [], 0
    for match in re.finditer(rf"{SLOT.pattern}|{VERB.pattern}|{EITHER.pattern}", pattern):
        parts.append(literal(pattern[at : match.start()], at == 0))
        if match[1]:
            parts.append(slot(match[1]))
        elif match[2]:
            parts.append(verb(re.match(VERB, match[0])))
        else:
            parts.append("(?:" + "|".join(map(re.escape, match[4].split("|"))) + ")")
        at = match.end()
    parts.append(literal(pattern[at:], at == 0))
    text = "".join(parts).replace(r"(?:can|could)\ not", "(?:cannot|could not)")
    return text


def literal(text: str, first: bool) -> str:
    if first and text and text[0].isalpha():
        return f"[{text[0].upper()}{text[0].lower()}]" + re.escape(text[1:])
    return re.escape(text)


@lru_cache(maxsize=1)
def openers() -> re.Pattern:
    every = {o for group in LINKS.values() for o in group if o}
    words = sorted((re.escape(o) for o in every), key=len, reverse=True)
    text = "|".join(words).replace(r"\{season\}", "[a-z]+").replace(r"\{weather\}", "[a-z]+")
    return re.compile(f"(?:{text})?")


@lru_cache(maxsize=1)
def grammar() -> list[tuple[str, re.Pattern, re.Pattern | None]]:
    """Event, expression of its sentence without the full stop, and the same without the subject."""
    out = []
    tables = [("intro", INTRO), ("habit", HABIT), ("scene", SCENE), *EVENTS.items()]
    for kind, patterns in tables:
        for pattern in patterns:
            body = expression(pattern).removesuffix(r"\.")
            if pattern.endswith("}."):
                body += "(?: (?:" + "|".join(MANNERS) + "))?"
            tail = pattern.startswith("{A} [")
            rest = re.compile(body.split("(?P<A>" + PHRASE + ")", 1)[-1].lstrip("\\ ") if tail else "$^")
            out.append((kind, re.compile(body + r"(?=\.|$| and )"), rest if tail else None))
    return out


PRELUDE = re.compile(
    rf'"(?:I want|How I would like|If only I had one wish:) (?P<want>{WANT})[,!]" (?:said|says) (?P<A>{NAME})'
    rf"(?: again and again)?\.|(?P<A2>{NAME}) (?:had|has) one great wish: (?P<want2>{WANT})\."
    rf"|What (?:did|does) (?P<A3>{NAME}) want\? (?P<want3>T{WANT[1:]})\."
)


SAYS_SIZE = re.compile(r"Here is a (?:short|long) story\.")
"""First sentence of an answer to a request with a length (chat.py)."""


def sentences(text: str) -> list[str]:
    """Splits where a full stop, or the end of a speech without a speaker, is followed by a capital or a
    quote."""
    text = " ".join(text.split())
    cuts, at, inside = [], 0, False
    for i, c in enumerate(text):
        if c == '"':
            inside = not inside
            if not inside and text[i - 1] in ".!?" and re.match(r' ["A-Z]', text[i + 1 : i + 3]):
                cuts.append(text[at : i + 1].strip())
                at = i + 1
        elif c in ".!?" and not inside and text[i + 1 : i + 2] in ("", " "):
            cuts.append(text[at : i + 1].strip())
            at = i + 1
    return [c for c in [*cuts, text[at:].strip()] if c]


def read_one(text: str) -> list[tuple[str, dict]]:
    """All readings of one sentence."""
    text = text.removesuffix(".")
    stripped = text[openers().match(text).end() :]
    found: list[tuple[str, dict]] = []
    for candidate in {text, stripped}:
        for kind, whole, _ in grammar():
            match = whole.fullmatch(candidate)
            if match:
                found.append((kind, match.groupdict()))
        if not found and " and " in candidate:
            found += joined(candidate)
    return found


def joined(text: str) -> list[tuple[str, dict]]:
    """Two events with one subject, joined by `and`."""
    for cut in (m.start() for m in re.finditer(" and ", text)):
        left, right = text[:cut], text[cut + 5 :]
        first = [(k, m.groupdict()) for k, w, _ in grammar() if (m := w.fullmatch(left))]
        if not first:
            continue
        second = [
            (k, {**m.groupdict(), "A": first[0][1].get("A")})
            for k, _, r in grammar()
            if r and (m := r.fullmatch(right))
        ]
        if second:
            return first + second
    return []


def read(text: str) -> list[Sentence]:
    parts, out, i = sentences(text), [], 0
    # Some of the tellers' sentences are two by punctuation.
    while i < len(parts):
        for n in (3, 2, 1):
            whole = " ".join(parts[i : i + n])
            readings = read_one(whole) if len(parts) >= i + n else []
            prelude = PRELUDE.fullmatch(whole)
            if prelude:
                g = prelude.groupdict()
                want = g["want"] or g["want2"] or "t" + g["want3"][1:]
                readings = [("prelude", {"want": want, "A": g["A"] or g["A2"] or g["A3"]})]
            if SAYS_SIZE.fullmatch(whole):
                readings = [("says_size", {})]
            if readings or n == 1:
                out.append(Sentence(whole, readings))
                i += n
                break
    return out


@dataclass
class Verdict:
    """Result of checking a story."""

    unread: int
    total: int
    cast: dict[str, tuple[str, str]]
    """Name -> (trait, kind), in the order of introduction."""
    introduced: bool
    """All acting and mentioned characters were introduced."""
    follows: bool
    """The ending matches the want, and the events cause it."""
    want: str | None
    why: str = ""
    apart: bool | None = None
    """True if the second character has another name than the hero; None if there is none."""


def apart(told: list[Sentence]) -> bool | None:
    events = [(kind, roles) for s in told for kind, roles in s.readings]
    heroes = [roles["A"] for kind, roles in events if kind == "intro"]
    role = {"meet": "B", "friends": "B", "opens": "A"}
    others = [roles[role[kind]] for kind, roles in events if kind in role]
    return heroes[0] not in others if heroes and others else None


def cast_of(told: list[Sentence]) -> dict[str, tuple[str, str, int]]:
    cast: dict[str, tuple[str, str, int]] = {}
    for number, sentence in enumerate(told):
        for kind, roles in sentence.readings:
            if not roles.get("kind"):
                continue
            name = roles.get("B") if kind in ("meet", "friends") else roles.get("A")
            if name and re.fullmatch(NAME, name) and name not in ("He", "She") and name not in cast:
                cast[name] = (roles["trait"], roles["kind"], number)
    return cast


def names_in(text: str) -> set[str]:
    """Capitalised words that are names: not the first word of a sentence or of a speech."""
    found = set(re.findall(rf"(?<![.!?] )(?<!^)(?<!\")\b({NAME})\b", text))
    return {n for n in found if n.lower() not in COMMON}


COMMON = {"sundays", "he", "she", "the", "it", "there", "i", "spring", "summer", "autumn", "winter"}


def judge(text: str) -> Verdict:
    told = read(text)
    cast = cast_of(told)
    kinds = {kind for _, kind, _ in cast.values()}
    strangers = ""
    for number, sentence in enumerate(told):
        for name in names_in(sentence.text):
            if name not in cast or (cast[name][2] > number and number > 1):
                strangers = strangers or name
        for _, roles in sentence.readings:
            for role in ("A", "B"):
                phrase = (roles.get(role) or "").lower()
                if phrase.startswith("the ") and phrase[4:] not in kinds:
                    strangers = strangers or phrase
                elif roles.get(role) and re.fullmatch(NAME, roles[role]) and phrase not in COMMON:
                    if roles[role] not in cast:
                        strangers = strangers or roles[role]
    want, follows, why = ending(told, cast)
    unread = sum(not s.readings for s in told)
    if not cast:
        strangers = "nobody is introduced"
    return Verdict(
        unread,
        len(told),
        {n: (t, k) for n, (t, k, _) in cast.items()},
        not strangers,
        follows,
        want,
        strangers or why,
        apart(told),
    )


def ending(told: list[Sentence], cast: dict) -> tuple[str | None, bool, str]:
    """The want, True if the story's ending matches it, and otherwise the reason."""
    events = [(kind, roles) for s in told for kind, roles in s.readings]
    wants = [r["want"] for k, r in events if k in ("want", "want_give", "prelude") and r.get("want")]
    if not wants:
        return None, False, "no want"
    want = wants[0]
    if any(w != want for w in wants):
        return want, False, "two wants"
    kinds = [k for k, _ in events]
    missed = [r for k, r in events if k == "end_missed"]
    happened = set(kinds)
    if missed:
        won = [k for k in happened if k.startswith("end_") and k != "end_missed"]
        if missed[-1]["want"] != want:
            return want, False, "another wish fails"
        if any(fits(want, k, r) for k, r in events if k in won):
            return want, False, "it came true and did not"
        return want, bool(happened & FAILED), "" if happened & FAILED else "fails without a cause"
    ends = [(i, k, r) for i, (k, r) in enumerate(events) if k.startswith("end_") and fits(want, k, r)]
    if not ends:
        return want, False, "no ending of this want"
    if not set(kinds[: ends[-1][0]]) & SOLVED:
        return want, False, "nothing brings it about"
    for kind, roles in events:
        if kind in ("manage", "helper_does") and not can(roles, cast):
            return want, False, f"{roles.get('A')} cannot: {roles.get('how')}"
    return want, True, ""


def fits(want: str, kind: str, roles: dict) -> bool:
    """True if the ending matches the want."""
    t = roles.get("t") or ""
    match kind:
        case "end_find":
            return want == f"to find the {t}"
        case "end_eat":
            return want == f"to eat {article(t)}" if t else False
        case "end_reach":
            return want == f"to see the {roles.get('far')}"
        case "end_friend":
            return want == "to have a friend"
        case "end_make":
            return want == f"to make {article(t)}" if t else False
        case "end_skill":
            return want == f"to learn to {roles.get('skill')}"
        case "end_sleep":
            return want == "to sleep"
        case "end_shelter":
            return want == f"to get {roles.get('state')}"
        case "end_give":
            return bool(t) and want.startswith("to give ") and want.endswith(f" the {t}")
    return False


HOW_READ = {ability: re.compile(VERB.sub(verb, how)) for ability, how in lex.HOW.items()}


def can(roles: dict, cast: dict) -> bool:
    """True if the character's kind is able to do this. Pronouns are not checked."""
    who, how = roles.get("A") or "", roles.get("how") or ""
    kind = who[4:] if who.lower().startswith("the ") else cast.get(who, ("", "", 0))[1]
    ability = next((a for a, form in HOW_READ.items() if form.fullmatch(how)), None)
    return ability is not None and (kind not in lex.KINDS or ability in lex.KINDS[kind])
