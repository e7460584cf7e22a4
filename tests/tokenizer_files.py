"""Small tokenizers trained and written as tokenizer.json by plain Python: Llama-2-style
BPE, WordPiece and Unigram.

The byte-level BPE is :func:`tokenlake.etl.tokenizers.train_bpe`. Training is
deterministic: equal texts give equal files. The WordPiece and Unigram vocabularies are
the most frequent pieces of words, which is enough for tests: these compare the ids of
one tokenizer made in two ways, and do not ask whether the tokenizer is a good one.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenlake.etl.tokenizers import learn_merges

SPACE = "\u2581"
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
LONGEST_PIECE = 8

Specification = dict[str, Any]
"""A parsed tokenizer.json."""


def train_sentencepiece(texts: Iterable[str], vocab_size: int) -> Specification:
    """Return a Llama-2-style BPE with byte fallback, no pre-tokenizer, and a BOS by the
    post-processor.

    Args:
        texts: Training text.
        vocab_size: Number of tokens besides ``<unk>``, ``<s>``, ``</s>`` and the 256
            byte tokens.
    """
    words = _metaspace_words(texts)
    alphabet = sorted(set().union(*words))
    return sentencepiece_specification(*learn_merges(words, alphabet, vocab_size))


def sentencepiece_specification(
    learned: Sequence[str], merges: Sequence[tuple[str, str]]
) -> Specification:
    """Return the tokenizer.json of a Llama-2-style BPE with these tokens after the
    special and the byte tokens.
    """
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *learned]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            special_token(token_id, tokens[token_id]) for token_id in range(3)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": template([("<s>", 1)], []),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [list(merge) for merge in merges],
        },
    }


def train_word_piece(texts: Iterable[str], vocab_size: int) -> Specification:
    """Return a BERT-style WordPiece tokenizer with [PAD], [UNK], [CLS] and [SEP]."""
    words: Counter[str] = Counter()
    for text in texts:
        plain = unicodedata.normalize("NFD", text.lower())
        without_accents = "".join(
            letter for letter in plain if unicodedata.category(letter) != "Mn"
        )
        words.update(re.findall(r"[^\W_]+|[^\w\s]|_", without_accents))

    # A token that continues a word begins with "##".
    characters: set[str] = set()
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        characters.add(word[0])
        characters.update(f"##{character}" for character in word[1:])
        for first, last in _spans(word):
            mark = "##" if first > 0 else ""
            pieces[mark + word[first:last]] += count * (last - first)

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    alphabet = [*special, *sorted(characters)]
    tokens = [*alphabet, *_most_frequent(pieces, vocab_size - len(alphabet))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            special_token(token_id, token) for token_id, token in enumerate(special)
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": ["[SEP]", 3],
            "cls": ["[CLS]", 2],
        },
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
        },
    }


def train_unigram(texts: Iterable[str], vocab_size: int) -> Specification:
    """Return a T5-style Unigram tokenizer with <pad>, </s> and <unk>; a score is the
    log of a relative frequency.
    """
    normalized = (
        unicodedata.normalize("NFKC", text).replace("  ", " ") for text in texts
    )
    words = _metaspace_words(normalized)
    characters: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
        for first, last in _spans(word):
            pieces[word[first:last]] += count

    special = ["<pad>", "</s>", "<unk>"]
    room = vocab_size - len(special) - len(characters)
    # Weighted by its length, a long piece competes with the short pieces that it would
    # replace.
    weighted = Counter({piece: count * len(piece) for piece, count in pieces.items()})
    frequencies = {
        piece: pieces[piece] for piece in _most_frequent(weighted, room)
    } | characters
    total = sum(frequencies.values())
    entries: list[list[Any]] = [[token, 0.0] for token in special]
    for piece, count in sorted(
        frequencies.items(), key=lambda item: (-item[1], item[0])
    ):
        entries.append([piece, math.log(count / total)])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            special_token(token_id, token) for token_id, token in enumerate(special)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFKC"},
                {"type": "Replace", "pattern": {"String": "  "}, "content": " "},
            ],
        },
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "always",
            "split": True,
        },
        "post_processor": template([], [("</s>", 1)]),
        "decoder": None,
        "model": {
            "type": "Unigram",
            "unk_id": 2,
            "vocab": entries,
            "byte_fallback": False,
        },
    }


def special_token(token_id: int, content: str) -> Specification:
    """Return a special token as an entry of `added_tokens`."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def template(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> Specification:
    """Return a TemplateProcessing post-processor with tokens before and after a
    document.
    """
    single: list[Specification] = []
    for token, _ in before:
        single.append({"SpecialToken": {"id": token, "type_id": 0}})
    single.append({"Sequence": {"id": "A", "type_id": 0}})
    for token, _ in after:
        single.append({"SpecialToken": {"id": token, "type_id": 0}})
    tokens = {
        token: {"id": token, "ids": [token_id], "tokens": [token]}
        for token, token_id in [*before, *after]
    }
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": tokens,
    }


def copy_wrapping(
    source: Path, target: Path, *, before: Sequence[str] = (), after: Sequence[str] = ()
) -> Path:
    """Copy a tokenizer's folder, and have the copy's post-processor put tokens of
    its BPE around each document.
    """
    shutil.copytree(source, target)
    specification = json.loads((target / "tokenizer.json").read_bytes())
    vocabulary = specification["model"]["vocab"]
    specification["post_processor"] = template(
        [(token, vocabulary[token]) for token in before],
        [(token, vocabulary[token]) for token in after],
    )
    (target / "tokenizer.json").write_text(
        json.dumps(specification, ensure_ascii=False), "utf-8"
    )
    return target


def _metaspace_words(texts: Iterable[str]) -> Counter[str]:
    """Return how often each word occurs; a word begins with U+2581, which stands for
    the space before it.
    """
    words: Counter[str] = Counter()
    for text in texts:
        marked = text.replace(" ", SPACE)
        if not marked.startswith(SPACE):
            marked = SPACE + marked
        words.update(re.findall(f"{SPACE}[^{SPACE}]*", marked))
    return words


def _spans(word: str) -> list[tuple[int, int]]:
    """Return the places of all pieces of two to :data:`LONGEST_PIECE` characters in
    a word.
    """
    spans: list[tuple[int, int]] = []
    for size in range(2, LONGEST_PIECE + 1):
        spans.extend((first, first + size) for first in range(len(word) - size + 1))
    return spans


def _most_frequent(counts: Counter[str], number: int) -> list[str]:
    """Return the strings with the highest counts; among equal counts, by code
    points.
    """
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [piece for piece, _ in ranked[:number]]
