"""The rows of an export, and how they are divided into files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tokenlake.base.checks import whole_number
from tokenlake.base.sizes import MIB, parse_size
from tokenlake.errors import ConfigError
from tokenlake.etl.export.flat_manifest import FileFormat
from tokenlake.etl.export.shard_files import DEFAULT_NAMING
from tokenlake.etl.layouts import litdata, mds

MOST_SHARDS: Final = 100_000
"""Largest number of files of a split: by default their names have five digits."""

_SHARD_BYTES: Final = 500 * MIB
"""Largest size of a file of rows by default."""

_USUAL_BYTES: Final[dict[str, int | None]] = {
    "megatron": None,
    "numpy": None,
    "npy": None,
    "mds": mds.USUAL_SHARD_BYTES,
    "litdata": litdata.USUAL_CHUNK_BYTES,
}
"""Largest size of a file by default in some formats, as their own tools write them;
None: no limit.
"""


@final
@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Rows of an export and how they are divided into files.

    :func:`tokenlake.export_version` explains the options.

    Attributes:
        num_shards: Number of files of each split; None: as many as `max_shard_size`
            makes.
        max_shard_size: Largest size of a file.
        split: Name of the only split; None: all.
        source: Name of the only source; None: all.
        attention_mask: True for an attention mask.
        provenance: True for the columns that say which input each document comes from.
        naming: Names of the files.
        shard_column: Name of the column by whose values files are divided.
        dtype: Type of the ids in a format of trainers; None: the smallest.
        drop_loss_mask: True to leave out the loss mask in a format of trainers.
        append_eos: True to end each document with EOS in a format of trainers.
    """

    num_shards: int | None = None
    max_shard_size: int | str | None = None
    split: str | None = None
    source: str | None = None
    attention_mask: bool = True
    provenance: bool = False
    naming: str = DEFAULT_NAMING
    shard_column: str | None = None
    dtype: str | None = None
    drop_loss_mask: bool = False
    append_eos: bool = False

    def max_bytes(self, form: FileFormat) -> int | None:
        """Return the largest size of a file in bytes; None: no limit.

        ConfigError if a limit is no size or count.
        """
        return shard_bytes(self.max_shard_size, self.num_shards, form)


def shard_bytes(
    max_shard_size: int | str | None, num_shards: int | None, form: FileFormat
) -> int | None:
    """Check both limits of files, and return that of bytes; None: no limit.

    Args:
        max_shard_size: Largest size of a file; None: that of the format.
        num_shards: Number of files; None: not given.
        form: Format of the files.

    Raises:
        ConfigError: One of them is no size or count.
    """
    # A number of files decides alone: a usual size beside it would make more files.
    if num_shards is not None:
        whole_number("num_shards", num_shards, 1, MOST_SHARDS)
    if max_shard_size is None:
        if num_shards is not None:
            return None
        return _USUAL_BYTES.get(form.format, _SHARD_BYTES)
    try:
        return parse_size(max_shard_size)
    except ConfigError as error:
        raise ConfigError(f"max_shard_size: {error}") from error
