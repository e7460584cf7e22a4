"""The segment cache of WordPiece and Unigram: the ids of `tokenizers`, whatever lies
around a space.
"""

from __future__ import annotations

import base64
import functools
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.test_models import trained
from tests.tokenizers.test_segments import same_ids
from tests.tokenizers.tokenizer_samples import choose_engine
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers import ReferenceBackend, TokenizerFiles, gate, objection
from tokenlake.etl.tokenizers.segments import SegmentBackend

# About an engine that reads the parts of a tokenizer.
pytestmark = needs_stages

# Made by SentencePiece of nine rules: some characters become a space, a ligature and a
# fraction become letters, one becomes a space and a mark, and two become nothing.
CHARSMAP = (
    r"c-ke?dC(3-90%~<^Qx)WOf#q)<w`=%D0c^PONAslP;ws?mCEtF<$m2qgxn<LN{-}+oa4UlLXDc~QWWLr^JHf}``y{!{;@l|8"
    r"#hHn!HD$qh^#k9BqEZtq?Vj>XG9j6ESwg%$jnD{dD9{(7u=c_8P?rqD!awmxSbp<YZ!5d%tcP}kej=?i+rqU6j4Ct=bjr|h<"
    r"ho-eH5lBMYx}0l%P1JC`lPgQ<evKkaCpgAu3XV%2c8%Rj~bdn8$dO>Qv)#YEX-s)S))@s7nLt<9P7|Pw^y<5>L~F#x&&_n(-"
    r"{nd5-64!Hc{=OJ1Tit$2l(d6hP_qb(h1PbWIkh0b)NE3fk!-FbsI>A~B)#XI!mJ>I1^z359HGE$e#2fR;z`Z16J3}z6S3}F~"
    r"U8NqNyF_JNiW*lP~&xd@(1ST<&kD1I=rZAmp%wz_$nZ+l};Zx=^pLu-70v555B`oH1mhwgF4YGpetYRgr`7-tP_=<I`<!jcn"
    r"kqvC(8@8~SZEQ`|<|bmh+{q4hvx~j#VL$sg$N>&>h@%|gILA223BKhNr}>VvoZ$z)=N!M~PQ*|0$5d@lBF-ig@r&`#sT#j>p"
    r"5OVCKe)&R{^l<(bBTZXhpSxSI@jX=&sT6qMwC61(XU*z?GXO~RacLX"
)
PRECOMPILED = {
    "type": "Precompiled",
    "precompiled_charsmap": base64.b64encode(
        zlib.decompress(base64.b85decode(CHARSMAP))
    ).decode(),
}
ONE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
QUOTES = {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}
LOWER = [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
METASPACE = {
    "type": "Metaspace",
    "replacement": samples.SPACE,
    "prepend_scheme": "always",
    "split": True,
}
NORMALIZERS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "t5": [PRECOMPILED],
    "xlm-r": [PRECOMPILED, ONE_SPACE],
    "albert": [QUOTES, *LOWER, PRECOMPILED, {**ONE_SPACE, "content": samples.SPACE}],
}
STAGES = {
    "metaspace": METASPACE,
    "first": {**METASPACE, "prepend_scheme": "first"},
    "never": {**METASPACE, "prepend_scheme": "never"},
    "words": {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE],
    },
}
FORMS = [f"{normalizer}, {stage}" for normalizer in NORMALIZERS for stage in STAGES]
BERT = {
    "bert": {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "cased": {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": False,
        "lowercase": False,
    },
    "raw": {
        "clean_text": False,
        "handle_chinese_chars": False,
        "strip_accents": None,
        "lowercase": False,
    },
}


@functools.cache
def tokenizer(form: str) -> TokenizerFiles:
    if form in BERT:
        normalizer = {"type": "BertNormalizer", **BERT[form]}
        return samples.changed(
            trained("word-piece"), lambda spec: spec.update(normalizer=normalizer)
        )
    normalizers, stage = form.split(", ")

    def change(spec: dict[str, Any]) -> None:
        spec["normalizer"] = {
            "type": "Sequence",
            "normalizers": NORMALIZERS[normalizers],
        }
        spec["pre_tokenizer"] = STAGES[stage]

    return samples.changed(trained("unigram"), change)


@functools.cache
def engine_of(form: str, *, literal: bool = True) -> SegmentBackend:
    return SegmentBackend(tokenizer(form), literal=literal)


# White space of all kinds, what normalizers drop, join, part or make longer, and
# letters that what follows belongs to.
PIECES = [
    *"ab1 .,`'\u00e9\t\n\r\0\x7f\x0b\u00a0\u200b\u3000\u2581\u0301\u093e\u0915\u0d4e\u0600\u1100\u5b57"
]
PIECES += [*"\uac00\ufb01\u00bd\u00b4\u00a4\u00a6\ufdfa\u0130\u03a3"]
PIECES += [
    "  ",
    " the ",
    " \u00a4 ",
    " \u00a6 ",
    "``",
    "[SEP]",
    "</s>",
    "word, ",
    "\U0001f468\u200d\U0001f469",
    "x" * 120,
]
TEXTS = st.lists(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=8
)


@settings(max_examples=30)
@given(st.sampled_from([*FORMS, *BERT]), TEXTS)
def test_any_text(form: str, texts: list[str]) -> None:
    same_ids(engine_of(form), texts)


# Words with many paths of equal sums, characters that no piece spells, and strings that
# are pieces of their own.
WORDS = st.lists(
    st.text("aeinst.-~^A", max_size=14) | st.sampled_from(["<unk>", "</s>", "a</s>a"]),
    max_size=20,
)


@settings(max_examples=50)
@given(st.sampled_from(FORMS), WORDS, st.sampled_from(" \n\t"))
def test_words_are_searched_as_the_reference_does(
    form: str, words: list[str], blank: str
) -> None:
    same_ids(engine_of(form), [blank.join(words), blank + blank.join(words)])


@pytest.mark.parametrize("form", [*FORMS, *BERT])
def test_hard_texts(form: str) -> None:
    engine = SegmentBackend(tokenizer(form))
    same_ids(engine, list(samples.hard_texts()[::3]))
    same_ids(engine, list(samples.hard_texts()[::-3]))


# `tokenizers` reads the last bit of some of these in another way than Python, and which
# of equal sums wins hangs on it.
SCORES = {
    1: -5.2938663318796975,
    8: -8.88287986468737,
    15: -8.036235479533344,
    16: -7.6506976015706165,
}


def test_scores_are_those_that_the_reference_has_read() -> None:
    vocab = [
        ["<pad>", 0.0],
        ["</s>", 0.0],
        ["<unk>", 0.0],
        [samples.SPACE, -1.0634373604472884],
    ]
    vocab += [["-" * length, score] for length, score in SCORES.items()]
    files = samples.changed(
        tokenizer("t5, metaspace"), lambda spec: spec["model"].update(vocab=vocab)
    )
    same_ids(SegmentBackend(files), ["x " + "-" * length for length in range(1, 200)])


@pytest.mark.parametrize("error", [TokenizerError("no"), KeyboardInterrupt()])
def test_what_failed_half_way_loses_nothing_later(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, texts = (
        SegmentBackend(trained("word-piece")),
        ["some words ", "\u00e9t\u00e9 others"],
    )

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceBackend, "encode", fail)
        with pytest.raises(type(error)):
            engine.encode(samples.large(texts))
    same_ids(engine, texts)


PARTED = [form for form in (*FORMS, *BERT) if not form.endswith("first")]


@settings(max_examples=30)
@given(st.sampled_from(PARTED), TEXTS)
def test_special_tokens_in_a_text_become_ids(form: str, texts: list[str]) -> None:
    same_ids(
        engine_of(form, literal=False),
        ["one [SEP] two</s>", *texts, "[SEP][SEP] four"],
        literal=False,
    )


def test_a_space_before_the_first_piece_alone_is_refused_where_tokens_make_pieces() -> (
    None
):
    files = tokenizer("nothing, first")
    assert objection(files, "segments", literal=True) is None
    assert "a space before the first piece" in str(
        objection(files, "segments", literal=False)
    )


@pytest.mark.parametrize("model", ["word-piece", "unigram"])
def test_it_is_chosen_from_a_size_on_and_on_request(model: str) -> None:
    files = trained(model)
    assert choose_engine(files, size=gate.WORDS_FROM - 1).engine == "tokenizers"
    assert choose_engine(files, size=gate.WORDS_FROM).engine == "segments"
    assert choose_engine(files, "segments").engine == "segments"


OBJECTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "letters joined over spaces": (
        "unigram",
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}},
        "the normalizer holds Replace",
    ),
    "a pattern over a space": (
        "unigram",
        {
            "normalizer": {
                "type": "Replace",
                "pattern": {"String": "a b"},
                "content": "c",
            }
        },
        "the normalizer holds Replace",
    ),
    "any regular expression": (
        "unigram",
        {
            "normalizer": {
                "type": "Replace",
                "pattern": {"Regex": "a|b"},
                "content": "c",
            }
        },
        "the normalizer holds Replace",
    ),
    "the ends of a text": (
        "unigram",
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        "the normalizer holds Strip",
    ),
    "one word of all": (
        "unigram",
        {"pre_tokenizer": {**METASPACE, "split": False}},
        "expected Metaspace",
    ),
    "no words": ("unigram", {"pre_tokenizer": None}, "expected Metaspace"),
    "other words": (
        "word-piece",
        {"pre_tokenizer": {"type": "Whitespace"}},
        "expected BertPreTokenizer",
    ),
    "another normalizer": (
        "word-piece",
        {"normalizer": {"type": "NFC"}},
        "expected none or BertNormalizer",
    ),
}


@pytest.mark.parametrize("case", OBJECTIONS)
def test_what_is_not_known_to_keep_words_apart_is_refused(case: str) -> None:
    model, change, why = OBJECTIONS[case]
    files = samples.changed(trained(model), lambda spec: spec.update(change))
    with pytest.raises(TokenizerError, match=why):
        choose_engine(files, "segments")
    assert choose_engine(files, size=gate.WORDS_FROM).engine == "tokenizers"
