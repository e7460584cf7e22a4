"""The values of all columns of a prompt, and why rows cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.transforms.prompt.values import Values, values_of

Int64 = npt.NDArray[np.int64]
_COMPUTE: Final[Any] = pc


def judged_values(
    rows: Rows, columns: Sequence[str], *, optional: Iterable[str], label: str | None, pattern: str
) -> tuple[dict[str, Values], dict[int, Fault]]:
    """Return the values of `columns`, and the first fault of every row that has one.

    Args:
        optional: columns that may be null or missing.
        label: the answer's column, which may not be empty.
        pattern: of special tokens that a row may not spell; "" for none.
    """
    values: dict[str, Values] = {}
    faults: dict[int, Fault] = {}
    for column in columns:
        found = values[column] = values_of(rows, column, optional=column in optional)
        faults = found.faults | _spelled(column, found, pattern) | faults
    if label is not None:
        empty = np.flatnonzero(sizes_of(values[label].text) == 0).tolist()
        fault = Fault("empty_label", f"the column {label!r} is empty: there is no answer to learn")
        faults = dict.fromkeys(empty, fault) | faults
    return values, faults


def _spelled(column: str, values: Values, pattern: str) -> dict[int, Fault]:
    """Find the rows whose own value spells a special token."""
    if not pattern:
        return {}
    fault = Fault(
        "special_token_in_text",
        f"the column {column!r} spells out a special token, which would become a control token; take it out, or set "
        "special_tokens_in_text: encode to allow it",
    )
    matches = _COMPUTE.match_substring_regex(values.text, pattern)
    return dict.fromkeys(_COMPUTE.indices_nonzero(matches).to_pylist(), fault)


def sizes_of(text: Any) -> Int64:
    """int64[n], UTF-8 bytes of each text."""
    return _COMPUTE.binary_length(text).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
