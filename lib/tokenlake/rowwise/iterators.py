"""Loops of one's own: batches of any iterable, arrays of them on devices, and where a loop stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from typing import Any, Final, Generic, Literal, Self, TypeVar, cast, final

from tokenlake.config.values import expected, whole_number
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.loader.read_ahead import Prefetched
from tokenlake.rowwise.batches import Arrays, Filling, batch_of
from tokenlake.rowwise.loader import AsyncDataLoader, RowPlacement
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
            raise ConfigError(
                f"not a ResumeState: it has no field {', '.join(unknown)}; give what to_dict returned"
            )
        return cls(**data)


Item = TypeVar("Item")

_SHUFFLED: Final = 10_000  # rows of a buffer whose size nobody says


def collate_batch(
    examples: Sequence[Row], pad_token_id: int | None = None, padding_side: Literal["left", "right"] = "right"
) -> Arrays:
    """Return rows as a batch; see :func:`tokenlake.rowwise.batches.batch_of` for the types.

    Args:
        examples: at least one row.
        pad_token_id: rows of different lengths are filled up with it to the longest; None: they are an error.
        padding_side: where it goes.

    Raises:
        ConfigError, BadRecordError: rows have different lengths or fields.
    """
    if not examples:
        raise ConfigError("examples: got none, expected at least one row")
    return batch_of(examples, None if pad_token_id is None else Filling(pad_token_id, padding_side))


def batch_iterator(
    source: Iterable[Row], batch_size: int, drop_last: bool = True, **padding: Any
) -> Iterator[Arrays]:
    """Return the batches of rows, in order.

    Args:
        source: rows.
        batch_size: rows of a batch.
        drop_last: leave out a last batch of fewer rows.
        padding: `pad_token_id` and `padding_side` of :func:`collate_batch`.
    """
    whole_number("batch_size", batch_size, 1)

    def batches() -> Iterator[Arrays]:
        rows = iter(source)
        while len(some := list(islice(rows, batch_size))) >= (batch_size if drop_last else 1):
            yield collate_batch(some, **padding)

    return batches()


@final
class PrefetchIterator(Generic[Item]):
    """The items of an iterable, which threads run ahead of; they end with it, and when it is closed or forgotten."""

    def __init__(
        self,
        source: Iterable[Any],
        buffer_size: int = 4,
        num_workers: int = 2,
        make: Callable[[Any], Item] | None = None,
    ) -> None:
        """Start no thread yet.

        Args:
            source: one thread at a time draws from it.
            buffer_size: items that are ready ahead, at most.
            num_workers: threads, which run `make` side by side.
            make: function of an item whose result takes its place; None: items as they are.
        """
        workers, ahead = (
            whole_number("num_workers", num_workers, 1),
            whole_number("buffer_size", buffer_size, 1),
        )
        self._items: Prefetched[Any, Item] = Prefetched(
            iter(source), make or _same, workers=workers, ahead=ahead
        )

    def __iter__(self) -> PrefetchIterator[Item]:
        return self

    def __next__(self) -> Item:
        """Return the next item; whatever a thread raised is raised here, in its place."""
        return next(self._items)

    def close(self) -> None:
        """End the threads; nothing more comes."""
        self._items.close()


def create_data_iterator(
    dataset: Any,
    batch_size: int,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch: bool = True,
    prefetch_workers: int = 2,
    prefetch_buffer: int = 4,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    **padding: Any,
) -> Iterator[Arrays]:
    """Return one epoch of batches; :class:`tokenlake.AsyncDataLoader` has more, such as a state to go on from.

    Args:
        dataset: whatever an AsyncDataLoader takes.
        shuffle: draw rows at random from a buffer of `shuffle_buffer` rows; None: 10,000.
        prefetch, prefetch_workers, prefetch_buffer: whether threads prepare batches, how many, and how far ahead.
        padding: `pad_token_id`, `padding_side`, `sharding` and the other keywords of an AsyncDataLoader.
    """
    if shuffle_buffer is not None and not shuffle:
        raise ConfigError("shuffle_buffer: set, but shuffle is False; leave one of them out")
    buffer = (shuffle_buffer or _SHUFFLED) if shuffle else None
    ahead = (prefetch, prefetch_workers, prefetch_buffer)
    return iter(AsyncDataLoader(dataset, batch_size, *ahead, buffer, drop_last, seed, **padding))


def preshard_batch(batch: Arrays, sharding_map: Mapping[str, Any] | None) -> Arrays:
    """Return a batch with some of its fields on devices.

    Args:
        batch: the same on every host; fields on devices are arrays (rows, ids).
        sharding_map: field to its ``jax.sharding.Sharding``; other fields stay as they are. None: all do.

    Raises:
        ConfigError: a field is missing or is no such array, or its sharding cannot cut it.
        MissingExtraError: jax is not installed.
    """
    placed = dict(batch)
    for name, sharding in (sharding_map or {}).items():
        if name not in batch:
            raise ConfigError(f"sharding_map: the batch has no field {name!r}; it has {', '.join(batch)}")
        placed[name] = RowPlacement(sharding, len(batch[name])).array(name, batch[name])
    return placed


@final
@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """Where the fields of batches go on a mesh.

    Attributes:
        mesh: a ``jax.sharding.Mesh``; None: nowhere.
        partition_specs: field to its ``PartitionSpec``; other fields stay arrays of numpy.
    """

    mesh: Any = None
    partition_specs: Mapping[str, Any] = field(default_factory=cast("Callable[[], dict[str, Any]]", dict))

    def __post_init__(self) -> None:
        if self.mesh is None and self.partition_specs:
            raise expected("mesh", None, "a jax.sharding.Mesh, where there are partition_specs")

    def apply(self, batch: Arrays) -> Arrays:
        """Return a batch with its fields in their places; errors as :func:`preshard_batch`."""
        if self.mesh is None:
            return dict(batch)
        try:
            from jax.sharding import NamedSharding
        except ImportError as error:
            raise MissingExtraError("arrays on a mesh need jax: pip install 'tokenlake[jax]'") from error
        named = {name: NamedSharding(self.mesh, spec) for name, spec in self.partition_specs.items()}
        return preshard_batch(batch, named)


def _same(item: Any) -> Any:
    return item
