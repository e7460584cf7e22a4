"""What is known of a shard without reading it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenlake.config.near import did_you_mean
from tokenlake.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """One shard of a source.

    Attributes:
        name: as in ``shard_names``.
        index: its place in ``shard_names``.
        url: path of a local file, or URL without credentials; None for what lies in memory.
        format: such as ``parquet`` or ``jsonl``; None for what lies in memory.
        compression: of the file as a whole (``gzip``, ``zstd``), None for none.
        bytes: as stored, exact; None for what lies in memory.
        rows: how many rows are numbered, good or bad, kept or filtered out; exact. None where only
            reading the shard would tell (lines, JSON arrays, CSV, Arrow streams, whatever is compressed).
    """

    name: str
    index: int
    url: str | None = None
    format: str | None = None
    compression: str | None = None
    bytes: int | None = None
    rows: int | None = None


def index_of(name: str, names: Sequence[str]) -> int:
    """Return the place of a shard among all; ConfigError if there is no such shard."""
    try:
        return names.index(name)
    except ValueError:
        pass
    shown = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    raise ConfigError(
        f"no shard is named {name!r}{did_you_mean(name, names)}. There are {len(names)}: {shown or 'none'}.",
        got=name,
    )


def check_row(row: int) -> None:
    """Raise ConfigError unless `row` is a whole number from 0 on."""
    if isinstance(row, bool) or not hasattr(row, "__index__") or row < 0:
        raise ConfigError(f"row: got {row!r}, must be a whole number from 0 on", got=repr(row))


def beyond(name: str, row: int, rows: int) -> ConfigError:
    """Return the error for a row after the end of a shard."""
    return ConfigError(
        f"shard {name!r}: row {row} is beyond its end; it has {rows} rows, numbered from 0, and reading "
        f"may begin at any of them or at {rows}, which gives nothing",
        shard=name,
        row=row,
        rows=rows,
    )
