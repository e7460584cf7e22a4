"""``tl.push_to_hub``: from the address of a dataset to its repository on the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from tokenlake.catalog import Catalog
from tokenlake.loader.opening import parted
from tokenlake.publish.push import SCANNED_ROWS, PushProgress, PushReport, push
from tokenlake.publish.repository import HubTarget
from tokenlake.storage import open_read_store


def push_to_hub(
    where: str | os.PathLike[str],
    repo: str,
    *,
    name: str | None = None,
    public: bool = False,
    revision: str = "main",
    message: str | None = None,
    token: str | None = None,
    dry_run: bool = False,
    scan_data: int = SCANNED_ROWS,
    strict: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[PushProgress], None] | None = None,
) -> PushReport:
    """Upload a committed version to a dataset repository of the Hugging Face Hub, private unless `public`.

    ::

        tl.push_to_hub("artifacts/llama2-2048", "our-org/llama2-2048")  # the newest version
        tl.push_to_hub("s3://bucket/artifacts/llama2-2048@v3", "our-org/llama2-2048", dry_run=True)

    The repository holds the manifest, the card, the configuration, the tokenizer, the shards and the ledger, each
    compared with the manifest before it is sent, in one commit that is tagged ``v3``. Pushing again what is there
    changes nothing; an interrupted push shows nothing, and goes on when it is run again.

    Args:
        where: the dataset, or one version of it, as :func:`tokenlake.open` takes it.
        repo: ``org/name``; created where there is none.
        name: of the dataset in the store `where`, as for :func:`tokenlake.open`.
        public: create a public repository, or push to one that is public. A private one stays private.
        revision: the branch.
        message: of the commit.
        token: with write access; None: ``HF_TOKEN``, then the saved login.
        dry_run: verify and search as much as the push would before it sends anything, and send nothing.
        scan_data: rows of each shard to decode and search for secrets; the texts are always searched whole.
        strict: refuse the push for what was found in rows, too.
        storage_options: for the store, as for :func:`tokenlake.open`.
        on_progress: called after each part.

    Raises:
        ConfigError: something looks like a secret, the repository is public, or the token may not write.
        IntegrityError: a file is not what the manifest says; nothing is visible.
        VersionConflictError: the repository holds something else.
        StoreError, SourceError: the Hub could not be reached; the same call goes on where this one ended.
        MissingExtraError: ``huggingface_hub`` is not installed.
    """
    target = HubTarget(repo, revision, token)
    place = os.fspath(where)
    if name is None:
        place, name = parted(place)
    store = open_read_store(place, storage_options=storage_options)
    dataset, version = Catalog(store).resolve(name)
    return push(
        store,
        dataset,
        version,
        target,
        public=public,
        message=message,
        dry_run=dry_run,
        scanned_rows=scan_data,
        strict=strict,
        on_progress=on_progress,
    )
