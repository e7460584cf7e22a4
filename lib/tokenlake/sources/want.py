"""What is to be read out of an input: which fields, and which of them is the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


PLAIN: Final = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a reader of a format is asked for.

    Attributes:
        text: dotted path of the field that holds the text, None where only rows are wanted. A field that
            bears the whole path as its name comes first: ``a.b`` is the field "a.b", else field "b" of "a".
        columns: top-level fields wanted beside the text, None for all; () for none.
        max_record_bytes: a longer record is a bad one.
        delimiter: between the cells of CSV, None for what the extension says.
        if_there: columns that an input lacks are left out, instead of being an error.
        plain: what the one column of plain text is called.
    """

    text: str | None
    columns: tuple[str, ...] | None = ()
    max_record_bytes: int = 256 << 20
    delimiter: str | None = None
    if_there: bool = False
    plain: str = PLAIN

    def names(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read of an input that has those of `there`."""
        if self.columns is None:
            return tuple(there)
        return tuple(name for name in self.columns if name in there) if self.if_there else self.columns


ALL: Final = None
"""`Want.columns` for every field there is."""


def text_wanted(source: ResolvedSource, columns: tuple[str, ...] | None = ()) -> Want:
    """Return the wish for the text of `source`, and further columns."""
    return Want(
        text=source.content_field,
        columns=columns,
        max_record_bytes=source.max_record_bytes,
        delimiter=source.delimiter,
    )


def rows_wanted(source: ResolvedSource, columns: tuple[str, ...] | None = ALL) -> Want:
    """Return the wish for rows of `source` without a look at its text."""
    return Want(
        text=None,
        columns=columns,
        max_record_bytes=source.max_record_bytes,
        delimiter=source.delimiter,
    )
