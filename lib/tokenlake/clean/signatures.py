"""Documents as words, and their signatures: what cleaning keeps of every document of a unit, in one Parquet file.

Words are made for comparison: what people would call the same text becomes the same words. Lower case, without accents
(NFD, nonspacing marks taken away), every number as ``0``; whatever is no letter, mark or digit parts words; an
ideograph is a word of its own. So do Hugging Face's datatrove and Meta's CCNet, whose idea this is (Wenzek et al. 2020,
https://arxiv.org/abs/1911.00359). An n-gram of 13 words that a document shares with an evaluation set is the rule of
GPT-3 (Brown et al. 2020, https://arxiv.org/abs/2005.14165, appendix C). A document of a set that has fewer words
cannot be found, and is counted as such.

A signature, in a file under ``.clean/`` of the store, has about 150 bytes, whatever the document's length: the hash
that equal documents share, the keys of the bands that near duplicates share, and the reason for which the document is
left out for what it is itself. A unit's file is named by the hash of its inputs and of what is made of them, so that
it is made once, and serves every later list. Nothing in a store needs these files; the folder ``.clean`` may be
removed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenlake.arrays import Bools, Int64, UInt8, UInt64
from tokenlake.config.resolved import Normal, Signing
from tokenlake.errors import IntegrityError, MissingExtraError, NotFoundError
from tokenlake.store.base import Store
from tokenlake.store.ledger import Account
from tokenlake.store.local import remove_temp
from tokenlake.store.writes import HashingFile
from tokenlake.text.filters import open_quality

_NUMBERS: Final = re.compile(r"\d+(?:[.,\u060C\u066B]\d+)?")
_ASCII_NUMBERS: Final = re.compile(rb"[0-9]+(?:[.,][0-9]+)?")
_ASCII_LETTERS: Final = bytes(
    ord(chr(byte).lower()) if byte < 128 and chr(byte).isalnum() else 32 for byte in range(256)
)
_IDEOGRAPHS: Final = (
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


@final
class _Letters(dict[int, str | int | None]):
    """What becomes of each character; looked up once, kept then."""

    def __missing__(self, code: int) -> str | int | None:
        kind = unicodedata.category(chr(code))
        found: str | int | None = code
        if kind == "Mn":
            found = None
        elif any(first <= code <= last for first, last in _IDEOGRAPHS):
            found = f" {chr(code)} "
        elif kind[0] not in "LMN":
            found = " "
        self[code] = found
        return found


_LETTERS: Final = _Letters()


def words_of(text: str) -> bytes:
    """Return a document's words as UTF-8, one space between each two."""
    if text.isascii():
        plain = _ASCII_NUMBERS.sub(b"0", text.encode()).translate(_ASCII_LETTERS)
        return b" ".join(plain.split())
    numbered = _NUMBERS.sub("0", text.lower())
    parted = unicodedata.normalize("NFD", numbered).translate(_LETTERS)
    return " ".join(parted.split()).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class WordBuffer:
    """The words of several documents, one after the other.

    Attributes:
        data: uint8, UTF-8.
        ends: int64[docs + 1], where each document begins, and where the last one ends.
    """

    data: UInt8
    ends: Int64

    @classmethod
    def of(cls, texts: Iterable[str]) -> WordBuffer:
        """Return the words of some texts."""
        parts = [words_of(text) for text in texts]
        ends = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=ends[1:])
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends)


def exact_hashes(texts: Sequence[str], normal: Normal) -> UInt64:
    """Return what equal documents have in common: uint64[n, 2], the two halves of XXH3-128.

    Args:
        normal: ``text``: of the text as it is; ``folded``: of its case-folded words with single spaces.
    """
    found = np.empty((len(texts), 2), np.uint64)
    for row, text in enumerate(texts):
        same = text if normal == "text" else " ".join(text.casefold().split())
        whole = xxhash.xxh3_128_intdigest(same.encode())
        found[row] = whole >> 64, whole & 0xFFFFFFFFFFFFFFFF
    return found


def kernels() -> Any:
    """Return the compiled loops, see :mod:`tokenlake.clean.kernels`.

    Raises:
        MissingExtraError: numba is not installed, or has no folder for what it compiles.
    """
    try:
        from tokenlake.clean import kernels as found
    except ImportError as error:
        raise MissingExtraError("cleaning needs its packages: pip install 'tokenlake[etl]'") from error
    except RuntimeError as error:  # numba's own where it finds no folder to write to
        raise MissingExtraError(
            f"cleaning cannot keep what it compiles: {error}; set NUMBA_CACHE_DIR to a folder that can be written"
        ) from error
    return found


_SETS_ABOUT: Final = b"tokenlake.evaluation"
_SIEVE_PER_HASH: Final = (
    16  # of these bytes one is set, so that one look-up in 16 goes further than the sieve
)
_SMALLEST_SIEVE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SetCounts:
    """What was found in one evaluation set.

    Attributes:
        documents: texts in it.
        too_short: those with fewer words than an n-gram has.
        ngrams: different ones that no set before it has.
    """

    documents: int
    too_short: int
    ngrams: int


@final
@dataclass(frozen=True)
class EvaluationNgrams:
    """The n-grams of all sets, of which each belongs to the first set that has it.

    Attributes:
        ngram: words of an n-gram.
        hashes: uint64[k], ascending.
        groups: int64[k], index of the set.
        counts: of each set, in order.
    """

    ngram: int
    hashes: UInt64
    groups: Int64
    counts: Mapping[str, SetCounts]

    @property
    def names(self) -> tuple[str, ...]:
        """The sets, in the order of their indices."""
        return tuple(self.counts)

    @cached_property
    def _sieve(self) -> UInt8:
        size = max(_SMALLEST_SIEVE, 1 << (_SIEVE_PER_HASH * len(self.hashes)).bit_length())
        sieve = np.zeros(size, np.uint8)
        sieve[self.hashes & np.uint64(size - 1)] = 1
        return sieve

    @classmethod
    def of(cls, sets: Mapping[str, Iterable[Sequence[str]]], ngram: int) -> EvaluationNgrams:
        """Return the n-grams of sets.

        Args:
            sets: name to texts, some at a time.
            ngram: words of an n-gram.
        """
        hashes, groups = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        counts: dict[str, SetCounts] = {}
        for group, (name, texts) in enumerate(sets.items()):
            found, documents, short = _ngrams_of(texts, ngram)
            new = np.setdiff1d(found, hashes, assume_unique=True)
            hashes = np.concatenate([hashes, new])
            groups = np.concatenate([groups, np.full(len(new), group, np.int64)])
            counts[name] = SetCounts(documents, short, len(new))
        order = np.argsort(hashes, kind="stable")
        return cls(ngram, hashes[order], groups[order], counts)

    def find(self, words: WordBuffer, least: int, share: float) -> list[str | None]:
        """Return for each document the set that it holds too much of, None for most.

        Args:
            least: n-grams of a document that are in a set, from which it is too much...
            share: ...if they are at least this share of all its n-grams.
        """
        hashes, counts = ngram_hashes(words, self.ngram)
        hits, group = np.empty((2, len(counts)), np.int64)
        kernels().look_up(hashes, counts, self.hashes, self.groups, self._sieve, hits, group)
        found: Bools = (hits >= least) & (hits >= share * counts) & (hits > 0)
        names = self.names
        return [names[at] if held else None for at, held in zip(group.tolist(), found.tolist(), strict=True)]

    @cached_property
    def data(self) -> bytes:
        """The bytes of a Parquet file with all of it."""
        about = {name: [each.documents, each.too_short, each.ngrams] for name, each in self.counts.items()}
        schema = pa.schema(
            [pa.field("hash", pa.uint64(), False), pa.field("group", pa.int64(), False)],
            {_SETS_ABOUT: json.dumps({"ngram": self.ngram, "sets": about}).encode()},
        )
        arrays: list[Any] = [pa.array(self.hashes), pa.array(self.groups)]
        sink = io.BytesIO()
        pq.write_table(
            pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd", write_page_checksum=True
        )
        return sink.getvalue()

    @cached_property
    def sha256(self) -> str:
        """Hex, of :attr:`data`."""
        return hashlib.sha256(self.data).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> EvaluationNgrams:
        """Return what :attr:`data` holds."""
        table = pq.read_table(io.BytesIO(data))
        about = json.loads((table.schema.metadata or {})[_SETS_ABOUT])
        counts = {name: SetCounts(*numbers) for name, numbers in about["sets"].items()}
        return cls(about["ngram"], table["hash"].to_numpy(), table["group"].to_numpy(), counts)


def ngram_hashes(words: WordBuffer, ngram: int) -> tuple[UInt64, Int64]:
    """Return the hashes of all n-grams, document by document, and how many each document has (int64[docs])."""
    hashes = np.empty(len(words.data) // 2 + len(words.ends) + 1, np.uint64)
    counts = np.empty(len(words.ends) - 1, np.int64)
    total = kernels().ngrams_of_all(words.data, words.ends, ngram, hashes, counts)
    return hashes[:total], counts


def _ngrams_of(texts: Iterable[Sequence[str]], ngram: int) -> tuple[UInt64, int, int]:
    """Return the different n-grams of a set, its documents, and those of them that are too short."""
    parts, documents, short = [np.zeros(0, np.uint64)], 0, 0
    for some in texts:
        hashes, counts = ngram_hashes(WordBuffer.of(some), ngram)
        parts.append(np.unique(hashes))
        documents, short = documents + len(counts), short + int((counts == 0).sum())
    return np.unique(np.concatenate(parts)), documents, short


FORMAT: Final = 1
"""Of the files; another one makes other names of files."""

FOLDER: Final = ".clean"
_ABOUT: Final = "tokenlake.signatures"
_PARQUET: Final[Any] = pq  # whose stubs know neither files of our own nor columns with a dictionary
_PRIME: Final = (1 << 61) - 1
_ROWS: Final = 1 << 16  # of a row group


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

    ``exact_high``, ``exact_low``: halves of the hash of the whole document. ``ngrams``: how many it has; without any
    the bands mean nothing. ``reason``: why the document is left out whatever the others are; null: it is not.
    """
    names = ["exact_high", "exact_low", *map(band_name, range(bands))]
    return pa.schema(
        [
            pa.field("file", pa.int64(), False),
            pa.field("position", pa.int64(), False),
            pa.field("reason", pa.string()),
            pa.field("ngrams", pa.int64(), False),
            *(pa.field(name, pa.uint64(), False) for name in names),
        ]
    )


def permutations(signing: Signing) -> tuple[UInt64, UInt64]:
    """Return factors and terms of the permutations, uint64[bands * rows] each.

    They are drawn as datatrove draws them, from NumPy's frozen generator: one seed gives both tools the same functions.
    """
    draw, count = np.random.RandomState(signing.seed), signing.bands * signing.rows
    factors = draw.randint(1, _PRIME, count, np.uint64)
    return factors, draw.randint(0, _PRIME, count, np.uint64)


@final
class Signer:
    """Makes the signatures of documents.

    Args:
        signing: what is made.
        evaluation: n-grams of the evaluation sets that `signing` names.
    """

    def __init__(self, signing: Signing, evaluation: EvaluationNgrams | None = None) -> None:
        self._signing, self._evaluation = signing, evaluation
        self._judge = open_quality(signing.filters)
        self._factors, self._terms = permutations(signing)
        self.schema = signature_schema(signing.bands)

    def sign(self, texts: Sequence[str], file: Int64, position: Int64) -> pa.RecordBatch:
        """Return the signatures of n documents."""
        words = WordBuffer.of(texts) if self._signing.bands or self._evaluation else None
        reasons = [self._judge(text) for text in texts] if self._signing.filters else [None] * len(texts)
        if words is not None and self._evaluation is not None:
            _, least, share = self._signing.contamination or (0, 1, 0.0)
            found = self._evaluation.find(words, least, share)
            reasons = [
                why or (held and f"contamination.{held}") for why, held in zip(reasons, found, strict=True)
            ]
        count, signing = len(texts), self._signing
        # The keys of the bands, and the number of n-grams.
        bands, ngrams = np.empty((count, signing.bands), np.uint64), np.zeros(count, np.int64)
        if words is not None and signing.bands:
            drawn = self._factors, self._terms, signing.rows
            kernels().sign_all(words.data, words.ends, signing.ngram, *drawn, bands, ngrams)
        exact = exact_hashes(texts, self._signing.exact)
        columns = [file, position, None, ngrams, exact[:, 0], exact[:, 1], *bands.T]
        arrays: list[Any] = [
            pa.array(reasons, pa.string()) if column is None else pa.array(np.ascontiguousarray(column))
            for column in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@final
class EvenRowGroups:
    """Writes a Parquet file in row groups of equal size, in whatever batches rows come.

    Args:
        sink: path of the file, or what it is written to.
        dictionary: columns that are stored with one.
    """

    def __init__(self, sink: Any, schema: pa.Schema, dictionary: Sequence[str]) -> None:
        self._schema = schema
        self._writer = _PARQUET.ParquetWriter(
            sink, schema, compression="zstd", use_dictionary=list(dictionary), write_page_checksum=True
        )
        self._held: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._held.append(rows)
        self._rows += rows.num_rows
        if self._rows >= _ROWS:
            self._flush()

    def finish(self, metadata: dict[str, str]) -> None:
        """Write what is left, and the footer."""
        self._flush()
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()

    def discard(self) -> None:
        """Give up."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            table: Any = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(table.combine_chunks(), row_group_size=self._rows)
        self._held, self._rows = [], 0


@final
class SignatureWriter:
    """A unit's file while it is written to a temporary place."""

    def __init__(self, store: Store, schema: pa.Schema) -> None:
        self._store, self._temp = store, store.temp(FOLDER)
        self._file = HashingFile(self._temp)
        self._rows = EvenRowGroups(self._file, schema, ["reason"])

    def write(self, rows: pa.RecordBatch) -> None:
        """Add some signatures."""
        self._rows.write(rows)

    def publish(self, fingerprint: str, account: Account) -> None:
        """Put the whole file in its place."""
        self._rows.finish({_ABOUT: json.dumps(account.to_json(), sort_keys=True)})
        self._file.close()
        # Of one name, it is what another version of Arrow has written: the same rows in other bytes.
        self._store.publish(
            self._temp, signature_key(fingerprint), self._file.sha256, replace_orphan=lambda: True
        )

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        self._rows.discard()
        self._file.close()
        remove_temp(self._temp)


@final
class SignatureFile:
    """A unit's file, opened to be read column by column; to be used in a ``with``.

    Raises:
        NotFoundError: there is none.
        IntegrityError: it is damaged.
    """

    def __init__(self, store: Store, fingerprint: str) -> None:
        self._key = signature_key(fingerprint)
        try:
            self._bytes = store.open(self._key)
        except NotFoundError as error:
            raise NotFoundError(
                f"{self._key}: these signatures are not in the store {store.url}. Clean once more with the "
                "configuration that they were made for and with this store, and they are made again",
                file=self._key,
            ) from error
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._bytes.close()

    @property
    def rows(self) -> int:
        """Documents in it."""
        return self._file.metadata.num_rows

    def column(self, name: str) -> Any:
        """Return a column as a numpy array; ``reason`` as Arrow's."""
        try:
            found = self._file.read(columns=[name]).column(0)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        return found if name == "reason" else found.to_numpy()

    def _damaged(self, error: Exception) -> IntegrityError:
        return IntegrityError(
            f"{self._key}: the signatures are damaged: {error}. Remove the file, and clean again: it is made anew",
            file=self._key,
        )


def opened_signatures(store: Store, fingerprints: Sequence[str]) -> Iterator[SignatureFile]:
    """Yield files one after the other; each is closed when the next one is asked for."""
    for fingerprint in fingerprints:
        with SignatureFile(store, fingerprint) as file:
            yield file
