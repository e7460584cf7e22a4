"""Which fields a row has, and what they are called. Rows given in are never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, final

import pyarrow as pa

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.faults import Fault
from tokenlake.rows import Row
from tokenlake.transforms.base import Fields, Outcome, Transform
from tokenlake.transforms.columnwise import all_bad, changed

_SHOWN = 12  # fields of a row that a message names


@final
class SelectFields(Transform):
    """Leaves the fields named alone, in this order; a row that lacks one is bad (``missing_field``)."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("SelectFields", fields)

    def __call__(self, example: Row) -> Row:
        """Return a row of these fields alone."""
        require("SelectFields", example, self._fields)
        return {field: example[field] for field in self._fields}

    def on_columns(self, columns: pa.RecordBatch) -> Outcome:
        """Select the columns."""
        fault = missing("SelectFields", columns.schema.names, self._fields)
        if fault:
            return all_bad(columns.num_rows, fault)
        return changed(columns.select(list(self._fields)), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the fields named, each of which must be there."""
        return self._fields

    def __repr__(self) -> str:
        return f"SelectFields({list(self._fields)!r})"


@final
class DropFields(Transform):
    """Takes the fields named away, where they are."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Take the names of the fields; ConfigError unless they are a list of different names."""
        self._fields = name_list("DropFields", fields)
        self._unwanted = frozenset(self._fields)

    def __call__(self, example: Row) -> Row:
        """Return the row without these fields."""
        return {field: value for field, value in example.items() if field not in self._unwanted}

    def on_columns(self, columns: pa.RecordBatch) -> Outcome:
        """Take the columns away."""
        left = [name for name in columns.schema.names if name not in self._unwanted]
        return changed(columns.select(left), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return what is wanted, without these fields."""
        return None if wanted is None else tuple(name for name in wanted if name not in self._unwanted)

    def __repr__(self) -> str:
        return f"DropFields({list(self._fields)!r})"


@final
class RenameFields(Transform):
    """Gives fields new names, ``{old: new}``; the others stay, and so does the order. Two may swap names.

    A row that lacks an old name is bad (``missing_field``), and so is one where a new name is another field's
    already (``field_collision``).
    """

    def __init__(self, mapping: Mapping[str, str]) -> None:
        """Take the names; ConfigError unless they are text, and all new ones different."""
        if not isinstance(mapping, Mapping) or not mapping:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"RenameFields: got {mapping!r}, must be a mapping {{old: new}} of names")
        self._names = dict(mapping)
        _check_names("RenameFields", [*self._names, *self._names.values()])
        _refuse_merging(self._names)

    def __call__(self, example: Row) -> Row:
        """Return the row with its fields renamed."""
        require("RenameFields", example, tuple(self._names))
        fault = self._collision(example)
        if fault:
            raise BadRecordError(fault.detail, reason=fault.reason)
        return {self._names.get(field, field): value for field, value in example.items()}

    def on_columns(self, columns: pa.RecordBatch) -> Outcome:
        """Rename the columns."""
        names: list[str] = columns.schema.names
        fault = missing("RenameFields", names, tuple(self._names)) or self._collision(names)
        if fault:
            return all_bad(columns.num_rows, fault)
        renamed: Any = columns.rename_columns([self._names.get(name, name) for name in names])
        return changed(renamed, columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the old names of what is wanted; of the new names any field that may be in their way."""
        if wanted is None:
            return None
        old = {new: name for name, new in self._names.items()}
        return union([old.get(name, name) for name in wanted], self._names, self._names.values())

    def _collision(self, names: Row | list[str]) -> Fault | None:
        for old, new in self._names.items():
            if new in names and new not in self._names:
                return Fault(
                    "field_collision",
                    f"RenameFields: {old!r} cannot become {new!r}, because the row has a field {new!r} already; "
                    "rename or drop that one first",
                )
        return None

    def __repr__(self) -> str:
        return f"RenameFields({self._names!r})"


def _refuse_merging(names: Mapping[str, str]) -> None:
    for new in names.values():
        olds = [old for old, name in names.items() if name == new]
        if len(olds) > 1:
            raise ConfigError(
                f"RenameFields: {olds[0]!r} and {olds[1]!r} would both become {new!r}; give them different names"
            )


def name_list(what: str, fields: object) -> tuple[str, ...]:
    """Return names of fields; ConfigError unless they are a list of at least one, all different."""
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise ConfigError(f"{what}: got {fields!r}, must be a list of names, such as ['text']")
    names = _check_names(what, list(cast("Sequence[object]", fields)))
    if len(set(names)) < len(names):
        raise ConfigError(f"{what}: got {names!r}, where a name comes twice")
    return tuple(names)


def one_name(what: str, field: object) -> str:
    """Return the name of a field; ConfigError unless it is text."""
    return _check_names(what, [field])[0]


def require(what: str, names: Row | list[str], fields: Sequence[str]) -> None:
    """Raise BadRecordError unless a row has all `fields`."""
    fault = missing(what, names, fields)
    if fault:
        lacking = [field for field in fields if field not in names]
        raise BadRecordError(fault.detail, reason=fault.reason, fields=lacking)


def missing(what: str, names: Row | list[str], fields: Sequence[str]) -> Fault | None:
    """Return the fault of a row with the fields `names` that lacks one of `fields`."""
    lacking = [field for field in fields if field not in names]
    if not lacking:
        return None
    told = f"field{'s' * (len(lacking) > 1)} {', '.join(map(repr, lacking))}"
    has = ", ".join(map(repr, list(names)[:_SHOWN])) or "no fields"
    return Fault("missing_field", f"{what}: the row has no {told}; it has {has}")


def union(*names: Iterable[str]) -> tuple[str, ...]:
    """Return all names once, in their order."""
    return tuple(dict.fromkeys(name for some in names for name in some))


def _check_names(what: str, names: list[Any]) -> list[str]:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{what}: got {name!r}, names of fields must be text")
    return names
