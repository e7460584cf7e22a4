"""Several fields as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.rows import Row
from tokenlake.transforms.base import Fields, Outcome, Transform
from tokenlake.transforms.columnwise import all_bad, changed, with_column
from tokenlake.transforms.fields import missing, name_list, one_name, require, union

_COMPUTE: Final[Any] = pc
_CONTAINERS: Final = (list, tuple, dict, set, bytes)


@final
class CombineFields(Transform):
    """Joins the texts of several fields, a separator between them, or gives their values to a function.

    Null is left out of the text, and a number becomes its digits; where all are null, so is the result. A list, an
    object or bytes have no text of their own: such a row is bad (``not_text``). So is one that lacks a field
    (``missing_field``); where it may lack one, `ExtractField` with a default gives it first.
    """

    def __init__(
        self,
        source_fields: Sequence[str] | None = None,
        target_field: str | None = None,
        combiner: Callable[[list[Any]], Any] | None = None,
        separator: str = " ",
        drop_sources: bool = False,
        *,
        fields: Sequence[str] | None = None,
        output_field: str | None = None,
    ) -> None:
        """Take the fields and where the result goes, under either pair of names.

        Args:
            combiner: makes the result of the list of values, null as None; None joins texts.
            separator: between texts.
            drop_sources: take the fields away that were combined.

        Raises:
            ConfigError: both names of an argument are given, or none.
        """
        sources = _either(("source_fields", source_fields), ("fields", fields))
        self._target = one_name(
            "CombineFields", _either(("target_field", target_field), ("output_field", output_field))
        )
        self._sources = name_list("CombineFields", sources)
        if combiner is not None and not callable(combiner):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigError(
                f"CombineFields: combiner: got {combiner!r}, must be a function of a list of values"
            )
        if not isinstance(separator, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"CombineFields: separator: got {separator!r}, must be text")
        self._combiner, self._separator, self._drops = combiner, separator, bool(drop_sources)
        self._dropped = frozenset(self._sources) - {self._target} if drop_sources else frozenset[str]()

    def __call__(self, example: Row) -> Row:
        """Return the row with the combined field."""
        require("CombineFields", example, self._sources)
        values = [example[field] for field in self._sources]
        combined = self._combiner(values) if self._combiner else self._joined(values)
        row = {**example, self._target: combined}
        return (
            {name: value for name, value in row.items() if name not in self._dropped}
            if self._dropped
            else row
        )

    def on_columns(self, columns: pa.RecordBatch) -> Outcome | None:
        """Join columns of texts and whole numbers."""
        fault = missing("CombineFields", columns.schema.names, self._sources)
        if fault:
            return all_bad(columns.num_rows, fault)
        sources = [columns.column(name) for name in self._sources]
        if self._combiner or not all(_has_text(column.type) for column in sources):
            return None
        texts = [column.cast(pa.large_string()) for column in sources]
        joined = texts[0]
        for text in texts[1:]:
            # Not all at once with null_handling="skip": Arrow 26 leaves out rows where all are null.
            both = _COMPUTE.binary_join_element_wise(joined, text, self._scalar())
            joined = _COMPUTE.coalesce(both, joined, text)
        made = with_column(columns, self._target, joined)
        left = [name for name in made.schema.names if name not in self._dropped]
        return changed(made.select(left), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields that are combined, and what is wanted of the others."""
        if wanted is None:
            return None
        return union([name for name in wanted if name != self._target], self._sources)

    def _scalar(self) -> Any:
        scalar: Any = pa.scalar
        return scalar(self._separator, pa.large_string())

    def _joined(self, values: list[Any]) -> str | None:
        for field, value in zip(self._sources, values, strict=True):
            if isinstance(value, _CONTAINERS):
                told = f"CombineFields: the field {field!r} holds {type(value).__name__}, which is no text"
                raise BadRecordError(f"{told}; a combiner makes one of it", reason="not_text")
        texts = [str(value) for value in values if value is not None]
        return self._separator.join(texts) if texts else None

    def __repr__(self) -> str:
        return f"CombineFields({list(self._sources)!r}, {self._target!r}, separator={self._separator!r})"


def _either(first: tuple[str, Any], second: tuple[str, Any]) -> Any:
    """Return the value of an argument that has two names."""
    given = [(name, value) for name, value in (first, second) if value is not None]
    if len(given) != 1:
        told = "got both" if given else "got neither"
        raise ConfigError(
            f"CombineFields: {told} {first[0]!r} and {second[0]!r}; one of them names the same thing"
        )
    return given[0][1]


def _has_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
