"""Overlap of an evaluation set and rows that were read: n-grams of ids in both.

An n-gram is n ids next to each other in one document of the evaluation set, or in one
segment of a row. It is represented by 64 bits computed from its ids: the probability
that two of 10^9 different n-grams have the same bits is about ``10^9 * 10^9 / 2^64 =
0.05``. N-grams across the end of a row, where a document continues in the next row, are
not counted.

Steps:

1. Hash the n-grams of all sets. With words ``w = splitmix64(id)`` and a factor ``f``,
   the hash of ``w0 w1 ... wm`` is ``splitmix64(((w0 * f + w1) * f + ...) * f + wm)`` in
   64-bit arithmetic.
2. Hash the n-grams of the rows, row group by row group. A table of 2^20 bits by the
   first 20 bits of a hash rejects most of them; a binary search decides about the
   others.
3. Note the n-grams and count the rows that match, set by set.
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
"""Description of the method in a statement; part of the format."""

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word is lost
_TEXT: Final = "text"  # column of the documents
_SIEVE_BITS: Final = 20  # bits of a hash by which most n-grams are rejected


@final
@dataclass(frozen=True, eq=False, slots=True)
class EvaluationSet:
    """Documents that should not be trained on.

    Attributes:
        identity: Origin of the set, JSON-able, with a hash.
        documents: Ids of each document.
    """

    identity: dict[str, str]
    documents: Ragged

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> EvaluationSet:
        """Return the documents, or the segments of rows, of a split of a version."""
        # Empty arrays come first, so that a dataset without rows can be joined, too.
        ids = [np.zeros(0, np.int32)]
        lengths = [np.zeros(0, np.int64)]
        for row_group in range(len(dataset.rows.group_rows)):
            segments, _ = ids_of(dataset, row_group)
            ids.append(segments.ids)
            lengths.append(segments.lengths)
        identity = {"dataset": dataset.name, "manifest": dataset.manifest.sha256}
        return cls(
            identity, Ragged(np.concatenate(ids), offsets_of(np.concatenate(lengths)))
        )

    @classmethod
    def of_texts(cls, path: Path, tokenizer: Any) -> EvaluationSet:
        """Tokenize the column `text` of a Parquet file or of JSON Lines.

        Args:
            path: The file.
            tokenizer: A tokenizer of the package `tokenizers`.

        Raises:
            ConfigError: The file cannot be read, or has no such column.
        """
        # Everything that is wrong with the file is one error, which states the right
        # form.
        try:
            data = path.read_bytes()
            texts = _texts_of(data, is_parquet=path.suffix == ".parquet")
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ConfigError(
                f"evaluation set {path}: {error!r}; expected a Parquet file or JSON Lines with the column {_TEXT!r}"
            ) from error
        ids: list[int] = []
        lengths: list[int] = []
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            ids += encoding.ids
            lengths.append(len(encoding.ids))
        documents = Ragged(np.array(ids, np.int32), offsets_of(lengths))
        return cls({"sha256": hashlib.sha256(data).hexdigest()}, documents)


def _texts_of(data: bytes, *, is_parquet: bool) -> list[Any]:
    """Return the column `text` of a Parquet file or of JSON Lines."""
    if is_parquet:
        return pq.read_table(pa.BufferReader(data), columns=[_TEXT])[_TEXT].to_pylist()
    return [json.loads(line)[_TEXT] for line in data.splitlines() if line.strip()]


@final
@dataclass(frozen=True, eq=False, slots=True)
class _SetNgrams:
    """N-grams of one evaluation set.

    Attributes:
        index: Index of each n-gram among the distinct n-grams of all sets, int64[m].
        document: Document of each n-gram, int64[m].
        is_member: Membership of each distinct n-gram of all sets in this set,
            bool[distinct].
    """

    index: Int64
    document: Int64
    is_member: Bools


def overlap_of(
    sets: Mapping[str, EvaluationSet], read: Iterable[tuple[Dataset, Int64]], n: int
) -> dict[str, dict[str, Any]]:
    """Count the n-grams that rows have in common with evaluation sets.

    Args:
        sets: Evaluation sets by name.
        read: Datasets, and the number of times that each of their rows was read,
            int64[rows].
        n: Ids of an n-gram.

    Returns:
        For each set its `identity`, its number of `documents`, how many of them are
        `short` (fewer than n ids), its distinct `ngrams`, how many of these were
        `found`, the `documents_with` any of them, and the `rows_with` any of them.

    Raises:
        ConfigError: `n` is below 1.
        IntegrityError: A file is damaged.
    """
    if n < 1:
        raise ConfigError(f"n-grams of {n} ids; expected 1 or more")
    # 1. Hash the n-grams of all sets.
    known_hashes, ngrams = _known_ngrams(sets, n)

    # 2. and 3. Compare the rows with all sets at once.
    is_found = np.zeros(len(known_hashes), np.bool_)
    rows_with = dict.fromkeys(sets, 0)
    for ngram_index, rows in _hits(read, known_hashes, n):
        is_found[ngram_index] = True
        for set_name, set_ngrams in ngrams.items():
            rows_with[set_name] += len(
                np.unique(rows[set_ngrams.is_member[ngram_index]])
            )

    # Figures of each set, from the n-grams that were found in any row.
    overlap: dict[str, dict[str, Any]] = {}
    for set_name, evaluation_set in sets.items():
        set_ngrams = ngrams[set_name]
        overlap[set_name] = {
            "identity": evaluation_set.identity,
            "documents": len(evaluation_set.documents),
            "short": int((evaluation_set.documents.lengths < n).sum()),
            "ngrams": int(set_ngrams.is_member.sum()),
            "found": int((set_ngrams.is_member & is_found).sum()),
            "documents_with": len(
                np.unique(set_ngrams.document[is_found[set_ngrams.index]])
            ),
            "rows_with": rows_with[set_name],
        }
    return overlap


def _known_ngrams(
    sets: Mapping[str, EvaluationSet], n: int
) -> tuple[UInt64, dict[str, _SetNgrams]]:
    """Return the distinct n-grams of all sets, and those of each set.

    The distinct ones are ascending, uint64[distinct].
    """
    # Sets may share n-grams. Each of them has one index, which all sets use.
    hashes: dict[str, UInt64] = {}
    documents: dict[str, Int64] = {}
    for set_name, evaluation_set in sets.items():
        hashes[set_name], documents[set_name] = _ngrams(evaluation_set.documents, n)
    known_hashes = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes.values()]))
    ngrams: dict[str, _SetNgrams] = {}
    for set_name in sets:
        ngram_index = np.searchsorted(known_hashes, hashes[set_name])
        ngrams[set_name] = _SetNgrams(
            ngram_index, documents[set_name], _marked(len(known_hashes), ngram_index)
        )
    return known_hashes, ngrams


def ids_of(dataset: Dataset, group: int) -> tuple[Ragged, Int64]:
    """Return the ids of a row group by segment.

    Where rows are documents, a segment is a document.

    Args:
        dataset: Split of a version.
        group: Row group.

    Returns:
        The ids of each segment, and its row in the row group, int64[segments].

    Raises:
        ConfigError: The dataset is of kind preference.
    """
    if dataset.kind == "preference":
        raise ConfigError(
            f"{dataset.name} is of kind preference, whose n-grams are not counted; leave out evaluation"
        )
    if dataset.kind == "packed":
        return _packed_segments(dataset, group)
    return _documents(dataset, group)


def _documents(dataset: Dataset, group: int) -> tuple[Ragged, Int64]:
    """Return the ids of each row of a row group whose rows are documents."""
    stored_rows = dataset.rows
    block = stored_rows.ragged.read(group, loss_mask=False)
    # The block has the ids of the row group, laid end to end, and where each row
    # begins.
    first_row = stored_rows.row_of(group)
    end_row = first_row + block.rows
    lengths = stored_rows.ragged.lengths("input_ids")[first_row:end_row]
    begin = np.array(block.begins["input_ids"][:-1], np.int64)
    ids = np.frombuffer(block.views["input_ids"], np.int32)
    ends = begin + lengths.astype(np.int64)
    return Ragged.taken(ids, begin, ends), np.arange(block.rows)


def _packed_segments(dataset: Dataset, group: int) -> tuple[Ragged, Int64]:
    """Return the ids of each segment of a row group of packed rows."""
    batch: Any = dataset.rows.read(group, ["input_ids", "segment_lengths"])
    ids = batch.column("input_ids").flatten().to_numpy().reshape(batch.num_rows, -1)
    row_segments = batch.column("segment_lengths")
    row = np.repeat(np.arange(batch.num_rows), row_segments.value_lengths().to_numpy())
    lengths = row_segments.flatten().to_numpy().astype(np.int64)
    # A segment begins where its row begins, plus the lengths of the segments before it
    # in the row.
    before = np.cumsum(lengths) - lengths
    first_segment = np.searchsorted(row, row)
    begin = row * ids.shape[1] + before - before[first_segment]
    return Ragged.taken(ids.reshape(-1), begin, begin + lengths), row


def _hits(
    read: Iterable[tuple[Dataset, Int64]], known_hashes: UInt64, n: int
) -> Iterator[tuple[Int64, Int64]]:
    """Yield the known n-grams in the rows that were read, row group by row group.

    # Without any known n-gram nothing needs to be read.
    Yields:
        Index of each match among the known n-grams, and its row in the row group,
        int64[matches] both.
    """
    if not len(known_hashes):
        return
    # The table of the first bits rejects most n-grams without a search.
    sieve = _marked(1 << _SIEVE_BITS, _sieve_index(known_hashes))
    for dataset, times in read:
        for row_group, row_count in enumerate(dataset.rows.group_rows.tolist()):
            first_row = dataset.rows.row_of(row_group)
            was_read = times[first_row : first_row + row_count] > 0
            # Row groups of which no row was read cost nothing.
            if not was_read.any():
                continue
            segments, row = ids_of(dataset, row_group)
            is_read_segment = was_read[row]
            hashes, segment = _ngrams(segments.select(is_read_segment), n)
            candidates = np.flatnonzero(sieve[_sieve_index(hashes)])
            ngram_index = np.minimum(
                np.searchsorted(known_hashes, hashes[candidates]), len(known_hashes) - 1
            )
            is_match = known_hashes[ngram_index] == hashes[candidates]
            segment_row = row[is_read_segment]
            yield ngram_index[is_match], segment_row[segment[candidates[is_match]]]


def _ngrams(documents: Ragged, n: int) -> tuple[UInt64, Int64]:
    """Return the hash of each n-gram, uint64[m], and its document, int64[m].

    The module describes the hash.
    """
    # A document of k ids has k - n + 1 n-grams, and none if it is shorter than n.
    counts = np.maximum(documents.lengths - n + 1, 0)
    document = np.repeat(np.arange(len(counts)), counts)
    if not len(document):
        return np.zeros(0, np.uint64), document
    # Hashes are computed for n ids from every place, also across the ends of documents.
    # Those are left out below.
    # Hashes of n ids from every place, also across the ends of documents; those are
    # left out below.
    words = splitmix64(documents.ids.astype(np.uint64))
    hashes = np.zeros(len(words) - n + 1, np.uint64)
    for offset in range(n):
        hashes *= _FACTOR
        hashes += words[offset : offset + len(hashes)]
    # Places of the n-grams in their documents: 0, 1, ... for each document.
    first_ngrams = np.repeat(offsets_of(counts)[:-1], counts)
    place_in_document = np.arange(len(document)) - first_ngrams
    places = documents.offsets[document] + place_in_document
    return splitmix64(hashes[places]), document


def _sieve_index(hashes: UInt64) -> Int64:
    """Return the first bits of each hash, as an index into the table."""
    return (hashes >> np.uint64(64 - _SIEVE_BITS)).astype(np.int64)


def _marked(size: int, index: npt.NDArray[Any]) -> Bools:
    """Return bool[size] that is true at the given places."""
    marks = np.zeros(size, np.bool_)
    marks[index] = True
    return marks
