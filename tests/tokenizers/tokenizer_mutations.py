"""Changed tokenizer.json files: what people write, what converters leave behind, and
what nobody should write.

Each is small, loads in `tokenizers` or is refused, and differs from a known form by one
thing. What the gate makes of each is pinned in `test_mutations.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_samples import SPACE, Spec, split_stage
from tokenlake.etl.tokenizers import SPLIT_REGEXES, TokenizerFiles

Change = Callable[[Spec], object]
Mutation = tuple[Callable[[], TokenizerFiles], Change]

FLAGS = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}
LEVEL = samples.BYTE_LEVEL
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
METASPACE = {
    "type": "Metaspace",
    "replacement": SPACE,
    "prepend_scheme": "first",
    "split": False,
}
TAG = {"content": "<tag>"}
BEHAVIOURS = ("Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")
REGEXES = {
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s+",
    "letters": r"\p{L}+|\s+|.",
    "llama-3 of two digits": SPLIT_REGEXES["llama-3"].replace("{1,3}", "{1,2}"),
    "llama-3 without contractions": SPLIT_REGEXES["llama-3"].removeprefix(
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    ),
    "llama-3, contractions of lower case": SPLIT_REGEXES["llama-3"].replace(
        "(?i:", "(?:", 1
    ),
    "qwen without its last branch": SPLIT_REGEXES["qwen-2"].removesuffix(r"|\s+"),
    "gpt-2 with a new line": SPLIT_REGEXES["gpt-2"].replace(
        r"|\s+(?!\S)", r"|\n|\s+(?!\S)"
    ),
    "o200k without slashes": SPLIT_REGEXES["o200k"].replace("[\\r\\n/]*", "[\\r\\n]*"),
    "digits one by one": r"\p{N}",
}


def byte() -> TokenizerFiles:
    return samples.byte_level()


def piece() -> TokenizerFiles:
    return samples.sentencepiece()


def form(name: str) -> Callable[[], TokenizerFiles]:
    return lambda: samples.known()[name]


def put(**values: Any) -> Change:
    """Set keys of tokenizer.json."""
    return lambda spec: spec.update(values)


def pre(stage: Any) -> Change:
    return put(pre_tokenizer=stage)


def norm(stage: Any) -> Change:
    return put(normalizer=stage)


def model(**values: Any) -> Change:
    return lambda spec: spec["model"].update(values)


def added(*tokens: dict[str, Any]) -> Change:
    """Add tokens: after the vocabulary's end, unless it has them."""

    def change(spec: Spec) -> None:
        vocab = spec["model"]["vocab"]
        places = [
            vocab.get(token["content"], len(vocab) + i)
            for i, token in enumerate(tokens)
        ]
        new = (
            {"id": place, **FLAGS, **token}
            for place, token in zip(places, tokens, strict=True)
        )
        spec["added_tokens"] = [*(spec["added_tokens"] or []), *new]

    return change


def without(*tokens: str) -> Change:
    """Take tokens out of the vocabulary, with their merges."""

    def change(spec: Spec) -> None:
        kept = [name for name in spec["model"]["vocab"] if name not in tokens]
        spec["model"]["vocab"] = {name: i for i, name in enumerate(kept)}
        merges = [pair_of(merge) for merge in spec["model"]["merges"]]
        names = set(kept)
        spec["model"]["merges"] = [[a, b] for a, b in merges if {a, b, a + b} <= names]
        spec.update(added_tokens=[], post_processor=None)

    return change


def pair_of(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def merges(change: Callable[[list[Any]], list[Any]]) -> Change:
    return lambda spec: spec["model"].update(merges=change(spec["model"]["merges"]))


def shuffled_ids(spec: Spec) -> None:
    """Give the merged tokens ids in another order than that of the merges."""
    vocab = spec["model"]["vocab"]
    fixed = {token: i for token, i in vocab.items() if i < 300}
    rest = sorted(
        (token for token in vocab if token not in fixed), key=lambda token: token[::-1]
    )
    spec["model"]["vocab"] = {
        **fixed,
        **{token: 300 + i for i, token in enumerate(rest)},
    }


def sequence(*stages: Any) -> Spec:
    return {"type": "Sequence", "pretokenizers": list(stages)}


def normal(*stages: Any) -> Spec:
    return {"type": "Sequence", "normalizers": list(stages)}


def split(pattern: Any, behaviour: str = "Isolated", *, invert: bool = False) -> Spec:
    return {
        "type": "Split",
        "pattern": pattern,
        "behavior": behaviour,
        "invert": invert,
    }


def _pre_tokenizers() -> dict[str, Mutation]:
    plain = {**LEVEL, "use_regex": False}
    llama = split({"Regex": SPLIT_REGEXES["llama-3"]})
    digits = {"type": "Digits", "individual_digits": True}
    stages = {
        "null": None,
        "without regex": plain,
        "prefix space": {**LEVEL, "add_prefix_space": True},
        "trimmed offsets": {**LEVEL, "trim_offsets": True},
        "digits first": sequence(digits, LEVEL),
        "digits last": sequence(LEVEL, digits),
        "whole numbers first": sequence({**digits, "individual_digits": False}, LEVEL),
        "white space": {"type": "Whitespace"},
        "white space split": {"type": "WhitespaceSplit"},
        "white space, then bytes": sequence({"type": "WhitespaceSplit"}, plain),
        "bert": {"type": "BertPreTokenizer"},
        "bert, then bytes": sequence({"type": "BertPreTokenizer"}, plain),
        "scripts first": sequence({"type": "UnicodeScripts"}, LEVEL),
        "a delimiter": {"type": "CharDelimiterSplit", "delimiter": "-"},
        "metaspace": METASPACE,
        "metaspace, then bytes": sequence(METASPACE, plain),
        "alone in a sequence": sequence(LEVEL),
        "an empty sequence": sequence(),
        "bytes twice": sequence(LEVEL, LEVEL),
        "bytes, then split": sequence(plain, llama),
        "split, then gpt-2 again": sequence(llama, LEVEL),
        "split, then prefix space": sequence(
            llama, {**plain, "add_prefix_space": True}
        ),
        "two splits": sequence(llama, split({"Regex": r"\p{N}"}), plain),
        "a nested sequence": sequence(sequence(llama, plain)),
        "split alone": llama,
        "split on a string": sequence(split({"String": " "}), plain),
        "split on a string, merged": sequence(
            split({"String": " "}, "MergedWithNext"), plain
        ),
        "split inverted": sequence(
            split({"Regex": SPLIT_REGEXES["gpt-2"]}, invert=True), plain
        ),
        "split removed and inverted": sequence(
            split({"Regex": r"\s+"}, "Removed", invert=True), plain
        ),
        "an unknown key": {**LEVEL, "new_option": True},
    }
    made: dict[str, Mutation] = {
        f"pre-tokenizer: {name}": (byte, pre(stage)) for name, stage in stages.items()
    }
    for behaviour in ("Isolated", *BEHAVIOURS):
        stage = sequence({"type": "Punctuation", "behavior": behaviour}, LEVEL)
        made[f"punctuation: {behaviour}"] = byte, pre(stage)
    for name, behaviour in product(("llama-3", "gpt-2", "o200k"), BEHAVIOURS):
        made[f"split {name}: {behaviour}"] = (
            byte,
            pre(split_stage(SPLIT_REGEXES[name], behavior=behaviour)),
        )
    for name, regex in (SPLIT_REGEXES | REGEXES).items():
        made[f"regex: {name}"] = byte, pre(split_stage(regex))
    return made


def _normalizers() -> dict[str, Mutation]:
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    bert = {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    }
    of_bytes = {
        **{
            name.lower(): {"type": name}
            for name in ("NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")
        },
        "strip": strip,
        "bert": {"type": "BertNormalizer", **bert},
        "replace a string": {
            "type": "Replace",
            "pattern": {"String": "a"},
            "content": "b",
        },
        "replace a regex": {
            "type": "Replace",
            "pattern": {"Regex": " +"},
            "content": " ",
        },
        "prepend": {"type": "Prepend", "prepend": " "},
        "bytes": {"type": "ByteLevel"},
        "nested nfc": normal({"type": "NFC"}),
        "nfc": {"type": "NFC"},
        "empty": normal(),
    }
    of_pieces = {
        "null": None,
        "replace only": REPLACE,
        "prepend only": PREPEND,
        "swapped": normal(REPLACE, PREPEND),
        "prepended twice": normal(PREPEND, PREPEND, REPLACE),
        "another mark": normal(
            {**PREPEND, "prepend": "_"}, {**REPLACE, "content": "_"}
        ),
        "stripped": normal(strip, REPLACE),
        "nfkc first": normal({"type": "NFKC"}, PREPEND, REPLACE),
        "lower case last": normal(PREPEND, REPLACE, {"type": "Lowercase"}),
        "blanks as one": normal(PREPEND, {**REPLACE, "pattern": {"Regex": " +"}}),
        "nested": normal(normal(PREPEND, REPLACE)),
    }
    made: dict[str, Mutation] = {
        f"normalizer: {name}": (byte, norm(stage)) for name, stage in of_bytes.items()
    }
    return made | {
        f"normalizer of pieces: {name}": (piece, norm(stage))
        for name, stage in of_pieces.items()
    }


def _metaspaces() -> dict[str, Mutation]:
    schemes = product(("first", "always", "never"), (True, False))
    stages = {
        f"{scheme}, split {cut}": {**METASPACE, "prepend_scheme": scheme, "split": cut}
        for scheme, cut in schemes
    }
    stages |= {
        "another mark": {**METASPACE, "replacement": "_"},
        "as of old": {
            "type": "Metaspace",
            "replacement": SPACE,
            "add_prefix_space": True,
        },
        "in a sequence": sequence(METASPACE),
        "after digits": sequence(
            {"type": "Digits", "individual_digits": True}, METASPACE
        ),
        "after punctuation": sequence(
            {"type": "Punctuation", "behavior": "Isolated"}, METASPACE
        ),
        "white space": {"type": "WhitespaceSplit"},
        "bytes": LEVEL,
    }
    made: dict[str, Mutation] = {
        f"metaspace: {name}": (piece, put(pre_tokenizer=stage, normalizer=None))
        for name, stage in stages.items()
    }
    made["metaspace: beside a normalizer"] = piece, pre(METASPACE)
    return made


def _models() -> dict[str, Mutation]:
    changes: dict[str, Change] = {
        "unchanged": lambda spec: None,
        "no type": lambda spec: spec["model"].pop("type"),
        "no dropout key": lambda spec: spec["model"].pop("dropout"),
        "dropout of nothing": model(dropout=0.0),
        "dropout": model(dropout=0.1),
        "an unknown token": model(unk_token="<|endoftext|>"),
        "fused unknown tokens": model(unk_token="<|endoftext|>", fuse_unk=True),
        "byte fallback": model(byte_fallback=True),
        "ignored merges": model(ignore_merges=True),
        "ignored merges, fewer of them": lambda spec: (
            model(ignore_merges=True)(spec),
            merges(lambda all_: all_[::2])(spec),
        ),
        "fewer merges": merges(lambda all_: all_[::3]),
        "no merges": merges(lambda all_: []),
        "merges as strings": merges(
            lambda all_: [" ".join(pair_of(merge)) for merge in all_]
        ),
        "merges reversed": merges(lambda all_: all_[::-1]),
        "merges in turns": merges(lambda all_: [*all_[::2], *all_[1::2]]),
        "a merge twice": merges(lambda all_: [all_[-1], *all_]),
        "a merge of nothing known": merges(lambda all_: [*all_, ["zq", "qz"]]),
        "a prefix": model(continuing_subword_prefix="##", merges=[]),
        "an empty prefix": model(continuing_subword_prefix=""),
        "a suffix": model(end_of_word_suffix="</w>", merges=[]),
        "an empty suffix": model(end_of_word_suffix=""),
        "an unknown key": model(new_option=True),
        "a foreign type": model(type="Bytes"),
        "ids not in merge order": shuffled_ids,
        "a gap in the ids": lambda spec: spec["model"]["vocab"].update(unused=5000),
        "an id twice": lambda spec: spec["model"]["vocab"].update(unused=400),
        "foreign text in the vocabulary": lambda spec: spec["model"]["vocab"].update(
            {"\u4e16\u754c": 5000}
        ),
        "a missing byte": without("\u0109"),
        "no line end": without("\u010a"),
        "most bytes missing": without(*map(chr, range(161, 256))),
        "an unknown key outside": put(new_option=1),
    }
    of_pieces: dict[str, Change] = {
        "unchanged": lambda spec: None,
        "a missing byte": without("<0x0A>"),
        "no bytes": without(*(f"<0x{value:02X}>" for value in range(256))),
        "no fallback": model(byte_fallback=False),
        "ignored merges": model(ignore_merges=True),
        "unknown tokens apart": model(fuse_unk=False),
        "no unknown token": model(unk_token=None),
        "fewer merges": merges(lambda all_: all_[::2]),
        "merges as strings": merges(
            lambda all_: [" ".join(pair_of(merge)) for merge in all_]
        ),
        "a merge makes a byte": lambda spec: (
            spec["model"]["vocab"].update(
                {"<0": 5000, "x4": 5001, "x41": 5002, "x41>": 5003}
            ),
            merges(
                lambda all_: [
                    *all_,
                    ["<", "0"],
                    ["x", "4"],
                    ["x4", "1"],
                    ["x41", ">"],
                    ["<0", "x41>"],
                ]
            )(spec),
        ),
        "a merge of a byte": merges(lambda all_: [*all_, ["<0x41>", "b"]]),
        "words of two": lambda spec: (
            spec["model"]["vocab"].update({"e\u2581t": 5000}),
            merges(lambda all_: [*all_, ["e", "\u2581t"]])(spec),
        ),
    }
    made: dict[str, Mutation] = {
        f"model: {name}": (byte, change) for name, change in changes.items()
    }
    return made | {
        f"model of pieces: {name}": (piece, change)
        for name, change in of_pieces.items()
    }


def _added_tokens() -> dict[str, Mutation]:
    made: dict[str, Mutation] = {}
    for special, flag in product(
        (True, False), ("single_word", "lstrip", "rstrip", "normalized", "none")
    ):
        token = {**TAG, "special": special} | ({} if flag == "none" else {flag: True})
        kind = "special" if special else "plain"
        made[f"added {kind}: {flag}"] = byte, added(token)
        made[f"added {kind} to pieces: {flag}"] = piece, added(token)
    several: dict[str, tuple[dict[str, Any], ...]] = {
        "two": (TAG, {"content": "<other>"}),
        "a word": ({"content": "word", "single_word": True},),
        "words of the vocabulary": ({"content": "the"},),
        "overlapping": ({"content": "<|a|>"}, {"content": "|><"}),
        "one inside another": ({"content": "aa"}, {"content": "baab"}),
        "one before another": ({"content": "<tag"}, {"content": "<tag>"}),
        "overlapping itself": ({"content": "aba"},),
        "inside a special one": ({"content": "endof"},),
        "runs of blanks": ({"content": "  "}, {"content": "    "}),
        "a blank inside": ({"content": "two words"},),
        "a line end": ({"content": "\n"},),
        "another script": ({"content": "\u4e16\u754c"},),
        "the mark of a blank": ({"content": "<\u2581>"},),
        "a letter of two bytes": ({"content": "\u00e9"},),
        "empty": ({"content": ""},),
        "twice": (TAG, TAG),
        "a gap before": ({**TAG, "id": 5000},),
        "a used id": ({**TAG, "id": 7},),
        "a wrong id": ({"content": "th", "id": 5000},),
        "an unknown key": ({**TAG, "new_option": True},),
        "many": tuple(
            {"content": f"<reserved_{number}>", "special": number % 2 == 0}
            for number in range(300)
        ),
    }
    for name, tokens in several.items():
        made[f"added: {name}"] = byte, added(*tokens)
    for name in (
        "two",
        "a blank inside",
        "the mark of a blank",
        "another script",
        "many",
        "overlapping",
    ):
        made[f"added to pieces: {name}"] = piece, added(*several[name])
    made["added: none"] = byte, put(added_tokens=[])
    made["added: null"] = byte, put(added_tokens=None)
    made["added to nfc: a tag"] = form("nfc"), added(TAG)
    made["added to nfc: what it could make"] = form("nfc"), added({"content": "K"})
    made["added to metaspace: a tag"] = form("metaspace-always-True"), added(TAG)
    return made


def _surroundings() -> dict[str, Mutation]:
    cut = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    pad = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    pad |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"}
    end = samples.template([], [("<|endoftext|>", 0)])
    doubled = {
        **samples.template([], []),
        "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
    }
    around = {"sep": ["<|endoftext|>", 0], "cls": ["<|endoftext|>", 0]}
    trimming = {**LEVEL, "trim_offsets": True}
    trimmed = {"trim_offsets": True, "add_prefix_space": True}
    decoders: dict[str, Any] = {
        "null": None,
        "pieces": {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first",
            "split": True,
        },
        "word pieces": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "suffixes": {"type": "BPEDecoder", "suffix": "</w>"},
        "fused": {
            "type": "Sequence",
            "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}],
        },
    }
    changes: dict[str, Change] = {
        "truncation": put(truncation=cut),
        "truncation on the left": put(
            truncation={**cut, "direction": "Left", "stride": 1}
        ),
        "padding": put(padding=pad),
        "padding on the left": put(
            padding={**pad, "direction": "Left", "strategy": "BatchLongest"}
        ),
        "truncation and padding": put(truncation=cut, padding=pad),
        "no post-processor": put(post_processor=None),
        "an end": put(post_processor=end),
        "trimmed offsets": put(post_processor=trimming),
        "bert": put(post_processor={"type": "BertProcessing", **around}),
        "roberta": put(
            post_processor={"type": "RobertaProcessing", **trimmed, **around}
        ),
        "several": put(
            post_processor={"type": "Sequence", "processors": [trimming, end]}
        ),
        "doubling": put(post_processor=doubled),
        "doubling in a sequence": put(
            post_processor={"type": "Sequence", "processors": [trimming, doubled]}
        ),
        "another version": put(version="2.0"),
    }
    made: dict[str, Mutation] = {
        f"around: {name}": (byte, change) for name, change in changes.items()
    }
    return made | {
        f"decoder: {name}": (byte, put(decoder=stage))
        for name, stage in decoders.items()
    }


MUTATIONS: dict[str, Mutation] = (
    _pre_tokenizers()
    | _normalizers()
    | _metaspaces()
    | _models()
    | _added_tokens()
    | _surroundings()
)
