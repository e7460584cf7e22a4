"""Rows to batches: a dict of arrays, one for each field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.sharded.fields import Row

Array = npt.NDArray[Any]
Batch = dict[str, Any]

_FILLED_WITH: Final = {
    "attention_mask": 0,
    "labels": -100,
    "segment_ids": 0,
    "position_ids": 0,
    "loss_mask": 0,
}
"""Last part of a field's name to what fills its rows up; ``input_ids`` are filled with the padding token."""


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """How rows of different lengths become one array.

    Attributes:
        pad_id: fills `input_ids`.
        side: where it goes.
    """

    pad_id: int
    side: Literal["left", "right"] = "right"


def batch_of(rows: Sequence[Row], filling: Filling | None = None) -> Batch:
    """Return n rows as a batch.

    Fields of tokens become arrays (n, longest): ids, masks, labels and segments int32 where they were lists and of
    their own type where they were arrays, `loss_mask` bool. Rows that are shorter than the longest are filled up, and
    where a `filling` is given the batch has an ``attention_mask`` in any case. Other numbers become arrays, of shape
    (n,) or (n, k); all else stays a list of n values.

    Raises:
        ConfigError: rows have different lengths and there is no `filling`.
        BadRecordError: rows have different fields.
    """
    names = list(rows[0])
    _check_fields(rows, names)
    batch: Batch = {}
    for name in names:
        batch[name] = _column(name, [row[name] for row in rows], filling)
        if name == "input_ids" and filling is not None and "attention_mask" not in names:
            batch["attention_mask"] = _mask([row[name] for row in rows], filling)
    return batch


def _column(name: str, values: list[Any], filling: Filling | None) -> Any:
    kind = _token_field(name)
    if kind is None:
        return _plain(values)
    rows = [_tokens(name, value, kind) for value in values]
    width = max(len(row) for row in rows)
    if any(len(row) < width for row in rows):
        return _filled(rows, width, _fill(name, kind, filling), filling)
    return np.stack(rows)


def _fill(name: str, kind: str, filling: Filling | None) -> int:
    if filling is None:
        raise ConfigError(
            f"{name!r}: the rows of a batch have different lengths; pack them, pad them "
            "(TokenizerConfig(padding=...)), or give the loader a pad_token_id, which fills them up to the longest of "
            "each batch"
        )
    return filling.pad_id if kind == "input_ids" else _FILLED_WITH[kind]


def _filled(rows: Sequence[Array], width: int, value: int, filling: Filling | None) -> Array:
    made = np.full((len(rows), width), value, rows[0].dtype)
    left = filling is not None and filling.side == "left"
    for place, row in enumerate(rows):
        made[place, width - len(row) if left else 0 : width if left else len(row)] = row
    return made


def _mask(values: list[Any], filling: Filling) -> Array:
    return _filled([np.ones(len(ids), np.int32) for ids in values], max(map(len, values)), 0, filling)


def _tokens(name: str, value: Any, kind: str) -> Array:
    """Return one row's values as an array of one dimension."""
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
    elif isinstance(value, list | tuple):
        array = np.array(value, np.bool_ if kind == "loss_mask" else np.int32)
    else:
        raise BadRecordError(f"the field {name!r} holds {type(value).__name__}, expected a list of ids")
    if array.ndim != 1:
        raise BadRecordError(
            f"the field {name!r} holds an array of shape {array.shape}, expected one dimension"
        )
    return array


def _token_field(name: str) -> str | None:
    """Return what a field holds of tokens, by the end of its name: ``chosen_input_ids`` are ids too."""
    return next(
        (kind for kind in ("input_ids", *_FILLED_WITH) if name == kind or name.endswith(f"_{kind}")), None
    )


def _plain(values: list[Any]) -> Any:
    """Return numbers, or arrays of numbers of one shape, as one array; anything else as it is."""
    if all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values):
        array = np.array(values)
        return array if array.dtype != object else values
    if all(isinstance(value, np.ndarray) for value in values) and len({value.shape for value in values}) == 1:
        return np.stack(values)
    return values


def _check_fields(rows: Sequence[Row], names: list[str]) -> None:
    expected = set(names)
    for row in rows:
        if row.keys() != expected:
            other = sorted(expected ^ row.keys())
            raise BadRecordError(
                f"rows of one batch have different fields: {', '.join(map(repr, other))} is in some of them alone; "
                "keep the same fields of all datasets (additional_fields), or drop it from all",
                reason="different_fields",
                fields=other,
            )
