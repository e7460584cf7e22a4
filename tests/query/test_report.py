"""The report of real versions: what it says, what it reads, and that nothing in them
becomes a part of the page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.builds import Config, config_of
from tests.reports.test_html import EVIL, Skeleton
from tests.rowwise.mixed_store import build_mixtures
from tests.store.support import copy_store, shared_store
from tokenlake import Catalog, verify
from tokenlake import sql as query
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.etl import build_dataset
from tokenlake.etl.reports import mixed_text_table
from tokenlake.query import (
    LossShare,
    group_choice,
    render_report,
    sample_rows,
    spread,
    store_report,
    text_accounts,
)
from tokenlake.runtime.loader.host_load import host_load
from tokenlake.runtime.store import open_store

SECTIONS = [
    "Audit",
    "Sources",
    "Lengths",
    "Rows",
    "Bad records",
    "Texts",
    "Loading",
    "Versions",
    "Lineage",
]


@pytest.fixture(scope="module")
def store(tokenizer_dir: Path) -> Path:
    return shared_store(tokenizer_dir)


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_mixtures(tmp_path_factory.mktemp("mixtures"), tokenizer_dir)


def _report(store: Path, name: str) -> Skeleton:
    catalog = Catalog(open_store(store))
    return Skeleton(render_report(catalog.manifest_of(name), catalog.store))


def _links(found: Skeleton) -> list[str]:
    """The page's own contents name every section."""
    at = found.tags.index(("nav",))
    many = sum(
        tag == ("a", "href") for tag in found.tags[at : found.tags.index(("/nav",))]
    )
    begin = next(i for i, words in enumerate(found.words) if words == "Audit")
    return found.words[begin : begin + many]


def test_a_report_has_every_section(store: Path, tmp_path: Path) -> None:
    path = tl.report(tl.open(store, "small", split="train"), tmp_path / "small.html")
    found = Skeleton(path.read_text(encoding="utf-8"))
    assert _links(found) == SECTIONS
    words = "".join(found.words)
    manifest = Catalog(open_store(store)).manifest("small", 2)
    for expected in (
        f"rows read {manifest.account.rows_read:,}",
        f"tokens {manifest.account.tokens:,}",
        "quarantined: null_text 1",
        '{"text": null}',
        "small@v1 and small@v2 differ in: identity, inputs",
        "the river rose by",
        manifest.sha256,
    ):
        assert expected in words, expected
    assert render_report(manifest, open_store(store)) == path.read_text(
        encoding="utf-8"
    )


def test_a_manifest_alone_says_what_it_can(store: Path, tmp_path: Path) -> None:
    manifest = Catalog(open_store(store)).manifest("small", 2)
    found = Skeleton(tl.report(manifest, tmp_path / "alone.html").read_text())
    assert _links(found) == ["Audit", "Sources", "Lineage"]


def test_a_sample_of_everything_is_what_queries_say(store: Path) -> None:
    catalog = Catalog(open_store(store))
    manifest = catalog.manifest("small", 2)
    sample = sample_rows(catalog.store, manifest, {})
    pieces = 'from "small@v2/documents"'
    documents = f"select source, file, position, sum(length) as n {pieces} group by all"
    rows = query(
        store, f"select source, list(n order by n) as n from ({documents}) group by 1"
    ).to_pylist()
    assert {name: sorted(ids.tolist()) for name, ids in sample.lengths.items()} == {
        row["source"]: row["n"] for row in rows
    }
    per_row = (
        "select count(*) as pieces, sum(length) as ids "
        + pieces
        + " group by split, shard, row"
    )
    counted = query(
        store, f"select sum(pieces) as p, sum(ids) as i, count(*) as r from ({per_row})"
    ).to_pylist()
    assert counted == [
        {"p": sample.segments.sum(), "i": sample.filled.sum(), "r": sample.rows}
    ]
    assert sample.groups == sample.of
    longest = query(store, f"select max(n) as n from ({documents})").to_pylist()
    assert sample.longest[0].ids == longest[0]["n"] >= sample.longest[-1].ids
    assert sample.shortest[0].ids <= sample.shortest[-1].ids


def test_of_a_large_version_some_row_groups_are_read(store: Path) -> None:
    catalog = Catalog(open_store(store))
    manifest = catalog.manifest("small", 2)
    sample = sample_rows(catalog.store, manifest, {}, most_groups=2)
    assert sample.groups == 2 < sample.of
    assert sample.rows < manifest.totals.rows
    assert spread(5, 9) == [0, 1, 2, 3, 4] and spread(10**6, 3) == [0, 500000, 999999]


def test_a_mixture_shows_what_was_asked_and_how_weights_move(mixtures: Path) -> None:
    words = "".join(_report(mixtures, "rows").words)
    for expected in (
        "asked of rows",
        "Weights over steps",
        "code 90.00% to 0.00%",
        "Made from",
        "code-rows@v1",
    ):
        assert expected in words, expected
    documents = _report(mixtures, "loose")
    assert "py (code)" in "".join(documents.words), (
        "documents are named as the mixture names their sources"
    )
    assert "Tokens per byte" in documents.words and "Rows" not in _links(documents)
    assert "The weights are the same at every step." in documents.words


def test_parents_that_are_gone_are_left_out(mixtures: Path, tmp_path: Path) -> None:
    copy = copy_store(mixtures, tmp_path / "copy")
    for path in (copy / "pile.code.tokens").rglob("*.json"):
        path.unlink()
    words = "".join(_report(copy, "loose").words)
    assert "pile.code.tokens@v1" in words


def _named(root: Path, tokenizer: Path, texts: Sequence[str]) -> str:
    """The report of a version with these texts in its records, kept fields, bad
    records and names of files.
    """
    folder = root / str(len(list(root.iterdir())))
    folder.mkdir()
    records = [
        {"instruction": text, "output": f"{text} {n}"}
        for n in range(2)
        for text in texts
    ]
    bad = [{"instruction": None, "output": text} for text in texts[:4]]
    name = "".join(texts[:2]).replace("/", "-")
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, [*records, *bad])))
    prompt = {
        "template": "{instruction}\n\n{output}",
        "input_columns": ["instruction"],
        "label_column": "output",
    }
    source: dict[str, Any] = {
        "name": "s",
        "tokenizer": str(tokenizer),
        "data_files": str(folder),
    }
    config: Config = {
        "name": f"n{folder.name}",
        "datasets": [{**source, "prompt": prompt, "additional_fields": ["output"]}],
        "source": {"on_bad_record": "quarantine", "max_bad_fraction": 0.5},
        "pack": {"enabled": False},
        "save": {"output_dir": str(root / "store")},
    }
    return render_report(
        build_dataset(config, workers=1).manifest, open_store(root / "store")
    )


def test_nothing_in_a_version_becomes_a_part_of_the_page(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    texts = [
        text
        for text in EVIL
        if ("\x00" not in text and text.isascii()) or "\u202e" in text
    ]
    (tmp_path / "store").mkdir()
    found = Skeleton(_named(tmp_path, tokenizer_dir, texts))
    plain = Skeleton(
        _named(tmp_path, tokenizer_dir, [f"plain {n} words" for n in range(len(texts))])
    )
    assert set(found.tags) == set(plain.tags)
    words = "".join(found.words)
    assert "\u202e" not in words and "\\u202e" in words
    assert words.count("<script>alert(1)</script>") > 5
    assert ("span", "class") in found.tags and "in the loss" in words


@pytest.mark.parametrize("trainer", ["easydel", "trl"])
def test_a_preference_counts_each_part_once(
    tmp_path: Path, tokenizer_dir: Path, trainer: str
) -> None:
    pairs = [
        {"prompt": f"p{n} ", "chosen": "yes " * (n + 1), "rejected": "no"}
        for n in range(9)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    config = config_of(
        tmp_path,
        tmp_path / "pairs.jsonl",
        tokenizer_dir,
        preference={"method": "dpo", "trainer": trainer},
    )
    manifest = build_dataset(config, workers=1).manifest
    store = open_store(tmp_path / "store")
    sample = sample_rows(store, manifest, {})
    assert sample.lengths["s"].sum() == manifest.totals.tokens
    found = Skeleton(render_report(manifest, store))
    assert {"Texts", "Loading"} <= set(_links(found)) and "Rows" not in _links(found)
    assert any(words.startswith("chosen  s  pairs.jsonl:") for words in found.words)


def test_padding_of_a_document_is_not_counted(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": "word " * n}) for n in range(1, 9))
    )
    config = config_of(tmp_path, tmp_path / "a.jsonl", tokenizer_dir)
    tokenizer = {
        "name_or_path": str(tokenizer_dir),
        "padding": "max_length",
        "max_length": 32,
    }
    config["datasets"][0]["tokenizer"] = tokenizer
    manifest = build_dataset(config, workers=1).manifest
    store = open_store(tmp_path / "store")
    lengths = sample_rows(store, manifest, {}).lengths["s"]
    assert lengths.sum() == manifest.totals.tokens < 8 * 32
    assert len(set(lengths.tolist())) == 8


def test_a_line_that_ends_before_the_loss_begins_keeps_its_end(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    record = {"question": "How deep?", "answer": "Three metres"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    config = config_of(
        tmp_path,
        tmp_path / "a.jsonl",
        tokenizer_dir,
        prompt={
            "template": "{question}\n{answer}",
            "input_columns": ["question"],
            "label_column": "answer",
        },
    )
    manifest = build_dataset(config, workers=1).manifest
    page = render_report(manifest, open_store(tmp_path / "store"))
    assert 'How deep?\n</span><span class="on">Three' in page


def test_a_stored_report_is_no_part_of_the_version(store: Path, tmp_path: Path) -> None:
    copy = open_store(copy_store(store, tmp_path / "copy"))
    manifest = Catalog(copy).manifest("small", 1)
    key = store_report(copy, manifest)
    assert key == "small/v1/runs/report.html"
    first = copy.read(key)
    assert first.decode() == render_report(manifest, copy)
    (tmp_path / "copy" / "small" / "v2" / "manifest.json").unlink()
    assert store_report(copy, manifest) == key and copy.read(key) == first
    assert verify(copy, "small", 1, deep=False, workers=1).ok
    assert not tl.gc(tmp_path / "copy", ["small"]).removed


def test_damage_is_an_error(store: Path, tmp_path: Path) -> None:
    copy = copy_store(store, tmp_path / "copy")
    shard = next((copy / "small" / "v2" / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(IntegrityError, match=shard.name):
        _report(copy, "small")


def test_a_copy_without_its_bad_records_counts_them(
    store: Path, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "copy")
    for path in (copy / "small" / "v2" / "quarantine").iterdir():
        path.unlink()
    assert "Bad records" in _links(_report(copy, "small"))


def test_what_cannot_be_reported_says_so(store: Path, tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"no dataset .smal. in .*; did you mean small"
    ):
        tl.report(store / "smal", tmp_path / "a.html")
    with pytest.raises(ConfigError, match="the report cannot be written: No such file"):
        tl.report(
            Catalog(open_store(store)).manifest("small", 1),
            tmp_path / "none" / "a.html",
        )


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_host_reads_what_is_foreseen(store: Path, split: str) -> None:
    data = tl.open(store, "small", split=split)
    for hosts in (1, 4):
        loader = tl.DataLoader(
            data, batch_size=4, host=(0, hosts), workers=0, prefetch=0
        )
        delivered = sum(len(batch["input_ids"]) for batch in loader)
        foreseen, decoded = host_load(loader.plan, hosts), loader.decoded
        assert (foreseen.delivered, foreseen.groups, foreseen.decoded) == (
            delivered,
            decoded.groups,
            decoded.rows,
        )
        assert foreseen.steps == len(loader)


def test_only_the_first_steps_of_a_long_pass_are_looked_at(store: Path) -> None:
    plan = tl.DataLoader(tl.open(store, "small", split="train"), batch_size=4).plan
    found = host_load(plan, 1, most_rows=9)
    assert (found.steps, found.delivered) == (3, 12)
    everything = host_load(plan, 1)
    assert everything.bytes == pytest.approx(
        sum(
            shard.bytes
            for shard in plan.sources[0].manifest.files
            if shard.split == "train"
        ),
        abs=9,
    )
    assert np.sum(plan.sources[0].group_rows) == everything.decoded


def test_the_figures_of_a_sample_say_so_at_the_figure(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = "".join(_report(store, "small").words)
    assert "estimated from" not in exact
    assert "Counted in all" in exact

    monkeypatch.setattr(group_choice, "EXACT_GROUPS", 1)
    monkeypatch.setattr(group_choice, "SAMPLED_GROUPS", 2)
    words = _report(store, "small").words
    medians = [sentence for sentence in words if "median" in sentence]
    assert medians
    assert all("estimated from" in sentence for sentence in medians)
    assert any(
        "Longest documents of" in sentence and "sampled row" in sentence
        for sentence in words
    )


def test_a_share_of_the_loss_is_marked_as_an_estimate_unless_all_rows_are_read() -> (
    None
):
    exact = LossShare(loss_tokens=30, tokens=40, rows=7, all_rows=7)
    assert exact.in_words() == "75.00% of the tokens count toward the loss"
    sampled = LossShare(loss_tokens=30, tokens=40, rows=7, all_rows=7000)
    assert sampled.in_words() == (
        "~75.00% of the tokens count toward the loss, estimated from 7 of 7,000 rows"
    )


def test_a_mixture_has_the_text_behind_its_tokens(mixtures: Path) -> None:
    catalog = Catalog(open_store(mixtures))
    manifest = catalog.manifest_of("loose")
    assert manifest.mixture is not None
    texts = text_accounts(catalog, manifest)
    table = mixed_text_table(manifest.mixture, texts)
    for name, drawn_tokens, text_bytes, bytes_per_token, _ in table.rows:
        assert drawn_tokens == manifest.mixture.sources[name].drawn_tokens
        assert bytes_per_token == texts[name].text_bytes / texts[name].tokens
        assert text_bytes == round(drawn_tokens * bytes_per_token)
    assert [row[0] for row in table.rows] == list(manifest.mixture.sources)
    words = _report(mixtures, "loose").words
    assert "text of them, about" in words
    assert "text bytes" not in words, (
        "a mixture reads tokens, of which nobody counts bytes of text"
    )
