"""Documents that are to be left out (takedowns), by their identities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.sources.inputs import InputFile


def load_excluded(source: ResolvedSource, files: Iterable[InputFile]) -> dict[int, list[int]]:
    """`exclude`'s positions for the files of this source, sorted."""
    if source.exclude is None:
        return {}
    try:
        table = pq.read_table(source.exclude, columns=["file", "position"])
    except FileNotFoundError:
        raise ConfigError(
            f"dataset {source.name!r}: exclude file {source.exclude!r} does not exist"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"dataset {source.name!r}: exclude file {source.exclude!r} is not a Parquet with int64 columns `file` "
            f"and `position`, as `documents` has them: {error}"
        ) from error
    known = {file.file_id for file in files}
    found: dict[int, set[int]] = {}
    pairs: Any = zip(table["file"].to_pylist(), table["position"].to_pylist(), strict=True)
    for file, position in pairs:
        if file in known and position is not None:
            found.setdefault(file, set()).add(position)
    return {file: sorted(positions) for file, positions in found.items()}
