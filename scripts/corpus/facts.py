"""Small questions with one right answer: opposites, animals, colours, kinds of things, days, counting, sums.

Each function gives a question, the answer, and the words that a right answer must hold. Sums and counting
leave out the cases that belong to the evaluation.
"""

from random import Random

import knowledge as know
import lexicon as lex
from plot import article

REVERSED = {v: k for k, v in know.OPPOSITES.items() if list(know.OPPOSITES.values()).count(v) == 1}
PAIRS = {**REVERSED, **know.OPPOSITES}

Fact = tuple[str, str, list[str]]


def opposite(rng: Random, split: str) -> Fact:
    word = rng.choice(list(PAIRS))
    question = rng.choice(
        [
            "What is the opposite of {w}?",
            "Tell me the opposite of {w}.",
            "The opposite of {w}?",
            "Which word means the opposite of {w}?",
        ]
    ).format(w=word)
    return question, f"The opposite of {word} is {PAIRS[word]}.", [PAIRS[word]]


def young(rng: Random, split: str) -> Fact:
    animal = rng.choice(list(know.YOUNG))
    question = rng.choice(
        [
            "What is a young {a} called?",
            "What do you call the young of {b}?",
            "What is the name for a baby {a}?",
        ]
    ).format(a=animal, b=article(animal))
    return question, f"A young {animal} is called {article(know.YOUNG[animal])}.", [know.YOUNG[animal]]


def home(rng: Random, split: str) -> Fact:
    animal = rng.choice(list(know.HOMES))
    return (
        rng.choice(["Where does {a} live?", "What is the home of {a}?"]).format(a=article(animal)),
        f"{article(animal).capitalize()} lives in {article(know.HOMES[animal])}.",
        [know.HOMES[animal]],
    )


def sound(rng: Random, split: str) -> Fact:
    animal = rng.choice(list(know.SOUNDS))
    return (
        rng.choice(["What sound does {a} make?", "What does {a} do when it is loud?"]).format(
            a=article(animal)
        ),
        f"{article(animal).capitalize()} {know.SOUNDS[animal]}.",
        [know.SOUNDS[animal]],
    )


def colour(rng: Random, split: str) -> Fact:
    thing = rng.choice(list(know.COLOURS))
    return (
        rng.choice(["What colour is {t}?", "Which colour does {t} have?"]).format(t=thing),
        f"{thing[0].upper()}{thing[1:]} is {know.COLOURS[thing]}.",
        [know.COLOURS[thing]],
    )


MASS = {
    "milk",
    "water",
    "tea",
    "juice",
    "cocoa",
    "lemonade",
    "coffee",
    "cider",
    "iron",
    "gold",
    "silver",
    "copper",
    "tin",
    "lead",
    "steel",
    "brass",
    "bronze",
    "spinach",
    "celery",
    "garlic",
    "bread",
    "cheese",
    "butter",
    "honey",
    "jam",
    "rice",
    "porridge",
    "salad",
    "ham",
    "mustard",
    "vinegar",
    "cream",
    "yoghurt",
    "soup",
    "amber",
    "scissors",
    "pliers",
    "noodles",
    "stairs",
    "lettuce",
}


def category(rng: Random, split: str) -> Fact:
    name = rng.choice(list(know.CATEGORIES))
    member = rng.choice(know.CATEGORIES[name])
    mass = name in ("colour", "kind of weather") or member in MASS
    subject = member if mass else article(member)
    verb = "are" if member in ("scissors", "pliers", "noodles", "stairs") else "is"
    answer = f"{subject[0].upper()}{subject[1:]} {verb} {article(name)}."
    others = sorted(n for n in know.CATEGORIES if member in know.CATEGORIES[n])
    if len(others) > 1:
        return category(rng, split)
    return rng.choice([f"What {verb} {subject}?", f"What kind of thing {verb} {subject}?"]), answer, [name]


def example(rng: Random, split: str) -> Fact:
    name = rng.choice(list(know.CATEGORIES))
    chosen = rng.sample(know.CATEGORIES[name], 3)
    return (
        rng.choice(["Name three examples of {n}.", "Give me three examples: {n}."]).format(n=article(name)),
        f"{chosen[0].capitalize()}, {chosen[1]} and {chosen[2]}.",
        [],
    )


def purpose(rng: Random, split: str) -> Fact:
    thing = rng.choice(list(know.PURPOSES))
    are = thing in ("scissors", "glasses", "soap")
    subject = thing if are else article(thing)
    plural = thing in ("scissors", "glasses")
    return (
        f"What {'are' if plural else 'is'} {subject} for?",
        f"{subject[0].upper()}{subject[1:]} {'are' if plural else 'is'} there {know.PURPOSES[thing]}.",
        [know.PURPOSES[thing]],
    )


def work(rng: Random, split: str) -> Fact:
    job = rng.choice(list(know.PLACES_OF_WORK))
    return (
        rng.choice(["What does {j} do?", "What is the work of {j}?"]).format(j=article(job)),
        f"{article(job).capitalize()} {know.PLACES_OF_WORK[job]}.",
        [know.PLACES_OF_WORK[job]],
    )


def legs(rng: Random, split: str) -> Fact:
    animal = rng.choice(list(know.LEGS))
    n = know.LEGS[animal]
    return (
        f"How many legs does {article(animal)} have?",
        f"{article(animal).capitalize()} has {n} legs.",
        [n],
    )


def day(rng: Random, split: str) -> Fact:
    table, thing = rng.choice(
        [(know.DAYS, "day"), (know.DAYS, "day"), (know.MONTHS, "month"), (lex.SEASONS, "season")]
    )
    i, step = rng.randrange(len(table)), rng.choice([1, -1])
    then = table[(i + step) % len(table)]
    word = "after" if step == 1 else "before"
    question = rng.choice([f"What {thing} comes {word} {table[i]}?", f"Which {thing} is {word} {table[i]}?"])
    return question, f"The {thing} {word} {table[i]} is {then}.", [then]


def number(n: int, words: bool) -> str:
    return know.NUMBERS[n] if words and n <= 20 else str(n)


def total(rng: Random, split: str) -> Fact:
    """Sums and differences below 100; every tenth pair belongs to the evaluation."""
    while True:
        a, b = (
            (rng.randrange(100), rng.randrange(100))
            if rng.random() < 0.75
            else (rng.randrange(21), rng.randrange(21))
        )
        minus = rng.random() < 0.25
        if minus and a < b:
            a, b = b, a
        if (minus or a + b < 100) and lex.held_out("-" if minus else "+", str(a), str(b)) == (
            split == "heldout"
        ):
            break
    result, sign = (a - b, "minus") if minus else (a + b, "plus")
    words = max(a, b, result) <= 20 and rng.random() < 0.4
    x, y, r = number(a, words), number(b, words), number(result, words)
    question = rng.choice(
        [
            f"What is {x} {sign} {y}?",
            f"How much is {x} {sign} {y}?",
            f"{x} {sign} {y}?".capitalize(),
            f"Please work out {x} {sign} {y}.",
            f"{x} {'-' if minus else '+'} {y} =" if not words else f"What is {x} {sign} {y}?",
        ]
    )
    return question, f"{x} {sign} {y} is {r}.".capitalize(), [r]


def count(rng: Random, split: str) -> Fact:
    while True:
        a, n = rng.randrange(1, 90), rng.randrange(3, 11)
        down = rng.random() < 0.2 and a > n
        if lex.held_out("count", str(a), str(n), str(down)) == (split == "heldout"):
            break
    numbers = [a - i if down else a + i for i in range(n)]
    words = max(numbers) <= 20 and rng.random() < 0.5
    text = ", ".join(number(i, words) for i in numbers)
    return (
        f"Count {'down ' if down else ''}from {number(a, words)} to {number(numbers[-1], words)}.",
        text.capitalize() + ".",
        [text],
    )


def larger(rng: Random, split: str) -> Fact:
    a, b = rng.sample(range(100), 2)
    small = rng.random() < 0.5
    r = min(a, b) if small else max(a, b)
    return (
        f"Which number is {'smaller' if small else 'larger'}: {a} or {b}?",
        f"{r} is {'smaller' if small else 'larger'}.",
        [str(r)],
    )


FACTS = {
    f.__name__: f
    for f in (
        opposite,
        young,
        home,
        sound,
        colour,
        category,
        example,
        purpose,
        work,
        legs,
        day,
        total,
        count,
        larger,
    )
}
WEIGHTS = [8, 4, 3, 3, 4, 6, 2, 3, 3, 2, 6, 24, 4, 2]


def draw(rng: Random, split: str, name: str | None = None) -> tuple[str, Fact]:
    name = name or rng.choices(list(FACTS), WEIGHTS)[0]
    return name, FACTS[name](rng, split)
