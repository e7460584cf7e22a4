"""What rows must be besides being readable: of the types that a manifest says, of as many values as a footer says.

Pages have checksums; their headers and the footer have none, and Arrow believes both. A flipped bit there makes other
types of the same bytes, or leaves the last values of a list out, and everything still looks like rows. So both are
compared with what is known from elsewhere: types with the manifest, numbers of values with each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrowvalues import values
from tokenlake.columntypes import arrow_type
from tokenlake.manifest import Manifest
from tokenlake.schema import packed_schema, preference_schema, tokens_schema


def stored_schema(manifest: Manifest) -> pa.Schema:
    """Return the columns that shards of a version have; there may be others, of which nothing is known."""
    build = manifest.config.get("build", {})
    names = {name for shard in manifest.files for name in shard.logical}
    kept = tuple((name, arrow_type(kind)) for name, kind in build.get("kept", ()))
    if manifest.preference is not None:
        return preference_schema(*manifest.preference, kept)
    masked = "loss_mask" in names
    if manifest.seq_length is not None:
        pieces = "segment_ids" in names
        return packed_schema(manifest.seq_length, store_segment_ids=pieces, loss_mask=masked)
    return tokens_schema(loss_mask=masked, attention_mask=bool(build.get("attention_mask")), kept=kept)


def check_types(schema: pa.Schema, expected: pa.Schema) -> None:
    """Raise ValueError where a column has another type than the manifest says, or may hold nulls."""
    for name in expected.names:
        at = schema.get_field_index(name)
        if at < 0:
            continue
        got, wanted = schema.field(at), expected.field(name)
        if got.type != wanted.type or (got.nullable and not wanted.nullable):
            raise ValueError(f"{name} is {_shown(got)}; expected {_shown(wanted)}, by the manifest")


def check_values(batch: pa.RecordBatch, expected: npt.NDArray[np.int64]) -> None:
    """Raise ValueError unless the columns of a whole row group hold as many values as its footer says.

    Args:
        expected: for each leaf of the schema; an empty list, and a null, is one value.
    """
    columns: list[Any] = batch.columns
    found = [count for column in columns for count in _leaves(column, 0)]
    if found != expected.tolist():
        raise ValueError(f"columns of {found} values; expected {expected.tolist()}, as the footer says")


def _leaves(array: Any, above: int) -> list[int]:
    """Return how many values each leaf below an array has, `above` of them being empty lists or nulls above it."""
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        children = map(array.field, range(kind.num_fields))
        return [count for child in children for count in _leaves(child, above)]
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        empty = len(array) if not size else array.null_count
        return _leaves(array.flatten(), above + empty)
    if types.is_list(kind) or types.is_large_list(kind):
        empty = int(np.count_nonzero(np.diff(values(array.offsets)) == 0))
        return _leaves(array.flatten(), above + empty)
    return [len(array) + above]


def _shown(field: Any) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"
