"""Simulates the events of a story: characters with wants, traits and fears act in a world, step by step.

An event requires something of the state (a place, a thing, an ability or courage of a character) and changes
it. The families of wants below differ in the obstacles between a character and the want; the ending follows
from what the characters can do and how they treat each other. This module is independent of how a story is
told.
"""

from dataclasses import dataclass, field
from random import Random

import lexicon as lex


@dataclass(eq=False)
class Character:
    name: str
    kind: str
    sex: str
    trait: str
    fear: str | None = None

    def able(self, obstacle: str) -> bool:
        return bool(lex.KINDS[self.kind] & lex.NEEDS[obstacle])


@dataclass
class Event:
    kind: str
    roles: dict
    link: str = ""


@dataclass
class Story:
    """Characters and things of a story, its events, and its ending."""

    rng: Random
    hero: Character
    other: Character
    season: str
    weather: str
    place: str
    thing: str
    """With an adjective: `red kite`."""
    family: str = ""
    want: str = ""
    reason: str = ""
    outcome: str = ""
    length: str = "long"
    events: list[Event] = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    """Facts for questions."""

    def add(self, kind: str, a: Character | None = None, b: Character | None = None, link: str = "", **roles):
        self.events.append(Event(kind, {"A": a, "B": b, **roles}, link))

    def detail(self, *args, chance: float = 0.6, **roles):
        """Adds an event that changes nothing; long stories have more of them, and brief ones none."""
        share = {"long": chance, "short": chance / 3, "brief": 0.0}[self.length]
        if self.rng.random() < share:
            self.add(*args, **roles)


def article(noun: str) -> str:
    if noun.startswith(("a ", "an ", "some ")):
        return noun
    vowel = noun[0] in "aeiou" and not noun.startswith(("uni", "one"))
    return ("an " if vowel or noun.startswith(("honest", "hour")) else "a ") + noun


WILLING = {
    "kind",
    "gentle",
    "cheerful",
    "brave",
    "honest",
    "curious",
    "careful",
    "clever",
    "patient",
    "quiet",
}
UNWILLING = {"greedy", "lazy", "grumpy", "busy", "stubborn", "proud"}


def meet(s: Story) -> Character:
    """The hero meets the other character. Does nothing if they have met."""
    a, b = s.hero, s.other
    if not s.facts.get("met"):
        s.facts["met"] = True
        s.add("meet", a, b, where=s.rng.choice(lex.MEETINGS))
        if a.trait == "shy":
            s.detail("shy", a, b, chance=0.9)
        if b.trait in UNWILLING:
            s.detail("surly", b, a)
    return b


def ask_help(s: Story, what: str) -> bool:
    """The hero asks for help; the other character's decision depends on that character's trait and on the
    hero's actions."""
    a, b = s.hero, meet(s)
    if a.trait in ("proud", "stubborn") and s.rng.random() < 0.8:
        s.add("too_proud", a, b)
        s.add("alone_fails", a, link="but")
    s.add("ask", a, b, what=what)
    if b.trait in UNWILLING:
        duty = s.rng.choice(lex.DUTIES)
        s.add("condition", b, a, duty=duty)
        if a.trait == "lazy" and s.rng.random() < 0.5:
            s.add("refuse_duty", a, b, link="but")
            s.facts["left"] = True
            return False
        s.add("do_duty", a, b, link="so", duty=duty)
        s.facts["duty"] = duty
        s.add("agree", b, a, link="then")
    else:
        s.add("agree", b, a)
    s.facts["helper"] = b
    return True


def overcome(s: Story, t: str, obstacle: str, spot: str) -> bool:
    """The hero gets `t` from a spot that not everyone can reach, or fails."""
    a, b, rng = s.hero, s.other, s.rng
    s.facts |= {"spot": spot, "obstacle": obstacle}
    s.add("see_at", a, t=t, spot=spot, link="found")
    afraid = a.fear == lex.FEAR_OF[obstacle]
    if a.able(obstacle) and not afraid:
        ability = rng.choice(sorted(lex.KINDS[a.kind] & lex.NEEDS[obstacle]))
        s.add("manage", a, how=lex.HOW[ability], t=t)
        s.facts["how"] = "self"
        return True
    if afraid:
        s.add("afraid", a, fear=a.fear, link="but")
        s.facts["problem"] = f"was afraid of {a.fear}"
        if a.able(obstacle):
            meet(s)
            s.add("courage", b, a)
            s.add("dare", a, b, t=t, link="so")
            s.facts |= {"how": "courage", "helper": b}
            return True
    else:
        s.add("cannot", a, why=lex.WHY_NOT[obstacle], link="but")
        s.facts["problem"] = f"could not {lex.WHY_NOT[obstacle]}"
        tool = lex.TOOLS[obstacle]
        if rng.random() < (0.7 if a.trait == "clever" else 0.2) and tool not in t:
            s.add("think", a, tool=tool)
            s.add("use_tool", a, tool=tool, t=t, link="so")
            s.facts |= {"how": "tool", "tool": tool}
            return True
    if not ask_help(s, t):
        return False
    if not b.able(obstacle):
        s.add("together", a, b, t=t, tool=lex.TOOLS[obstacle])
        if rng.random() < 0.4:
            s.add("gone", a, b, t=t, link="but", where=rng.choice(lex.MISHAPS))
            s.facts["helper"] = b
            return False
        s.add("got_together", a, b, t=t, link="then")
        s.facts["how"] = "together"
        return True
    ability = rng.choice(sorted(lex.KINDS[b.kind] & lex.NEEDS[obstacle]))
    s.add("helper_does", b, a, how=lex.HOW[ability], t=t)
    s.facts["how"] = "helper"
    return True


def close(s: Story, won: bool, ending: dict):
    """Adds the ending, which depends on the outcome of the want; a lesson may follow."""
    a, b = s.hero, s.other
    if won:
        s.outcome = "won"
        if "helper" in s.facts:
            s.detail("thank", a, b, food=s.rng.choice(lex.FOODS), chance=0.8)
        s.add("end_" + s.family, a, b, link="at last", **ending)
        s.detail("glad", a, chance=0.7)
    else:
        s.outcome = "missed"
        s.add("end_missed", a, b, link="at last", want=s.want)
        if s.facts.get("met") and not s.facts.get("left"):
            gift = s.rng.choice([t for t in lex.THINGS if t not in s.thing])
            s.add("console", b, a, gift=gift, link="but")
            s.facts["gift"] = gift
        else:
            s.add("content", a)
    group = "missed" if not won else "helped" if "helper" in s.facts else "alone"
    s.detail("lesson", lesson=s.rng.choice(lex.LESSONS[group]), chance=0.5)


def obstacle(s: Story) -> tuple[str, str]:
    kind = s.rng.choice(sorted(lex.SPOTS))
    return kind, s.rng.choice(lex.SPOTS[kind])


def search(s: Story):
    """The hero searches in wrong places, and may be told the right one."""
    a, b = s.hero, s.other
    spots = s.rng.sample(lex.WRONG_SPOTS, 3)
    s.add("search", a, spot=spots[0], t=s.thing)
    if s.length == "long":
        s.add("search_on", a, spot=spots[1], spot2=spots[2])
        s.detail("incident", a, incident=s.rng.choice(lex.INCIDENTS), chance=0.4)
    if s.length != "brief" and s.rng.random() < 0.5:
        meet(s)
        s.add("ask_where", a, b, t=s.thing)
        s.add("tell_where", b, a, t=s.thing)


def find(s: Story):
    s.want = f"to find the {s.thing}"
    s.reason = s.rng.choice(lex.LOSSES)
    s.add("own", s.hero, t=s.thing)
    s.add("lost", s.hero, t=s.thing, link="one day")
    s.detail("reason", s.hero, reason=s.reason, chance=0.8)
    s.add("want", s.hero, want=s.want, link="so")
    search(s)
    close(s, overcome(s, s.thing, *obstacle(s)), {"t": s.thing})


def eat(s: Story):
    food = s.rng.choice(lex.FOODS)
    s.facts["food"] = food
    s.want = f"to eat {article(food)}"
    s.reason = "hungry"
    s.add("hungry", s.hero, link="one day")
    s.add("want", s.hero, want=s.want, link="so")
    s.add("walk", s.hero, place=s.facts["goal"], season=s.season)
    s.add("carry", s.hero, t=s.thing)
    s.detail("incident", s.hero, incident=s.rng.choice(lex.INCIDENTS))
    close(s, overcome(s, food, *obstacle(s)), {"t": food})


def reach(s: Story):
    far = s.rng.choice([p for p in lex.FAR_PLACES if p != s.place])
    s.facts["goal"] = far
    s.want = f"to see the {far}"
    s.reason = "never seen"
    s.add("never_seen", s.hero, far=far)
    s.add("want", s.hero, want=s.want, link="so")
    s.add("pack", s.hero, t=s.thing, food=s.rng.choice(lex.FOODS))
    s.add("set_out", s.hero, link="one day", far=far)
    a, b = s.hero, s.other
    s.detail("incident", a, incident=s.rng.choice(lex.INCIDENTS))
    # Only what can be seen on the way, rather than facts about the whole season.
    lasting = ("[have", "frozen", "nights", "evenings", "days", "cloud")
    sights = [t for t in lex.SCENES[s.season] if not any(word in t for word in lasting)]
    s.detail("scene_way", a, scene=s.rng.choice(sights))
    barrier = s.rng.choice(list(lex.BARRIERS))
    ob = lex.BARRIERS[barrier]
    s.facts |= {"barrier": barrier, "obstacle": ob}
    s.add("barrier", a, barrier=barrier, link="but")
    if a.able(ob) and a.fear != lex.FEAR_OF[ob]:
        s.add("pass_self", a, barrier=barrier)
        return close(s, True, {"far": far})
    if a.fear == lex.FEAR_OF[ob]:
        s.add("afraid", a, fear=a.fear)
        s.facts["problem"] = f"was afraid of {a.fear}"
        meet(s)
        s.add("courage", b, a)
        s.add("pass_both", a, b, barrier=barrier, link="so")
        s.facts |= {"how": "courage", "helper": b}
        return close(s, True, {"far": far})
    s.add("turn", a, barrier=barrier)
    s.facts["problem"] = "could not pass"
    if ask_help(s, "pass"):
        s.add("show_way", b, a, barrier=barrier)
        s.facts["how"] = "helper"
        return close(s, True, {"far": far})
    return close(s, False, {})


def friend(s: Story):
    a, b = s.hero, s.other
    s.want = "to have a friend"
    s.reason = "alone"
    s.add("alone", a)
    s.add("want", a, want=s.want, link="so")
    s.add("walk", a, place=s.facts["goal"], season=s.season, link="one day")
    s.add("carry", a, t=s.thing)
    s.detail("incident", a, incident=s.rng.choice(lex.INCIDENTS))
    meet(s)
    s.facts["helper"] = b
    kind = s.rng.choice(["sad", "share", "play"])
    if kind == "sad":
        lost = s.rng.choice([t for t in lex.THINGS if t not in s.thing])
        s.add("b_lost", b, a, t=lost)
        s.add("look_both", a, b, t=lost, link="so")
        spot = s.rng.choice(lex.WRONG_SPOTS)
        s.add("found_at", a, t=lost, spot=spot, link="found")
        s.facts["gave"] = lost
    elif kind == "share":
        food = s.rng.choice(lex.FOODS)
        s.add("b_hungry", b, a)
        s.add("share", a, b, food=food, link="so")
    else:
        s.add("offer_play", a, b, t=s.thing)
        s.add("accept_play", b, a, t=s.thing)
    if b.trait in ("grumpy", "proud", "busy") and kind == "play":
        s.add("still_no", b, a, link="but")
        s.facts["left"] = True
        return close(s, False, {})
    close(s, True, {})


def make(s: Story):
    a, b, rng = s.hero, s.other, s.rng
    dish = rng.choice(sorted(lex.DISHES))
    first, second = lex.DISHES[dish]
    s.facts |= {"dish": dish, "first": first, "second": second}
    s.want = f"to make {article(dish)}"
    s.reason = "needs"
    s.add("want", a, want=s.want, link="one day")
    s.add("needs", a, first=first, second=second, dish=dish)
    s.add("fetch", a, first=first, place=s.facts["goal"], link="first")
    s.add("carry", a, t=s.thing)
    s.add("lacks", a, second=second, link="but")
    meet(s)
    s.add("b_has", b, a, second=second)
    if ask_help(s, second):
        s.add("give", b, a, t=second)
        s.add("work", a, b, dish=dish)
        return close(s, True, {"t": dish})
    return close(s, False, {})


def skill(s: Story):
    a, b, rng = s.hero, s.other, s.rng
    # Skips skills that a kind has by nature, and skills that the teacher's kind cannot have.
    natural = {"swim": {lex.SWIM}, "climb trees": {lex.CLIMB, lex.FLY}}
    skill = rng.choice(
        [
            k
            for k in lex.SKILLS
            if k not in natural or natural[k].isdisjoint(lex.KINDS[a.kind]) and natural[k] & lex.KINDS[b.kind]
        ]
    )
    s.facts["skill"] = skill
    s.want = f"to learn to {skill}"
    s.reason = "envy"
    s.add("watch_skill", a, skill=skill, place=s.facts["goal"])
    s.add("want", a, want=s.want, link="so")
    s.add("carry", a, t=s.thing)
    s.add("try_skill", a, skill=skill)
    s.add("fail_skill", a, link="but", how=rng.choice(lex.FAILURES))
    meet(s)
    if not ask_help(s, "teach"):
        return close(s, False, {})
    s.add("teach", b, a, skill=skill)
    s.add("practise", a, b, days=rng.choice(lex.PRACTICE))
    if a.trait == "lazy" and rng.random() < 0.5:
        s.add("stop_practice", a, link="but")
        return close(s, False, {})
    close(s, True, {"skill": skill})


def sleep(s: Story):
    a, b, rng = s.hero, s.other, s.rng
    s.want = "to sleep"
    noise = rng.choice(lex.NOISES)
    s.facts["noise"] = noise
    s.reason = "noise"
    s.add("tired", a, link="one day")
    s.add("want", a, want=s.want)
    s.add("noise", a, link="but")
    s.add("go_see", a, t=s.thing, link="so")
    meet(s)
    s.add("makes_noise", b, a, noise=noise)
    s.add("ask_quiet", a, b)
    if b.trait in ("stubborn", "proud", "grumpy"):
        s.add("not_quiet", b, a, link="but")
        s.add("bed_away", a, spot=rng.choice(lex.WRONG_SPOTS), link="so")
        if rng.random() < 0.5:
            return close(s, False, {})
        s.add("sorry", b, a, link="then")
    else:
        s.add("stop_noise", b, a)
    s.facts["helper"] = b
    close(s, True, {})


def shelter(s: Story):
    a, b = s.hero, s.other
    s.want = "to get warm" if s.season in ("winter", "autumn") else "to get dry"
    s.reason = "storm"
    s.add("walk", a, place=s.facts["goal"], season=s.season, link="one day")
    s.add("carry", a, t=s.thing)
    s.detail("incident", a, incident=s.rng.choice(lex.INCIDENTS))
    storm = "snow" if s.season == "winter" else "rain"
    s.add("storm", a, storm=storm)
    s.add("want", a, want=s.want)
    s.add("try_shelter", a, tree=s.rng.choice(lex.BAD_SHELTER))
    s.add("light", a, link="then")
    s.add("knock", a, b)
    s.add("opens", b, a)
    s.facts |= {"met": True, "helper": b}
    if not ask_help(s, "come in"):
        return close(s, False, {})
    s.add("fire", a, b, food=s.rng.choice(lex.TREATS))
    close(s, True, {"state": s.want.split()[-1]})


def give(s: Story):
    a, b = s.hero, s.other
    s.want = f"to give {b.name} the {s.thing}"
    s.reason = "birthday"
    s.facts["met"] = True
    s.add("friends", a, b)
    s.add("birthday", b, a, link="one day")
    s.add("want_give", a, b, t=s.thing, want=s.want)
    s.add("gift_lost", a, t=s.thing, link="but")
    spot_kind, spot = obstacle(s)
    search_spots = s.rng.sample(lex.WRONG_SPOTS, 2)
    s.add("search", a, spot=search_spots[0], t=s.thing)
    s.facts |= {"spot": spot, "obstacle": spot_kind}
    s.add("see_at", a, t=s.thing, spot=spot, link="found")
    if a.able(spot_kind) and a.fear != lex.FEAR_OF[spot_kind]:
        ability = s.rng.choice(sorted(lex.KINDS[a.kind] & lex.NEEDS[spot_kind]))
        s.add("manage", a, how=lex.HOW[ability], t=s.thing)
        s.facts["how"] = "self"
        won = True
    elif a.fear == lex.FEAR_OF[spot_kind]:
        s.add("afraid", a, fear=a.fear, link="but")
        s.facts["problem"] = f"was afraid of {a.fear}"
        s.add("think_of", a, b)
        s.add("dare_alone", a, t=s.thing, link="so")
        s.facts["how"] = "courage"
        won = True
    else:
        s.add("cannot", a, why=lex.WHY_NOT[spot_kind], link="but")
        s.facts["problem"] = f"could not {lex.WHY_NOT[spot_kind]}"
        won = s.rng.random() < 0.7
        if won:
            tool = lex.TOOLS[spot_kind]
            s.add("think", a, tool=tool)
            s.add("use_tool", a, tool=tool, t=s.thing, link="so")
            s.facts |= {"how": "tool", "tool": tool}
    if won:
        s.add("hand_over", a, b, t=s.thing)
    close(s, won, {"t": s.thing})


FAMILIES = {f.__name__: f for f in (find, eat, reach, friend, make, skill, sleep, shelter, give)}


def new_name(rng: Random, sex: str, split: str) -> str:
    """A name made of syllables. Held-out names never occur in training."""
    while True:
        name = "".join(rng.choice(lex.SYLLABLES) for _ in range(rng.choice([2, 2, 3])))
        name = (name[:-1] + ("a" if sex == "f" else "o")).capitalize()
        known = name in lex.GIRLS or name in lex.BOYS
        if not known and lex.held_out("name", name, share=8) == (split == "heldout"):
            return name


def character(rng: Random, split: str, taken: set[str], fixed: dict | None = None) -> Character:
    fixed = fixed or {}
    kind = fixed.get("kind") or rng.choice([k for k in lex.KINDS if k not in taken])
    sex = fixed.get("sex") or lex.ALONE.get(kind) or rng.choice("fm")
    names = [n for n in (lex.GIRLS if sex == "f" else lex.BOYS) if n not in taken]
    return Character(
        fixed.get("name") or rng.choice(names), kind, sex, fixed.get("trait") or rng.choice(lex.TRAITS)
    )


def combination(rng: Random, split: str) -> tuple[str, str, str, str]:
    """Kind, trait, place and thing: in the evaluation with at least one held-out pair, in training
    without."""
    while True:
        kind, trait = rng.choice(list(lex.KINDS)), rng.choice(lex.TRAITS)
        place, thing = rng.choice(list(lex.PLACES)), rng.choice(lex.THINGS)
        unseen = lex.held_out("kind trait", kind, trait) or lex.held_out("place thing", place, thing)
        if unseen == (split == "heldout"):
            return kind, trait, place, thing


def simulate(rng: Random, split: str = "train", strange_name: bool = False, length: str = "") -> Story:
    """A story with a random want, with the given `length`: `brief` or `long`."""
    while True:
        kind, trait, place, thing = combination(rng, split)
        hero = character(rng, split, set(), {"kind": kind, "trait": trait})
        if strange_name:
            hero.name = new_name(rng, hero.sex, split)
        other = character(rng, split, {hero.kind, hero.name})
        if not lex.held_out("kind trait", other.kind, other.trait):
            break
    if hero.sex == other.sex and rng.random() < 0.6 and other.kind not in lex.ALONE:
        other.sex = "m" if hero.sex == "f" else "f"
        other.name = rng.choice(lex.BOYS if other.sex == "m" else lex.GIRLS)
    if hero.trait != "brave" and rng.random() < 0.35:
        hero.fear = rng.choice(sorted(lex.FEAR_OF.values()))
    season = rng.choice(lex.SEASONS)
    look = rng.choice(lex.LOOKS) + " " if rng.random() < 0.7 else ""
    if thing.split()[0] in ("wooden", "paper", "watering", "snow") and look:
        look = rng.choice(["red ", "blue ", "green ", "old ", "new ", "pretty "])
    story = Story(rng, hero, other, season, rng.choice(lex.WEATHER[season]), place, look + thing)
    story.length = length or rng.choice(["short", "long", "long"])
    story.facts["goal"] = rng.choice([p for p in lex.PLACES if p != place])
    story.family = rng.choice(list(FAMILIES))
    FAMILIES[story.family](story)
    return story
