"""What can be done with the fields of one row. Rows given in are never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tokenlake.errors import BadRecordError, ConfigError

Row = dict[str, Any]
Transform = Callable[[Row], Row | None]
"""A function of a row; None leaves the row out."""


def keeping(predicate: Callable[[Row], object]) -> Transform:
    """Return a transform that keeps the rows for which `predicate` is true."""
    return lambda row: row if predicate(row) else None


def renaming(mapping: Mapping[str, str]) -> Transform:
    """Return a transform that renames fields, {old: new}; two may swap names.

    Raises:
        ConfigError: two fields would get the same name.
    """
    names = dict(mapping)
    _check_names("rename_fields", [*names, *names.values()])
    for new in names.values():
        olds = [old for old, name in names.items() if name == new]
        if len(olds) > 1:
            raise ConfigError(
                f"rename_fields: {olds[0]!r} and {olds[1]!r} would both become {new!r}; give them different names"
            )

    def rename(row: Row) -> Row:
        _require("rename_fields", row, list(names))
        renamed = {names.get(field, field): value for field, value in row.items()}
        if len(renamed) < len(row):
            old, new = next((old, new) for old, new in names.items() if new in row and new not in names)
            raise _unusable(
                "field_collision",
                f"rename_fields: {old!r} cannot become {new!r}, because the row has a field {new!r} already; "
                "rename or drop that one first",
                [old, new],
            )
        return renamed

    return rename


def selecting(fields: Sequence[str]) -> Transform:
    """Return a transform that leaves these fields alone, in this order."""
    wanted = _listed("select_fields", fields)

    def select(row: Row) -> Row:
        _require("select_fields", row, wanted)
        return {field: row[field] for field in wanted}

    return select


def dropping(fields: Sequence[str]) -> Transform:
    """Return a transform that takes these fields away, where they are."""
    unwanted = frozenset(_listed("drop_fields", fields))
    return lambda row: {field: value for field, value in row.items() if field not in unwanted}


def _listed(what: str, fields: object) -> list[str]:
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise ConfigError(f"{what}: got {fields!r}, must be a list of names, such as ['text']")
    return _check_names(what, list(cast("Sequence[object]", fields)))


def _check_names(what: str, names: list[Any]) -> list[str]:
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{what}: got {name!r}, names of fields must be text")
    return names


def _require(what: str, row: Row, fields: list[str]) -> None:
    missing = [field for field in fields if field not in row]
    if missing:
        told = f"field{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
        has = ", ".join(map(repr, list(row)[:12])) or "no fields"
        raise _unusable("missing_field", f"{what}: the row has no {told}; it has {has}", missing)


def _unusable(reason: str, detail: str, fields: list[str]) -> BadRecordError:
    return BadRecordError(detail, reason=reason, fields=fields)
