"""Packing stored tokens again gives the very rows that packing the text at once
would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.etl.mix_units_support import packing, parent, rows_out, run, written
from tests.etl.outputs_support import Built, build_here, notes, settings, write_jsonl
from tests.text.chat_samples import CHATML, LLAMA2, conversation, speaking, write
from tests.tokenizers.tokenizer_samples import (
    byte_level,
    changed,
    sentencepiece,
    template,
)
from tokenlake import Catalog
from tokenlake.errors import IntegrityError
from tokenlake.etl.job import RepackJob
from tokenlake.etl.tokenizers import TokenizerFiles
from tokenlake.runtime.store import (
    ShardEntry,
    Store,
    StoreAddress,
    UnitRecord,
    open_store,
)

Config = dict[str, Any]
LENGTH = 24
SPLITS = {"validation": 0.3, "train": 0.7}


def _both_ends() -> TokenizerFiles:
    """A tokenizer whose post-processor puts BOS before and EOS behind a document."""
    after = template([("<s>", 1)], [("</s>", 2)])
    return changed(sentencepiece(), lambda spec: spec.update(post_processor=after))


def _texts(root: Path) -> list[Config]:
    """Short documents, an empty one, some that are far longer than a row, and one
    that spells EOS itself.
    """
    records = notes(120)
    records[5]["text"] = ""
    records[7]["text"] = "it ends here</s>"
    for at in (11, 12, 60):
        records[at]["text"] = "a long story about rivers and lakes. " * 90
    return [
        {"name": "s", "data_files": str(write_jsonl(root / "notes.jsonl", records))}
    ]


def _chats(root: Path) -> list[Config]:
    rows = [{"messages": conversation(seed, turns=1 + seed % 3)} for seed in range(50)]
    return [{"name": "c", "data_files": str(write_jsonl(root / "chats.jsonl", rows))}]


def _prompts(root: Path) -> list[Config]:
    rows = [{"question": f"what is {i}", "answer": f"it is {i}"} for i in range(60)]
    prompt = {
        "template": "Q {question} A {answer}",
        "input_columns": ["question"],
        "label_column": "answer",
    }
    return [
        {
            "name": "p",
            "data_files": str(write_jsonl(root / "asked.jsonl", rows)),
            "prompt": prompt,
        }
    ]


CASES: dict[
    str, tuple[Callable[[], TokenizerFiles], Callable[[Path], list[Config]]]
] = {
    "without BOS": (byte_level, _texts),
    "BOS": (sentencepiece, _texts),
    "BOS and EOS": (_both_ends, _texts),
    "chats without EOS": (lambda: speaking(CHATML), _chats),
    "chats with BOS and EOS": (lambda: speaking(LLAMA2), _chats),
    "prompts": (sentencepiece, _prompts),
}
PLAIN = ("without BOS", "BOS", "BOS and EOS")


def _build(
    root: Path, datasets: list[Config], name: str, pack: Config | None, **save: Any
) -> Built:
    config = settings(root, root / "tokenizer", "")
    config |= {"name": name, "datasets": datasets, "pack": pack or {"enabled": False}}
    config["source"] = {"splits": SPLITS, "unit_size": 2500}
    config["tokenize"] = {"max_length": 100_000}
    config["save"] |= save
    return build_here(config)


def _packed(length: int = LENGTH, **changes: Any) -> Config:
    return {"enabled": True, "seq_length": length, **changes}


def _repack(store: Store, tokens: Built, pack: Any, unit: int) -> UnitRecord:
    """Pack one unit of a `tokens` dataset again."""
    return run(_job(store, tokens, pack, unit))


def _job(store: Store, tokens: Built, pack: Any, unit: int) -> RepackJob:
    """The job as a plan would have it."""
    source = next(iter(tokens.manifest.tokenizer))
    given = parent(store, source, dataset="tokens")
    rendered = {"chat", "prompt"} & tokens.manifest.config["sources"][source].get(
        "texts", {}
    ).keys()
    out = rows_out(
        store,
        given,
        pack=pack,
        whole=(source,) if rendered else (),
        loss_mask=bool(rendered),
    )
    return RepackJob(
        store=StoreAddress(store.url),
        parents_store=StoreAddress(store.url),
        dataset="again",
        version=1,
        unit=unit,
        fingerprint="0" * 64,
        parent=given,
        parent_unit=unit,
        source=source,
        out=out,
    )


def _tokenizer(root: Path, files: TokenizerFiles) -> None:
    write(files, root / "tokenizer")


@pytest.mark.parametrize("case", CASES)
def test_tokens_packed_again_are_the_rows_of_packing_the_text_at_once(
    tmp_path: Path, case: str
) -> None:
    files, datasets = CASES[case]
    _tokenizer(tmp_path, files())
    direct = _build(tmp_path, datasets(tmp_path), "direct", _packed())
    tokens = _build(tmp_path, datasets(tmp_path), "tokens", None)
    store = open_store(str(tmp_path / "store"))
    units = sorted({shard.unit for shard in direct.manifest.files})
    records = Catalog(store).ledger("direct", 1)
    assert {shard.split for shard in direct.manifest.files} == set(SPLITS)
    for unit in units:
        record = _repack(store, tokens, packing(LENGTH), unit)
        assert _said(record.parts) == _said(
            part for part in direct.manifest.files if part.unit == unit
        )
        _check_account(record, records[unit], rendered=case not in PLAIN)


def _said(parts: Iterable[ShardEntry]) -> dict[str, Any]:
    return {
        part.path: (part.logical, part.tokens, part.documents, part.row_groups)
        for part in parts
    }


def _check_account(ours: UnitRecord, direct: UnitRecord, *, rendered: bool) -> None:
    """Both counted the same rows; of rendered documents only the EOS that packing
    adds is known apart.
    """
    same = ["documents", "sequences", "slots", "pad"]
    same += [] if rendered else ["eos_existing", "content_packed", "bos", "eos"]
    assert {name: getattr(ours.account, name) for name in same} == {
        name: getattr(direct.account, name) for name in same
    }
    assert ours.account.rows_read == ours.account.kept == ours.account.documents


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Built]:
    """A folder, and the `tokens` dataset of its texts."""
    root = tmp_path_factory.mktemp("plain")
    _tokenizer(root, sentencepiece())
    return root, _build(root, _texts(root), "tokens", None)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "best_fit"},
        {"strategy": "pool", "num_packers": 2},
        {"strategy": "first_fit", "max_segments": 3},
    ],
)
def test_every_strategy_packs_again_as_it_packs_at_once(
    plain: tuple[Path, Built], changes: Config
) -> None:
    """Windows and the shuffle of rows too: both begin anew in each unit and split."""
    root, tokens = plain
    direct = _build(root, _texts(root), "direct", _packed(window_tokens=600, **changes))
    store = open_store(str(root / "store"))
    for unit in sorted({shard.unit for shard in direct.manifest.files}):
        pack = packing(LENGTH, window_tokens=600, shuffle_seed=0, **changes)
        record = _repack(store, tokens, pack, unit)
        assert _said(record.parts) == _said(
            part for part in direct.manifest.files if part.unit == unit
        )


def test_another_length_holds_the_same_documents(plain: tuple[Path, Built]) -> None:
    root, tokens = plain
    store = open_store(str(root / "store"))
    for unit in sorted({shard.unit for shard in tokens.manifest.files}):
        streams = [
            _stream(store, _repack(store, tokens, packing(length), unit), length)
            for length in (16, 200)
        ]
        assert streams[0] == streams[1]
        assert streams[0]["train"] or streams[0]["validation"]


def _stream(store: Store, record: UnitRecord, length: int) -> dict[str, list[int]]:
    """The ids of each split, padding left out."""
    found: dict[str, list[int]] = {}
    for split in SPLITS:
        rows = (
            written(store, record, "again", split).to_pylist()
            if _has(record, split)
            else []
        )
        found[split] = [
            token
            for row in rows
            for token in row["input_ids"][: sum(row["segment_lengths"])]
        ]
        assert all(len(row["input_ids"]) == length for row in rows)
    return found


def _has(record: UnitRecord, split: str) -> bool:
    return any(part.split == split for part in record.parts)


def test_a_parent_that_is_not_the_planned_one_is_refused(
    plain: tuple[Path, Built],
) -> None:
    root, tokens = plain
    job = _job(open_store(str(root / "store")), tokens, packing(LENGTH), 0)
    other = replace(job, dataset="never", parent=replace(job.parent, sha256="f" * 64))
    with pytest.raises(
        IntegrityError,
        match=r"tokens@v1 has sha256 .* run `tokenlake verify tokens@v1`",
    ):
        run(other)
    assert not (root / "store" / "never").exists()
