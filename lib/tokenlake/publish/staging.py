"""Shards on their way out: copied to this machine a few at a time, and compared with the manifest before they leave.

What is sent is the copy that was compared, so that a store that changes underneath cannot change what is published.
Each group is gone before the next one comes: the disk holds at most a group.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tokenlake.errors import StoreError
from tokenlake.publish.files import Content
from tokenlake.reading.verified import require_same
from tokenlake.storage import Layout, ReadStore

GROUP_BYTES: Final = 1 << 30
GROUP_FILES: Final = 16


def groups_of(shards: Sequence[Content]) -> Iterator[list[Content]]:
    """Yield the shards in order, in groups of at most 16 files and, unless it is one file, 1 GiB."""
    group: list[Content] = []
    for shard in shards:
        full = len(group) == GROUP_FILES or sum(s.bytes for s in group) + shard.bytes > GROUP_BYTES
        if group and full:
            yield group
            group = []
        group.append(shard)
    if group:
        yield group


@contextmanager
def staged(
    store: ReadStore, layout: Layout, group: Sequence[Content]
) -> Generator[list[tuple[Content, Path]]]:
    """Copy a group of shards to temporary files, compared with the manifest, for the ``with`` block.

    Raises:
        NotFoundError: a shard is missing.
        IntegrityError: a shard is not what the manifest says.
        StoreError: it cannot be copied; the temporary folder is full, perhaps.
    """
    with tempfile.TemporaryDirectory(prefix="tokenlake-push-") as folder:
        yield [
            (shard, _copied(store, layout, shard, Path(folder) / f"{n}.parquet"))
            for n, shard in enumerate(group)
        ]


def _copied(store: ReadStore, layout: Layout, shard: Content, path: Path) -> Path:
    key = layout.key(shard.path)
    try:
        got = store.download(key, path)
    except OSError as error:
        raise StoreError(
            f"cannot keep a copy of {key}, {shard.bytes} bytes, in {tempfile.gettempdir()}: {error.strerror}; set "
            "TMPDIR to a folder with more room"
        ) from error
    require_same(key, shard.sha256, got.sha256)
    return path
