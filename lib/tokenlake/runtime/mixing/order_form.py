"""Form of the order of a dataset: how far an epoch's rows are shuffled.

===============  ======================================================  =========================================
form             rows of a batch come from                               row groups in memory
===============  ======================================================  =========================================
all rows         any row group, as if drawn by chance                    all (:class:`.UniformOrder`)
strands          lanes * strands row groups                              lanes * strands (:class:`.StrandOrder`)
windows          lanes * window row groups, those of a window together   lanes * window (:class:`.EpochOrder`)
stored           one row group                                           1 (:class:`.StoredOrder`)
===============  ======================================================  =========================================

The default is chosen from the memory that decoded row groups may take
(:func:`default_forms`):

1. Three quarters of the memory are for row groups that are open; the rest is for those
   that are read ahead. The sources of a mixture divide it: the number of open row
   groups of each is in proportion to its share of the rows.
2. A dataset that fits into its part is permuted as a whole.
3. Otherwise each lane has ``floor(memory / (lanes * bytes of a row group))`` strands,
   at least 1.

Example: 512 MiB, of which 384 MiB are for open row groups. A dataset of 200 million ids
of 16 bits takes 381 MiB and is permuted as a whole. One of 20 billion ids has row
groups of 512 KiB: 64 lanes have ``384 MiB / (64 * 512 KiB) = 12`` strands each. With
ids of 32 bits they have 6. In a mixture of such a dataset, of share 0.9, with one of 10
million ids (19 MiB), of share 0.1, the small one fits into its 38 MiB. The large one
has the other 365 MiB: 11 strands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, Protocol, Self, cast, final

from tokenlake.base.arrays import Bools, Int64
from tokenlake.runtime.mixing.order import ORDER_VERSION, EpochOrder
from tokenlake.runtime.mixing.search import Search
from tokenlake.runtime.mixing.strand_order import StrandOrder
from tokenlake.runtime.mixing.uniform_order import UniformOrder

ALL_ROWS: Final = "all"
"""Window that holds all row groups of an epoch."""

INTERLEAVED_VERSION: Final = 3
"""Version of orders that read many row groups side by side. States and statements
name it.
"""

MOST_COUNTED: Final = 1 << 31
"""Largest window, and largest number of strands."""

Window = int | Literal["all"]


class RowOrder(Protocol):
    """Rows of a dataset in every epoch, each at a place of a lane.

    Attributes:
        rows: Number of rows of an epoch.
        lanes: Number of lanes.
        seed: Seed from 0 to 2^64 - 1; None for the stored order.
    """

    @property
    def rows(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def lengths(self) -> Int64:
        """Number of rows of each lane, int64[lanes]."""
        ...

    @property
    def window_rows(self) -> int:
        """Mean number of places from the first row of a row group to its last."""
        ...

    def has(self, group: Int64, row: Int64) -> Bools:
        """Return which stored rows exist, bool[n]."""
        ...

    def at(self, epoch: Int64, lane: Int64, place: Int64) -> tuple[Int64, Int64]:
        """Return the row group and the row in it at each place, int64[n] both."""
        ...

    def place_of(self, epoch: int, group: Int64, row: Int64) -> tuple[Int64, Int64]:
        """Return the lane and the place of each stored row in an epoch, int64[n] both.

        It is the inverse of :meth:`at`.
        """
        ...

    def taken(self, epoch: int, places: Int64) -> tuple[Int64, Int64]:
        """Return the rows at the first places of the lanes, as ranges of stored rows.

        Returns:
            Begin and end of each range, half open, int64[m] both.
        """
        ...


class ShuffledOrder(RowOrder, Protocol):
    """Rows of a dataset in every epoch, in a shuffled order.

    Such orders are searched together with those of other sources.
    """

    def search(
        self, epoch: Int64, lane: Int64, place: Int64
    ) -> Search[tuple[Int64, Int64]]:
        """Search for the row group and the row in it at each place, int64[n] both."""
        ...


@final
@dataclass(frozen=True, slots=True)
class OrderForm:
    """Form of a shuffled order.

    Attributes:
        window: Number of row groups whose rows are permuted together; "all" for all of
            an epoch.
        interleave: Number of strands of each lane, which are read side by side; None if
            a lane reads one window after the other. With strands the window is 1.
    """

    window: Window = 1
    interleave: int | None = None

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self | None:
        """Return the form that a state or statement names; None if that is invalid."""
        window: Any = state.get("window")
        interleave: Any = state.get("interleave")
        if interleave is not None:
            if _is_count(interleave):
                return cls(interleave=interleave)
            return None
        if window == ALL_ROWS or _is_count(window):
            return cls(window=window)
        return None

    @classmethod
    def all_of_state(cls, state: Mapping[str, Any]) -> dict[str, Self] | None:
        """Return the form of each source of the mixture that a state names.

        A source without a form is read one row group after the other, as all were
        before. The result is None if a form is invalid.
        """
        sources: Any = state.get("sources")
        if not isinstance(sources, Mapping):
            return None
        forms: dict[str, Self] = {}
        for name, source in cast("Mapping[str, Any]", sources).items():
            form: Self | None = cls()
            if isinstance(source, Mapping) and "window" in source:
                form = cls.of_state(cast("Mapping[str, Any]", source))
            if form is None:
                return None
            forms[name] = form
        return forms

    @property
    def version(self) -> int:
        """Version of the order, which defines the meaning of its seed and numbers."""
        if self.window == ALL_ROWS or self.interleave is not None:
            return INTERLEAVED_VERSION
        return ORDER_VERSION

    @property
    def description(self) -> str:
        """How rows are shuffled, in the words of the loader's options."""
        if self.interleave is not None:
            return f"interleave={self.interleave}"
        return f"window={self.window!r}"

    def to_json(self) -> dict[str, Any]:
        """Return the form as it is named in states and statements."""
        facts: dict[str, Any] = {"window": self.window, "order": self.version}
        if self.interleave is not None:
            facts["interleave"] = self.interleave
        return facts

    def order(self, group_rows: Int64, *, lanes: int, seed: int) -> ShuffledOrder:
        """Return the order of a dataset in this form.

        Args:
            group_rows: Number of rows of each row group, int64[G].
            lanes: Number of lanes.
            seed: Random seed.
        """
        if self.interleave is not None:
            return StrandOrder(
                group_rows, lanes=lanes, seed=seed, strands=self.interleave
            )
        if self.window == ALL_ROWS:
            return UniformOrder(group_rows, lanes=lanes, seed=seed)
        return EpochOrder(group_rows, lanes=lanes, seed=seed, window=self.window)


ONE_BY_ONE: Final = OrderForm()
"""Form in which a lane reads one row group after the other."""


def _is_count(value: Any) -> bool:
    """Return whether a value of a state is a number of row groups or strands."""
    return type(value) is int and 1 <= value <= MOST_COUNTED


def open_bytes(max_bytes: int) -> int:
    """Return the part of a loader's memory for row groups that are open.

    The rest is for those read ahead.

    Args:
        max_bytes: Memory for decoded row groups.
    """
    return max_bytes * 3 // 4


@dataclass(frozen=True, slots=True)
class SourceMemory:
    """Size of a dataset in memory, and its part of the rows that are read.

    Attributes:
        rows: Number of rows.
        groups: Number of row groups.
        decoded_bytes: Memory of all row groups, decoded.
        share: Its share of the rows of a mixture; 1 for a single dataset. Shares need
            not sum to 1.
    """

    rows: int
    groups: int
    decoded_bytes: int
    share: Fraction = Fraction(1)

    @property
    def group_bytes(self) -> int:
        """Mean memory of a decoded row group, at least 1."""
        return max(1, self.decoded_bytes // max(1, self.groups))


def default_forms(
    sources: Mapping[str, SourceMemory], *, lanes: int, streams: int, max_bytes: int
) -> dict[str, OrderForm]:
    """Return the forms that keep as many row groups open as fit into memory.

    Args:
        sources: Name -> size of each source of a mixture, or of the one dataset.
        lanes: Number of lanes.
        streams: Number of orders that are read side by side: the buckets, or 1.
        max_bytes: Memory for decoded row groups.
    """
    memory = open_bytes(max_bytes)
    forms: dict[str, OrderForm] = {}
    # 1. A source that fits into its part of the memory is permuted as a whole. What it
    #    leaves free is divided among the others, of which some more may fit then.
    divided = dict(sources)
    fitting = [*divided]
    while fitting:
        open_groups = _open_groups(divided, memory)
        fitting = []
        for name, source in divided.items():
            if source.decoded_bytes <= open_groups[name] * source.group_bytes:
                fitting.append(name)
        for name in fitting:
            forms[name] = OrderForm(window=ALL_ROWS)
            memory -= divided.pop(name).decoded_bytes

    # 2. A lane has a strand of each source at least. Those with no more than that come
    #    first, and the others divide the rest of the memory.
    smallest = streams * lanes
    least = [*divided]
    while least:
        open_groups = _open_groups(divided, memory)
        least = [name for name in divided if open_groups[name] < 2 * smallest]
        for name in least:
            forms[name] = OrderForm(interleave=1)
            memory -= smallest * divided.pop(name).group_bytes

    # 3. The others have several strands, each of a row at least.
    strands = _several_strands(divided, memory, smallest)
    for name, source in divided.items():
        most_strands = max(1, source.rows // smallest)
        forms[name] = OrderForm(interleave=min(strands[name], most_strands))
    return {name: forms[name] for name in sources}


def _several_strands(
    sources: Mapping[str, SourceMemory], memory: int, lanes: int
) -> dict[str, int]:
    """Return the strands of each source, whole numbers in the ratio of the shares.

    They are rounded down. Memory that is left then is for those with the largest
    remainders.

    Args:
        sources: Name -> size of each source.
        memory: Memory for the row groups of all sources.
        lanes: Number of lanes of all orders.
    """
    strands: dict[str, int] = {}
    remainders: dict[str, Fraction] = {}
    for name, open_groups in _open_groups(sources, memory).items():
        strands[name] = int(open_groups // lanes)
        remainders[name] = open_groups / lanes - strands[name]
        memory -= strands[name] * lanes * sources[name].group_bytes
    for name in sorted(remainders, key=remainders.__getitem__, reverse=True):
        strand_bytes = lanes * sources[name].group_bytes
        if strand_bytes <= memory:
            strands[name] += 1
            memory -= strand_bytes
    return strands


def _open_groups(
    sources: Mapping[str, SourceMemory], memory: int
) -> dict[str, Fraction]:
    """Return the row groups of each source that are open if the memory is divided.

    Their numbers are in the ratio of the shares: a row group then gives a row to as
    many batches, whichever source it is of.

    Args:
        sources: Name -> size of each source.
        memory: Memory for the row groups of all sources.
    """
    bytes_per_share = Fraction(0)
    for source in sources.values():
        bytes_per_share += source.share * source.group_bytes
    return {
        name: max(0, memory) * source.share / bytes_per_share
        for name, source in sources.items()
    }
