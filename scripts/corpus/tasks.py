"""Conversations that exercise a skill: copying, remembering, answers as JSON, calls of tools."""

import json
from random import Random

import facts
import knowledge as know
import lexicon as lex
from chat import chosen_keys, fact_chat, listed, story_chat
from dialogue import Chat, length
from plot import article, simulate

# Copying and retrieval


def vocabulary() -> list[str]:
    """Single words that lists are made of."""
    words = {
        w
        for table in (lex.KINDS, lex.THINGS, lex.FOODS, lex.TRAITS, lex.LOOKS, lex.PLACES, facts.PAIRS)
        for entry in table
        for w in entry.split()
    }
    words |= {w for group in know.CATEGORIES.values() for entry in group for w in entry.split()}
    return sorted(words - {"of", "the", "a"})


WORDS = vocabulary()


def items(rng: Random, n: int) -> str:
    """`n` tokens or a little more that have nothing to do with each other."""
    kind = rng.random()
    if kind < 0.6:
        return " ".join(rng.sample(WORDS, n))
    if kind < 0.75:
        return "".join(str(rng.randrange(10)) for _ in range(n))
    if kind < 0.9:
        return " ".join(rng.sample("abcdefghijklmnopqrstuvwxyz", n))
    return " ".join(
        rng.choice([rng.choice(WORDS), str(rng.randrange(100)), rng.choice("abcdefgh")]) for _ in range(n)
    )


def copy_chat(rng: Random, split: str) -> Chat:
    chat = Chat()
    for _ in range(rng.choice([1, 2, 3])):
        n = 16 if split == "heldout" else rng.choice([1, 2, 3, 4, 6, 8, 12, 15, 16, 16, 17, 20, 24])
        text = items(rng, n)
        chat.ask(
            rng.choice(
                [
                    "Repeat: {x}",
                    "Repeat:\n{x}",
                    "Say this:\n{x}",
                    "Copy these words:\n{x}",
                    "Say this: {x}",
                    "Copy these words: {x}",
                    "Repeat after me: {x}",
                    "Write exactly this: {x}",
                ]
            ).format(x=text),
            text,
            "copy",
            text=text,
        )
    return chat


def code(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return "".join(str(rng.randrange(10)) for _ in range(rng.choice([4, 4, 5, 6])))
    if kind < 0.8:
        return " ".join(rng.sample(WORDS, rng.choice([2, 3, 4])))
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(4)) + str(rng.randrange(100))


def held_out_distance(n: int) -> bool:
    """Whether a distance of retrieval, in tokens, belongs to the evaluation: one band of 32 in eight."""
    return n // 32 % 8 == 5


def retrieval_chat(rng: Random, split: str, most: int = 1900, at_least: int = 0) -> Chat:
    """A code, other talk of any length, and the question for the code."""
    while True:
        far = rng.randrange(8, most) if rng.random() < 0.5 else round(most ** rng.random())
        chat, target = Chat(), max(at_least, far)
        n_codes = rng.choice([1, 1, 2, 3])
        owners = rng.sample(sorted(lex.KINDS), n_codes)
        codes = {o: code(rng) for o in owners}
        if n_codes == 1:
            said = rng.choice(
                ["Remember the code: {c}", "The code is {c}. Keep it in mind.", "Please remember: {c}"]
            )
            question = rng.choice(
                ["What was the code?", "What is the code?", "Tell me the code.", "The code, please."]
            )
            start, answer = said.format(c=codes[owners[0]]), f"The code is {codes[owners[0]]}."
        else:
            start = " ".join(f"The code of the {o} is {c}." for o, c in codes.items())
            asked = rng.choice(owners)
            question, answer = (
                f"What is the code of the {asked}?",
                f"The code of the {asked} is {codes[asked]}.",
            )
        chat.ask(start, rng.choice(["I will remember it.", "I will keep it in mind.", "Good."]))
        distance = 8
        while distance < target:
            left = target - distance
            before = len(chat.messages)
            filler = fact_chat(rng, "train") if left < 220 or rng.random() < 0.3 else story_chat(rng, "train")
            chat.messages += filler.messages
            distance += sum(length(m["content"]) for m in chat.messages[before:])
            if distance > most + 60:
                break
        if distance <= most + 60 and held_out_distance(distance) == (split == "heldout"):
            chat.ask(
                question, answer, "needle", key=[answer.rstrip(".").rsplit(" is ", 1)[1]], distance=distance
            )
            return chat


# JSON and tools


def json_chat(rng: Random, split: str) -> Chat:
    chat = Chat()
    for _ in range(rng.choice([1, 2])):
        story = simulate(rng, split)
        a = story.hero
        age = rng.randrange(1, 99)
        food = rng.choice(lex.FOODS)
        text = " ".join(
            rng.sample(
                [
                    f"{a.name} is {article(f'{a.trait} {a.kind}')}.",
                    f"{a.name} lives {lex.PLACES[story.place]} the {story.place}.",
                ],
                2,
            )
            + rng.sample(
                [
                    f"{a.name} has {article(story.thing)}.",
                    f"{a.name} is {age} years old.",
                    f"{a.name} likes {article(food)}.",
                ],
                3,
            )
        )
        keys, values = chosen_keys(
            rng,
            {
                "name": a.name,
                "kind": a.kind,
                "trait": a.trait,
                "place": story.place,
                "thing": story.thing,
                "age": age,
                "food": food,
            },
        )
        chat.ask(
            f"{text} "
            + rng.choice(
                [
                    "Answer as JSON with the {k}.",
                    "Give me JSON with the {k}.",
                    "Write this as JSON, with the {k}.",
                ]
            ).format(k=listed(keys)),
            json.dumps(values),
            "json",
            values=values,
        )
    return chat


def tool(name: str, description: str, /, **arguments: str) -> dict:
    properties = {k: {"type": kind} for k, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [
    tool("weather", "Tells the weather at a place.", place="string"),
    tool("add", "Adds two numbers.", a="number", b="number"),
    tool("find_thing", "Finds where a thing is.", thing="string"),
    tool("play_song", "Plays a song on an instrument.", instrument="string"),
    tool("ring_bell", "Rings a bell some times.", times="number"),
    tool("send_letter", "Sends a letter to someone.", name="string", text="string"),
]


def tool_chat(rng: Random, split: str) -> Chat:
    chat = Chat(tools=rng.sample(TOOLS, rng.choice([1, 2, 3, 4])))
    names = [t["function"]["name"] for t in chat.tools]
    name = rng.choice(names)
    place, thing = rng.choice(list(lex.PLACES)), rng.choice(lex.THINGS)
    n, m = rng.randrange(100, 1000), rng.randrange(100, 1000)
    who = rng.choice(lex.GIRLS + lex.BOYS)
    weather = rng.choice(sum(lex.WEATHER.values(), []))
    spot = rng.choice(lex.WRONG_SPOTS)
    instrument = rng.choice(know.CATEGORIES["instrument"])
    times = rng.randrange(2, 30)
    text = rng.choice(
        ["Come to my birthday.", "I miss you.", "The cake is ready.", "Thank you for the gift."]
    )
    question, arguments, result, answer = {
        "weather": (
            rng.choice([f"What is the weather at the {place}?", f"How is the weather at the {place}?"]),
            {"place": place},
            {"weather": weather},
            f"The weather at the {place} is {weather}.",
        ),
        "add": (
            rng.choice([f"Add {n} and {m}.", f"What is {n} plus {m}?"]),
            {"a": n, "b": m},
            {"sum": n + m},
            f"{n} plus {m} is {n + m}.",
        ),
        "find_thing": (
            rng.choice([f"Where is my {thing}?", f"Find my {thing}, please."]),
            {"thing": thing},
            {"spot": spot},
            f"Your {thing} is {spot}.",
        ),
        "play_song": (
            f"Play a song on the {instrument}.",
            {"instrument": instrument},
            {"done": True},
            "It is done.",
        ),
        "ring_bell": (f"Ring the bell {times} times.", {"times": times}, {"done": True}, "It is done."),
        "send_letter": (
            f"Send {who} a letter: {text}",
            {"name": who, "text": text},
            {"done": True},
            "It is done.",
        ),
    }[name]
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    chat.messages.append({"role": "user", "content": question})
    chat.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    chat.checks.append((1, "tool", {"name": name, "arguments": arguments}))
    chat.messages.append({"role": "tool", "content": json.dumps(result)})
    chat.messages.append({"role": "assistant", "content": answer})
    if rng.random() < 0.3:
        # What needs no tool is answered without one.
        _, (q, a, key) = facts.draw(rng, split, rng.choice(["opposite", "day", "young"]))
        chat.ask(q, a, "fact", key=key, name="day")
    return chat
