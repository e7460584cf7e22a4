"""How much came out of a stage: rows, tokens and seconds, counted while rows are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any, TypeVar, final

Item = TypeVar("Item")


@final
class RowMeter:
    """Counts the rows that are drawn from the sources of a stage.

    Attributes:
        rows: drawn so far, over all passes.
        tokens: ids in the field ``input_ids`` of these rows.
        seconds: spent in drawing them, the stages before this one included.
    """

    def __init__(self) -> None:
        self.rows = self.tokens = 0
        self.seconds = 0.0

    def counted(self, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Any]]:
        """Yield numbered rows as they are, and count them."""
        while True:
            pair = self.timed(rows)
            if pair is None:
                return
            self.rows += 1
            ids: Any = pair[1].get("input_ids")
            self.tokens += len(ids) if hasattr(ids, "__len__") else 0
            yield pair

    def timed(self, items: Iterator[Item]) -> Item | None:
        """Return the next item, None after the last one."""
        begin = perf_counter()
        try:
            return next(items, None)
        finally:
            self.seconds += perf_counter() - begin

    def figures(self) -> dict[str, Any]:
        """Return ``rows``, ``tokens`` and ``seconds``."""
        return dict(vars(self))
