"""Signatures: the record that cleaning keeps of every document, a Parquet file a unit.

A signature, in a file under ``.clean/`` of the store, has about 150 bytes, for a
document of any length: the hash that equal documents share, the keys of the bands that
near duplicates share, and the reason for which the document is left out by itself. A
unit's file is named by the hash of its inputs and of the options of the signatures. It
is therefore made once and serves every later list. Nothing in a store needs these
files: the folder ``.clean`` may be removed at any time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import Int64, UInt64
from tokenlake.config.resolved import Signing
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.etl.clean.compiled import compiled_loops
from tokenlake.etl.clean.evaluation_ngrams import EvaluationNgrams
from tokenlake.etl.clean.words import WordBuffer, exact_hashes
from tokenlake.etl.text.quality import open_quality
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.durable_files import remove_temp
from tokenlake.runtime.store.writes import HashingFile

FORMAT: Final = 1
"""Version of the files' layout. It is part of their names."""

FOLDER: Final = ".clean"
_ABOUT: Final = "tokenlake.signatures"
# Its type stubs lack file objects of our own and columns with a dictionary.
_PARQUET: Final[Any] = pq
_PRIME: Final = (1 << 61) - 1
"""Modulus of the permutations, as in :mod:`tokenlake.etl.clean.kernels`."""
_ROW_GROUP_ROWS: Final = 1 << 16
"""Number of rows after which a row group is written: some MiB of signatures."""


def signature_key(fingerprint: str) -> str:
    """Return the key of a unit's file in the store."""
    return f"{FOLDER}/signatures/{fingerprint[:2]}/{fingerprint}.parquet"


def evaluation_key(sha256: str) -> str:
    """Return the key of evaluation sets' n-grams in the store."""
    return f"{FOLDER}/evaluation/{sha256}.parquet"


def band_name(band: int) -> str:
    """Return the name of a band's column."""
    return f"band_{band:03d}"


def signature_schema(bands: int) -> pa.Schema:
    """Return the schema of a file.

    ``exact_high`` and ``exact_low`` are the halves of the hash of the whole document.
    ``ngrams`` is the number of its n-grams; the bands of a document without n-grams
    mean nothing. ``reason`` is the reason to leave the document out, whatever the other
    documents are; null: there is none.
    """
    fields = [
        pa.field("file", pa.int64(), False),
        pa.field("position", pa.int64(), False),
        pa.field("reason", pa.string()),
        pa.field("ngrams", pa.int64(), False),
        pa.field("exact_high", pa.uint64(), False),
        pa.field("exact_low", pa.uint64(), False),
    ]
    for band in range(bands):
        fields.append(pa.field(band_name(band), pa.uint64(), False))
    return pa.schema(fields)


def permutations(signing: Signing) -> tuple[UInt64, UInt64]:
    """Return factors and terms of the permutations, uint64[bands * rows] each.

    They are drawn as datatrove draws them, from NumPy's frozen generator: one seed
    gives both tools the same functions.
    """
    generator = np.random.RandomState(signing.seed)
    permutation_count = signing.bands * signing.rows
    factors = generator.randint(1, _PRIME, permutation_count, np.uint64)
    terms = generator.randint(0, _PRIME, permutation_count, np.uint64)
    return factors, terms


@final
class Signer:
    """Makes the signatures of documents.

    Args:
        signing: Options of the signatures.
        evaluation: N-grams of the evaluation sets that `signing` names.
    """

    def __init__(
        self, signing: Signing, evaluation: EvaluationNgrams | None = None
    ) -> None:
        self._signing = signing
        self._evaluation = evaluation
        self._judge = open_quality(signing.filters)
        self._factors, self._terms = permutations(signing)
        self.schema = signature_schema(signing.bands)

    def sign(
        self, texts: Sequence[str], file: Int64, position: Int64
    ) -> pa.RecordBatch:
        """Return the signatures of n documents.

        Args:
            texts: Texts of the documents.
            file: Id of the input file of each document, int64[n].
            position: Position of each document in its file, int64[n].
        """
        # 1. Words, where n-grams are needed, and the reasons of each text alone.
        signing = self._signing
        words: WordBuffer | None = None
        if signing.bands or self._evaluation:
            words = WordBuffer.of(texts)
        reasons = self._reasons(texts, words)

        # 2. MinHash: the keys of the bands, and the number of n-grams of each document.
        band_keys = np.empty((len(texts), signing.bands), np.uint64)
        ngrams = np.zeros(len(texts), np.int64)
        if words is not None and signing.bands:
            compiled_loops().sign_all(
                words.data,
                words.ends,
                signing.ngram,
                self._factors,
                self._terms,
                signing.rows,
                band_keys,
                ngrams,
            )

        # 3. The columns, in the order of the schema.
        exact = exact_hashes(texts, signing.exact)
        arrays: list[Any] = [
            pa.array(file),
            pa.array(position),
            pa.array(reasons, pa.string()),
            pa.array(ngrams),
        ]
        for column in (*exact.T, *band_keys.T):
            arrays.append(pa.array(np.ascontiguousarray(column)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _reasons(
        self, texts: Sequence[str], words: WordBuffer | None
    ) -> list[str | None]:
        """Return the reason to leave out each document by itself; None for no reason.

        Filters come before evaluation sets.
        """
        reasons: list[str | None] = [None] * len(texts)
        if self._signing.filters:
            reasons = [self._judge(text) for text in texts]  # one text at a time
        if words is not None and self._evaluation is not None:
            _, least, share = self._signing.contamination or (0, 1, 0.0)
            set_names = self._evaluation.find(words, least, share)
            for text_index, set_name in enumerate(set_names):
                if set_name and not reasons[text_index]:
                    reasons[text_index] = f"contamination.{set_name}"
        return reasons


@final
class EvenRowGroups:
    """Writes a Parquet file in row groups of about equal size.

    The sizes of the batches that come do not matter.

    Args:
        sink: Path of the file, or a file object.
        schema: Schema of the file.
        dictionary: Names of the columns that are stored with a dictionary.
    """

    def __init__(self, sink: Any, schema: pa.Schema, dictionary: Sequence[str]) -> None:
        self._schema = schema
        self._writer = _PARQUET.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=list(dictionary),
            write_page_checksum=True,
        )
        self._batches: list[pa.RecordBatch] = []
        self._row_count = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._batches.append(rows)
        self._row_count += rows.num_rows
        if self._row_count >= _ROW_GROUP_ROWS:
            self._flush()

    def finish(self, metadata: dict[str, str]) -> None:
        """Write the last rows and the footer."""
        self._flush()
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()

    def discard(self) -> None:
        """Close the writer; the file is not whole."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()

    def _flush(self) -> None:
        # An empty row group would be written otherwise.
        if self._row_count:
            table: Any = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(
                table.combine_chunks(), row_group_size=self._row_count
            )
        self._batches = []
        self._row_count = 0


@final
class SignatureWriter:
    """A unit's file while it is written to a temporary place."""

    def __init__(self, store: Store, schema: pa.Schema) -> None:
        self._store = store
        self._temp = store.temp(FOLDER)
        self._file = HashingFile(self._temp)
        self._rows = EvenRowGroups(self._file, schema, ["reason"])

    def write(self, rows: pa.RecordBatch) -> None:
        """Add some signatures."""
        self._rows.write(rows)

    def publish(self, fingerprint: str, account: Account) -> None:
        """Move the whole file to its place in the store."""
        self._rows.finish({_ABOUT: json.dumps(account.to_json(), sort_keys=True)})
        self._file.close()
        # A file of this name holds the same rows; another version of Arrow may have
        # written other bytes.
        self._store.publish(
            self._temp,
            signature_key(fingerprint),
            self._file.sha256,
            replace_orphan=lambda: True,
        )

    def discard(self) -> None:
        """Remove the temporary file."""
        self._rows.discard()
        self._file.discard()
        remove_temp(self._temp)


@final
class SignatureFile:
    """A unit's file, opened to read columns; a context manager.

    Raises:
        NotFoundError: There is no such file.
        IntegrityError: The file is damaged.
    """

    def __init__(self, store: Store, fingerprint: str) -> None:
        self._key = signature_key(fingerprint)
        try:
            self._bytes = store.open(self._key)
        except NotFoundError as error:
            raise NotFoundError(
                f"{self._key}: these signatures are not in the store {store.url}. Run `clean` again with the "
                "configuration that they were made for and with this store; it computes them again",
                file=self._key,
            ) from error
        # Every page has a checksum: a damaged key would join documents that differ.
        try:
            self._file = pq.ParquetFile(self._bytes, page_checksum_verification=True)
            about = (self._file.metadata.metadata or {})[_ABOUT.encode()]
            self.account = Account(**json.loads(about))
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            self._bytes.close()
            raise self._damaged(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._bytes.close()

    @property
    def rows(self) -> int:
        """Number of documents."""
        return self._file.metadata.num_rows

    def column(self, name: str) -> Any:
        """Return a column as a NumPy array; the column ``reason`` as an Arrow array."""
        try:
            column = self._file.read(columns=[name]).column(0)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        if name == "reason":
            return column
        return column.to_numpy()

    def _damaged(self, error: Exception) -> IntegrityError:
        return IntegrityError(
            f"{self._key}: the signatures are damaged: {error}. Remove the file and run `clean` again; it writes a "
            "new one",
            file=self._key,
        )


def opened_signatures(
    store: Store, fingerprints: Sequence[str]
) -> Iterator[SignatureFile]:
    """Yield files one after the other.

    Each is closed when the next one is asked for.
    """
    for fingerprint in fingerprints:
        with SignatureFile(store, fingerprint) as file:
            yield file
