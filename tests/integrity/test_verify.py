"""Verification: every kind of damage to a small real version is found, and nothing
else is reported.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builds import small_row_groups
from tests.etl.outputs_support import build_here
from tests.store.support import copy_store, settings, sha256, write_inputs
from tokenlake import Catalog, Manifest, VerifyReport, verify
from tokenlake.errors import NotFoundError
from tokenlake.etl.integrity import VerifyProgress
from tokenlake.runtime import LogicalHasher, open_writer
from tokenlake.runtime.store import FileEntry, ShardEntry, open_store, seal

L = 16
DATASET = "small"
Rows = dict[str, list[Any]]
Found = set[tuple[str, str]]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """Two sources, a unit each; two splits; a bad record; rows of 16 ids, five of
    them to a row group.
    """
    root = tmp_path_factory.mktemp("pristine")
    write_inputs(root)
    with small_row_groups(5 * L):
        build_here(
            settings(root, tokenizer_dir) | {"pack": {"enabled": True, "seq_length": L}}
        )
    return root / "store"


@pytest.fixture
def lake(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage, its files writable."""
    return copy_store(pristine, tmp_path / "lake")


@pytest.fixture
def unlisted(lake: Path) -> Path:
    """A copy whose manifest lists no ledger records, as those of older releases."""
    manifest = read_manifest(lake)
    others = {
        name: each
        for name, each in manifest.other_files.items()
        if not name.startswith("ledger/")
    }
    put_manifest(lake, replace(manifest, other_files=others))
    return lake


def check(root: Path, *, deep: bool = True, workers: int = 2) -> VerifyReport:
    return verify(open_store(root), DATASET, 1, deep=deep, workers=workers)


def found(root: Path, *, deep: bool = True) -> Found:
    return {
        (problem.path, problem.problem) for problem in check(root, deep=deep).problems
    }


def folder(root: Path) -> Path:
    return root / DATASET / "v1"


def files_of(root: Path) -> list[Path]:
    return sorted(
        path
        for path in folder(root).rglob("*")
        if path.is_file() and "runs" not in path.parts
    )


def read_manifest(root: Path) -> Manifest:
    return Catalog(open_store(root)).manifest(DATASET, 1)


# A sound version


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("ledger", ["lake", "unlisted"])
def test_a_sound_version_has_no_problems(
    request: pytest.FixtureRequest, deep: bool, ledger: str
) -> None:
    root = request.getfixturevalue(ledger)
    report, manifest = check(root, deep=deep), read_manifest(root)
    totals = manifest.totals
    assert report.problems == () and report.ok
    assert report.files == len(manifest.files) + len(manifest.other_files)
    assert (report.rows, report.tokens) == (
        (totals.rows, totals.tokens) if deep else (0, 0)
    )
    assert report.bytes > totals.bytes
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_what_is_no_committed_version_is_not_found(tmp_path: Path, lake: Path) -> None:
    with pytest.raises(NotFoundError):
        check(tmp_path / "none")
    (folder(lake) / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match="not committed"):
        check(lake)


def test_progress_ends_at_the_total(pristine: Path) -> None:
    seen: list[VerifyProgress] = []
    report = verify(
        open_store(pristine), DATASET, 1, deep=True, workers=3, on_progress=seen.append
    )
    assert seen[-1].bytes == seen[-1].bytes_total
    assert seen[-1].files == seen[-1].files_total == report.files
    assert [item.bytes for item in seen] == sorted(item.bytes for item in seen)


def test_the_report_does_not_depend_on_workers(lake: Path) -> None:
    for path in files_of(lake)[:4]:
        path.write_bytes(path.read_bytes() + b"x")
    assert check(lake, workers=1) == check(lake, workers=2) == check(lake, workers=4)


# Damage to bytes


def test_every_flipped_bit_is_found_in_its_file_and_nowhere_else(lake: Path) -> None:
    dice = random.Random(11)
    files = files_of(lake)
    for turn in range(120):
        path = files[turn % len(files)]
        good = path.read_bytes()
        bad = bytearray(good)
        bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
        path.write_bytes(bad)
        report = check(lake, deep=turn % 3 == 0)
        assert [problem.path for problem in report.problems] == [
            str(path.relative_to(folder(lake)))
        ]
        expected = {"claim.json": "damaged", "manifest.json": "damaged"}.get(
            path.name, "sha256"
        )
        assert report.problems[0].problem == expected
        path.write_bytes(good)
    assert check(lake).ok


def test_cut_and_lengthened_files_are_found(lake: Path) -> None:
    for path in files_of(lake):
        good = path.read_bytes()
        name = str(path.relative_to(folder(lake)))
        expected = "damaged" if name in ("claim.json", "manifest.json") else "size"
        for bad in (good[:-1], good[: len(good) // 2], b"", good + b"\0"):
            path.write_bytes(bad)
            assert found(lake, deep=not bad) == {(name, expected)}
        path.write_bytes(good)


def test_deleted_files_are_found(lake: Path) -> None:
    for path in files_of(lake):
        name = str(path.relative_to(folder(lake)))
        if name in ("manifest.json", "claim.json"):
            continue
        good = path.read_bytes()
        path.unlink()
        assert found(lake) == {(name, "missing")}
        path.write_bytes(good)


def test_a_version_may_travel_without_its_claim(lake: Path) -> None:
    (folder(lake) / "claim.json").unlink()
    assert check(lake).ok


@pytest.mark.parametrize(
    ("ledger", "record"), [("lake", "unlisted"), ("unlisted", "damaged")]
)
def test_unlisted_files_are_found(
    request: pytest.FixtureRequest, ledger: str, record: str
) -> None:
    """A record of the ledger that nothing lists would have to be sealed."""
    root = request.getfixturevalue(ledger)
    extra = [
        "data/train-00009-00.parquet",
        "data/notes.txt",
        "data/.hidden",
        "top.txt",
        "tokenizer/x",
    ]
    for name in [*extra, "ledger/00009.json", "runs/2.json"]:
        (folder(root) / name).write_bytes(b"x")
    assert found(root) == {
        ("ledger/00009.json", record),
        *((name, "unlisted") for name in extra),
    }


def test_swapped_ledger_records_are_found(unlisted: Path) -> None:
    ledger = folder(unlisted) / "ledger"
    (ledger / "00000.json").rename(ledger / "x")
    (ledger / "00001.json").rename(ledger / "00000.json")
    (ledger / "x").rename(ledger / "00001.json")
    assert {
        ("ledger/00000.json", "damaged"),
        ("ledger/00001.json", "damaged"),
    } <= found(unlisted)


# Damage by somebody who can seal: counts, hashes, provenance


def put_manifest(root: Path, manifest: Manifest) -> None:
    """Write a manifest and its copy, so that verification finds no difference
    between the two.
    """
    for name in ("manifest.json", "runs/manifest-copy.json"):
        (folder(root) / name).write_bytes(manifest.to_bytes())


def replace_shard(root: Path, change: Callable[[ShardEntry], ShardEntry]) -> str:
    """Change the first shard's entry in manifest and ledger alike, everything
    resealed; returns its path.
    """
    manifest = read_manifest(root)
    old = manifest.files[0]
    record = Catalog(open_store(root)).ledger(DATASET, 1)[old.unit]
    new = change(old)
    data = replace(
        record, parts=tuple(new if part == old else part for part in record.parts)
    ).to_bytes()
    name = f"ledger/{old.unit:05d}.json"
    (folder(root) / name).write_bytes(data)
    others = {
        **manifest.other_files,
        name: FileEntry(bytes=len(data), sha256=sha256(data)),
    }
    files = tuple(new if shard == old else shard for shard in manifest.files)
    put_manifest(root, replace(manifest, files=files, other_files=others))
    return old.path


def first_shard(root: Path) -> Path:
    return folder(root) / read_manifest(root).files[0].path


def agree(root: Path, **changes: Any) -> str:
    """Make manifest and ledger agree with the bytes that the first shard has now;
    returns its path.
    """
    data = first_shard(root).read_bytes()
    return replace_shard(
        root,
        lambda entry: replace(entry, bytes=len(data), sha256=sha256(data), **changes),
    )


@pytest.mark.parametrize(
    ("change", "problems", "in_account"),
    [
        ({"tokens": 1}, {"tokens"}, True),
        ({"documents": -1}, {"documents"}, True),
        ({"rows": 1}, {"rows"}, True),
        ({"row_groups": (0, 5, 11)}, {"row groups"}, False),
        ({"row_groups": (0, 5)}, {"row groups"}, False),
        ({"logical": {"input_ids": "0" * 32}}, {"logical hash of input_ids"}, False),
        ({"logical": {"documents": "0" * 128}}, {"logical hash of documents"}, False),
        ({"logical": {"more": "0" * 32}}, {"columns"}, False),
    ],
)
def test_wrong_counts_and_hashes_in_sealed_files_are_found(
    lake: Path, change: dict[str, Any], problems: set[str], in_account: bool
) -> None:
    def apply(entry: ShardEntry) -> ShardEntry:
        new = {
            key: getattr(entry, key) + value if isinstance(value, int) else value
            for key, value in change.items()
        }
        if "logical" in new:
            new["logical"] = {**entry.logical, **new["logical"]}
        return replace(entry, **new)

    path = replace_shard(lake, apply)
    account = {("manifest.json", "account")} if in_account else set[tuple[str, str]]()
    assert found(lake) == {(path, problem) for problem in problems} | account


def test_a_manifest_that_disagrees_with_the_ledger_is_found(lake: Path) -> None:
    manifest = read_manifest(lake)
    account = manifest.accounts["notes"]
    first = manifest.files[0]
    shards = (
        replace(first, logical={**first.logical, "input_ids": "0" * 32}),
        *manifest.files[1:],
    )
    unread = {(shard.path, "provenance") for shard in manifest.files[2:]}
    inputs = manifest.inputs[:1]
    ledger0, ledger1 = "ledger/00000.json", "ledger/00001.json"
    cases: list[tuple[Manifest, Found]] = [
        (
            replace(manifest, files=shards),
            {(ledger0, "parts"), (first.path, "logical hash of input_ids")},
        ),
        (replace(manifest, inputs=inputs), {(ledger1, "inputs"), *unread}),
        (
            replace(
                manifest,
                accounts={**manifest.accounts, "notes": replace(account, text_bytes=1)},
            ),
            {("manifest.json", "account of notes")},
        ),
        (replace(manifest, fingerprint="e" * 64), {("claim.json", "fingerprint")}),
        (replace(manifest, version=2), {("manifest.json", "damaged")}),
    ]
    for wrong, expected in cases:
        put_manifest(lake, wrong)
        assert found(lake) == expected


def test_a_shard_that_no_record_or_no_manifest_names_is_found(lake: Path) -> None:
    manifest = read_manifest(lake)
    put_manifest(lake, replace(manifest, files=manifest.files[1:]))
    name = manifest.files[0].path
    assert {
        (name, "unlisted"),
        ("ledger/00000.json", "parts"),
        ("manifest.json", "account"),
    } == found(lake)
    put_manifest(lake, manifest)
    path = "ledger/00000.json"
    record = Catalog(open_store(lake)).ledger(DATASET, 1)[0]
    data = replace(record, parts=record.parts[1:]).to_bytes()
    (folder(lake) / path).write_bytes(data)
    others = {
        **manifest.other_files,
        path: FileEntry(bytes=len(data), sha256=sha256(data)),
    }
    put_manifest(lake, replace(manifest, other_files=others))
    assert found(lake) == {(name, "parts")}


def rewrite(root: Path, change: Callable[[Rows], None], *, rehash: bool = True) -> str:
    """Change the first shard's rows, and make manifest and ledger agree with its new
    bytes.
    """
    path = first_shard(root)
    table = pq.read_table(path)
    rows: Rows = table.to_pydict()
    change(rows)
    new = pa.table(rows, schema=table.schema)
    with open_writer(str(path), new.schema) as writer:
        writer.write_table(new, row_group_size=5)
    hasher = LogicalHasher()
    hasher.update(new)
    return agree(root, logical=hasher.digest()) if rehash else agree(root)


def piece(row: int, key: str, value: int) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows["documents"][row][0][key] = value

    return change


def lengths(row: int, change: Callable[[list[int]], None]) -> Callable[[Rows], None]:
    return lambda rows: change(rows["segment_lengths"][row])


def empty_row(rows: Rows) -> None:
    rows["segment_lengths"][7], rows["documents"][7] = [], []


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        (piece(7, "file", 12345), {"provenance"}),
        (piece(7, "position", -1), {"provenance"}),
        (piece(7, "start", -3), {"provenance"}),
        (piece(0, "start", 5), {"documents"}),
        (
            lengths(7, lambda row: row.append(1)),
            {"provenance", "segment lengths", "tokens"},
        ),
        (
            lengths(7, lambda row: row.__setitem__(0, row[0] + 100)),
            {"segment lengths", "tokens"},
        ),
        (lengths(7, lambda row: row.__setitem__(0, 0)), {"segment lengths", "tokens"}),
        (empty_row, {"segment lengths", "tokens", "documents"}),
    ],
)
def test_rows_that_cannot_be_are_found(
    lake: Path, change: Callable[[Rows], None], problems: set[str]
) -> None:
    path = rewrite(lake, change)
    assert found(lake, deep=False) == set()
    got = found(lake)
    assert {name for name, _ in got} == {path}
    assert got - {(path, "documents")} == {(path, problem) for problem in problems} - {
        (path, "documents")
    }


def test_changed_tokens_are_found_by_the_logical_hash(lake: Path) -> None:
    def change(rows: Rows) -> None:
        rows["input_ids"][3][4] += 1

    path = rewrite(lake, change, rehash=False)
    assert found(lake) == {(path, "logical hash of input_ids")}


def test_other_row_groups_and_compression_keep_the_logical_hash(lake: Path) -> None:
    path = first_shard(lake)
    table = pq.read_table(path)
    pq.write_table(
        table, path, row_group_size=7, compression="gzip", write_page_checksum=True
    )
    agree(lake, row_groups=tuple(range(0, table.num_rows, 7)))
    assert check(lake).ok


@pytest.mark.parametrize("column", ["segment_lengths", "documents"])
def test_nulls_are_found(lake: Path, column: str) -> None:
    path = first_shard(lake)
    table = pq.read_table(path)
    schema = pa.schema(
        [field.with_nullable(field.name == column) for field in table.schema]
    )
    rows = table.to_pydict()
    rows[column][2] = None
    with open_writer(str(path), schema) as writer:
        writer.write_table(pa.table(rows, schema=schema), row_group_size=5)
    name = agree(lake)
    assert (name, "nulls") in found(lake)


@pytest.mark.parametrize("change", ["length", "type", "missing"])
def test_wrong_columns_are_found(lake: Path, change: str) -> None:
    path = first_shard(lake)
    table = pq.read_table(path)
    if change == "length":
        ids = pa.array(
            [row[:8] for row in table["input_ids"].to_pylist()], pa.list_(pa.int32(), 8)
        )
        table = table.set_column(0, "input_ids", ids)
    elif change == "type":
        table = table.set_column(
            1, "segment_lengths", table["segment_lengths"].cast(pa.list_(pa.int64()))
        )
    else:
        table = table.drop_columns(["documents"])
    pq.write_table(table, path, row_group_size=5)
    name = agree(lake)
    expected = {
        "length": {"type of input_ids"},
        "type": {"type of segment_lengths"},
        "missing": {"columns", "type of documents"},
    }[change]
    assert found(lake, deep=False) == {(name, problem) for problem in expected}


def test_page_checksums_find_what_a_wrong_manifest_hides(lake: Path) -> None:
    """Flips in pages, with every hash made to agree: only the pages themselves can
    tell.
    """
    path = first_shard(lake)
    good, metadata = path.read_bytes(), pq.read_metadata(path)
    dice = random.Random(5)
    for _ in range(25):
        group = dice.randrange(metadata.num_row_groups)
        chunk = metadata.row_group(group).column(0)
        # The page header before it is checked by decoding; the checksum covers the
        # page's data.
        size = chunk.total_compressed_size
        at = chunk.data_page_offset + size - 1 - dice.randrange(size - 60)
        bad = bytearray(good)
        bad[at] ^= 1 << dice.randrange(8)
        path.write_bytes(bad)
        name = agree(lake)
        assert found(lake, deep=False) == set()
        problems = check(lake).problems
        assert [(problem.path, problem.problem) for problem in problems] == [
            (name, "decode")
        ]
        assert problems[0].expected == f"row group {group} decodes"
        assert "checksum" in problems[0].got or "CRC" in problems[0].got


def test_rubbish_with_a_right_hash_is_no_parquet(lake: Path) -> None:
    first_shard(lake).write_bytes(b"rubbish" * 10)
    name = agree(lake)
    assert found(lake, deep=False) == {(name, "footer")}


def test_a_sealed_lie_in_an_unlisted_ledger_record_is_found(unlisted: Path) -> None:
    path = folder(unlisted) / "ledger/00000.json"
    value = json.loads(path.read_bytes())
    value["account"]["text_bytes"] = 7
    path.write_bytes(seal(value))
    assert found(unlisted) == {("manifest.json", "account of notes")}


def test_links_folders_and_pipes_in_place_of_files_are_found(lake: Path) -> None:
    data, names = (
        folder(lake) / "data",
        sorted(path.name for path in (folder(lake) / "data").iterdir()),
    )
    moved = data.parent.parent / "moved"
    (data / names[0]).rename(moved)
    (data / names[0]).symlink_to(moved)
    (data / names[1]).unlink()
    (data / names[1]).mkdir()
    assert found(lake) == {
        (f"data/{names[0]}", "unreadable"),
        (f"data/{names[1]}", "unreadable"),
    }
