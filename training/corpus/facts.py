"""Small questions with one right answer: opposites, animals, colours, kinds of things, days, counting, sums.

Each function returns a question, the answer, and the words that a right answer must contain. Sums and
counting leave out the held-out cases.
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
            "What means the opposite of {w}?",
            "Opposite of {w}?",
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
            "What is a baby {a}?",
            "What is a baby {a} called?",
            "How do you call {b} that is young?",
        ]
    ).format(a=animal, b=article(animal))
    return question, f"A young {animal} is called {article(know.YOUNG[animal])}.", [know.YOUNG[animal]]


def home(rng: Random, split: str) -> Fact:
    animal = rng.choice(list(know.HOMES))
    return (
        rng.choice(
            ["Where does {a} live?", "What is the home of {a}?", "Where is the home of {a}?"]
        ).format(a=article(animal)),
        f"{article(animal).capitalize()} lives in {article(know.HOMES[animal])}.",
        [know.HOMES[animal]],
    )


def sound(rng: Random, split: str) -> Fact:
    animal = rng.choice(list(know.SOUNDS))
    return (
        rng.choice(
            [
                "What sound does {a} make?",
                "What does {a} do when it is loud?",
                "What does {a} say?",
                "Which noise does {a} make?",
            ]
        ).format(a=article(animal)),
        f"{article(animal).capitalize()} {know.SOUNDS[animal]}.",
        [know.SOUNDS[animal]],
    )


def colour(rng: Random, split: str) -> Fact:
    thing = rng.choice(list(know.COLOURS))
    return (
        rng.choice(
            [
                "What colour is {t}?",
                "Which colour does {t} have?",
                "What color is {t}?",
                "What is the colour of {t}?",
                "Tell me the colour of {t}.",
            ]
        ).format(t=thing),
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


def plural(name: str) -> str:
    """Plural of a category's name."""
    first, *rest = name.split(" of ")
    return " of ".join([first if first == "fish" else first + "s", *rest])


ANIMALS = sorted({a for n in ("mammal", "bird", "fish", "insect") for a in know.CATEGORIES[n]})


def example(rng: Random, split: str) -> Fact:
    name = rng.choice([*know.CATEGORIES, "animal", "animal"])
    number = rng.choice([1, 2, 3, 3, 3, 4, 5])
    chosen = rng.sample(know.CATEGORIES.get(name, ANIMALS), number)
    n, many = know.NUMBERS[number], plural(name)
    if number == 1:
        question = rng.choice(["Name {a}.", "Give me {a}.", "Tell me the name of {a}."])
        question = question.format(a=article(name))
        return question, chosen[0].capitalize() + ".", []
    question = rng.choice(
        [
            f"Name {n} examples of {article(name)}.",
            f"Give me {n} examples: {article(name)}.",
            f"Name {n} {many}.",
            f"Tell me {n} {many}.",
            f"Which {n} {many} do you know?",
            f"List {n} {many}.",
            f"Can you name {n} {many}?",
            f"Name {number} {many}.",
            f"Give me the names of {n} {many}.",
        ]
    )
    return question, f"{', '.join(chosen[:-1])} and {chosen[-1]}.".capitalize(), []


def purpose(rng: Random, split: str) -> Fact:
    thing = rng.choice(list(know.PURPOSES))
    are = thing in ("scissors", "glasses", "soap")
    subject = thing if are else article(thing)
    many = thing in ("scissors", "glasses")
    return (
        rng.choice(
            [
                f"What {'are' if many else 'is'} {subject} for?",
                f"What {'are' if many else 'is'} {subject} used for?",
                f"What do you do with {subject}?",
                f"What does one need {subject} for?",
            ]
        ),
        f"{subject[0].upper()}{subject[1:]} {'are' if many else 'is'} there {know.PURPOSES[thing]}.",
        [know.PURPOSES[thing]],
    )


def work(rng: Random, split: str) -> Fact:
    job = rng.choice(list(know.PLACES_OF_WORK))
    return (
        rng.choice(["What does {j} do?", "What is the work of {j}?", "What is the job of {j}?"]).format(
            j=article(job)
        ),
        f"{article(job).capitalize()} {know.PLACES_OF_WORK[job]}.",
        [know.PLACES_OF_WORK[job]],
    )


def legs(rng: Random, split: str) -> Fact:
    animal = rng.choice(list(know.LEGS))
    n = know.LEGS[animal]
    return (
        rng.choice(["How many legs does {a} have?", "How many legs are there on {a}?"]).format(
            a=article(animal)
        ),
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
    question = rng.choice(
        [
            f"What {thing} comes {word} {table[i]}?",
            f"Which {thing} is {word} {table[i]}?",
            f"What comes {word} {table[i]}?",
            f"What is the {thing} {word} {table[i]}?",
            f"Which {thing} comes {word} {table[i]}?",
        ]
    )
    return question, f"The {thing} {word} {table[i]} is {then}.", [then]


def number(n: int, words: bool) -> str:
    return know.NUMBERS[n] if words and n <= 20 else str(n)


def total(rng: Random, split: str) -> Fact:
    """Sums and differences below 100; every tenth pair is held out."""
    while True:
        a, b = (
            (rng.randrange(100), rng.randrange(100))
            if rng.random() < 0.75
            else (rng.randrange(21), rng.randrange(21))
        )
        minus = rng.random() < 0.35
        if minus and a < b:
            a, b = b, a
        if (minus or a + b < 100) and lex.held_out("-" if minus else "+", str(a), str(b)) == (
            split == "heldout"
        ):
            break
    result, sign = (a - b, "minus") if minus else (a + b, "plus")
    # Sums in words are memorised, so only those in digits are held out.
    words = split == "train" and max(a, b, result) <= 20 and rng.random() < 0.5
    x, y, r = number(a, words), number(b, words), number(result, words)
    question = rng.choice(
        [
            f"What is {x} {sign} {y}?",
            f"How much is {x} {sign} {y}?",
            f"{x} {sign} {y}?".capitalize(),
            f"Please work out {x} {sign} {y}.",
            f"Can you tell me what {x} {sign} {y} is?",
            f"{x} {'-' if minus else '+'} {y} =" if not words else f"What is {x} {sign} {y}?",
            f"What is {x} {'-' if minus else '+'} {y}?" if not words else f"Calculate {x} {sign} {y}.",
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
WEIGHTS = [8, 4, 3, 3, 4, 6, 4, 3, 3, 2, 6, 24, 4, 2]


def draw(rng: Random, split: str, name: str | None = None) -> tuple[str, Fact]:
    name = name or rng.choices(list(FACTS), WEIGHTS)[0]
    return name, FACTS[name](rng, split)
