#!/usr/bin/env python3
"""Asks a model held-out questions, and prints the share of right answers.

    sterna serve model.gguf --port 8080 --parallel 4 &
    python3 training/corpus/eval_demo.py --url http://127.0.0.1:8080
    python3 training/corpus/eval_demo.py --self          # the generator's own answers: a check of this script

The questions come from `make_corpus.py --split heldout`, 300 for each measure; stories are checked with the
simulation's own rules (parse.py). Sampling is the server's: what the file recommends. Questions about a
story refer to one from the generator, so that the right answer is known.

Needs only Python's standard library.
"""

import argparse
import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Callable, Sequence

import chat
import dialogue
import facts
import knowledge as know
import lexicon as lex
import make_corpus
import parse
import tasks

DEPTHS = 11
NEEDLE_TOKENS = 1780
"""Approximate words and punctuation in a conversation with a needle: 2,048 positions, minus room for special
tokens, words of several tokens, and the answer."""


@dataclass
class Item:
    """One question: the conversation before it, and the expected answer."""

    measure: str
    messages: list[dict]
    tools: list[dict]
    own: str
    """The generator's answer."""
    expected: dict


def story_items(rng: Random) -> list[Item]:
    made = chat.story_chat(rng, "heldout")
    return [Item("story", made.messages[:1], [], made.messages[1]["content"], made.checks[0][2])]


def checked_items(make: Callable, measure: str) -> Callable:
    """Makes one question from a conversation that contains this measure, or none."""

    def items(rng: Random) -> list[Item]:
        made = make(rng, "heldout")
        found = [c for c in made.checks if c[1] == measure]
        if not found:
            return []
        at, _, expected = rng.choice(found)
        own = made.messages[at]
        said = own["content"] or "".join(dialogue.call_text(c) for c in own["tool_calls"])
        return [Item(measure, made.messages[:at], made.tools, said, expected)]

    return items


def fact_items(name: str) -> Callable:
    def items(rng: Random) -> list[Item]:
        _, (question, answer, key) = facts.draw(rng, "heldout", name)
        return [Item("fact", [{"role": "user", "content": question}], [], answer, {"key": key, "name": name})]

    return items


def decline_items(rng: Random) -> list[Item]:
    made = dialogue.Chat()
    chat.decline(rng, "heldout", made)
    return [Item("decline", made.messages[:1], [], made.messages[1]["content"], {})]


def needle_items(rng: Random, depth: int) -> list[Item]:
    """A code at `depth` tenths of a full context, and the question for it at the end."""
    while True:
        after = (DEPTHS - 1 - depth) * (NEEDLE_TOKENS - 60) // (DEPTHS - 1)
        # Wide enough to contain a range of held-out distances.
        low, high = max(after - 150, 8), min(after + 150, NEEDLE_TOKENS - 60)
        made = tasks.retrieval_chat(rng, "heldout", max(high, 300), low, alone=True)
        if abs(made.checks[-1][2]["distance"] - max(after, 180)) > 200:
            continue
        before: list[dict] = []
        room = NEEDLE_TOKENS - sum(dialogue.length(m["content"]) for m in made.messages)
        while room > 60:
            filler = chat.fact_chat(rng, "train") if room < 300 else chat.story_chat(rng, "train")
            used = sum(dialogue.length(m["content"]) for m in filler.messages)
            if used <= room:
                before += filler.messages
                room -= used
        messages = before + made.messages
        return [
            Item("needle", messages[:-1], [], messages[-1]["content"], made.checks[-1][2] | {"depth": depth})
        ]


def make_items(n: int, seed: int, only: Sequence[str] = ()) -> list[Item]:
    """`n` questions for each measure, or for those of `only`."""
    makers = {
        "story": story_items,
        "question": checked_items(chat.story_chat, "question"),
        "total": fact_items("total"),
        "opposite": fact_items("opposite"),
        "day": fact_items("day"),
        "decline": decline_items,
        "copy": checked_items(tasks.copy_chat, "copy"),
        "json": checked_items(tasks.json_chat, "json"),
        "tool": checked_items(tasks.tool_chat, "tool"),
        "again": checked_items(chat.fact_chat, "again"),
    }
    out: list[Item] = []
    unknown = set(only) - {*makers, "needle"}
    if unknown:
        raise SystemExit(f"--only: no measure {', '.join(unknown)}: want {', '.join(makers)} or needle")
    for name, make in makers.items():
        if only and name not in only:
            continue
        rng, found = Random(f"eval {seed} {name}"), []
        while len(found) < n:
            found += make(rng)
        out += found[:n]
    for depth in range(DEPTHS) if not only or "needle" in only else []:
        rng = Random(f"eval {seed} needle {depth}")
        for _ in range(max(1, n // DEPTHS)):
            out += needle_items(rng, depth)
    return out


# Right and wrong


def kept(text: str, wanted: dict, verdict: parse.Verdict) -> list[str]:
    """The constraints that the story violates."""
    missing = []
    hero = next(iter(verdict.cast.items()), (None, (None, None)))
    if "name" in wanted:
        hero = (wanted["name"], verdict.cast.get(wanted["name"], (None, None)))
        if wanted["name"] not in verdict.cast:
            missing.append("name")
    kinds = [kind for _, kind in verdict.cast.values()]
    for key, there in (("trait", hero[1][0]), ("kind", hero[1][1])):
        if key in wanted and there != wanted[key]:
            missing.append(key)
    if "other" in wanted and wanted["other"] not in kinds[1:]:
        missing.append("other")
    for key in ("place", "season", "thing"):
        if key in wanted and not re.search(rf"\b{wanted[key]}\b", text, re.IGNORECASE):
            missing.append(key)
    if "length" in wanted and chat.size_of(text) != wanted["length"]:
        missing.append("length")
    return missing


def holds(answer: str, keys: list[str]) -> bool:
    """True if the answer contains each key as a whole word."""
    low = answer.lower()
    return all(re.search(rf"(?<![\w]){re.escape(k.lower())}(?![\w])", low) for k in keys)


def right(item: Item, answer: str) -> bool:
    """True if an answer to anything but a story request is right."""
    expected, answer = item.expected, answer.strip()
    match item.measure:
        case "question":
            return holds(answer, expected["key"])
        case "fact":
            # The answer also contains numbers of the question: the result is the last word.
            return answer.rstrip(".").lower().endswith(" " + expected["key"][0].lower())
        case "needle":
            return holds(answer, expected["key"])
        case "decline":
            return "do not know" in answer
        case "copy" | "again":
            return answer == expected["text"]
        case "json":
            try:
                return json.loads(answer) == expected["values"]
            except ValueError:
                return False
        case "tool":
            call = re.fullmatch(r"<tool_call>\s*(\{.*\})\s*</tool_call>", answer, re.DOTALL)
            try:
                return call is not None and json.loads(call[1]) == expected
            except ValueError:
                return False
    raise ValueError(f"no rule for the measure {item.measure}")


def is_json(answer: str) -> bool:
    try:
        return isinstance(json.loads(answer), dict)
    except ValueError:
        return False


def vocabulary(documents: int = 8000) -> set[str]:
    """The words of training, and the names that it may use."""
    seen = make_corpus.vocabulary([make_corpus.document(1, i, "train") for i in range(documents)])
    return {w for w, n in seen.items() if n > 1} | {n.lower() for n in lex.GIRLS + lex.BOYS} | known_words()


def known_words() -> set[str]:
    tables = [
        lex.KINDS,
        lex.TRAITS,
        lex.THINGS,
        lex.LOOKS,
        lex.FOODS,
        lex.PLACES,
        lex.HOBBIES,
        lex.DUTIES,
        facts.PAIRS,
    ]
    entries = [e for t in tables for e in t] + [e for g in know.CATEGORIES.values() for e in g]
    return {w.lower() for e in entries for w in re.findall("[A-Za-z]+", e)}


WANTED = [
    ("constraints kept", 95),
    ("nobody acts who was not introduced", 95),
    ("the ending follows from the want", 85),
    ("two characters have two names", None),
    ("sentences that a teller can say", None),
    ("questions about the story", 90),
    ("sums", 98),
    ("opposites", 98),
    ("days", 98),
    ("unknown declined", 90),
    ("copying 16 tokens", 98),
    ("said again", None),
    ("needles, all depths", 95),
    ("valid JSON", 90),
    ("JSON with the right values", None),
    ("tool calls", None),
    ("words outside the vocabulary", 0),
]


def table(items: list[Item], answers: list[str], known: set[str]) -> list[tuple[str, float, int]]:
    """(measure, per cent, number of cases) in the order of WANTED, then for each depth of the needles."""
    tally: dict[str, list[bool]] = {}
    strange = words = 0

    def add(name: str, good: bool) -> None:
        tally.setdefault(name, []).append(good)

    for item, answer in zip(items, answers):
        if item.measure == "story":
            verdict = parse.judge(answer)
            add("constraints kept", not kept(answer, item.expected["wanted"], verdict))
            add("nobody acts who was not introduced", verdict.introduced)
            add("the ending follows from the want", verdict.follows)
            if verdict.apart is not None:
                add("two characters have two names", verdict.apart)
            tally.setdefault("sentences that a teller can say", []).extend(
                [True] * (verdict.total - verdict.unread) + [False] * verdict.unread
            )
            asked = {w.lower() for w in re.findall("[A-Za-z]+", item.messages[-1]["content"])}
            # Names made of syllables are not words; unknown characters are measured above.
            story = [w.lower() for w in re.findall(r"\b[a-z]+\b", answer)]
            strange += sum(w not in known and w not in asked for w in story)
            words += len(story)
            continue
        good = right(item, answer)
        match item.measure:
            case "question":
                add("questions about the story", good)
            case "fact":
                add({"total": "sums", "opposite": "opposites", "day": "days"}[item.expected["name"]], good)
            case "decline":
                add("unknown declined", good)
            case "copy":
                add("copying 16 tokens", good)
            case "again":
                add("said again", good)
            case "tool":
                add("tool calls", good)
            case "json":
                add("JSON with the right values", good)
                add("valid JSON", is_json(answer))
            case "needle":
                add("needles, all depths", good)
                add(f"needles at {10 * item.expected['depth']} %", good)
    rows = []
    order = [name for name, _ in WANTED] + [f"needles at {10 * d} %" for d in range(DEPTHS)]
    for name in order:
        if name == "words outside the vocabulary" and words:
            rows.append((name, 100 * strange / words, words))
        elif name in tally:
            rows.append((name, 100 * sum(tally[name]) / len(tally[name]), len(tally[name])))
    return rows


def ask(url: str, item: Item, timeout: float) -> str:
    """The server's answer, with tool calls in the model's own format."""
    body = {"messages": item.messages, "max_tokens": 500}
    if item.tools:
        body["tools"] = item.tools
    request = urllib.request.Request(
        url.rstrip("/") + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        message = json.load(reply)["choices"][0]["message"]
    answer = message.get("content") or ""
    for call in message.get("tool_calls") or []:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        try:
            written = {"function": {"name": name, "arguments": json.loads(arguments)}}
        except ValueError:
            # Truncated by the limit.
            return f"{answer}{name}: {arguments}"
        answer += dialogue.call_text(written)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--url", help="URL of a server with OpenAI's chat completions")
    source.add_argument("--self", action="store_true", help="use the generator's own answers")
    parser.add_argument("-n", type=int, default=300, help="questions for each measure [300]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="some of the measures, for example copy,needle")
    parser.add_argument("--parallel", type=int, default=4, help="requests at a time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one answer")
    parser.add_argument("--answers", help="write questions and answers to this file, as JSON lines")
    args = parser.parse_args()
    items = make_items(args.n, args.seed, args.only.split(",") if args.only else [])
    if args.self:
        answers = [item.own for item in items]
    else:
        with ThreadPoolExecutor(args.parallel) as pool:
            answers = []
            for answer in pool.map(lambda item: ask(args.url, item, args.timeout), items):
                answers.append(answer)
                if len(answers) % 100 == 0:
                    print(f"{len(answers)} of {len(items)}", file=sys.stderr, flush=True)
    if args.answers:
        with open(args.answers, "w") as out:
            for item, answer in zip(items, answers):
                row = {
                    "measure": item.measure,
                    "messages": item.messages,
                    "expected": item.expected,
                    "answer": answer,
                    "own": item.own,
                }
                out.write(json.dumps(row) + "\n")
    wanted = dict(WANTED)
    print("| measure | wanted | reached | of |\n|---|---:|---:|---:|")
    for name, share, n in table(items, answers, vocabulary()):
        limit = wanted.get(name)
        text = "" if limit is None else "none" if limit == 0 else f"{limit} %"
        print(f"| {name} | {text} | {share:.1f} % | {n} |")


if __name__ == "__main__":
    main()
