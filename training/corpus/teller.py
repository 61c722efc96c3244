"""Turns a simulated story into text: the teller chooses tense, order, dialogue, length and pronouns."""

import re
from dataclasses import dataclass, field
from random import Random

import lexicon as lex
from plot import Character, Event, Story, article
from sentences import EVENTS, HABIT, INTRO, LINKS, MANNERS, NO_LINK, SCENE

IRREGULAR = lex.pairs("""be: was, have: had, do: did, go: went, come: came, see: saw, find: found, get: got,
take: took,
    give: gave, say: said, tell: told, know: knew, think: thought, begin: began, run: ran, sit: sat, stand:
    stood,
    speak: spoke, hide: hid, make: made, bring: brought, hold: held, eat: ate, break: broke, sink: sank,
    slide: slid, sell: sold, hear: heard, drink: drank, catch: caught, step: stepped, slip: slipped, wave:
    waved, rest: rested, sleep: slept, feel: felt, fall: fell,
    fly: flew, swim: swam, sing: sang, blow: blew, ring: rang, shine: shone, wake: woke, lie: lay, set: set,
    put: put, cut: cut, leave: left, lead: led, meet: met, shake: shook, keep: kept, lose: lost, become:
    became,
    forget: forgot, teach: taught, read: read, rise: rose, hang: hung, grow: grew, spin: spun, build: built,
    creep: crept, can: could, will: would, cry: cried, try: tried, carry: carried, hurry: hurried, nod:
    nodded,
    beg: begged, stop: stopped, clap: clapped, shiver: shivered, sob: sobbed, drop: dropped, hum: hummed,
    play: played, stay: stayed""")


def past(verb: str) -> str:
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    return verb + ("d" if verb.endswith("e") else "ed")


def present(verb: str) -> str:
    """Third person singular."""
    if verb in ("can", "will"):
        return verb
    if verb in ("be", "have"):
        return {"be": "is", "have": "has"}[verb]
    if verb[-1] == "y" and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s")


def conjugate(verb: str, plural: bool, tense: str) -> str:
    if verb == "be" and plural:
        return "were" if tense == "past" else "are"
    if tense == "past":
        return past(verb)
    return verb if plural else present(verb)


VERB = re.compile(r"\[([a-z]+)(\+?)\]")
EITHER = re.compile(r"\(([^()]*\|[^()]*)\)")
SLOT = re.compile(r"\{([^}]+)\}")


def in_tense(text: str, tense: str) -> str:
    text = VERB.sub(lambda m: conjugate(m[1], bool(m[2]), tense), text)
    return re.sub(r"\bcan not\b", "cannot", text)


def bare(noun: str) -> str:
    return re.sub(r"^(a|an|the|some) ", "", noun)


def capital(text: str) -> str:
    """Capitalises the starts of sentences, also after a quotation mark."""
    return re.sub(r'(^"?|[.!?] "?)([a-z])', lambda m: m[1] + m[2].upper(), text)


PRONOUNS = {"f": {"she": "she", "her": "her", "him": "her"}, "m": {"she": "he", "her": "his", "him": "him"}}
AGES = ["little", "young", "old"]


@dataclass
class Teller:
    """A style of telling, drawn once per story."""

    rng: Random
    tense: str = "past"
    dialogue: float = 0.4
    """Share of events told as speech if there is a sentence with speech."""
    joins: float = 0.3
    order: str = "plain"
    opener: str = ""
    """The last time expression, which is not repeated immediately."""
    subject: Character | None = None
    """Subject of the previous sentence."""
    mentioned: set[str] = field(default_factory=set)
    """Names in the previous sentence."""
    ages: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def draw(rng: Random) -> "Teller":
        return Teller(
            rng,
            rng.choice(["past", "past", "past", "present"]),
            rng.choice([0.0, 0.3, 0.6, 0.9]),
            rng.choice([0.1, 0.3, 0.5]),
            rng.choice(["plain", "plain", "scene", "want"]),
        )

    def described(self, c: Character) -> str:
        age = self.ages.get(c.name, "")
        return article(f"{c.trait} {age} {c.kind}".replace("  ", " "))

    def noun_phrase(self, c: Character, story: Story, pattern: str, first: bool, others: set) -> str:
        """Name, pronoun, or kind, whichever is unambiguous."""
        same_sex = any(o.sex == c.sex for o in others if o is not c)
        if first and self.subject is c and pattern.startswith("{A} "):
            doubt = same_sex or any(
                o.sex == c.sex and o.name in self.mentioned for o in (story.hero, story.other) if o is not c
            )
            if not doubt and self.rng.random() < 0.5:
                return PRONOUNS[c.sex]["she"]
        if self.rng.random() < 0.2 and c.name not in pattern:
            return f"the {c.kind}"
        return c.name

    def fill(self, pattern: str, story: Story, roles: dict) -> str:
        a, b = roles.get("A"), roles.get("B")
        others = {c for c, s in ((a, "{A"), (b, "{B")) if c and s in pattern}
        introduces = any(s in pattern for s in ("hero.a", "other.a", "self.a"))

        def value(match: re.Match) -> str:
            slot = match[1]
            if slot in ("A", "B"):
                c = a if slot == "A" else b
                called = pattern[: match.start()].count('"') % 2 == 1
                plain = introduces and not (slot == "A" and "other.a" in pattern)
                return (
                    c.name
                    if plain or called or "name [be] {A}" in pattern
                    else self.noun_phrase(c, story, pattern, slot == "A", others)
                )
            if slot[:2] in ("A.", "B."):
                return PRONOUNS[(a if slot[0] == "A" else b).sex][slot[2:]]
            if slot in ("hero.a", "self.a"):
                return self.described(a)
            if slot == "other.a":
                return self.described(b)
            place = roles.get("place", story.place)
            if slot == "in place":
                return f"{lex.PLACES[place]} the {place}"
            if slot in ("to place", "the place"):
                return ("to the " if slot[0:2] == "to" else "the ") + place
            name, _, form = slot.partition(".")
            text = roles[name] if name in roles else getattr(story, name)
            if form == "a":
                return article(text)
            if form in ("bare", "my"):
                return ("my " if form == "my" else "") + bare(text)
            if form == "the" or name == "t":
                return "the " + bare(text)
            return text

        # The text of a slot may contain verbs itself.
        pattern = EITHER.sub(lambda m: self.rng.choice(m[1].split("|")), pattern)
        return in_tense(SLOT.sub(value, pattern), self.tense)

    def choose(self, event: Event, brief: bool) -> str:
        """One of the event's patterns; a brief story uses one of the shortest."""
        patterns = EVENTS[event.kind]
        if brief:
            return self.rng.choice(sorted(patterns, key=len)[: max(2, len(patterns) // 3)])
        speech = [p for p in patterns if p.startswith('"')]
        plain = [p for p in patterns if not p.startswith('"')]
        linked = event.link in ("but", "so", "at last", "one day", "first", "then")
        if speech and not linked and self.rng.random() < self.dialogue:
            return self.rng.choice(speech)
        return self.rng.choice(plain)

    def in_its_time(self, patterns: list[str]) -> str:
        """One of the patterns; those that refer to the distant past need the past tense."""
        if self.tense == "present":
            patterns = [p for p in patterns if not re.search(r"\b(ago|[Oo]nce|that year|That|called)\b", p)]
        return self.rng.choice(patterns)

    def note(self, text: str, story: Story, subject: Character | None):
        known = (story.hero, story.other)
        self.mentioned = {c.name for c in known if c.name in text or f"the {c.kind}" in text}
        self.subject = subject

    def link(self, event: Event, story: Story) -> str:
        if not event.link and event.kind in NO_LINK:
            return ""
        openers = LINKS[event.link]
        opener = self.rng.choice([o for o in openers if not o or o != self.opener] or openers)
        self.opener = opener or self.opener
        return opener.format(season=story.season, weather=story.weather)

    def tell(self, story: Story) -> str:
        rng = self.rng
        for c in (story.hero, story.other):
            young = c.kind in ("kitten", "puppy", "lamb", "boy", "girl")
            self.ages[c.name] = "" if young else rng.choice(["", "", *AGES])
        roles = {"A": story.hero, "hobby": "", "hobby2": ""}
        roles["hobby"], roles["hobby2"] = rng.sample(lex.HOBBIES, 2)
        sunny = story.weather in ("hot", "sunny", "dry", "bright", "warm", "clear", "mild")
        scenes = [s for s in lex.SCENES[story.season] if sunny or not ("cloud" in s or "sun" in s)]
        scenes = [s for s in scenes if "frozen" not in s or story.facts.get("obstacle") != "water"]
        roles["scene"] = rng.choice(scenes)
        parts = [self.fill(self.in_its_time(INTRO), story, roles)]
        if story.length == "long" or story.length == "short" and rng.random() < 0.3:
            self.note(parts[0], story, None)
            parts.append(self.fill(rng.choice(HABIT), story, roles))
        scene = self.fill(self.in_its_time(SCENE), story, roles)
        parts = [scene, *parts] if self.order == "scene" else [*parts, scene]
        self.note(parts[-1], story, None)
        if self.order == "want" and story.family != "give" and story.length != "brief":
            parts.insert(
                0,
                rng.choice(
                    [
                        '"I want {w}," [say] {n} again and again.',
                        '"How I would like {w}!" [say] {n}.',
                        '"If only I had one wish: {w}," [say] {n}.',
                        "{n} [have] one great wish: {w}.",
                        "What [do] {n} want? {w}.",
                    ]
                ).format(w=story.want, n=story.hero.name),
            )
            parts[0] = in_tense(parts[0], self.tense)
        events, i = story.events, 0
        while i < len(events):
            event = events[i]
            pattern = self.choose(event, story.length == "brief")
            opener = self.link(event, story)
            if pattern.startswith('"'):
                opener = ""
            if (
                re.search(r"(say|ask|answer|call|whisper)\] \{A\}( to \{B\})?\.$", pattern)
                and self.rng.random() < 0.3
            ):
                pattern = f"{pattern[:-1]} {self.rng.choice(MANNERS)}."
            if opener and not pattern.startswith("{"):
                pattern = pattern[0].lower() + pattern[1:]
            text = opener + self.fill(pattern, story, event.roles)
            following = events[i + 1] if i + 1 < len(events) else None
            if self.joinable(event, pattern, following):
                second = [
                    p
                    for p in EVENTS[following.kind]
                    if p.startswith("{A} [") and not re.search(r" and |,|:", p)
                ]
                if second and rng.random() < self.joins:
                    tail = self.fill(rng.choice(second).removeprefix("{A} "), story, following.roles)
                    text, i = f"{text[:-1]} and {tail}", i + 1
            parts.append(text)
            leads = re.search(r"\{([AB])\}", pattern)
            self.note(text, story, event.roles[leads[1]] if leads else None)
            i += 1
        return " ".join(capital(p) for p in parts)

    @staticmethod
    def joinable(event: Event, pattern: str, following: Event | None) -> bool:
        return (
            following is not None
            and following.roles["A"] is event.roles["A"]
            and not following.link
            and pattern.startswith("{A} [")
            and pattern.endswith(".")
            and len(pattern) < 60
            and not any(
                mark in pattern for mark in (" and ", ":", ",", '"', "{how}", "{noise}", " who ", "] not ")
            )
        )
