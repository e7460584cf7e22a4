"""The share of a version's tokens that counts toward the loss, by its loss masks.

The masks take a bit per token and little time: a row group of 256 k tokens takes a
millisecond. They are counted in all row groups, or in evenly spaced ones of a large
version (:mod:`tokenlake.query.group_choice`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow.compute as pc

from tokenlake.base import numbers
from tokenlake.query.group_choice import most_groups_of, spread
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.manifest import Manifest

_MASK: Final = "loss_mask"  # column that only some datasets have


@final
@dataclass(frozen=True, slots=True)
class LossShare:
    """Tokens that count toward the loss, in the rows that were read.

    Attributes:
        loss_tokens: Number of these tokens.
        tokens: Number of all tokens of the rows, BOS and EOS included, padding not.
        rows: Number of rows that were read.
        all_rows: Number of rows of the version.
    """

    loss_tokens: int
    tokens: int
    rows: int
    all_rows: int

    def in_words(self) -> str:
        """Return ``57.87% of the tokens count toward the loss``.

        An estimate is followed by the rows that it is from.
        """
        share = numbers.percent(self.loss_tokens, self.tokens)
        if self.rows == self.all_rows:
            return f"{share} of the tokens count toward the loss"
        rows = f"{numbers.count(self.rows)} of {numbers.plural(self.all_rows, 'row')}"
        return f"~{share} of the tokens count toward the loss, estimated from {rows}"


def loss_share(
    store: ReadStore, manifest: Manifest, *, most_groups: int | None = None
) -> LossShare | None:
    """Return the share of the tokens that counts toward the loss.

    It is None for a version without loss masks.

    Args:
        store: Store that holds the version.
        manifest: Manifest of the version.
        most_groups: Largest number of row groups to read; at least one of each split is
            read. None: as many as the report of the version reads.

    Raises:
        IntegrityError: A file is missing or damaged.
    """
    if not any(_MASK in shard.logical for shard in manifest.files):
        return None
    # The limit is shared by the splits: a small one would otherwise not be read.
    limit = most_groups or most_groups_of(store, manifest)
    groups_per_split = max(1, limit // len(manifest.splits))
    loss_tokens = 0
    tokens = 0
    row_count = 0
    for split in manifest.splits:
        with StoredRows(store, manifest, split) as rows:
            for group in spread(len(rows.group_rows), groups_per_split):
                group_loss, group_tokens = _count(rows, group)
                loss_tokens += group_loss
                tokens += group_tokens
                row_count += int(rows.group_rows[group])
    return LossShare(loss_tokens, tokens, row_count, manifest.totals.rows)


def _count(rows: StoredRows, group: int) -> tuple[int, int]:
    """Return the loss tokens of a row group, and all its tokens."""
    # The cheapest column that tells tokens from padding: lengths of segments, a mask,
    # or the ids themselves, of which none are padding then.
    shard, _ = rows.shard_of(group)
    length_column = "segment_lengths"
    if rows.manifest.kind != "packed":
        length_column = "input_ids"
        if "attention_mask" in shard.logical:
            length_column = "attention_mask"
    columns = [name for name in (_MASK, length_column) if name in shard.logical]
    batch: Any = rows.read(group, columns)
    lists = batch.column(length_column)
    if length_column == "input_ids":
        tokens = len(lists.flatten())
    else:
        tokens = _sum(lists)
    # All tokens of a shard without a mask count. (A loader leaves out a BOS that begins
    # a document; so few tokens are not looked for here.)
    if _MASK not in columns:
        return tokens, tokens
    return _sum(batch.column(_MASK)), tokens


def _sum(lists: Any) -> int:
    """Return the sum of the numbers, or of the true values, in a column of lists."""
    return pc.sum(lists.flatten()).as_py() or 0
