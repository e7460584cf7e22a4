"""How rows of many lengths become rectangular batches: to which length, at which end, and what is cut.

::

    BatchPadding()                            to the longest row of the batch
    BatchPadding(multiple=128)                the same, rounded up
    BatchPadding(length=2048)                 every batch
    BatchPadding(buckets=(256, 512, 1024))    rows of like lengths together, each batch to its bucket's length
    BatchPadding(buckets=8, multiple=64)      the eight lengths that cost the least padding

A bucket's batches have as many rows as keep the ids of a batch the same: with ``batch_size=64`` and a longest bucket of
1,024, rows of the bucket 256 come 256 at a time. So there is one shape for each bucket, and a compiler of fixed shapes
compiles as often.

**The lengths of all rows** are read first, by which rows are padded, put into buckets, and checked at the start of a
run: two bytes a row and column where no row has more than 65,535 ids, else four. 10^8 documents take 0.2 GB, as many
DPO pairs 0.8 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, final, get_args

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.checks import arguments_of, bounded_number, expected, whole_number
from tokenlake.errors import ConfigError

Side = Literal["left", "right"]
_SIDES: Final = get_args(Side)
_CELLS: Final = 2048  # lengths that bounds are chosen from

_LONGEST: Final = 1 << 31  # ids of a row


@final
@dataclass(frozen=True, kw_only=True)
class BatchPadding:
    """Of batches of documents or preferences; see :class:`tokenlake.DataLoader`.

    Args:
        length: of every batch.
        buckets: lengths, ascending, or how many of them, which are then chosen so that an epoch has the least padding.
            The longest one's batches have `batch_size` rows, the others as many more as they are shorter, rounded down
            to a multiple of the loader's `lanes`.
        equal_rows: batches of all buckets have `batch_size` rows, as what takes single rows and makes batches of one
            number of them needs (``tl.hf_dataset``).
        multiple: lengths of batches are multiples of this.
        max_length: no batch is longer; what `length` and the last of given `buckets` also say.
        side: where the padding goes. "left" for generating from prompts.
        truncate: which end of rows that are longer than a batch can be is cut, "left" or "right"; None: such rows are
            an error. ``DataLoader.truncated`` counts what is cut.

    Raises:
        ConfigError: an argument is not what is allowed, or two contradict each other.
    """

    length: int | None = None
    buckets: int | Sequence[int] | None = None
    equal_rows: bool = False
    multiple: int = 1
    max_length: int | None = None
    side: Side = "right"
    truncate: Side | None = None

    def __post_init__(self) -> None:
        for name in ("length", "multiple", "max_length"):
            if (value := getattr(self, name)) is not None or name == "multiple":
                bounded_number(f"padding.{name}", value, 1, _LONGEST)
        if not isinstance(self.side, str) or self.side not in _SIDES:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("padding.side", self.side, "left or right")
        is_side = isinstance(self.truncate, str) and self.truncate in _SIDES
        if self.truncate is not None and not is_side:
            raise expected("padding.truncate", self.truncate, "left, right or None")
        if not isinstance(self.equal_rows, bool) or (self.equal_rows and self.buckets is None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"padding.equal_rows: got {self.equal_rows!r}, must be True or False, and is of buckets: give them, too"
            )
        if self.buckets is not None:
            self._check_buckets(self.buckets)
        said = [name for name in ("length", "buckets", "max_length") if getattr(self, name) is not None]
        fixed = self.length is not None or self.bounds is not None
        if len(said) > 1 and (fixed or said == ["length", "buckets"]):
            raise ConfigError(
                f"padding: got {' and '.join(said)}; give one of them: each says how long batches are"
            )
        for name in ("length", "max_length"):
            if (getattr(self, name) or 0) % self.multiple:
                raise expected(f"padding.{name}", getattr(self, name), f"a multiple of {self.multiple}")
        if self.truncate is not None and self.longest is None:
            raise ConfigError(
                f"padding.truncate: got {self.truncate!r}, but batches are as long as their longest row, so that "
                "nothing is ever cut; give max_length, length or buckets too"
            )

    @property
    def bounds(self) -> tuple[int, ...] | None:
        """The lengths of the buckets, where they are given."""
        return None if self.buckets is None or isinstance(self.buckets, int) else tuple(self.buckets)

    @property
    def longest(self) -> int | None:
        """The length that no batch goes beyond; None: there is none."""
        if (bounds := self.bounds) is not None:
            return bounds[-1]
        return self.max_length if self.length is None else self.length

    def to_json(self) -> dict[str, Any]:
        """Return what is not the default, JSON-able."""
        defaults = type(self)()
        given = {name: value for name, value in asdict(self).items() if value != getattr(defaults, name)}
        return given | ({"buckets": list(bounds)} if (bounds := self.bounds) is not None else {})

    @classmethod
    def of(cls, asked: object) -> Self:
        """Read a padding, or a mapping of its arguments; ConfigError where it is neither."""
        return arguments_of(cls, "padding", asked, {})

    def rounded(self, length: int) -> int:
        """Return the length of a batch whose longest row has so many ids, at least 1."""
        if self.length is not None:
            return self.length
        whole = -(-max(length, 1) // self.multiple) * self.multiple
        return whole if self.max_length is None else min(whole, self.max_length)

    def chosen(self, lengths: Int64) -> tuple[int, ...]:
        """Return the lengths of the buckets, ascending.

        Args:
            lengths: how many rows have each length, int64[longest + 1]; those that are cut counted by what is left.
        """
        if (bounds := self.bounds) is not None:
            return bounds
        assert isinstance(self.buckets, int)
        return least_padding(lengths, self.buckets, self.multiple, self.max_length)

    def _check_buckets(self, buckets: int | Sequence[int]) -> None:
        if isinstance(buckets, int) and not isinstance(buckets, bool):
            whole_number("padding.buckets", buckets, 1)
            return
        given = list(buckets) if isinstance(buckets, Sequence) and not isinstance(buckets, str) else []
        for bound in given:
            whole_number("padding.buckets", bound, 1)
        if not given or sorted(set(given)) != given:
            raise ConfigError(
                f"padding.buckets: got {buckets!r}, must be lengths, ascending, as (256, 512, 1024), or their number"
            )
        if any(bound % self.multiple for bound in given):
            raise ConfigError(
                f"padding.buckets: got {buckets!r}, must be multiples of {self.multiple} (multiple)"
            )


def least_padding(rows: Int64, number: int, multiple: int, most: int | None = None) -> tuple[int, ...]:
    """Return at most `number` lengths to which rows can be padded with the least padding, ascending.

    By dynamic programming over the lengths that are multiples of `multiple` (coarser ones where there are more than
    2,048 of them): the best k lengths up to one are the best k - 1 up to a shorter one, and this one.

    Args:
        rows: how many rows have each length, int64[longest + 1].
        number: of lengths.
        multiple: each is a multiple of it.
        most: the longest one may be no longer; rows are not.
    """
    step = multiple * -(-len(rows) // (multiple * _CELLS))
    cells = -(-max(len(rows) - 1, 1) // step)
    ends = np.minimum(np.arange(1, cells + 1) * step, most or len(rows) * step)
    before = np.concatenate([[0], np.cumsum(rows)])[np.minimum(np.concatenate([[0], ends]) + 1, len(rows))]
    before[0] = 0
    # The ids of a cell's rows are the same whatever the lengths, so that what is stored is what to compare.
    cost = before[1:] * ends
    choices: list[Int64] = []
    for _ in range(min(number, cells) - 1):
        # With the last length ends[j] and the one before it ends[i]: the rows between are padded to ends[j].
        each = cost[:, None] + (before[None, 1:] - before[1:, None]) * ends[None, :]
        each[np.tril_indices(cells)] = np.iinfo(np.int64).max
        best = np.argmin(each, axis=0)
        better = each[best, np.arange(cells)] < cost
        choices.append(np.where(better, best, -1))
        cost = np.where(better, each[best, np.arange(cells)], cost)
    found, at = [cells - 1], cells - 1
    for choice in reversed(choices):
        if choice[at] >= 0:
            at = int(choice[at])
            found.append(at)
    return tuple(int(ends[index]) for index in reversed(found))
