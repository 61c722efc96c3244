"""Conversations that exercise a skill: copying, remembering, JSON answers, tool calls."""

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
    """Single words for lists."""
    words = {
        w
        for table in (lex.KINDS, lex.THINGS, lex.FOODS, lex.TRAITS, lex.LOOKS, lex.PLACES, facts.PAIRS)
        for entry in table
        for w in entry.split()
    }
    words |= {w for group in know.CATEGORIES.values() for entry in group for w in entry.split()}
    return sorted(words - {"of", "the", "a"})


WORDS = vocabulary()


def items(rng: Random, n: int, split: str) -> str:
    """About `n` unrelated tokens. Training has more of the hard cases: digits, and mixed lists, where a token
    may occur twice."""
    kind = rng.random()
    words, digits, letters = (0.45, 0.7, 0.78) if split == "train" else (0.7, 0.82, 0.94)
    if kind < words:
        return " ".join(rng.sample(WORDS, n))
    if kind < digits:
        return "".join(str(rng.randrange(10)) for _ in range(n))
    if kind < letters:
        return " ".join(rng.sample("abcdefghijklmnopqrstuvwxyz", n))
    return " ".join(
        rng.choice([rng.choice(WORDS), str(rng.randrange(100)), rng.choice("abcdefgh")]) for _ in range(n)
    )


def copy_chat(rng: Random, split: str) -> Chat:
    """Texts to repeat. Finding the start of the text is the hardest part, so half of the conversations have
    many short texts."""
    chat = Chat()
    many = split == "train" and rng.random() < 0.5
    for _ in range(rng.randrange(4, 9) if many else rng.choice([1, 2, 3])):
        sizes = [1, 2, 3, 4] if many else [6, 8, 12, 15, 16, 16, 17, 20, 24]
        n = 16 if split == "heldout" else rng.choice(sizes)
        text = items(rng, n, split)
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


def code(rng: Random, split: str) -> str:
    """One to three words, or four digits; training has more codes of several tokens."""
    digits, sizes = (0.3, [1, 2, 3]) if split == "train" else (0.15, [1, 1, 2, 3])
    if rng.random() < digits:
        return "".join(str(rng.randrange(10)) for _ in range(4))
    return " ".join(rng.sample(WORDS, rng.choice(sizes)))


def held_out_distance(n: int) -> bool:
    """True if a retrieval distance, in tokens, is held out: one range of 32 in eight."""
    return n // 32 % 8 == 5


ONE_CODE = ["Remember the code: {c}", "The code is {c}. Keep it in mind.", "Please remember the code: {c}"]
CODE_OF = ["Remember the code of the {o}: {c}.", "The code of the {o} is {c}.", "The {o} has the code {c}."]
ASK_CODE = ["What was the code?", "What is the code?", "Tell me the code.", "The code, please."]
ASK_CODE_OF = ["What is the code of the {o}?", "Tell me the code of the {o}.", "The code of the {o}, please."]


def code_turn(rng: Random, owners: list[str], codes: dict[str, str]) -> str:
    """Text that gives some codes; the owner "" is for a single code without an owner."""
    return " ".join(rng.choice(CODE_OF if o else ONE_CODE).format(o=o, c=codes[o]) for o in owners)


def ask_code(rng: Random, chat: Chat, owner: str, code: str, distance: int) -> None:
    chat.ask(
        rng.choice(ASK_CODE_OF if owner else ASK_CODE).format(o=owner),
        f"The code of the {owner} is {code}." if owner else f"The code is {code}.",
        "needle",
        key=[code],
        distance=distance,
    )


def filler(rng: Random, chat: Chat, left: int) -> int:
    """Appends other conversation of up to about `left` tokens, and returns its length."""
    before = len(chat.messages)
    made = fact_chat(rng, "train") if left < 220 or rng.random() < 0.3 else story_chat(rng, "train")
    chat.messages += made.messages
    return sum(length(m["content"]) for m in chat.messages[before:])


def retrieval_chat(rng: Random, split: str, most: int = 1900, at_least: int = 0, alone: bool = False) -> Chat:
    """One or several codes (one if `alone`), other conversation of any length, and the question for one
    code."""
    while True:
        far = rng.randrange(8, most) if rng.random() < 0.5 else round(most ** rng.random())
        chat, target = Chat(), max(at_least, far)
        n_codes = 1 if alone else rng.choice([1, 1, 1, 1, 2, 3])
        owners = rng.sample(sorted(lex.KINDS), n_codes) if n_codes > 1 else [""]
        codes = {o: code(rng, split) for o in owners}
        chat.ask(code_turn(rng, owners, codes), rng.choice(REMEMBERED))
        distance = 8
        while distance < target and distance <= most + 60:
            distance += filler(rng, chat, target - distance)
        if distance <= most + 60 and held_out_distance(distance) == (split == "heldout"):
            asked = rng.choice(owners)
            ask_code(rng, chat, asked, codes[asked], distance)
            return chat


REMEMBERED = ["I will remember it.", "I will keep it in mind.", "Good."]


def codes_chat(rng: Random, split: str, most: int = 1900) -> Chat:
    """Codes given and asked for throughout a conversation, each asked for once: many distances in one
    document."""
    chat, owners = Chat(), rng.sample(sorted(lex.KINDS), rng.randrange(3, 11))
    codes = {o: code(rng, split) for o in owners}
    end = rng.choice([150, 400, 900, most])
    told: dict[str, int] = {}
    at, waiting = 0, list(owners)
    while at < end:
        before = len(chat.messages)
        if waiting and rng.random() < 0.5:
            some = [waiting.pop() for _ in range(rng.randrange(1, min(3, len(waiting)) + 1))]
            chat.ask(code_turn(rng, some, codes), rng.choice(REMEMBERED))
            told |= dict.fromkeys(some, at)
        elif told and rng.random() < 0.5:
            owner = rng.choice(list(told))
            if not held_out_distance(at - told[owner]):
                ask_code(rng, chat, owner, codes[owner], at - told.pop(owner))
        elif end > 200 and rng.random() < 0.6:
            filler(rng, chat, end - at)
        at += sum(length(m["content"]) for m in chat.messages[before:])
        if not waiting and not told:
            break
    for owner in rng.sample(list(told), len(told)):
        if at - told[owner] <= most + 60 and not held_out_distance(at - told[owner]):
            before = len(chat.messages)
            ask_code(rng, chat, owner, codes[owner], at - told[owner])
            at += sum(length(m["content"]) for m in chat.messages[before:])
    return chat if chat.messages else codes_chat(rng, split, most)


SECRETS = ["code", "password", "secret", "sign", "key word", "magic word"]
TELL_SECRET = ["Remember the {s}: {c}", "The {s} is {c}. Keep it in mind.", "Please remember the {s}: {c}"]
ASK_SECRET = ["What was the {s}?", "What is the {s}?", "Tell me the {s}.", "The {s}, please."]


def secrets_chat(rng: Random, split: str, most: int = 1900) -> Chat:
    """A code, a password and similar secrets given early in a conversation; most are asked for at its end."""
    chat, end = Chat(), rng.choice([300, 900, 1400, most])
    secrets = ["code", *rng.sample(SECRETS[1:], rng.randrange(1, 5))]
    rng.shuffle(secrets)
    codes = {s: code(rng, split) for s in secrets}
    told: dict[str, int] = {}
    at, waiting = 0, list(secrets)

    def says(question: str, answer: str) -> int:
        chat.ask(question, answer)
        return length(question) + length(answer)

    def asks(secret: str) -> int:
        if held_out_distance(at - told[secret]) or at - told[secret] > most + 60:
            return 0
        question = rng.choice(ASK_SECRET).format(s=secret)
        answer = f"The {secret} is {codes[secret]}."
        chat.ask(question, answer, "needle", key=[codes[secret]], distance=at - told[secret])
        return length(question) + length(answer)

    while at < end:
        if waiting and rng.random() < 0.7:
            secret = waiting.pop()
            told[secret] = at
            at += says(rng.choice(TELL_SECRET).format(s=secret, c=codes[secret]), rng.choice(REMEMBERED))
        elif len(told) > 1 and rng.random() < 0.1:
            secret = rng.choice(list(told))
            at += asks(secret)
            del told[secret]
        else:
            at += filler(rng, chat, end - at)
    for secret in rng.sample(list(told), len(told)):
        at += asks(secret)
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
        # Questions that need no tool are answered without one.
        _, (q, a, key) = facts.draw(rng, split, rng.choice(["opposite", "day", "young"]))
        chat.ask(q, a, "fact", key=key, name="day")
    return chat
