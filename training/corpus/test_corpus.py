#!/usr/bin/env python3
"""Tests of the demo model's world: its guarantees, and that the rules for judging a model can fail.

python3 training/corpus/test_corpus.py
"""

import subprocess
import sys
import unittest
from pathlib import Path
from random import Random

import chat
import dialogue
import eval_demo
import lexicon as lex
import make_corpus
import parse
import tasks
from template import TEMPLATE


def stories(n: int, split: str = "heldout", seed: str = "stories"):
    for i in range(n):
        yield chat.told(Random(f"{seed} {i}"), split)


class Corpus(unittest.TestCase):
    def test_a_document_is_a_function_of_seed_and_number(self):
        command = [
            sys.executable,
            Path(__file__).with_name("make_corpus.py"),
            "--seed",
            "3",
            "--first",
            "4",
            "--documents",
            "2",
        ]
        again = "".join(make_corpus.document(3, i, "train") + "\n<|endoftext|>\n" for i in (4, 5))
        self.assertEqual(subprocess.run(command, capture_output=True, text=True, check=True).stdout, again)

    def test_training_never_shows_what_is_held_out(self):
        for split, held in (("train", False), ("heldout", True)):
            for story, _ in stories(300, split):
                a, b = story.hero, story.other
                thing = next(
                    t
                    for t in lex.THINGS
                    if story.thing.endswith(t) and t in (story.thing, story.thing.split(" ", 1)[-1])
                )
                unseen = lex.held_out("kind trait", a.kind, a.trait) or lex.held_out(
                    "place thing", story.place, thing
                )
                self.assertEqual(unseen, held)
                self.assertFalse(lex.held_out("kind trait", b.kind, b.trait))
        for i in range(100):
            name = chat.told(Random(i), "train", strange=True)[0].hero.name
            self.assertFalse(lex.held_out("name", name, share=8))
            made = tasks.retrieval_chat(Random(i), "train", 600)
            self.assertFalse(tasks.held_out_distance(made.checks[-1][2]["distance"]))
            for at, _, expected in tasks.secrets_chat(Random(i), "train").checks:
                self.assertFalse(tasks.held_out_distance(expected["distance"]))

    def test_stories_keep_to_their_length_and_words(self):
        told = [text for _, text in stories(300, "train")]
        for text in told:
            self.assertIn(len(text.split()), chat.SIZES[""])
            self.assertNotRegex(text, r"[\[\]{}]|  | [.,!?]|\ba [aeio]|\ban [^aeiouh]")
        self.assertLess(make_corpus.repeated(told), 0.2)
        openings = [" ".join(t.split()[:3]) for t in told]
        self.assertLess(max(map(openings.count, openings)) / len(told), 0.1)
        for size in ("short", "long"):
            for i in range(40):
                _, text = chat.told(Random(f"{size} {i}"), "train", size=size)
                said = f"{chat.SAYS_SIZE.format(s=size)} {text}"
                verdict = parse.judge(said)
                self.assertEqual((chat.size_of(said), verdict.unread, verdict.follows), (size, 0, True), said)
                self.assertEqual(eval_demo.kept(said, {"length": size}, verdict), [])
                other = {"short": "long", "long": "short"}[size]
                self.assertEqual(eval_demo.kept(said, {"length": other}, verdict), ["length"])
        words = make_corpus.vocabulary([make_corpus.document(1, i, "train") for i in range(4000)])
        self.assertIn(sum(n > 2 for n in words.values()), range(2000, 3500))

    def test_the_template_writes_what_training_shows(self):
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            self.skipTest("jinja2 is not installed")
        import json

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = json.dumps
        template = environment.from_string(TEMPLATE)
        for i in range(200):
            made = make_corpus.conversation(Random(i), "train")
            self.assertEqual(template.render(messages=made.messages, tools=made.tools), dialogue.render(made))
        with_system = dialogue.Chat(
            [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}]
        )
        self.assertEqual(template.render(messages=with_system.messages), dialogue.render(with_system))


class Rules(unittest.TestCase):
    def test_the_parser_reads_the_tellers(self):
        good = unread = total = 0
        for story, text in stories(120):
            verdict = parse.judge(text)
            good += verdict.introduced and verdict.follows and verdict.want == story.want
            unread, total = unread + verdict.unread, total + verdict.total
        self.assertGreaterEqual(good, 119)
        self.assertLess(unread / total, 0.01)

    def corrupted(self, change, n: int = 60) -> list[parse.Verdict]:
        out = []
        for story, text in stories(n, seed="corrupted"):
            changed = change(story, text)
            if changed and changed != text:
                out.append(parse.judge(changed))
        self.assertGreater(len(out), n // 6)
        return out

    def test_a_stranger_is_seen(self):
        def change(story, text):
            # The last sentence with the hero's name is about another character.
            at = text.rfind(story.hero.name)
            return text[:at] + "Zamuro" + text[at + len(story.hero.name) :] if at > len(text) / 2 else None

        self.assertFalse(any(v.introduced for v in self.corrupted(change)))

    def test_two_of_one_name_are_seen(self):
        def change(story, text):
            return text.replace(story.other.name, story.hero.name)

        for _, text in stories(60):
            self.assertNotEqual(parse.judge(text).apart, False)
        self.assertFalse(any(v.apart for v in self.corrupted(change)))

    def test_an_introduction_left_out_is_seen(self):
        def change(story, text):
            told = parse.read(text)
            kept = [s.text for s in told if not any(k in ("meet", "opens", "friends") for k, _ in s.readings)]
            left = " ".join(kept)
            return left if story.other.name in left else None

        self.assertFalse(any(v.introduced for v in self.corrupted(change)))

    def test_an_ending_of_another_want_is_seen(self):
        other = {"find": "slept the whole night", "sleep": "reached the island"}

        def change(story, text):
            told = parse.read(text)
            end = next(i for i, s in enumerate(told) if any(k.startswith("end_") for k, _ in s.readings))
            words = [s.text for s in told]
            words[end] = f"At last {story.hero.name} {other.get(story.family, 'slept the whole night')}."
            return " ".join(words) if story.family != "sleep" or story.outcome == "missed" else None

        self.assertFalse(any(v.follows for v in self.corrupted(change)))

    def test_an_ending_about_another_thing_is_seen(self):
        def change(story, text):
            told = parse.read(text)
            end = next(i for i, s in enumerate(told) if any(k.startswith("end_") for k, _ in s.readings))
            thing = story.facts.get("food", story.thing)
            words = [s.text for s in told]
            words[end] = words[end].replace(thing, "silver anvil")
            return " ".join(words)

        self.assertFalse(any(v.follows for v in self.corrupted(change)))

    def test_an_ending_that_nothing_brings_about_is_seen(self):
        def change(story, text):
            told = parse.read(text)
            kept = [s.text for s in told if not any(k in parse.SOLVED | parse.FAILED for k, _ in s.readings)]
            return " ".join(kept)

        verdicts = self.corrupted(change)
        self.assertLess(sum(v.follows for v in verdicts) / len(verdicts), 0.05)

    def test_a_constraint_that_is_not_kept_is_seen(self):
        for story, text in stories(40):
            verdict = parse.judge(text)
            wanted = {
                "kind": story.hero.kind,
                "trait": story.hero.trait,
                "season": story.season,
                "place": story.place,
                "thing": story.thing,
                "name": story.hero.name,
            }
            self.assertEqual(eval_demo.kept(text, wanted, verdict), [])
            for key, other in (
                ("kind", "walrus"),
                ("trait", "jolly"),
                ("place", "volcano"),
                ("thing", "anvil"),
                ("name", "Zamuro"),
            ):
                self.assertIn(key, eval_demo.kept(text, wanted | {key: other}, verdict))

    def test_the_generator_passes_its_own_evaluation_and_wrong_answers_do_not(self):
        items = eval_demo.make_items(11, 5)
        known = eval_demo.vocabulary(3000)
        for name, share, n in eval_demo.table(items, [item.own for item in items], known):
            self.assertGreater(n, 0, name)
            self.assertLess(share, 0.5) if name.startswith("words outside") else self.assertEqual(
                share, 100, name
            )
        # Each item gets the answer of the next question of the same kind with a different answer.
        wrong = []
        for item in items:
            if item.measure == "decline":
                wrong.append("It is green.")
            else:
                wrong.append(
                    next(i.own for i in items[::-1] if i.measure == item.measure and i.own != item.own)
                )
        of_texts = (
            "nobody",
            "the ending",
            "sentences",
            "two characters",
            "valid JSON",
            "words outside",
            "constraints",
        )
        for name, share, _ in eval_demo.table(items, wrong, known):
            if not name.startswith(of_texts):
                self.assertLess(share, 50, name)
        nonsense = eval_demo.table(items, ["Glorp blee the zub."] * len(items), known)
        for name, share, _ in nonsense:
            if name.startswith("words outside"):
                self.assertGreater(share, 50)
            elif name != "constraints kept":
                self.assertEqual(share, 0, name)


if __name__ == "__main__":
    unittest.main()
