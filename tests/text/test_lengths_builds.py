"""Builds with documents longer than ``max_length``: every policy, packed and not,
accounted, verified and told.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.builds import Config
from tests.builds import config_of as settings
from tests.tokenizer_reference import ReferenceTokenizer, needs_offsets
from tests.tokenizers import tokenizer_samples as samples
from tokenlake import verify
from tokenlake.cli.app import main
from tokenlake.config import ResolvedTokenizer
from tokenlake.etl import BuildSession, InProcessPool, build_dataset
from tokenlake.etl.reports import expected_lengths, length_policy, remarks
from tokenlake.etl.text import truncate
from tokenlake.runtime.store import Account, open_store

Key = tuple[int, int]
LIMIT = 24
TEXTS = [
    "short",
    "A first sentence. A second one, e.g. with an abbreviation, which is longer than all others. Then it ends!",
    "",
    "日本語の文です。もう一つの文です。" * 6,
    "été 👩‍👩‍👧 " * 20,
    "x" * 300,
    "Just fits, or does it?",
]


@pytest.fixture(params=["byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """GPT-2-style without BOS and EOS, or Llama-2-style with a BOS."""
    return samples.save(samples.known()[request.param], tmp_path / request.param)


def config_of(
    tmp_path: Path, tokenizer: Path, *, pack: bool, **tokenize: Any
) -> Config:
    source = tmp_path / "in"
    source.mkdir(exist_ok=True)
    for name in ("a", "b"):
        lines = [
            json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS * 3
        ]
        (source / f"{name}.jsonl").write_text("".join(lines))
    # The gate costs more than the build: one of the two tokenizers is enough for it.
    engine = "tokenizers" if tokenizer.name == "sentencepiece" else "auto"
    return {
        **settings(tmp_path, source, tokenizer, pack=32 if pack else None),
        "source": {"unit_size": 4096},
        "tokenize": {"max_length": LIMIT, "tokenizer_backend": engine, **tokenize},
    }


def built(config: Config) -> tuple[Any, Path]:
    """Build in this process, verify deeply, and return the manifest and the
    version's folder.
    """
    session = BuildSession.open(config)
    pool: Any = InProcessPool()
    for index in session.pending:
        session.run_unit(index, pool)
    manifest = session.commit()
    report = verify(open_store(config["save"]["output_dir"]), "set", 1, deep=True)
    assert report.ok, report.problems
    return manifest, Path(config["save"]["output_dir"]) / "set/v1"


def pieces(manifest: Any, folder: Path) -> dict[Key, list[tuple[int, list[int]]]]:
    """Every document's pieces in the order of the rows: (start, ids)."""
    found: dict[Key, list[tuple[int, list[int]]]] = {}
    for entry in manifest.files:
        for row in pq.read_table(folder / entry.path).to_pylist():
            if manifest.seq_length is None:
                found.setdefault((row["file"], row["position"]), []).append(
                    (0, row["input_ids"])
                )
                continue
            at = 0
            for length, piece in zip(
                row["segment_lengths"], row["documents"], strict=True
            ):
                ids = row["input_ids"][at : at + length]
                found.setdefault((piece["file"], piece["position"]), []).append(
                    (piece["start"], ids)
                )
                at += length
    return found


def joined(parts: Iterable[list[int]]) -> list[int]:
    return [token for ids in parts for token in ids]


def inputs(config: Config, manifest: Any) -> dict[Key, str]:
    found: dict[Key, str] = {}
    ids = {entry.path: entry.file_id for entry in manifest.inputs}
    for path in sorted(Path(config["datasets"][0]["data_files"]).iterdir()):
        at = 0
        for line in path.read_bytes().splitlines(keepends=True):
            found[ids[path.name], at] = json.loads(line)["text"]
            at += len(line)
    return found


def reference(tokenizer: Path) -> ReferenceTokenizer:
    return ReferenceTokenizer.of_folder(tokenizer, literal=True)


def eos_of(tokenizer: Path, *, pack: bool) -> list[int]:
    backend = reference(tokenizer)
    found = [backend.token_id(token) for token in ("<|endoftext|>", "</s>")]
    return [token for token in found if token is not None][:1] if pack else []


def around(tokenizer: Path) -> list[int]:
    """The ids that the post-processor puts before a document."""
    backend = reference(tokenizer)
    return backend.encode("a").ids[
        : -len(backend.encode("a", add_special_tokens=False).ids)
    ]


@functools.lru_cache(maxsize=4)
def _without_post_processor(tokenizer_json: str) -> ReferenceTokenizer:
    return ReferenceTokenizer(tokenizer_json.encode(), literal=True)


def expected_cut(
    backend: ReferenceTokenizer, text: str, budget: int, strategy: Any, side: Any
) -> list[int]:
    """The ids kept, from the offsets of `tokenizers` alone."""
    bare = _without_post_processor(
        json.dumps(backend.specification | {"post_processor": None})
    )
    encoding = bare.encode(text)
    bytes_ = np.concatenate([[0], np.cumsum([len(c.encode()) for c in text])])
    places = bytes_[np.array(encoding.offsets, np.int64).reshape(-1, 2)]
    cut = truncate(text, places[:, 0], places[:, 1], budget, strategy, side)
    return encoding.ids[cut.first : cut.last]


@needs_offsets
@pytest.mark.parametrize(
    ("pack", "strategy", "side"),
    [
        (True, "smart", "right"),
        (True, "word", "left"),
        (False, "simple", "left"),
        (False, "sentence", "right"),
    ],
)
def test_truncated_documents(
    tmp_path: Path, tokenizer: Path, pack: bool, strategy: str, side: str
):
    cut = {
        "long_documents": "truncate",
        "truncation_strategy": strategy,
        "truncation_side": side,
    }
    config = config_of(tmp_path, tokenizer, pack=pack, **cut)
    manifest, folder = built(config)
    backend, bos, eos = (
        reference(tokenizer),
        around(tokenizer),
        eos_of(tokenizer, pack=pack),
    )
    found = {
        key: joined(ids for _, ids in parts)
        for key, parts in pieces(manifest, folder).items()
    }
    whole = {
        key: backend.encode(text, add_special_tokens=False).ids
        for key, text in inputs(config, manifest).items()
    }
    room = LIMIT - len(bos)
    assert found == {
        key: [*bos, *(expected_cut(backend, text, room, strategy, side)), *eos]
        for key, text in inputs(config, manifest).items()
        if text
    }
    account = manifest.account
    kept = sum(len(ids) - len(bos) - len(eos) for ids in found.values())
    assert account.dropped == {"truncated": sum(map(len, whole.values())) - kept}
    long = sum(len(ids) > room for ids in whole.values())
    assert account.normalized == {"long_documents_truncate": long}
    assert account.filtered == {"empty": 6}


@pytest.mark.parametrize("pack", [True, False])
def test_split_documents(tmp_path: Path, tokenizer: Path, pack: bool):
    config = config_of(tmp_path, tokenizer, pack=pack, long_documents="split")
    manifest, folder = built(config)
    backend, bos, eos = (
        reference(tokenizer),
        around(tokenizer),
        eos_of(tokenizer, pack=pack),
    )
    account = manifest.account
    found = pieces(manifest, folder)
    total = 0
    for key, text in inputs(config, manifest).items():
        if not text:
            continue
        parts = rejoined(found[key]) if pack else [ids for _, ids in found[key]]
        whole = backend.encode(text, add_special_tokens=False).ids
        if pack:  # segments of one document follow each other
            stored = [token for ids in parts for token in ids]
            parts = split_at(stored, eos[0], text)
        assert all(ids[: len(bos)] == bos for ids in parts)
        own = [ids[len(bos) : len(ids) - len(eos)] for ids in parts]
        assert joined(own) == whole
        assert all(len(ids) <= LIMIT - len(bos) for ids in own)
        assert len(own) == 1 or all("\ufffd" not in backend.decode(ids) for ids in own)
        total += len(own)
    assert account.dropped == {}
    assert account.kept == 36
    assert account.documents == (36 if pack else total)
    assert account.expanded == (0 if pack else total - 36)
    assert account.normalized["long_documents_split"] > 0
    if pack:
        assert account.eos == total


def rejoined(parts: list[tuple[int, list[int]]]) -> list[list[int]]:
    """Pieces in order; every one begins where the one before it ends."""
    ordered = sorted(parts)
    ends = np.cumsum([0, *(len(ids) for _, ids in ordered)]).tolist()
    assert [start for start, _ in ordered] == ends[:-1]
    return [ids for _, ids in ordered]


def split_at(ids: list[int], eos: int, text: str) -> list[list[int]]:
    ends = [0, *(at + 1 for at, token in enumerate(ids) if token == eos)]
    assert ends[-1] == len(ids), text
    return [ids[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("pack", [True, False])
def test_dropped_documents(tmp_path: Path, tokenizer: Path, pack: bool):
    config = config_of(tmp_path, tokenizer, pack=pack, long_documents="drop")
    manifest, folder = built(config)
    backend, bos = reference(tokenizer), around(tokenizer)
    whole = {
        key: backend.encode(text, add_special_tokens=False).ids
        for key, text in inputs(config, manifest).items()
    }
    room = LIMIT - len(bos)
    long = {key for key, ids in whole.items() if len(ids) > room}
    assert set(pieces(manifest, folder)) == {
        key for key, ids in whole.items() if 0 < len(ids) <= room
    }
    account = manifest.account
    assert account.filtered == {"too_long": len(long), "empty": 6}
    assert account.dropped == {"too_long": sum(len(whole[key]) for key in long)}
    assert account.tokens == sum(map(len, whole.values()))


@pytest.mark.parametrize("pack", [True, False])
def test_kept_documents_lose_nothing(tmp_path: Path, tokenizer: Path, pack: bool):
    manifest, folder = built(
        config_of(tmp_path, tokenizer, pack=pack, long_documents="keep")
    )
    backend = reference(tokenizer)
    config = config_of(tmp_path, tokenizer, pack=pack)
    bos, eos = around(tokenizer), eos_of(tokenizer, pack=pack)
    found = {
        key: joined(ids for _, ids in parts)
        for key, parts in pieces(manifest, folder).items()
    }
    whole = {
        key: backend.encode(text, add_special_tokens=False).ids
        for key, text in inputs(config, manifest).items()
    }
    assert found == {key: [*bos, *ids, *eos] for key, ids in whole.items() if ids}
    assert manifest.account.dropped == {}


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize(
    ("policy", "filtered"),
    [
        ({"long_documents": "truncate"}, {"nothing_to_learn": 9}),
        (
            {
                "long_documents": "truncate",
                "truncation_side": "left",
                "truncation_strategy": "word",
            },
            {},
        ),
        ({"long_documents": "split"}, {}),
    ],
)
def test_prompts_are_never_left_without_an_answer(
    tmp_path: Path, pack: bool, policy: Config, filtered: dict[str, int]
):
    tokenizer = samples.save(samples.sentencepiece(), tmp_path / "sentencepiece")
    config = config_of(tmp_path, tokenizer, pack=pack, **policy)
    asked = [
        {"q": "why " * (1 + 30 * (number % 2)), "a": "so it is. "}
        for number in range(18)
    ]
    (tmp_path / "in/a.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in asked)
    )
    (tmp_path / "in/b.jsonl").unlink()
    config["datasets"][0]["prompt"] = {
        "template": "Q: {q}\nA: {a}",
        "input_columns": ["q"],
        "label_column": "a",
    }
    manifest, folder = built(config)
    account = manifest.account
    assert account.filtered == filtered
    assert account.kept == 18 - sum(filtered.values())
    assert (account.dropped.get("nothing_to_learn", 0) > 0) == (
        policy.get("truncation_side") is None
    )
    backend = reference(tokenizer)
    learned: list[int] = []
    for entry in manifest.files:
        for row in pq.read_table(folder / entry.path).to_pylist():
            if not pack:
                assert len(row["input_ids"]) <= LIMIT and any(row["loss_mask"])
            pairs = zip(row["input_ids"], row["loss_mask"], strict=True)
            learned += [token for token, bears_loss in pairs if bears_loss]
    assert backend.decode(learned).count("so it is.") == account.kept


def test_a_limit_of_less_than_a_character_leaves_a_document_out(
    tmp_path: Path, tokenizer_dir: Path
):
    config = config_of(
        tmp_path, tokenizer_dir, pack=False, long_documents="truncate", max_length=1
    )
    (tmp_path / "in/a.jsonl").write_text(
        json.dumps({"text": "👩"}) + "\n" + json.dumps({"text": "aa"}) + "\n"
    )
    (tmp_path / "in/b.jsonl").unlink()
    manifest, _ = built(config)
    assert manifest.account.filtered == {"too_long": 1}
    assert manifest.account.documents == 1


# ---- what a person is told of them, before the run and after it
# ------------------------------------------

SETTINGS: dict[str, Any] = {
    "name_or_path": "t",
    "add_special_tokens": True,
    "max_length": 2048,
    "trust_remote_code": False,
    "special_tokens_in_text": "literal",
    "engine": "auto",
}
LONGER = "about 3.0% of documents are longer than 2,048 tokens"
DROPPED = "about 12% of tokens dropped"


@pytest.mark.parametrize(
    ("options", "short", "sentence"),
    [
        ({"long_documents": "keep"}, "kept", "kept whole, nothing is dropped"),
        (
            {"long_documents": "truncate", "truncation_strategy": "word"},
            "truncated at 2,048",
            f"{LONGER}: truncated between words, their ends are cut away, {DROPPED}",
        ),
        (
            {"long_documents": "truncate", "truncation_side": "left"},
            "truncated at 2,048",
            f"{LONGER}: truncated at a token, their beginnings are cut away, {DROPPED}",
        ),
        (
            {"long_documents": "split"},
            "split at 2,048",
            f"{LONGER}: split into pieces, nothing is dropped",
        ),
        (
            {"long_documents": "drop"},
            "left out above 2,048",
            f"{LONGER}: left out, {DROPPED}",
        ),
    ],
)
def test_a_policy_in_a_sentence(options: dict[str, Any], short: str, sentence: str):
    settings = ResolvedTokenizer(**SETTINGS, **options)
    assert length_policy(settings) == short
    assert expected_lengths(settings, 1000, 30, 50_000, 6_000) == sentence


def test_a_sample_without_long_documents_still_tells_the_policy():
    settings = ResolvedTokenizer(**SETTINGS, long_documents="drop")
    assert expected_lengths(settings, 10, 0, 5, 0) == (
        "no document of the sample is longer than 2,048 tokens; longer ones are left out"
    )
    assert "less than 0.1% of documents" in expected_lengths(settings, 5000, 1, 5, 0)
    split = ResolvedTokenizer(**SETTINGS, long_documents="split")
    assert expected_lengths(split, 10, 5, 5, 0, masked=True).endswith(
        "split into pieces, those without loss are left out"
    )


def test_what_was_done_is_told_with_its_cost():
    account = Account(
        kept=40,
        filtered={"too_long": 2, "nothing_to_learn": 1, "empty": 4},
        tokens=1000,
        dropped={"truncated": 125, "too_long": 50, "nothing_to_learn": 7},
        normalized={"long_documents_truncate": 10, "crlf": 3},
    )
    assert remarks(account) == [
        "normalized on reading: 3 crlf",
        "long documents truncated: 10 of 40; 125 of 1,000 tokens dropped (12.50%)",
        "documents left out, too long: 2; 50 of 1,000 tokens dropped (5.00%)",
        "documents left out, nothing to learn is left of them: 1; 7 of 1,000 tokens dropped (0.70%)",
    ]
    account = Account(
        kept=3,
        tokens=9,
        dropped={"nothing_to_learn": 3},
        normalized={"long_documents_split": 2},
    )
    assert remarks(account) == [
        "long documents split: 2 of 3",
        "pieces left out, nothing to learn in them; 3 of 9 tokens dropped (33.33%)",
    ]


@pytest.mark.parametrize(
    ("policy", "pack"),
    [
        ("keep", True),
        ("truncate", True),
        ("split", True),
        ("split", False),
        ("drop", False),
    ],
)
def test_the_plan_comes_near_to_what_the_account_says(
    tmp_path: Path,
    tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
    policy: str,
    pack: bool,
):
    source = tmp_path / "in.jsonl"
    texts = [
        f"{number} some words of a text. " * (1 + number % 9) for number in range(300)
    ]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = settings(tmp_path, source, tokenizer_dir, pack=64 if pack else None)
    config["tokenize"] = {
        "max_length": 50,
        "long_documents": policy,
        "tokenizer_backend": "tokenizers",
    }
    file = tmp_path / "set.yaml"
    file.write_text(json.dumps(config))
    assert main(["plan", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (line,) = plan["sources"]
    assert main(["plan", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert {"keep": "kept whole", "drop": "left out above 50"}.get(
        policy, f"{policy}"
    ) in shown
    account = build_dataset(config, workers=1).manifest.account
    about = line["long_documents"]
    long = {"drop": account.filtered.get("too_long", 0)}.get(
        policy, account.normalized.get(f"long_documents_{policy}", 0)
    )
    assert about["policy"] == policy
    assert about["documents"] == pytest.approx(long, rel=0.25)
    assert about["dropped_tokens"] == pytest.approx(
        sum(account.dropped.values()), rel=0.25
    )
    written = account.content_packed + account.bos + account.eos
    assert plan["estimate"]["tokens"] == pytest.approx(written, rel=0.1)
    rows = account.sequences if pack else account.documents
    assert plan["estimate"]["sequences"] == pytest.approx(rows, rel=0.1)
    assert main(["show", "set", "--store", str(tmp_path / "store")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert ("long documents" in told or "too long" in told) == (policy != "keep")
