"""Tokenises the text for train_world.py, and assigns the loss classes of tokens."""

import hashlib
import json
from pathlib import Path

import numpy as np

from corpus.template import END, TURN_BEGINS, TURN_ENDS
from gguf_file import gguf_parts
from probe import chat, lex, tasks

SPECIALS = [END, TURN_BEGINS, TURN_ENDS]
UNLEARNED, FILLER, STORY, SIZED, ANSWER, ANSWER_ASKED, ANSWER_FOUND, STORY_ASKED, STORY_FOUND = range(9)
"""Classes of tokens: read only; in a story between a code and the question for it; in another story; in one
with a requested length; in a short answer; in such an answer and also in the question; in such an answer and
hard to find: the first of consecutive ones, one after a token that had other successors earlier, or any if
codes are asked for; in a story and also in the question; and its first occurrence there."""
SHORT_ANSWER = 60
"""Maximum tokens of an answer that is not a story."""
LISTED = [*tasks.WORDS, *lex.GIRLS, *lex.BOYS]
"""Words of lists and names, each of which becomes one token."""
QUOTED = 300
"""Number of times each word of the world is added in quotes to the tokenizer's text, besides its
documents."""
N_COMMON = 120
"""Number of most frequent tokens, apart from digits and seasons, that are in most questions: they do not
count as repeated from one."""


def is_validation(document: str) -> bool:
    """2 % of the documents, by the hash of their text: independent of order, seed and corpus size."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") % 50 == 0


def documents(corpus: Path) -> tuple[list[str], list[str]]:
    """Training and validation documents, in the order of the file."""
    every = [text.strip() for text in corpus.read_text().split(END)]
    every = [text for text in every if text]
    return [d for d in every if not is_validation(d)], [d for d in every if is_validation(d)]


def tokenizer(path: Path, texts: list[str], n_vocab: int, begun: Path | None = None):
    """The byte-level BPE at `path`. If missing, it is trained on the first texts, or copied from `begun`, and
    then extended by whole words: missing ones are appended to the `n_vocab` tokens.

    GGUF calls its pre-tokenizer `smollm`: each digit is a separate piece, and so is punctuation before a
    word. A word of the world is also one token after a quotation mark, where it has no space before it: so it
    is copied from a question into JSON as one token, rather than as pieces that do not occur in the question.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if not path.exists() and begun and begun.suffix == ".gguf":
        tokenizer_of(begun).save(str(path))
    elif not path.exists() and begun:
        whole_words(Tokenizer.from_file(str(begun)), path)
    elif not path.exists():
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=n_vocab, special_tokens=SPECIALS, initial_alphabet=alphabet, min_frequency=3
        )
        quoted = [f'"{word}" {word}' for word in LISTED] * QUOTED
        made.train_from_iterator(texts[:40000] + quoted, trainer)
        whole_words(made, path)
    return Tokenizer.from_file(str(path))


def whole_words(tok, path: Path) -> None:
    """Writes `tok` to `path` with additional merges that make each listed word one token, with and without a
    leading space: the first word of a copy has none."""
    file = json.loads(tok.to_str())
    ids, merges = file["model"]["vocab"], file["model"]["merges"]
    for word in LISTED:
        for form in (word, f" {word}"):
            pieces = tok.encode(form).tokens
            while len(pieces) > 1:
                first, second, *rest = pieces
                if first + second not in ids:
                    merges.append([first, second])
                    ids[first + second] = len(ids)
                pieces = [first + second, *rest]
    path.write_text(json.dumps(file, ensure_ascii=False))


def tokenizer_of(gguf_file: Path):
    """The tokenizer of a published file of this model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    keys, _ = gguf_parts(gguf_file)
    tokens, merges = (keys[f"tokenizer.ggml.{n}"] for n in ("tokens", "merges"))
    ids = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIALS)
    return made


SPACE = "Ġ"
"""The space in byte-level BPE."""


def spaced(tok) -> np.ndarray:
    """The id of each token with a leading space, or its own id if there is none."""
    ids = tok.get_vocab()
    same = np.arange(len(ids))
    for token, i in ids.items():
        same[i] = ids.get(SPACE + token, i)
    return same


class Marker:
    """Assigns each token of a document its loss class (`WEIGHTS`), and the token that must not occur
    there."""

    def __init__(self, tok, common: set[int]):
        self.start, self.stop = tok.token_to_id(SPECIALS[1]), tok.token_to_id(SPECIALS[2])
        self.answers = tok.encode("<|im_start|>assistant\n").ids
        self.opening = tok.encode(chat.SAYS_SIZE.split("{")[0].strip()).ids
        self.code = [tok.token_to_id(form) for form in ("code", SPACE + "code")]
        self.common = common
        self.spaced = spaced(tok)
        self.unspaced = {int(s): i for i, s in enumerate(self.spaced) if s != i}
        self.groups = [
            {i for i in map(tok.token_to_id, (SPACE + w for w in words)) if i is not None}
            for words in ([*lex.GIRLS, *lex.BOYS], lex.KINDS)
        ]

    def marks(self, doc: np.ndarray) -> np.ndarray:
        out = np.full(len(doc), STORY, np.uint8)
        out[0] = UNLEARNED
        if len(doc) < 2 or doc[1] != self.start:
            return out
        out[:] = UNLEARNED
        words = self.spaced[doc]
        asked: set[int] = set()
        after: dict[int, set[int]] = {}
        coded = np.isin(doc, self.code).any()
        story = FILLER if coded else STORY
        for at in np.flatnonzero(doc == self.start):
            stops = np.flatnonzero(doc[at:] == self.stop)
            last = at + int(stops[0]) if len(stops) else len(doc) - 1
            first = at + len(self.answers)
            if list(doc[at:first]) == self.answers:
                said = words[first : last + 1].tolist()
                brought = np.array([t in asked for t in said], bool)
                if len(said) <= SHORT_ANSWER:
                    found = np.diff(brought, prepend=False) & brought
                    for i in range(1, len(said)):
                        found[i] |= brought[i] and (coded or len(after.get(said[i - 1], ())) > 1)
                    out[first : last + 1] = ANSWER + brought.astype(np.uint8) + found
                else:
                    sized = list(doc[first : first + len(self.opening)]) == self.opening
                    out[first : last + 1] = SIZED if sized and not coded else story
                    seen: set[int] = set()
                    for i in np.flatnonzero(brought):
                        out[first + i] = STORY_ASKED if said[i] in seen else STORY_FOUND
                        seen.add(said[i])
                    if sized:
                        out[first : first + len(self.opening) + 1] = STORY_FOUND
            else:
                asked |= set(words[at + 3 : last].tolist()) - self.common
            told = words[at + 3 : last].tolist()
            for a, b in zip(told, told[1:]):
                after.setdefault(a, set()).add(b)
        return out

    def rivals(self, doc: np.ndarray, marks: np.ndarray) -> np.ndarray:
        """For the second name or kind in a story, the first one, which would be wrong there; 0 elsewhere."""
        out = np.zeros(len(doc), np.uint16)
        inside = np.isin(marks, (FILLER, STORY, SIZED, STORY_ASKED, STORY_FOUND))
        words = self.spaced[doc]
        for group in self.groups:
            seen: list[int] = []
            for i in np.flatnonzero(np.isin(words, list(group)) | ~inside):
                word = int(words[i])
                if not inside[i]:
                    seen = []
                elif word not in seen:
                    if seen:
                        out[i] = seen[0] if doc[i] == word else self.unspaced.get(seen[0], 0)
                    seen.append(word)
        return out


def common_tokens(tok, ids: np.ndarray) -> set[int]:
    counts = np.bincount(spaced(tok)[ids], minlength=tok.get_vocab_size())
    never = [*"0123456789", *(SPACE + season for season in lex.SEASONS)]
    return set(np.argsort(-counts)[:N_COMMON].tolist()) - {tok.token_to_id(token) for token in never}


class Text:
    """Documents as one array of ids, each preceded by END, and the class of each id."""

    def __init__(self, tok, texts: list[str], common: set[int] | None = None):
        end = tok.token_to_id(END)
        docs = []
        for first in range(0, len(texts), 4096):
            for text, encoded in zip(texts[first:], tok.encode_batch(texts[first : first + 4096])):
                # A story ends with END, so that generation stops.
                story = [] if text.startswith(SPECIALS[1]) else [end]
                docs.append(np.array([end, *encoded.ids, *story], np.uint16))
        self.common = common or common_tokens(tok, np.concatenate(docs[:20000]))
        marker = Marker(tok, self.common)
        self.ids = np.concatenate(docs)
        marks = [marker.marks(doc) for doc in docs]
        self.marks = np.concatenate(marks)
        self.rivals = np.concatenate([marker.rivals(*both) for both in zip(docs, marks)])
        self.starts = np.cumsum([0, *map(len, docs)])

    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)
