"""Contents of a version: uploaded in groups, then made visible by one commit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenlake.errors import IntegrityError, StoreError, VersionConflictError
from tokenlake.etl.publish.files import Published, PublishedFile
from tokenlake.etl.publish.push_report import PushProgress
from tokenlake.etl.publish.repository import HubRepository, HubState
from tokenlake.runtime.reading.file_hashes import require_same
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.layout import Layout

GROUP_BYTES: Final = 1 << 30
GROUP_FILES: Final = 16
"""Limits of a group of shards, whose copies are on this machine at the same time."""

_SHOWN_PATHS: Final = 5  # in the text of an error


def groups_of(shards: Sequence[PublishedFile]) -> Iterator[list[PublishedFile]]:
    """Yield the shards in order, in groups of at most 16 files and 1 GiB.

    A shard that is larger than that is a group of its own.
    """
    group: list[PublishedFile] = []
    group_bytes = 0
    for shard in shards:
        is_full = len(group) == GROUP_FILES or group_bytes + shard.bytes > GROUP_BYTES
        if group and is_full:
            yield group
            group = []
            group_bytes = 0
        group.append(shard)
        group_bytes += shard.bytes
    if group:
        yield group


def upload_contents(
    store: ReadStore,
    version: Published,
    hub: HubRepository,
    on_progress: Callable[[PushProgress], None],
) -> list[Any]:
    """Upload all contents, and return the additions of a commit.

    The contents are not visible yet.

    Args:
        store: Store that holds the version.
        version: Version to upload.
        hub: Client of the repository.
        on_progress: Function that is called after each group.

    Raises:
        NotFoundError: A shard is missing.
        IntegrityError: The bytes of a shard differ from its hash in the manifest.
        StoreError: A shard cannot be copied; the temporary folder may be full.
    """
    # Shards go first, in groups: each is copied to this machine and compared with its
    # hash while it is copied.
    sent_bytes = 0
    additions: list[Any] = []
    for group in groups_of(version.shards):
        with tempfile.TemporaryDirectory(prefix="tokenlake-push-") as folder:
            copies: list[tuple[PublishedFile, Path | None]] = []
            for shard_index, shard in enumerate(group):
                copy_path = Path(folder, f"{shard_index}.parquet")
                _copy_verified(store, version.layout, shard, copy_path)
                copies.append((shard, copy_path))
            additions += hub.upload(copies)
        sent_bytes += sum(shard.bytes for shard in group)
        on_progress(PushProgress(sent_bytes, version.bytes))

    # Cards, manifests and tokenizers are small and in memory.
    additions += hub.upload([(text_file, None) for text_file in version.texts])
    on_progress(PushProgress(version.bytes, version.bytes))
    return additions


def _copy_verified(
    store: ReadStore, layout: Layout, shard: PublishedFile, path: Path
) -> None:
    """Copy a shard to this machine and compare its hash."""
    key = layout.key(shard.path)
    try:
        copied = store.download(key, path)
    except OSError as error:
        raise StoreError(
            f"cannot store a copy of {key}, {shard.bytes} bytes, in {tempfile.gettempdir()}: {error.strerror}; set "
            "TMPDIR to a folder with more space"
        ) from error
    require_same(layout, shard.path, shard.sha256, copied.sha256)


def commit_all(
    hub: HubRepository,
    state: HubState,
    deleted: Sequence[str],
    message: tuple[str, str],
    send: Callable[[], list[Any]],
    differing: Callable[[Mapping[str, Any]], list[str]],
) -> str:
    """Upload everything and commit it on top of a known state; return the commit.

    Args:
        hub: Client of the repository.
        state: State of the repository before the upload.
        deleted: Paths to remove.
        message: Summary and description of the commit.
        send: Function that uploads all contents and returns the additions.
        differing: Function from a repository's files to the paths that differ from the
            uploaded ones.

    Raises:
        StoreError: The Hub could not be reached. Nothing is visible.
        VersionConflictError: The branch has a newer commit. Nothing is visible.
        IntegrityError: The committed files differ from the uploaded ones.
    """
    # 1. The commit goes on top of the branch as it is before the upload.
    if state.head is None:
        hub.create_branch(state.main)
    parent = state.head or hub.head()

    # 2. Upload, then commit. After an error the commit may exist: only the answer was
    #    lost.
    additions = send()
    try:
        hub.commit(additions, deleted, *message, parent)
    except (StoreError, VersionConflictError):
        if differing(hub.files(hub.head())):
            raise

    # 3. The repository must list exactly the uploaded files.
    head = hub.head()
    wrong_paths = differing(hub.files(head))
    if wrong_paths:
        raise IntegrityError(
            f"{hub.repo} at {head}: {', '.join(wrong_paths[:_SHOWN_PATHS])} on the Hub differ from the uploaded "
            "files; the commit was not tagged. Somebody pushed at the same moment, or the Hub has a fault: check "
            "the repository, and push again"
        )
    return head
