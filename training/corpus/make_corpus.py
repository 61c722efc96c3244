#!/usr/bin/env python3
"""Writes the demo model's training text: stories and conversations of a small simulated world.

    python3 training/corpus/make_corpus.py --seed 1 --words 40000000 > world.txt
    python3 training/corpus/make_corpus.py --split heldout --seed 7 --documents 20
    python3 training/corpus/make_corpus.py --measure

Documents end with <|endoftext|>. Document number i only depends on (seed, i), so the same command
writes the same bytes, and streams may be cut and joined. `--split heldout` draws from the combinations,
names, sums, topics and retrieval distances that `--split train` never contains. `--measure` prints how
repetitive the text is.

Needs only Python's standard library.
"""

import argparse
import re
import sys
from collections import Counter
from random import Random

import chat
import dialogue
import parse
import tasks
from template import END

STORIES = 0.2
"""Share of documents that are a plain story without a conversation."""


CONVERSATIONS = {
    chat.story_chat: 36,
    chat.continue_chat: 3,
    chat.fact_chat: 44,
    chat.sum_chat: 16,
    tasks.copy_chat: 36,
    tasks.retrieval_chat: 13,
    tasks.codes_chat: 8,
    tasks.secrets_chat: 14,
    tasks.json_chat: 14,
    tasks.tool_chat: 10,
}
"""Kinds of conversations and their relative frequencies. Small questions are short, so a conversation has
many."""


def conversation(rng: Random, split: str) -> dialogue.Chat:
    make = rng.choices(list(CONVERSATIONS), list(CONVERSATIONS.values()))[0]
    return make(rng, split)


def document(seed: int, number: int, split: str, stories: float = STORIES) -> str:
    rng = Random(f"{split} {seed} {number}")
    if rng.random() < stories:
        return chat.told(rng, split)[1]
    return dialogue.render(conversation(rng, split))


def tokens(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+|[0-9]|[^\w\s]", text)


def repeated(texts: list[str], n: int = 8) -> float:
    """Share of the n-grams of words and punctuation that occur more than once."""
    runs = Counter(tuple(words[i : i + n]) for words in map(tokens, texts) for i in range(len(words) - n + 1))
    return sum(c for c in runs.values() if c > 1) / sum(runs.values())


def vocabulary(documents: list[str]) -> Counter:
    """Counts of lower-case words, without names and copied text."""
    return Counter(w.lower() for text in documents for w in re.findall("[A-Za-z]+", text))


def measure(seed: int, split: str) -> None:
    rngs = [Random(f"{split} {seed} {i}") for i in range(2000)]
    stories = [chat.told(rng, split)[1] for rng in rngs]
    words = sorted(len(re.findall("[A-Za-z]+", s)) for s in stories)
    openings = Counter(" ".join(s.split()[:3]) for s in stories)
    most, times = openings.most_common(1)[0]
    print(f"stories                      {len(stories)}")
    print(f"words per story              {words[0]} to {words[-1]}, median {words[len(words) // 2]}")
    print(f"words known to the stories   {len(vocabulary(stories))}")
    for n in (200, 2000):
        print(f"repeated 8-grams             {repeated(stories[:n]):.1%} of {n} stories")
    print(f"most frequent opening        {times / len(stories):.1%} ({most!r})")
    verdicts = [parse.judge(s) for s in stories[:200]]
    good = sum(v.introduced and v.follows for v in verdicts)
    unread = sum(v.unread for v in verdicts) / sum(v.total for v in verdicts)
    print(f"obey the simulation's rules  {good} of {len(verdicts)}; sentences unread {unread:.2%}")
    documents = [document(seed, i, split) for i in range(6000)]
    every = vocabulary(documents)
    often = [w for w, n in every.items() if n >= 3]
    print(f"words of all documents       {len(every)}, {len(often)} of them three times or more")
    kinds = Counter("story" if "<|im_start|>" not in d else "conversation" for d in documents)
    size = Counter()
    for d in documents:
        size["story" if "<|im_start|>" not in d else "conversation"] += len(tokens(d))
    print(f"documents                    {dict(kinds)}; words and punctuation {dict(size)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--split", choices=["train", "heldout"], default="train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first document")
    parser.add_argument("--documents", type=int, help="number of documents")
    parser.add_argument("--words", type=int, help="stop after this many words and punctuation marks")
    parser.add_argument("--stories", type=float, default=STORIES, help=f"share of plain stories [{STORIES}]")
    parser.add_argument("--measure", action="store_true", help="print statistics of a sample instead")
    args = parser.parse_args()
    if args.measure:
        return measure(args.seed, args.split)
    if args.documents is None and args.words is None:
        parser.error("want --documents or --words")
    number, written = args.first, 0
    while (args.documents is None or number < args.first + args.documents) and (
        args.words is None or written < args.words
    ):
        text = document(args.seed, number, args.split, args.stories)
        sys.stdout.write(text + "\n" + END + "\n")
        written += len(tokens(text))
        number += 1


if __name__ == "__main__":
    main()
