"""Verification of one shard against its manifest entry.

The footer is always checked; in a deep verification, every page, row and value.

Nearly all of a packed shard are columns whose rows have one length, and only the
logical hash of these is needed. Their pages are therefore read as the loader reads
them, and hashed page by page while they are in the processor's cache
(:class:`_FixedColumns`). The other columns are decoded by Arrow, some row groups at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, BinaryIO, Final, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.etl.integrity.row_check import RowCheck, RowRules
from tokenlake.runtime.logical_hash import LogicalHasher
from tokenlake.runtime.reading.levels import SeenLevels, Unfamiliar
from tokenlake.runtime.reading.packed import IDS
from tokenlake.runtime.reading.pages import VALUE_BITS, pages_of
from tokenlake.runtime.reading.shard_file import ShardBytes
from tokenlake.runtime.reading.unfolding import check_unfolded
from tokenlake.runtime.reading.version import DAMAGE
from tokenlake.runtime.store.file_check import Problem
from tokenlake.runtime.store.ledger import ShardEntry

_ARROW_BYTES: Final = 1 << 22  # that Arrow decodes in a call, which costs 20,000 ids
_ARROW_GROUPS: Final = 64  # largest number of row groups in a call
_SHOWN_CHARACTERS: Final = 200  # of a value in a problem

_Fact: TypeAlias = tuple[str, Any, Any]
"""Problem, expected value and value found."""


@final
@dataclass(frozen=True, slots=True)
class ShardResult:
    """Result for one file.

    Attributes:
        rows: Number of rows decoded.
        tokens: Number of tokens decoded.
        problems: Problems found.
    """

    rows: int
    tokens: int
    problems: tuple[Problem, ...]


def check_shard(
    stream: BinaryIO,
    entry: ShardEntry,
    rules: RowRules,
    seen: SeenLevels,
    *,
    deep: bool,
    on_decoded: Callable[[int], None],
) -> ShardResult:
    """Check a shard whose bytes are those of the manifest.

    Args:
        stream: File, seekable.
        entry: Entry of the shard in the manifest.
        rules: Statements of the manifest about all rows.
        seen: Levels of the version's other shards, shared by any number of threads.
        deep: True to decode all pages (checksums verified), count, and compare the
            logical hashes.
        on_decoded: Function that is called with the rows of row groups that were
            decoded. Its errors end the check.
    """
    # 1. The footer, which costs no decoding. If it differs, rows would only repeat it.
    try:
        file = ShardBytes(stream).parquet()
        problems = _differences(entry, _footer_facts(file, entry, rules))
    except DAMAGE as error:
        problem = Problem(entry.path, "footer", "a readable Parquet footer", str(error))
        return ShardResult(0, 0, (problem,))
    if problems or not deep:
        return ShardResult(0, 0, tuple(problems))

    # 2. The rows: by the pages of this library, or else by Arrow alone.
    fixed_names: list[str] = []
    for field in file.schema_arrow:
        if pa.types.is_fixed_size_list(field.type):
            fixed_names.append(field.name)
    if rules.width and fixed_names:
        try:
            fixed = _FixedColumns(
                file.source, fixed_names, rules.width, seen, rules.id_limit
            )
            return _DeepCheck(file, entry, rules, on_decoded, fixed).result()
        except Unfamiliar:
            pass  # another writer wrote the shard: all of it is decoded by Arrow
    return _DeepCheck(file, entry, rules, on_decoded, None).result()


def _footer_facts(file: Any, entry: ShardEntry, rules: RowRules) -> list[_Fact]:
    """Return the facts of a footer, beside those of the manifest."""
    metadata: pq.FileMetaData = file.metadata
    schema: Any = file.schema_arrow
    # The manifest has the first row of each row group.
    group_rows: list[int] = []
    for index in range(metadata.num_row_groups):
        group_rows.append(metadata.row_group(index).num_rows)
    group_begins = list(accumulate(group_rows, initial=0))[:-1]
    facts: list[_Fact] = [
        ("rows", entry.rows, metadata.num_rows),
        ("row groups", list(entry.row_groups), group_begins),
        ("row groups", metadata.num_rows, sum(group_rows)),
        ("columns", sorted(entry.logical), sorted(schema.names)),
    ]
    # Columns that the manifest states, with their types. Kept fields may have any type.
    for field in rules.schema:
        column_type = None
        if field.name in schema.names:
            column_type = schema.field(field.name).type
        facts.append((f"type of {field.name}", field.type, column_type))
    return facts


def _differences(entry: ShardEntry, facts: list[_Fact]) -> list[Problem]:
    """Return a problem for each fact that is not as expected."""
    problems: list[Problem] = []
    for problem, expected, got in facts:
        if expected != got:
            expected_text = _shortened(expected)
            problems.append(
                Problem(entry.path, problem, expected_text, _shortened(got))
            )
    return problems


def _shortened(value: Any) -> str:
    """Return a value as text, cut if it is long: a shard has many row groups."""
    text = str(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


@final
class _FixedColumns:
    """Columns of a shard with rows of one length, hashed as their pages are decoded.

    Args:
        source: Shard.
        names: Names of the columns.
        width: Values of a row.
        seen: Levels of other shards with rows of this length.
        id_limit: One more than the largest id.

    Raises:
        Unfamiliar: A column is stored in another way than this library's.
    """

    def __init__(
        self,
        source: ShardBytes,
        names: list[str],
        width: int,
        seen: SeenLevels,
        id_limit: int,
    ) -> None:
        self._source = source
        self._footer = source.footer
        self.names = names
        self._width = width
        self._seen = seen
        self._id_limit = id_limit
        # The last field of a column chunk is the number of its Parquet type.
        familiar_kinds = list(VALUE_BITS)
        for name in names:
            chunks = self._footer.lists.get(name)
            if chunks is None or not np.isin(chunks[:, -1], familiar_kinds).all():
                raise Unfamiliar("a column is stored differently")

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in these columns, at least."""
        if not len(self._footer.rows):
            return 0
        row_bytes = 0
        for name in self.names:
            # All row groups store a column in one type.
            kind = int(self._footer.lists[name][0, -1])
            row_bytes += VALUE_BITS[kind] * self._width // 8
        return row_bytes

    def hash(self, group: int, hasher: LogicalHasher) -> int:
        """Hash the values of a row group, and return its rows.

        Each page is checked against its checksum.

        Raises:
            Unfamiliar: Pages are laid out in another way.
            ValueError, OSError: Pages are damaged, or do not hold as many values as
                their rows have.
        """
        rows = int(self._footer.rows[group])
        for name in self.names:
            self._hash_column(name, group, rows, hasher)
        return rows

    def _hash_column(
        self, name: str, group: int, rows: int, hasher: LogicalHasher
    ) -> None:
        """Hash the values of one column of a row group."""
        chunk = self._footer.chunk(group, name)
        expected_values = rows * self._width
        if chunk.values != expected_values:
            raise ValueError(
                f"{chunk.values} values of {name}; expected {expected_values}"
            )
        # A page is decompressed as a whole, and may claim to be 2 GB of zeros.
        bits = VALUE_BITS[chunk.kind]
        check_unfolded(bits * chunk.values // 8, chunk.size)
        data = memoryview(self._source.read(chunk.begin, chunk.size))
        # Ids are compared with the limit while they are decoded.
        id_limit: int | None = None
        if name == IDS:
            id_limit = self._id_limit
        first_value = 0
        for page in pages_of(data, chunk.values, bits, id_limit):
            self._seen.check(first_value % self._width, page)
            # The logical hash is that of the values, however a page stores them:
            # booleans as bytes, ids as 32-bit integers.
            if bits == 1:
                packed_bits = np.frombuffer(page.data, np.uint8)
                page_values = np.unpackbits(
                    packed_bits, count=page.values, bitorder="little"
                )
            else:
                page_values = page.numbers.astype("<i4", copy=False)
            hasher.update_list(name, page_values)
            first_value += page.values


@final
class _DeepCheck:
    """Decodes a shard and compares its rows with the manifest.

    Args:
        file: Shard.
        entry: Entry of the shard in the manifest.
        rules: Statements of the manifest about all rows.
        on_decoded: Function that is called with the rows of row groups that were
            decoded.
        fixed: Columns that are hashed page by page; None: all columns are decoded by
            Arrow.
    """

    def __init__(
        self,
        file: Any,
        entry: ShardEntry,
        rules: RowRules,
        on_decoded: Callable[[int], None],
        fixed: _FixedColumns | None,
    ) -> None:
        self._file = file
        self._entry = entry
        self._rules = rules
        self._on_decoded = on_decoded
        self._fixed = fixed
        # Columns that are hashed page by page need no decoding by Arrow.
        fixed_names: list[str] = []
        if fixed is not None:
            fixed_names = fixed.names
        self._arrow_names: list[str] = []
        for name in file.schema_arrow.names:
            if name not in fixed_names:
                self._arrow_names.append(name)

    def result(self) -> ShardResult:
        """Decode all row groups, and return counts and problems."""
        check = RowCheck(self._rules)
        problems: list[Problem] = []
        row_bytes = 0
        if self._fixed is not None:
            row_bytes = self._fixed.row_bytes
        for groups in _batches(self._file.metadata, row_bytes):
            rows_before = check.rows
            try:
                self._decode(groups, check)
            except DAMAGE as error:
                problems += self._damaged_groups(groups, error)
                continue
            # Fixed columns have reported their row groups already.
            if self._fixed is None:
                self._on_decoded(check.rows - rows_before)
        if not problems:  # otherwise counts and hashes would only repeat the damage
            problems = self._problems_of_rows(check)
        return ShardResult(check.rows, check.tokens, tuple(problems))

    def _decode(self, groups: list[int], check: RowCheck) -> None:
        """Decode row groups and check their rows."""
        table = self._file.read_row_groups(groups, self._arrow_names)
        table.validate(full=True)
        if self._fixed is not None:
            for group in groups:
                self._on_decoded(self._fixed.hash(group, check.hasher))
        check.add(table)

    def _damaged_groups(self, groups: list[int], error: Exception) -> list[Problem]:
        """Return a problem for each row group that cannot be decoded by itself.

        Row groups are decoded together: the error does not say which is damaged.
        """
        errors: dict[int, Exception] = {}
        for group in groups:
            try:
                self._decode([group], RowCheck(self._rules))
            except DAMAGE as group_error:
                errors[group] = group_error
        # A fault of the shard as a whole, which no row group has by itself.
        if not errors:
            errors[groups[0]] = error
        problems: list[Problem] = []
        for group, group_error in errors.items():
            expected = f"row group {group} decodes"
            problems.append(
                Problem(self._entry.path, "decode", expected, str(group_error))
            )
        return problems

    def _problems_of_rows(self, check: RowCheck) -> list[Problem]:
        """Compare counts and logical hashes with the manifest."""
        entry = self._entry
        facts: list[_Fact] = [
            ("rows", entry.rows, check.rows),
            ("tokens", entry.tokens, check.tokens),
            ("documents", entry.documents, check.documents),
        ]
        # Without rows no column has a hash.
        if check.rows:
            digest = check.hasher.digest()
            for name, expected in sorted(entry.logical.items()):
                facts.append((f"logical hash of {name}", expected, digest.get(name)))
        problems = [Problem(entry.path, *fault) for fault in check.faults.values()]
        return problems + _differences(entry, facts)


def _batches(metadata: Any, row_bytes: int) -> Iterator[list[int]]:
    """Yield the row groups of a shard in batches of which Arrow decodes little.

    Args:
        metadata: Footer of the shard.
        row_bytes: Bytes of a row that Arrow does not decode.
    """
    batch: list[int] = []
    batch_bytes = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        batch.append(index)
        batch_bytes += max(0, group.total_byte_size - row_bytes * group.num_rows)
        if batch_bytes >= _ARROW_BYTES or len(batch) == _ARROW_GROUPS:
            yield batch
            batch = []
            batch_bytes = 0
    if batch:
        yield batch
