"""``tokenlake export``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenlake import numbers
from tokenlake.cli.console import AsJson, Name, StoreUrl, emit
from tokenlake.config.stores import default_store
from tokenlake.export.manifest import WriteStats
from tokenlake.export.version import export_version
from tokenlake.reports.terminal import near, stdout


def export(
    name: Name,
    target: Annotated[str, Parameter(name="TARGET")],
    /,
    *,
    format: Literal["parquet", "arrow", "jsonl"] = "parquet",
    compression: Literal["none", "gzip", "lz4", "zstd"] | None = None,
    num_shards: Annotated[int | None, Parameter(metavar="N")] = None,
    max_shard_size: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    split: str | None = None,
    source: str | None = None,
    provenance: bool = False,
    shard_column: Annotated[str | None, Parameter(metavar="FIELD")] = None,
    overwrite: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Write a version as a folder of data files that any tool reads.

    Every page is compared with its checksum on the way. The folder appears when it is whole, with a manifest, the
    configuration and the tokenizer in `_tokenlake/`. A folder that holds this export already is left as it is.

    Args:
        target: The folder: a path, s3://bucket/folder or gs://bucket/folder.
        format: Format of the files. Default: parquet.
        compression: Compression of the files. Default: zstd in Parquet, else none.
        num_shards: Write exactly this many files of each split.
        max_shard_size: Bytes of a file at most, such as 100MB. Default: 500MB.
        split: Write this split alone.
        source: Write the rows of this source alone.
        provenance: Keep the columns that say which input each document comes from.
        shard_column: A kept field; each of its values, at most 256, has files of its own.
        overwrite: Replace the data files of a folder that is not empty.
    """
    stats = export_version(
        store or default_store(),
        target,
        format,
        compression,
        num_shards,
        max_shard_size,
        name=name,
        split=split,
        source=source,
        overwrite=overwrite,
        provenance=provenance,
        shard_column=shard_column,
    )
    emit(asdict(stats), json, lambda: stdout().print(_told(stats, target)))
    return 0


def _told(stats: WriteStats, target: str) -> str:
    files = f"{numbers.plural(stats.num_shards, 'file')}, {numbers.size(stats.total_bytes)}"
    return f"{numbers.plural(stats.num_examples, 'row')} in {near(target)}: {files}"
