"""Arguments and rows that are not what they must be: the checks that sources share, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel

from tokenlake.config.values import did_you_mean
from tokenlake.errors import BadRecordError, ConfigError

Model = TypeVar("Model", bound=BaseModel)

_SHOWN: Final = 12  # fields of a row that a message names


def index_of(name: str, names: Sequence[str]) -> int:
    """Return the place of a shard among all; ConfigError if there is no such shard."""
    if name in names:
        return names.index(name)
    shown = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    near = did_you_mean(name, names)
    raise ConfigError(f"no shard is named {name!r}{near}. There are {len(names)}: {shown}.", got=name)


def beyond(name: str, row: int, rows: int) -> ConfigError:
    """Return the error for a row after the end of a shard."""
    return ConfigError(
        f"shard {name!r}: row {row} is beyond its end; it has {rows} rows, numbered from 0, and reading "
        f"may begin at any of them or at {rows}, which gives nothing",
        shard=name,
        row=row,
        rows=rows,
    )


def bad_row(shard: str, number: int, why: str, **details: Any) -> BadRecordError:
    """Return the error for a row that cannot be used."""
    place = {"shard": shard, "row": number}
    return BadRecordError(f"shard {shard!r}, row {number}: {why}", **{**details, **place})


def no_row(shard: str, number: int, got: object, what: str, *, drops: bool) -> ConfigError:
    """Return the error for something else that was made of a row; `drops`: None would leave the row out."""
    hint = " or None, which leaves the row out" if drops else "; `filter` leaves rows out"
    why = f"{what} returned {type(got).__name__}, must be a dict{hint}"
    return ConfigError(f"shard {shard!r}, row {number}: {why}", shard=shard, row=number)


def fields_in(row: Mapping[str, Any]) -> str:
    """Return the names of a row's fields, as messages give them."""
    return ", ".join(map(repr, list(row)[:_SHOWN])) or "no fields"


def section(kind: type[Model], given: object, what: str = "") -> Model:
    """Return `given`, which may be a mapping of its keys, as a section of the configuration.

    Raises:
        ConfigError: it is something else, or a key or value is not allowed; `what` says where.
    """
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        got = type(given).__name__
        raise ConfigError(f"{what}: got a {got}, must be a {kind.__name__} or a mapping of its keys")
    try:
        return kind.model_validate(dict(cast("Mapping[str, Any]", given)))
    except ValueError as error:  # pydantic's, whose messages are in our words
        found: list[dict[str, Any]] = cast("Any", error).errors(include_url=False)
        lines = [": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in found]
        raise ConfigError((f"{what}: " if what else "") + "; ".join(lines)) from None
