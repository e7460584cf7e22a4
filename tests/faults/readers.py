"""Everything that reads a store, each as a stream of what it gives."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import tokenlake as tl
from tokenlake import Catalog
from tokenlake.runtime.loader import explain_step
from tokenlake.runtime.reading import StoredRows
from tokenlake.runtime.store import Layout, ReadStore, open_read_store, open_store

COLUMNS: Final = [
    "input_ids",
    "segment_ids",
    "positions",
    "loss_mask",
    "labels",
    "targets",
]
_SHARDS: Final = r"/v1/(data/train.*|manifest\.json)"
Pieces = Iterator[Any]


class Place:
    """A store to read, and room for what readers write.

    Attributes:
        root: the store's folder.
        scratch: a folder for one case, removed after it.
        url: where a server serves the store, "" where there is none.
        server: it; its files are those of the store.
        options: of its file system.
    """

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root, self.scratch = root, scratch
        self.url, self.server = "", None
        self.options: dict[str, Any] = {}

    def open(self, name: str, split: str = "train") -> tl.Dataset:
        return tl.open(str(self.root), name, split=split)

    def rows(self, name: str) -> StoredRows:
        return rows_of(open_store(self.root), name)


@dataclass(frozen=True)
class Reader:
    """One way to read.

    Attributes:
        read: yields what it gives, piece by piece.
        wanted: pattern of the keys of files that are damaged for it.
        group: readers of a group share a process.
        cases: of all the corruptions.
        finds: whether any change must be found: a report instead of an error.
        served: ``http``, ``s3``: reads through that server.
        cached: the damage is done to the copies in a cache, after a first reading.
    """

    read: Callable[[Place], Pieces]
    wanted: str
    group: str
    cases: int
    finds: bool = False
    served: str = ""
    cached: bool = False


def rows_of(store: ReadStore, name: str, split: str = "train") -> StoredRows:
    return StoredRows(store, Catalog(store).manifest(name, 1), split)


def _stored(*names: str) -> Callable[[Place], Pieces]:
    def read(place: Place) -> Pieces:
        for name in names:
            with place.rows(name) as rows:
                for group in range(len(rows.group_rows)):
                    yield rows.read(group)

    return read


def _packed(*names: str) -> Callable[[Place], Pieces]:
    def read(place: Place) -> Pieces:
        for name in names:
            with place.rows(name) as rows:
                yield from _groups(rows)

    return read


def _groups(rows: StoredRows) -> Pieces:
    for number in range(len(rows.group_rows)):
        group = rows.packed(number, loss_mask=True)
        assert group.segments is not None
        yield group.ids, group.segments.ids, group.segments.offsets, group.learned


def _dataset(place: Place) -> Pieces:
    for name in ("plain", "learned"):
        with place.open(name).rows:
            ds = place.open(name)
            for row in (0, len(ds) // 2, -1):
                yield ds[row]
            yield ds.take(np.arange(0, len(ds), 3), COLUMNS)
            yield ds.read(0, len(ds))
            ds.rows.close()


def _texts(place: Place) -> Pieces:
    for name in ("texts", "judged", "left"):
        ds = place.open(name)
        for row in (0, len(ds) // 2, -1):
            yield ds[row]
        yield ds.schema
        ds.rows.close()


def _documents(place: Place) -> Pieces:
    for name in ("plain", "learned"):
        ds = place.open(name)
        for row in range(0, len(ds), max(1, len(ds) // 5)):
            yield ds.documents(row)
            yield ds.decode(row)
        ds.rows.close()


def _loader(place: Place) -> Pieces:
    for name in ("plain", "learned"):
        ds = place.open(name)
        yield from tl.DataLoader(ds, batch_size=8, seed=3, columns=COLUMNS, workers=0)
        ds.rows.close()


def _threads(place: Place) -> Pieces:
    ds = place.open("learned")
    loader = tl.DataLoader(ds, batch_size=8, seed=3, columns=COLUMNS, workers=2)
    batches = iter(loader)
    try:
        yield from batches
    finally:
        del batches
        ds.rows.close()


def mixture(place: Place) -> tl.Mixture:
    parts = {"a": place.open("learned"), "b": place.open("plain")}
    return tl.Mixture(parts, {"a": 0.6, "b": 0.4}, block_size=10, rows=60)


def _mixture(place: Place) -> Pieces:
    mixed = mixture(place)
    yield from tl.DataLoader(mixed, batch_size=8, seed=3, columns=COLUMNS, workers=0)
    for ds in mixed.datasets.values():
        ds.rows.close()


def _explain(place: Place) -> Pieces:
    ds = place.open("plain")
    plan = tl.DataLoader(ds, batch_size=8, seed=3, workers=0).plan
    for step in (0, 3):
        yield [asdict(row) for row in explain_step(plan, step)]
    ds.rows.close()


def _catalog(place: Place) -> Pieces:
    catalog = Catalog(open_store(place.root))
    yield catalog.resolve("plain@v1")
    yield catalog.resolve("plain@prod")
    manifest = catalog.manifest("plain", 1)
    yield manifest.to_json()
    yield catalog.manifest_of("plain@prod").to_json()
    yield [tag.to_bytes() for tag in catalog.tags("plain")]
    yield {
        unit: record.to_json()
        for unit, record in catalog.ledger("plain", 1, manifest=manifest).items()
    }
    claim = catalog.read_claim("plain", 1)
    yield claim and claim.to_bytes()


def _command(*arguments: str) -> Callable[[Place], Pieces]:
    def read(place: Place) -> Pieces:
        from tokenlake.cli.app import main

        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*arguments, "--store", str(place.root)])
        if "Traceback" in err.getvalue():
            raise RuntimeError(err.getvalue())
        if code:
            raise tl.TokenlakeError(err.getvalue())
        yield out.getvalue()

    return read


def _query(place: Place) -> Pieces:
    from tokenlake import sql as query

    yield query(
        open_store(place.root),
        "select input_ids, segment_lengths from plain order by shard, row",
    )
    yield query(open_store(place.root), "select * from texts order by shard, row")


def _sequences(place: Place) -> Pieces:
    from tokenlake.query import read_sequences

    store = open_store(place.root)
    for name in ("plain", "texts"):
        manifest = Catalog(store).manifest(name, 1)
        yield list(map(asdict, read_sequences(store, manifest, None, 2, 9)))


def _torch(place: Place) -> Pieces:
    from tokenlake import torch_dataset, torch_rows

    ds = place.open("learned")
    for batch in torch_dataset(ds, batch_size=8, seed=3, columns=COLUMNS):
        yield {name: values.numpy() for name, values in batch.items()}
    rows = torch_rows(ds)
    for row in (0, len(ds) - 1):
        yield {name: values.numpy() for name, values in rows[row].items()}
    ds.rows.close()


def _grain(place: Place) -> Pieces:
    from tokenlake import grain_dataset, grain_source

    ds = place.open("learned")
    source = grain_source(ds, columns=COLUMNS)
    for row in range(0, len(source), 5):
        yield dict(source[row])
    yield from grain_dataset(ds, batch_size=8, seed=3)
    ds.rows.close()


def _to_hf(place: Place) -> Pieces:
    for name in ("learned", "texts"):
        ds = place.open(name)
        yield ds.to_hf(cache_dir=place.scratch / "hf")[:]
        ds.rows.close()


def _hf_steps(place: Place) -> Pieces:
    from tokenlake import hf_dataset

    ds = place.open("learned")
    for row in hf_dataset(ds, 8, seed=3):
        yield {name: np.asarray(values) for name, values in row.items()}
    ds.rows.close()


def _remote(place: Place) -> Pieces:
    yield from _through(open_read_store(place.url, storage_options=place.options))


def _remote_cached(place: Place) -> Pieces:
    cache = place.scratch / "cache"
    yield from _through(
        open_read_store(place.url, storage_options=place.options, cache=cache)
    )


def _through(store: ReadStore) -> Pieces:
    with rows_of(store, "learned") as rows:
        yield from _groups(rows)
        for group in range(len(rows.group_rows)):
            yield rows.read(group)


def rebuild(root: Path, name: str, *, mixed: bool) -> list[tuple[str, str]]:
    """Mix or repack stored rows to a new version; return its shards and their
    hashes.
    """
    from tokenlake.etl import BuildSession, InProcessPool

    config: dict[str, Any] = {"name": name, "save": {"output_dir": str(root)}}
    names = ("plain", "learned") if mixed else ("texts",)
    config["datasets"] = [{"name": each, "dataset": f"{each}@v1"} for each in names]
    if mixed:
        config["mix"] = {
            "weights": {"plain": 0.5, "learned": 0.5},
            "total_rows": 60,
            "lanes": 2,
        }
        config["mix"] |= {"batch_size": 4, "block_size": 10}
    else:
        config["pack"] = {"enabled": True, "seq_length": 24}
    session = BuildSession.open(config)
    pool: Any = InProcessPool()
    for index in session.pending:
        session.run_unit(index, pool)
    return [(shard.path, shard.sha256) for shard in session.commit().files]


def _rebuilt(mixed: bool) -> Callable[[Place], Pieces]:
    def read(place: Place) -> Pieces:
        try:
            yield rebuild(place.root, "remade", mixed=mixed)
        finally:
            shutil.rmtree(place.root / "remade", ignore_errors=True)

    return read


def _verify(deep: bool, *names: str) -> Callable[[Place], Pieces]:
    def read(place: Place) -> Pieces:
        from tokenlake import verify

        for name in names:
            report = verify(open_store(place.root), name, 1, deep=deep, workers=1)
            for problem in report.problems:
                yield (
                    os.path.normpath(Layout(name, 1).prefix + "/" + problem.path),
                    problem.problem,
                )

    return read


_ANY: Final = r"/v1/(?!runs/).*"
_PACKED, _LEARNED = rf"(plain|learned){_SHARDS}", rf"learned{_SHARDS}"
READERS: Final[dict[str, Reader]] = {
    "StoredRows.read, packed": Reader(
        _stored("plain", "learned"), _PACKED, "rows", 1200
    ),
    "StoredRows.read, other kinds": Reader(
        _stored("texts", "answers", "left", "judged"),
        rf"(texts|answers|left|judged){_SHARDS}",
        "rows",
        1500,
    ),
    "StoredRows.packed": Reader(_packed("plain", "learned"), _PACKED, "rows", 1200),
    "StoredRows.packed, other writers": Reader(
        _packed("foreign"), rf"foreign{_SHARDS}", "rows", 700
    ),
    "StoredRows.read, other writers": Reader(
        _stored("foreign"), rf"foreign{_SHARDS}", "rows", 500
    ),
    "Dataset, packed": Reader(_dataset, _PACKED, "loader", 500),
    "Dataset, other kinds": Reader(
        _texts, rf"(texts|judged|left){_SHARDS}", "loader", 500
    ),
    "Dataset.documents and decode": Reader(
        _documents,
        r"(plain|learned)/v1/(data/train.*|manifest\.json|tokenizer/.*)",
        "loader",
        300,
    ),
    "DataLoader": Reader(_loader, _PACKED, "loader", 500),
    "DataLoader, threads": Reader(_threads, _LEARNED, "loader", 200),
    "Mixture": Reader(_mixture, _PACKED, "loader", 400),
    "explain": Reader(_explain, rf"plain{_SHARDS}", "loader", 300),
    "catalog": Reader(
        _catalog,
        r"plain/(v1/(manifest\.json|claim\.json|ledger/.*)|tags/.*)",
        "catalog",
        800,
    ),
    "tokenlake show": Reader(
        _command("show", "plain@prod"),
        r"plain/(v1/(manifest\.json|claim\.json)|tags/.*)",
        "catalog",
        150,
    ),
    "tokenlake peek": Reader(
        _command("peek", "plain@v1", "-n", "3"),
        r"plain/v1/(manifest\.json|data/train-00000.*|tokenizer/.*)",
        "catalog",
        150,
    ),
    "read_sequences": Reader(_sequences, rf"(plain|texts){_SHARDS}", "catalog", 300),
    "sql": Reader(_query, rf"(plain|texts){_SHARDS}", "catalog", 150),
    "torch_dataset": Reader(_torch, _LEARNED, "torch", 200),
    "grain_source": Reader(_grain, _LEARNED, "grain", 200),
    "to_hf": Reader(_to_hf, rf"(learned|texts){_SHARDS}", "hf", 150),
    "hf_dataset": Reader(_hf_steps, _LEARNED, "hf", 150),
    "remote": Reader(_remote, _LEARNED, "remote", 200, served="http"),
    "remote, through a cache": Reader(
        _remote_cached, _LEARNED, "remote", 150, served="http"
    ),
    "remote, damage in the cache": Reader(
        _remote_cached, "", "remote", 150, served="http", cached=True
    ),
    "repacking": Reader(_rebuilt(False), rf"texts{_SHARDS}", "builds", 60),
    "mixing": Reader(_rebuilt(True), _PACKED, "builds", 60),
    "verify": Reader(
        _verify(False, "plain", "texts", "judged", "mixed"),
        rf"(plain|texts|judged|mixed)({_ANY}|/tags/.*)",
        "verify",
        1200,
        finds=True,
    ),
    "verify --deep": Reader(
        _verify(True, "learned", "left"),
        rf"(learned|left){_ANY}",
        "verify",
        250,
        finds=True,
    ),
}
GROUPS: Final = tuple(dict.fromkeys(reader.group for reader in READERS.values()))
warnings.filterwarnings("ignore", message=".*stores no copy.*")
