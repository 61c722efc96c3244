"""Conversations about stories and small questions: requests, questions, facts, and unknown topics."""

import json
import re
from random import Random

import facts
import knowledge as know
import lexicon as lex
from dialogue import Chat
from plot import Story, article, simulate
from teller import Teller, in_tense

# Stories on request


SIZES = {"": range(60, 251), "short": range(60, 106), "long": range(175, 251)}
"""Numbers of words of a story, by requested length."""


SAYS_SIZE = "Here is a {s} story."
"""Start of a story with a requested length, for the rest of the story to attend to."""


def told(rng: Random, split: str, strange: bool = False, size: str = "") -> tuple[Story, str]:
    """A story and its text, of a length that a request may ask for."""
    length = {"": "", "short": "brief", "long": "long"}[size]
    while True:
        story = simulate(rng, split, strange, length)
        text = Teller.draw(rng).tell(story)
        if len(text.split()) in SIZES[size]:
            return story, text


def size_of(text: str) -> str:
    """Length class of a story: short, long, or neither. Slightly wider than in training."""
    n = len(text.split())
    return "short" if n <= 115 else "long" if n >= 155 else ""


def request(rng: Random, story: Story, strange: bool, size: str, split: str) -> tuple[str, dict]:
    """A request that this story fulfils, and its constraints."""
    a, b = story.hero, story.other
    n = rng.choice([0, 1, 2, 2, 3, 3, 4])
    chosen = set(rng.sample(["trait", "kind", "season", "place", "thing", "other"], n))
    if split == "train" and rng.random() < 0.3:
        chosen.add("other")
    if strange:
        chosen.add("name")
    elif rng.random() < 0.15:
        chosen.add("name")
    who, tail, wanted = "", [], {}
    if "trait" in chosen:
        chosen.add("kind")
        wanted["trait"] = a.trait
    if "kind" in chosen:
        wanted["kind"] = a.kind
        who = article(f"{a.trait} {a.kind}" if "trait" in chosen else a.kind)
    if "name" in chosen:
        wanted["name"] = a.name
        who = f"{who} named {a.name}" if who else a.name
    if "place" in chosen:
        wanted["place"] = story.place
        tail.append(f"{lex.PLACES[story.place]} the {story.place}")
    if "season" in chosen:
        wanted["season"] = story.season
        tail.append(f"in {story.season}")
    along = ""
    if "thing" in chosen:
        wanted["thing"] = story.thing
        along = f"with {article(story.thing)}"
    # In training, requests may also name a friend who is given something: otherwise models choose another
    # character.
    comes = ("meet", "opens", "friends") if split == "train" else ("meet", "opens")
    if "other" in chosen and any(e.kind in comes for e in story.events):
        wanted["other"] = b.kind
        if who:
            who += f" and {article(b.kind)}"
        else:
            along = f"{along} and {article(b.kind)}" if along else f"with {article(b.kind)}"
    if along:
        tail.append(along)
    if size:
        wanted["length"] = size
        size += " "
    rng.shuffle(tail)
    body = " ".join(([f"about {who}"] if who else []) + tail)
    start = rng.choice(
        [
            "Tell me a {s}story",
            "Please tell me a {s}story",
            "I would like a {s}story",
            "Can you tell me a {s}story",
            "A {s}story",
            "Write a {s}story",
            "Tell a {s}story",
            "Could you tell me a {s}story",
            "I want a {s}story",
            "Please write a {s}story",
            "Make up a {s}story",
        ]
    ).format(s=size)
    text = f"{start} {body}".strip()
    return text + ("?" if text.startswith(("Can", "Could")) else "."), wanted


def questions(rng: Random, story: Story) -> list[tuple[str, str, list[str]]]:
    """Questions about a story: question, answer, and the words that the answer must contain."""
    a, b, f = story.hero, story.other, story.facts
    out = [
        (
            rng.choice(["Who is the story about?", "Who is it about?", "Who is the hero of the story?"]),
            f"It is about {a.name}, {article(f'{a.trait} {a.kind}')}.",
            [a.name],
        ),
        (
            rng.choice([f"What is {a.name}?", f"What kind of character is {a.name}?"]),
            f"{a.name} is {article(f'{a.trait} {a.kind}')}.",
            [a.kind],
        ),
        (
            rng.choice([f"Where does {a.name} live?", f"Where is the home of {a.name}?"]),
            f"{a.name} lives {lex.PLACES[story.place]} the {story.place}.",
            [story.place],
        ),
        (
            rng.choice(
                [f"What did {a.name} want?", f"What was the wish of {a.name}?", f"What does {a.name} want?"]
            ),
            f"{a.name} wanted {story.want}.",
            [story.want],
        ),
        (
            rng.choice(
                ["When does the story happen?", "In which season does it happen?", "What season is it?"]
            ),
            f"It happens in {story.season}.",
            [story.season],
        ),
    ]
    appears = any(e.kind in ("meet", "opens", "friends") for e in story.events)
    if appears:
        out.append((f"Who is {b.name}?", f"{b.name} is {article(f'{b.trait} {b.kind}')}.", [b.kind]))
    if "helper" in f:
        out.append(
            (
                rng.choice([f"Who helped {a.name}?", f"Who was good to {a.name}?"]),
                f"{f['helper'].name} the {f['helper'].kind} helped {a.name}.",
                [f["helper"].name],
            )
        )
    if "problem" in f and "tunnel" not in f["problem"]:
        out.append(
            (
                rng.choice([f"Why was it hard for {a.name}?", f"What was the trouble for {a.name}?"]),
                f"{a.name} {f['problem']}.",
                [f["problem"]],
            )
        )
    if "spot" in f:
        thing = f.get("food", story.thing)
        out.append(
            (
                rng.choice([f"Where was the {thing}?", f"Where did {a.name} find the {thing}?"]),
                f"The {thing} was {f['spot']}.",
                [f["spot"]],
            )
        )
    if "duty" in f:
        out.append(
            (f"What did {a.name} have to do for {b.name}?", f"{a.name} had to {f['duty']}.", [f["duty"]])
        )
    if "first" in f:
        out.append(
            (
                "What was needed?",
                f"{f['first'].capitalize()} and {f['second']} were needed.",
                [f["first"], f["second"]],
            )
        )
    if "gift" in f:
        out.append(
            (
                f"What did {b.name} give {a.name}?",
                f"{b.name} gave {a.name} {article(f['gift'])}.",
                [f["gift"]],
            )
        )
    if "noise" in f:
        out.append(
            (f"Why could {a.name} not sleep?", in_tense(f"Because {b.name} {f['noise']}.", "past"), [b.name])
        )
    won = story.outcome == "won"
    out.append(
        (
            rng.choice(["Did the wish come true?", f"Did {a.name} get the wish?"]),
            "Yes, the wish came true." if won else "No, the wish did not come true.",
            ["Yes" if won else "No"],
        )
    )
    return out


def listed(keys: list[str]) -> str:
    if len(keys) == 1:
        return f"key {keys[0]}"
    return f"keys {', '.join(keys[:-1])} and {keys[-1]}"


def chosen_keys(rng: Random, every: dict) -> tuple[list[str], dict]:
    keys = rng.sample(list(every), rng.randrange(1, min(5, len(every)) + 1))
    return keys, {k: every[k] for k in keys}


def story_chat(rng: Random, split: str) -> Chat:
    chat, strange = Chat(), rng.random() < 0.2
    size = rng.choice(["", "", "", "", "", "", "", "", "short", "long"])
    if split == "train" and rng.random() < 0.4:
        size = rng.choice(["short", "short", "long"])
    story, text = told(rng, split, strange, size)
    wanted_text, wanted = request(rng, story, strange, size, split)
    if size:
        text = f"{SAYS_SIZE.format(s=size)} {text}"
    elif split == "train" and rng.random() < 0.08:
        chat.ask(*rng.choice([g for g in GREETINGS if g[1].endswith("story?")]))
        wanted_text = rng.choice(["Yes.", "Yes, please.", "yes", "Please do!", "Yes, tell me one."])
        wanted = {}
    chat.ask(wanted_text, text, "story", wanted=wanted)
    some = questions(rng, story)
    for question, answer, key in rng.sample(some, rng.choice([0, 1, 2, 3, min(5, len(some))])):
        if rng.random() < 0.2:
            question = (
                rng.choice(["In the story, ", "One question: ", "Now tell me: "])
                + question[0].lower()
                + question[1:]
            )
        chat.ask(question, answer, "question", key=key)
    ending = rng.random()
    if ending < 0.12:
        keys, values = chosen_keys(
            rng,
            {
                "name": story.hero.name,
                "kind": story.hero.kind,
                "trait": story.hero.trait,
                "season": story.season,
                "place": story.place,
                "wish": story.want,
            },
        )
        chat.ask(
            rng.choice(
                [
                    "Answer as JSON with the {k}.",
                    "Give me JSON with the {k}.",
                    "As JSON, please, the {k}.",
                ]
            ).format(k=listed(keys)),
            json.dumps(values),
            "json",
            values=values,
        )
    elif ending < 0.2 and len(chat.messages) > 2:
        chat.ask(
            rng.choice(
                ["Say that again.", "Please say that again.", "Again, please.", "Can you repeat that?"]
            ),
            chat.messages[-1]["content"],
            "again",
            text=chat.messages[-1]["content"],
        )
    elif ending < 0.3:
        chat.ask(
            *rng.choice(
                [
                    ("Thank you!", "You are welcome!"),
                    ("That was nice.", "I am glad that you liked it."),
                    ("Goodbye.", "Goodbye! Come back for another story."),
                ]
            )
        )
    elif ending < 0.45:
        name = rng.choice([n for n in lex.GIRLS + lex.BOYS if n not in text])
        chat.ask(f"Who is {name}?", f"There is no {name} in the story.", "question", key=["no"])
    return chat


def continue_chat(rng: Random, split: str) -> Chat:
    """A story that either side starts, and its continuation."""
    chat = Chat()
    _, text = told(rng, split)
    cuts = [m.end() for m in re.finditer(r"\.(?= [A-Z])", text)]
    cut = rng.choice(cuts[1:-2] or cuts)
    first, rest = text[:cut], text[cut + 1 :]
    if rng.random() < 0.5:
        chat.ask(rng.choice(["Tell me the beginning of a story.", "Begin a story, please."]), first)
        chat.ask(rng.choice(["Continue.", "Go on.", "And then?", "Please continue."]), rest)
    else:
        chat.ask(
            rng.choice(["Continue this story: ", "Go on with this: ", "How does this end? "]) + first, rest
        )
    return chat


# Small questions


def fact_chat(rng: Random, split: str) -> Chat:
    chat = Chat()
    for _ in range(rng.choice([1, 2, 3, 4, 6])):
        kind = rng.random()
        if kind < 0.12:
            decline(rng, split, chat)
        elif kind < 0.17:
            chat.ask(*rng.choice(GREETINGS))
        else:
            name, (question, answer, key) = facts.draw(rng, split)
            chat.ask(question, answer, "fact", key=key, name=name)
            if rng.random() < 0.05:
                chat.ask("Say that again.", answer, "again", text=answer)
    return chat


def sum_chat(rng: Random, split: str) -> Chat:
    """Conversations with only sums: those of `fact_chat` are too few to learn addition."""
    chat = Chat()
    for _ in range(rng.choice([2, 4, 6, 8])):
        name, (question, answer, key) = facts.draw(rng, split, "total")
        chat.ask(question, answer, "fact", key=key, name=name)
    return chat


ABLE = (
    "I can tell stories, answer questions about them, name opposites, animals and days, work out small sums, "
    "repeat words and keep a code in mind."
)
GREETINGS = [
    ("Hello!", "Hello! Shall I tell you a story?"),
    ("Hi.", "Hello! Shall I tell you a story?"),
    ("Hi!", "Hello! Shall I tell you a story?"),
    ("Hello", "Hello! Shall I tell you a story?"),
    ("hello", "Hello! Shall I tell you a story?"),
    ("hi", "Hello! Shall I tell you a story?"),
    ("Hey!", "Hello! What would you like to hear?"),
    ("Are you a robot?", "I am a very small storyteller."),
    ("What are you?", "I am a very small storyteller."),
    ("Do you like stories?", "I love stories. Shall I tell you one?"),
    ("No.", "That is fine. Ask me something else."),
    ("Good night!", "Good night! Sleep well."),
    ("See you!", "Goodbye!"),
    ("I am bored.", "Shall I tell you a story?"),
    ("I am sad.", "I am sorry. Shall I tell you a story?"),
    ("Good morning!", "Good morning! What would you like to hear?"),
    ("Good evening.", "Good evening! Shall I tell a story?"),
    ("How are you?", "I am well, thank you. Shall I tell you a story?"),
    ("Who are you?", "I am a very small storyteller."),
    ("What is your name?", "I have no name. I am a small storyteller."),
    ("Who made you?", "I am a very small storyteller."),
    ("What can you do?", ABLE),
    ("What can I ask you?", ABLE),
    ("Help", ABLE),
    ("What do you know?", ABLE),
    ("Thank you.", "You are welcome!"),
    ("Thanks!", "You are welcome!"),
    ("Goodbye.", "Goodbye!"),
    ("Bye!", "Goodbye!"),
]


def decline(rng: Random, split: str, chat: Chat) -> None:
    held_out, kind = split == "heldout", rng.random()
    if kind < 0.3:
        question = rng.choice(know.OUTSIDE_ASKED_HELD_OUT if held_out else know.OUTSIDE_ASKED)
    elif held_out or kind < 0.6:
        topic = rng.choice(know.OUTSIDE_HELD_OUT if held_out else know.OUTSIDE)
        question = rng.choice(know.OUTSIDE_QUESTIONS).format(t=topic)
    else:
        # Made-up words teach the model to decline the unknown.
        topic = " ".join(strange_word(rng) for _ in range(rng.choice([1, 1, 2])))
        topic = rng.choice(["", "", "the ", "a "]) + (topic.capitalize() if rng.random() < 0.4 else topic)
        question = rng.choice(rng.choice([know.OUTSIDE_QUESTIONS, know.STRANGE_QUESTIONS])).format(t=topic)
    chat.ask(question[0].upper() + question[1:], rng.choice(know.DECLINE), "decline")


def strange_word(rng: Random) -> str:
    ends = ["", "n", "s", "tion", "r", "ment", "x", "t", "logy", "ing", "ia", "ics"]
    starts = ["", "st", "pr", "gr", "qu", "ch", "tr", "ph", "cl", "sh"]
    return (
        rng.choice(starts)
        + "".join(rng.choice(lex.SYLLABLES) for _ in range(rng.choice([1, 2, 3])))
        + rng.choice(ends)
    )
