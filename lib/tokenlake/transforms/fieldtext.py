"""The text of one field, as it is."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.transforms.rendering import Rendered

_ARROW: Final[Any] = pa


@final
class FieldText:
    """Renders the field `path` (dotted) of each row."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def control_tokens(self) -> bool:
        return False

    @property
    def columns(self) -> tuple[str, ...] | None:
        return None if "." in self._path else (self._path,)

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; a row without one is bad (``null_text``, ``not_a_string``)."""
        texts: list[str] = []
        origin: list[int] = []
        bad: list[tuple[int, Fault]] = []
        for index, value in enumerate(rows.values(self._path)):
            fault = self._fault(value)
            if fault is None:
                texts.append(value)
                origin.append(index)
            else:
                bad.append((index, fault))
        array = _ARROW.array(texts, pa.large_string())
        return Rendered(text=array, origin=np.array(origin, np.int64), bad=tuple(bad))

    def _fault(self, value: Any) -> Fault | None:
        if value is None:
            return Fault("null_text", f"the field {self._path!r} is missing or null")
        if not isinstance(value, str):
            return Fault(
                "not_a_string", f"the field {self._path!r} holds {type(value).__name__}, expected text"
            )
        try:
            value.encode()
        except UnicodeEncodeError:
            return Fault("invalid_utf8", f"the field {self._path!r} holds half of a surrogate pair")
        return None
