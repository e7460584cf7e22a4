"""Fill-in-the-middle: parts of documents change places, and nothing of a document is
lost or made up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.etl.outputs_support import Built, Config, build_here, settings, write_jsonl
from tests.tokenizer_reference import ReferenceTokenizer
from tests.tokenizers.tokenizer_samples import (
    byte_level,
    save,
    sentencepiece,
    training_texts,
)
from tokenlake.config import ResolvedFim
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset, planner
from tokenlake.etl.tokenizers import Encoder, TokenizerFiles
from tokenlake.etl.unit import Infilling, Stretches

STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")


def with_tokens(files: TokenizerFiles, names: tuple[str, ...]) -> TokenizerFiles:
    """A tokenizer with special tokens more."""
    spec, first = json.loads(files.files["tokenizer.json"]), files.vocab_size
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    spec["added_tokens"] += [
        {"id": first + i, "content": name, **flags} for i, name in enumerate(names)
    ]
    return replace(
        files, files={**files.files, "tokenizer.json": json.dumps(spec).encode()}
    )


@cache
def encoder(kind: str) -> Encoder:
    files = (
        with_tokens(byte_level(), STARCODER)
        if kind == "bytes"
        else with_tokens(sentencepiece(), LLAMA)
    )
    return Encoder(files, engine="tokenizers")


def parts_of(ids: list[int], sentinels: Sequence[int | None]) -> list[list[int]] | None:
    """The ids of prefix, middle and suffix, of SPM prefix and middle together as
    one; None for what is as it was.
    """
    if ids[:1] != sentinels[:1]:
        return None
    rest = ids[1:-1] if len(sentinels) == 4 and ids[-1] == sentinels[3] else ids[1:]
    suffix, middle = rest.index(sentinels[1]), rest.index(sentinels[2])
    before, between, after = (
        rest[:suffix],
        rest[suffix + 1 : middle],
        rest[middle + 1 :],
    )
    assert not set(sentinels) & {*before, *between, *after}
    return [before, after, between]


def infilled(
    kind: str, texts: list[str], **settings: Any
) -> tuple[list[list[int]], list[str], np.ndarray]:
    fim = ResolvedFim(rate=1.0, spm=0.5, level="document", tokens=None, seed=0)
    names = STARCODER if kind == "bytes" else LLAMA
    made = Infilling(replace(fim, tokens=names, **settings), encoder(kind))
    where = np.arange(len(texts)), np.full(len(texts), 7)
    ids, spm = made.apply(Stretches.whole(pa.array(texts, pa.large_string()), *where))
    return [row.tolist() for row in ids.rows()], list(names), spm


@pytest.mark.parametrize("kind", ["bytes", "blanks"])
@given(
    st.lists(
        st.text(st.sampled_from("ab 1.\n\té日本😀☺("))
        | st.sampled_from(training_texts()),
        min_size=1,
    ),
    st.integers(0, 2**63 - 1),
)
def test_the_parts_are_the_text(kind: str, texts: list[str], seed: int) -> None:
    rows, names, spm = infilled(kind, texts, seed=seed)
    sentinels = [encoder(kind).files.token_id(name) or 0 for name in names]
    for text, ids, is_spm in zip(texts, rows, spm, strict=True):
        found = parts_of(ids, sentinels)
        assert found is not None
        before, after, between = found
        assert not (is_spm and before)
        # A tokenizer that puts a blank before texts puts it before the prefix alone, if
        # there is one.
        joined = [*before, *after, *between]
        blank = [encoder(kind).files.token_id("▁") or 0] if kind == "blanks" else []
        decoded = {
            encoder(kind).decode(joined),
            encoder(kind).decode([*blank, *joined]),
        }
        assert (
            encoder(kind).decode(encoder(kind).encode(large([text])).ids) in decoded
        ), (text, ids)
        if kind == "bytes":
            for part in (before, between):
                # Each part is encoded as it is alone.
                assert (
                    part
                    == encoder(kind)
                    .encode(large([encoder(kind).decode(part)]))
                    .ids.tolist()
                )


def large(texts: list[str]) -> Any:
    return pa.array(texts, pa.large_string())


def test_what_is_drawn_is_a_function_of_seed_and_identity() -> None:
    """Pinned: another draw gives other tokens to every dataset ever built."""
    texts = [f"document {i} of some words" for i in range(400)]
    alone = [infilled("bytes", texts[:5])[0][i] for i in range(5)]
    rows, _, spm = infilled("bytes", texts)
    assert rows[:5] == alone
    assert rows != infilled("bytes", texts, seed=1)[0]
    # Bounds of five standard deviations of fixed draws.
    assert abs(spm.mean() - 0.5) < 0.13
    fim = ResolvedFim(rate=0.3, spm=0.0, level="document", tokens=STARCODER, seed=0)
    of = Stretches.whole(large(texts), np.arange(400), np.zeros(400, np.int64))
    chosen = Infilling(fim, encoder("bytes")).chosen(of)
    assert abs(chosen.mean() - 0.3) < 0.12
    assert np.flatnonzero(chosen)[:6].tolist() == PINNED
    rows, names, spm = infilled("bytes", ["x" * 100] * 4)
    parts = [
        parts_of(ids, [encoder("bytes").files.token_id(name) for name in names])
        for ids in rows
    ]
    sizes = [
        [len(encoder("bytes").decode(part)) for part in each or ()] for each in parts
    ]
    assert [*zip(spm.tolist(), sizes, strict=True)] == PINNED_CUTS


PINNED_CUTS = [
    (True, [0, 69, 31]),
    (False, [4, 84, 12]),
    (True, [0, 77, 23]),
    (False, [20, 1, 79]),
]
PINNED = [5, 7, 9, 17, 22, 23]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    tokenizer = save(with_tokens(byte_level(), STARCODER), tmp_path / "tokenizer")
    texts = [text for text in training_texts() if text] * 2
    for name, some in (("a", texts[::2]), ("b", texts[1::2])):
        write_jsonl(
            tmp_path / "in" / f"{name}.jsonl", [{"text": text} for text in some]
        )
    config = settings(tmp_path, tokenizer, tmp_path / "in", fim={"rate": 0.6}, eval=9)
    return config | {
        "source": {"unit_size": 60_000},
        "pack": {"enabled": True, "seq_length": 128},
        "seed": 3,
    }


def documents(
    built: Built, split: str = "train"
) -> dict[tuple[int, int], list[list[int]]]:
    """Identity to the pieces of a document; those that packing cut are joined."""
    found: dict[tuple[int, int], list[list[int]]] = {}
    for row in built.rows(split):
        at = 0
        for size, piece in zip(row["segment_lengths"], row["documents"], strict=True):
            pieces = found.setdefault((piece["file"], piece["position"]), [])
            ids = row["input_ids"][at : at + size]
            at += size
            if piece["start"]:
                pieces[-1] += ids
            else:
                pieces.append(ids)
    return found


def texts_of(
    built: Built, split: str = "train"
) -> dict[tuple[int, int], list[tuple[str, str]]]:
    """Identity to the text and the form of each piece."""
    backend = ReferenceTokenizer.of_folder(built.folder / "tokenizer")
    sentinels = [backend.token_id(name) for name in STARCODER]
    end = backend.token_id("<|endoftext|>")
    found: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for key, pieces in documents(built, split).items():
        for ids in pieces:
            assert ids[-1] == end and end not in ids[:-1]
            parts = parts_of(ids[:-1], sentinels)
            if parts is None:
                assert not set(sentinels) & set(ids)
            whole = (
                ids[:-1] if parts is None else [id_ for part in parts for id_ in part]
            )
            found.setdefault(key, []).append(
                (backend.decode(whole), "plain" if parts is None else "fim")
            )
    return found


def test_whole_documents_of_a_build(config: Config) -> None:
    built = build_here(config)
    plain = {**config, "name": "plain"}
    plain["datasets"] = [
        {key: value for key, value in config["datasets"][0].items() if key != "fim"}
    ]
    expected, found = texts_of(build_here(plain)), texts_of(built)
    assert {key: [text for text, _ in each] for key, each in found.items()} == {
        key: [text for text, _ in each] for key, each in expected.items()
    }
    account = built.manifest.account
    forms = [form for each in found.values() for _, form in each]
    count = account.normalized["fim_psm"] + account.normalized["fim_spm"]
    assert (
        forms.count("fim") == count and account.normalized["fim_sentinels"] == 3 * count
    )
    assert account.text_bytes == build_here(plain).manifest.account.text_bytes
    assert abs(count / len(forms) - 0.6) < 0.15 and account.normalized["fim_spm"] > 10
    # What is held out stays as it is.
    assert {
        form for each in texts_of(built, "eval_s").values() for _, form in each
    } == {"plain"}
    assert (
        planner.plan(config | {"seed": 4}).fingerprint
        != planner.plan(config).fingerprint
    )


def test_pieces_that_fit_into_a_row(config: Config) -> None:
    config["datasets"][0]["fim"] = {"rate": 0.9, "level": "context"}
    config["pack"] |= {"strategy": "best_fit"}
    built = build_here(config)
    found = pieces_of(built)
    plain = {**config, "name": "plain", "pack": {"enabled": True, "seq_length": 128}}
    plain["datasets"] = [
        {key: value for key, value in config["datasets"][0].items() if key != "fim"}
    ]
    expected = {key: each[0][0] for key, each in texts_of(build_here(plain)).items()}
    assert {
        key: "".join(text for text, _ in each) for key, each in found.items()
    } == expected
    forms = [form for each in found.values() for _, form in each]
    account = built.manifest.account
    assert (
        forms.count("fim")
        == account.normalized["fim_psm"] + account.normalized["fim_spm"]
    )
    assert account.normalized.get("fim_too_long", 0) < 0.02 * len(forms)
    assert max(len(each) for each in found.values()) > 3 and forms.count(
        "fim"
    ) > 0.8 * len(forms)


def pieces_of(built: Built) -> dict[tuple[int, int], list[tuple[str, str]]]:
    """Identity to text and form of each segment, in the order of the document; no
    segment is cut.
    """
    backend = ReferenceTokenizer.of_folder(built.folder / "tokenizer")
    sentinels = [backend.token_id(name) for name in STARCODER]
    end = backend.token_id("<|endoftext|>")
    found: dict[tuple[int, int], list[tuple[int, str, str]]] = {}
    for row in built.rows():
        at = 0
        for size, piece in zip(row["segment_lengths"], row["documents"], strict=True):
            ids = row["input_ids"][at : at + size]
            at += size
            assert ids[-1] == end and end not in ids[:-1]
            parts = parts_of(ids[:-1], sentinels)
            whole = (
                ids[:-1] if parts is None else [id_ for part in parts for id_ in part]
            )
            each = (
                piece["start"],
                backend.decode(whole),
                "plain" if parts is None else "fim",
            )
            found.setdefault((piece["file"], piece["position"]), []).append(each)
    return {
        key: [(text, form) for _, text, form in sorted(each)]
        for key, each in found.items()
    }


def test_beside_prompts_they_bear_loss_and_unpacked_they_can_be_packed_later(
    config: Config, tmp_path: Path
) -> None:
    asked = [
        {"question": f"what is {i}", "answer": f"it is {i} " * 3} for i in range(30)
    ]
    prompt = {
        "template": "{question} {answer}",
        "input_columns": ["question"],
        "label_column": "answer",
    }
    prompts = {
        "name": "p",
        "data_files": str(write_jsonl(tmp_path / "q.jsonl", asked)),
        "prompt": prompt,
    }
    texts = config["datasets"][0] | {"long_documents": "keep"}
    plain = byte_level().vocab_size
    for row in build_here(
        config | {"name": "masked", "datasets": [texts, prompts]}
    ).rows():
        ends = np.cumsum(row["segment_lengths"])
        for ids, mask in zip(
            np.split(row["input_ids"], ends),
            np.split(row["loss_mask"], ends),
            strict=True,
        ):
            assert not (ids >= plain).any() or mask.all()
    build_here(
        config | {"name": "tokens", "datasets": [texts], "pack": {"enabled": False}}
    )
    later = build_here(
        config | {"name": "later", "datasets": [{"name": "s", "dataset": "tokens@v1"}]}
    )
    assert later.table().equals(build_here(config).table())


@pytest.mark.parametrize(
    ("changes", "dataset", "message"),
    [
        (
            {},
            {"fim": {"tokens": ["<a>", "<b>", "<c>"]}},
            r"datasets.s: fim.tokens: .* has no token '<a>'; expected",
        ),
        (
            {},
            {"fim": {"tokens": ["<a>", "<b>"]}},
            "fim.tokens: got <a>, <b>, must be three different tokens",
        ),
        (
            {},
            {"fim": {"rate": 2.0}},
            "fim.rate: got 2.0, must be less than or equal to 1",
        ),
        (
            {},
            {"fim": {"level": "context"}},
            r"fim.level: context, but this build does not pack, or its strategy may cut pieces",
        ),
        (
            {},
            {"long_documents": "drop"},
            r"fim.level: document, but long documents are not kept whole \(drop\)",
        ),
        (
            {},
            {"content_field": "messages"},
            r"fim: fill-in-the-middle needs plain texts",
        ),
        (
            {},
            {"prompt": {"template": "{text}"}},
            r"datasets.s.fim: set beside `prompt`, but fill-in-the-middle needs plain texts",
        ),
        (
            {"pack": {"enabled": True, "seq_length": 32, "strategy": "best_fit"}},
            {"fim": {"level": "context"}},
            r"pack.seq_length: 32; expected at least 64 with fim.level: context",
        ),
        (
            {"mix": {"stop_strategy": "all_exhausted"}},
            {"fim": {"level": "context"}},
            r"or level: document, also if a mixture packs later",
        ),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_what_cannot_be_infilled_is_refused(
    config: Config, changes: Any, dataset: Any, message: str
) -> None:
    config["datasets"][0] |= dataset
    with pytest.raises(ConfigError, match=message):
        build_dataset(config | changes, workers=1)


def test_a_tokenizer_without_sentinels_is_refused(
    config: Config, tmp_path: Path
) -> None:
    config["default_tokenizer"] = str(save(byte_level(), tmp_path / "bare"))
    with pytest.raises(
        ConfigError,
        match=r"has no token '<fim_prefix>' and none of <fim-prefix>, <\|fim_prefix\|>",
    ):
        planner.plan(config)
