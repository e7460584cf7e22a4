"""A transform applied to the numbered rows of a shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, final

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.sharded.fields import Row, Transform
from tokenlake.transforms.base import ChainedTransform, ExpandTransform

Numbered = Iterator[tuple[int, Row]]
Policy = Literal["fail", "quarantine"]


@final
class Applied:
    """What a transform makes of rows. All that it makes of a row has the row's number."""

    def __init__(self, transform: Transform | ExpandTransform, *, drops: bool, on_bad_record: Policy) -> None:
        """Take the transform.

        Args:
            drops: it may leave rows out.
            on_bad_record: ``quarantine`` leaves a row out that a BadRecordError is raised for.
        """
        if not isinstance(transform, ExpandTransform) and not callable(transform):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigError(f"transform: got {transform!r}, must be a function of a row")
        if on_bad_record not in ("fail", "quarantine"):
            raise ConfigError(f"on_bad_record: got {on_bad_record!r}, must be 'fail' or 'quarantine'")
        self._transform, self.drops, self._policy = transform, drops, on_bad_record

    @property
    def every_row(self) -> bool:
        """Whether exactly one row comes out of each."""
        return not self.drops and self._policy == "fail" and not self._expands

    @property
    def _expands(self) -> bool:
        if isinstance(self._transform, ChainedTransform):
            return any(isinstance(step, ExpandTransform) for step in self._transform.steps)
        return isinstance(self._transform, ExpandTransform)

    def rows(self, shard: str, rows: Numbered) -> Numbered:
        """Yield (number, row) for all that is made of `rows`.

        Raises:
            BadRecordError: a row cannot be used, and the policy is ``fail``.
            ConfigError: the transform made something that is no row.
        """
        for number, row in rows:
            try:
                made = self._made(row)
            except BadRecordError as error:
                if self._policy == "quarantine":
                    continue
                place = f"shard {shard!r}, row {number}"
                raise BadRecordError(f"{place}: {error}", **error.details, shard=shard, row=number) from error
            except Exception as error:
                error.add_note(f"raised by a transform of shard {shard!r}, row {number}")
                raise
            for result in made:
                if not isinstance(result, dict):
                    raise self._refused(shard, number, result)
                yield number, result

    def _made(self, row: Row) -> Sequence[Any]:
        if isinstance(self._transform, ChainedTransform | ExpandTransform):
            return self._transform.expand(row)
        result = self._transform(row)
        return () if result is None and self.drops else (result,)

    def _refused(self, shard: str, number: int, result: object) -> ConfigError:
        hint = " or None, which leaves the row out" if self.drops else "; `filter` leaves rows out"
        return ConfigError(
            f"shard {shard!r}, row {number}: a transform returned {type(result).__name__}, must be a dict{hint}",
            shard=shard,
            row=number,
        )
