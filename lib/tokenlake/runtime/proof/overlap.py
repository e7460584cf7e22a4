"""The overlap of an evaluation set and of rows: n-grams of ids that both have.

An n-gram is n ids next to each other in one document of the evaluation set, or in one segment of a row. It is
represented by 64 bits that follow from its ids: two of 10^9 different n-grams are taken for the same with a probability
of about ``10^9 * 10^9 / 2^64 = 0.05``. N-grams across the end of a row, where a document continues in the next, are not
counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import Bools, Int64, Ragged, offsets_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.mixing.random import UInt64, splitmix64

METHOD: Final = "distinct n-grams of ids inside a document, told by 64 bits; of rows, inside a segment"
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_TEXT: Final = "text"
_SIEVE: Final = 20  # bits by which most n-grams are told to be none of the sets'


@final
@dataclass(frozen=True, eq=False, slots=True)
class EvaluationSet:
    """Documents of ids that are not to be trained on.

    Attributes:
        identity: what it was read from, JSON-able, with a hash.
        documents: the ids of each.
    """

    identity: dict[str, str]
    documents: Ragged

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> EvaluationSet:
        """Take the documents, or the segments of rows, of a split of a version."""
        parts = [ids_of(dataset, group) for group in range(len(dataset.rows.group_rows))]
        ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part, _ in parts)])
        lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part, _ in parts)])
        identity = {"dataset": dataset.name, "manifest": dataset.manifest.sha256}
        return cls(identity, Ragged(ids, offsets_of(lengths)))

    @classmethod
    def of_texts(cls, path: Path, tokenizer: Any) -> EvaluationSet:
        """Tokenize the column `text` of a Parquet file or of JSON Lines; ConfigError where there is none."""
        try:
            data = path.read_bytes()
            if path.suffix == ".parquet":
                texts: Any = pq.read_table(pa.BufferReader(data), columns=[_TEXT])[_TEXT].to_pylist()
            else:
                texts = [json.loads(line)[_TEXT] for line in data.splitlines() if line.strip()]
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ConfigError(
                f"evaluation set {path}: {error!r}; expected a Parquet file or JSON Lines with the column {_TEXT!r}"
            ) from error
        found = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
        ids = np.array([one for each in found for one in each], np.int32)
        documents = Ragged(ids, offsets_of([len(each) for each in found]))
        return cls({"sha256": hashlib.sha256(data).hexdigest()}, documents)


def overlap_of(
    sets: Mapping[str, EvaluationSet], read: Iterable[tuple[Dataset, Int64]], n: int
) -> dict[str, dict[str, Any]]:
    """Count what rows have in common with evaluation sets.

    Args:
        sets: by name.
        read: datasets, and how often each of their rows was read, int64[rows].
        n: ids of an n-gram.

    Returns:
        of each set: `identity`, `documents`, how many of them are `short` of n ids, its distinct `ngrams`, how many of
        these were `found`, `documents_with` any of them, and `rows_with` any of them.

    Raises:
        ConfigError: n is no number from 1 on.
        IntegrityError: a file is damaged.
    """
    if n < 1:
        raise ConfigError(f"n-grams of {n} ids; expected 1 or more")
    grams = {name: _ngrams(each.documents, n) for name, each in sets.items()}
    known = np.unique(np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in grams.values())]))
    place = {name: np.searchsorted(known, hashes) for name, (hashes, _) in grams.items()}
    of_set = {name: _marked(len(known), where) for name, where in place.items()}
    found, rows = np.zeros(len(known), np.bool_), dict.fromkeys(sets, 0)
    for index, row in _hits(read, known, n):
        found[index] = True
        for name, there in of_set.items():
            rows[name] += len(np.unique(row[there[index]]))
    return {
        name: {
            "identity": each.identity,
            "documents": len(each.documents),
            "short": int((each.documents.lengths < n).sum()),
            "ngrams": int(of_set[name].sum()),
            "found": int((of_set[name] & found).sum()),
            "documents_with": len(np.unique(grams[name][1][found[place[name]]])),
            "rows_with": rows[name],
        }
        for name, each in sets.items()
    }


def ids_of(dataset: Dataset, group: int) -> tuple[Ragged, Int64]:
    """Return the segments, or documents, of a row group, and the row of each, int64[n]; ConfigError for preferences."""
    stored = dataset.rows
    if dataset.kind == "preference":
        raise ConfigError(
            f"{dataset.name} is of kind preference, whose n-grams are not counted; leave out evaluation"
        )
    if dataset.kind != "packed":
        found = stored.ragged.read(group, loss_mask=False)
        first = stored.row_of(group)
        lengths = stored.ragged.lengths("input_ids")[first : first + found.rows].astype(np.int64)
        begin = np.array(found.begins["input_ids"][:-1], np.int64)
        return Ragged.taken(
            np.frombuffer(found.views["input_ids"], np.int32), begin, begin + lengths
        ), np.arange(found.rows)
    batch: Any = stored.read(group, ["input_ids", "segment_lengths"])
    ids = batch.column("input_ids").flatten().to_numpy().reshape(batch.num_rows, -1)
    of_rows = batch.column("segment_lengths")
    row = np.repeat(np.arange(batch.num_rows), of_rows.value_lengths().to_numpy())
    lengths = of_rows.flatten().to_numpy().astype(np.int64)
    before = np.cumsum(lengths) - lengths
    begin = before - before[np.searchsorted(row, row)] + row * ids.shape[1]
    return Ragged.taken(ids.reshape(-1), begin, begin + lengths), row


def _hits(read: Iterable[tuple[Dataset, Int64]], known: UInt64, n: int) -> Iterator[tuple[Int64, Int64]]:
    """Yield, row group by row group, which of the known n-grams rows hold, and the row of each, int64[m] both."""
    sieve = _marked(1 << _SIEVE, _sieved(known))
    for dataset, times in read:
        for group, size in enumerate(dataset.rows.group_rows.tolist()):
            first = dataset.rows.row_of(group)
            was_read = times[first : first + size] > 0
            if not was_read.any() or not len(known):
                continue
            segments, row = ids_of(dataset, group)
            segments, row = segments.select(was_read[row]), row[was_read[row]]
            hashes, segment = _ngrams(segments, n)
            maybe = np.flatnonzero(sieve[_sieved(hashes)])
            index = np.minimum(np.searchsorted(known, hashes[maybe]), len(known) - 1)
            same = known[index] == hashes[maybe]
            yield index[same], row[segment[maybe[same]]]


def _ngrams(documents: Ragged, n: int) -> tuple[UInt64, Int64]:
    """Return 64 bits for each n-gram, uint64[m], and the document that it is in, int64[m]."""
    many = np.maximum(documents.lengths - n + 1, 0)
    document = np.repeat(np.arange(len(many)), many)
    if not len(document):
        return np.zeros(0, np.uint64), document
    words = splitmix64(documents.ids.astype(np.uint64))
    hashes = np.zeros(len(words) - n + 1, np.uint64)
    for offset in range(n):
        hashes *= _FACTOR
        hashes += words[offset : offset + len(hashes)]
    inside = np.arange(len(document)) - np.repeat(offsets_of(many)[:-1], many)
    return splitmix64(hashes[documents.offsets[document] + inside]), document


def _sieved(hashes: UInt64) -> Int64:
    return (hashes >> np.uint64(64 - _SIEVE)).astype(np.int64)


def _marked(size: int, index: npt.NDArray[Any]) -> Bools:
    found = np.zeros(size, np.bool_)
    found[index] = True
    return found
