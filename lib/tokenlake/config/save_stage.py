"""Where results go: the store of a build, or the flat directory of the row-wise API."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.secret import Options, Secret
from tokenlake.config.section import Section
from tokenlake.config.sizes import MIB
from tokenlake.config.values import Count, Path, Size, Switch, Text


class SaveStageConfig(Section):
    """Section `save`."""

    hidden_values = frozenset({"hub_token", "storage_options"})

    enabled: Switch = False
    """Have the row-wise API write files; not used by a build, which always writes its store."""

    output_dir: Path | None = None
    """Store of a build, a path or s3:// or gs://; null: $TOKENLAKE_STORE, else ./artifacts (row-wise API: ./output)."""

    storage_options: Options | None = None
    """Options of the store's file system; credentials as {env: NAME}; null: $TOKENLAKE_STORE_OPTIONS."""

    format: Literal["parquet", "arrow", "jsonl"] = "parquet"
    """Format of the files."""

    num_shards: Count | None = None
    """Exactly this many files for each split, whatever `max_shard_size` says; null: as many as that makes."""

    compression: Literal["none", "gzip", "lz4", "zstd"] | None = None
    """Compression of the files; null: zstd in Parquet, else none."""

    max_shard_size: Size = 500 * MIB
    """A file ends at the first row group past this size; with `num_shards` no file is ended by its size."""

    overwrite: Switch = False
    """Let the row-wise API replace what is in `output_dir`; a build never overwrites, it adds a version."""

    push_to_hub: Switch = False
    """Upload the result to the Hugging Face Hub."""

    hub_repo_id: Text | None = None
    """Repository on the Hub, org/name; acts with `push_to_hub`."""

    hub_private: Switch = True
    """Create the repository as a private one; acts with `push_to_hub`."""

    hub_token: Secret | None = None
    """Token for the Hub; acts with `push_to_hub`. In files {env: NAME} or {block: NAME}, never the token."""
