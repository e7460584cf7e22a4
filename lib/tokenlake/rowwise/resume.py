"""Where a loop over a source stands, as values that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, cast, final

from tokenlake.config.values import whole_number
from tokenlake.errors import ConfigError
from tokenlake.rowwise.shards import Row
from tokenlake.rowwise.source import ShardedDataSource


@final
@dataclass(frozen=True, slots=True)
class ResumeState:
    """The next row of a loop of your own; the state of a :class:`tokenlake.AsyncDataLoader` knows its shuffle, too.

    Attributes:
        shard_index: place of its shard in ``shard_names``.
        row_index: number of the row in it.
        epoch, step: counts of the loop.
        dataset_states: name to whatever else is to be kept, values of JSON.
    """

    shard_index: int = 0
    row_index: int = 0
    epoch: int = 0
    step: int = 0
    dataset_states: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def __post_init__(self) -> None:
        for name in ("shard_index", "row_index", "epoch", "step"):
            whole_number(name, getattr(self, name), 0)

    def rows(self, source: ShardedDataSource) -> Iterator[Row]:
        """Return the rows of a source from this one on; ConfigError where it has no such row."""
        return source.iter_shards(start_shard=self.shard_index, start_row=self.row_index)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the state that :meth:`to_dict` gave; ConfigError if it is none."""
        unknown = sorted(cast("Any", data).keys() - {each.name for each in fields(cls)})
        if unknown:
            raise ConfigError(f"no ResumeState: it has no {', '.join(unknown)}; give what to_dict returned")
        return cls(**data)
