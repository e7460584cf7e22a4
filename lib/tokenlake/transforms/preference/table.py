"""Parts to the columns that a trainer reads."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.preferences import IGNORED, Part, TrainerColumn, columns_for
from tokenlake.ragged import Ragged, total_lengths
from tokenlake.schema import preference_fields
from tokenlake.transforms.preference.joining import Joined

_ARROW: Final[Any] = pa


def preference_batch(
    settings: ResolvedPreference,
    joined: Joined,
    label: npt.NDArray[np.bool_] | None,
    text: pa.LargeStringArray,
) -> pa.RecordBatch:
    """Return the rows of `joined` as the columns of the trainer of `settings`.

    Args:
        label: bool[n], of all documents that were joined; for judged answers.
        text: large_string, the first n of them; for prompts alone.
    """
    fields = preference_fields(settings.method, settings.trainer)
    arrays: list[Any] = []
    for column, kind in zip(columns_for(settings.method, settings.trainer), fields, strict=True):
        if column.holds == "label":
            assert label is not None
            arrays.append(_ARROW.array(label[joined.origin]))
        elif column.holds == "text":
            arrays.append(text.take(_ARROW.array(joined.origin)))
        else:
            arrays.append(_lists(_runs(column, joined.parts), kind.type))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=_ARROW.schema(fields))


def _runs(column: TrainerColumn, parts: dict[Part, Ragged]) -> Ragged:
    runs = [parts[part] for part in column.parts]
    if column.holds == "labels":
        runs = [*(Ragged.filled(IGNORED, run.lengths) for run in runs[:-1]), runs[-1]]
    if column.holds == "mask":
        return Ragged.filled(1, total_lengths(runs))
    return Ragged.joined(runs)


def _lists(runs: Ragged, kind: Any) -> Any:
    values = _ARROW.array(runs.ids.astype(kind.value_type.to_pandas_dtype(), copy=False))
    return pa.ListArray.from_arrays(_ARROW.array(runs.offsets.astype(np.int32)), values, type=kind)
