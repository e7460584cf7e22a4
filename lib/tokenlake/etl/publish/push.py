"""Push of a committed version to the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tokenlake.etl.publish.decision import Decision, decide
from tokenlake.etl.publish.detector import Detector
from tokenlake.etl.publish.files import Published
from tokenlake.etl.publish.push_report import Outcome, PushProgress, PushReport
from tokenlake.etl.publish.repository import HubRepository, HubState
from tokenlake.etl.publish.secret_scan import (
    SecretFinding,
    require_none,
    scan_footers,
    scan_rows,
    scan_texts,
)
from tokenlake.etl.publish.upload import commit_all, upload_contents
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, parted

SCANNED_ROWS: Final = 8
"""Default number of rows of each shard that are decoded and searched for secrets."""

# Decision -> outcome of a push, and of a dry run.
_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "nothing": "unchanged",
    "tag": "tagged",
    "commit": "pushed",
}
_DRY_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "nothing": "unchanged",
    "tag": "would tag",
    "commit": "would push",
}


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
    """Upload a committed version to a dataset repository of the Hugging Face Hub.

    A new repository is private unless `public` is True.

    The repository holds the manifest, the card, the configuration, the tokenizer, the
    shards and the ledger. Each file is compared with the manifest before it is sent,
    and one commit, tagged ``v3``, makes all of them visible. A second push of the same
    version changes nothing. An interrupted push shows nothing, and the same call
    resumes it.

    Args:
        where: Dataset or version, as for :func:`tokenlake.open`.
        repo: Repository, as ``org/name``; created if it does not exist.
        name: Name of the dataset in the store `where`, as for :func:`tokenlake.open`.
        public: True to create a public repository, or to push to a public one. A
            private one stays private.
        revision: Branch.
        message: Summary of the commit; None: the version's name.
        token: Token with write access; None: ``HF_TOKEN``, then the saved login.
        dry_run: True to verify and search like a push, and to send nothing.
        scan_data: Number of rows of each shard to decode and search for secrets. Texts
            are always searched whole.
        strict: True to refuse the push for a possible secret in rows, too.
        storage_options: Options of the store, as for :func:`tokenlake.open`.
        on_progress: Function that is called after each group of files.

    Returns:
        Outcome of the push, with the address of the repository and its commit.

    Raises:
        ConfigError: A possible secret was found, the repository is public, or the token
            may not write.
        IntegrityError: A file differs from its hash in the manifest; nothing is
            visible.
        VersionConflictError: The repository holds other files.
        StoreError: The Hub could not be reached; the same call resumes the push.
        SourceError: The Hub could not be reached; the same call resumes the push.
        MissingExtraError: ``huggingface_hub`` is not installed.

    Example:
        >>> import tokenlake as tl
        >>> def push(repo: str) -> None:
        ...     tl.push_to_hub("artifacts/books@v3", repo, dry_run=True)  # verifies and searches for secrets only
        ...     tl.push_to_hub("artifacts/books@v3", repo)  # "our-org/books", created as a private repository
    """
    # 1. Compare the version with the repository.
    place, name = parted(where, name)
    store = open_read_store(place, storage_options=storage_options)
    version = Published.read(store, *Catalog(store).resolve(name))
    hub = HubRepository(repo, revision, token, look=dry_run)
    first_state = hub.state()
    state = first_state
    decision = decide(version, hub, state, public=public)

    # 2. Search for secrets before anything is sent: a commit that was public for a
    #    moment may have been copied.
    scanned_rows = 0
    findings: list[SecretFinding] = []
    if decision.todo == "commit":
        scanned_rows, findings = _scan(store, version, scan_data)
        if strict:
            require_none(findings, "its rows hold")

    # 3. Send, commit and tag. Somebody else may have created the repository meanwhile,
    #    so that the decision is made again for the state that it really has.
    if not dry_run:
        if state is None:
            state = hub.created(public=public)
            decision = decide(version, hub, state, public=public)
        decision = _publish(store, version, hub, state, decision, message, on_progress)

    # 4. Report. Without a token a private repository looks as if it did not exist.
    was_created: bool | None = None
    if hub.with_token or first_state is not None:
        was_created = first_state is None
    is_private = not public
    if state is not None:
        is_private = state.private
    outcomes = _OUTCOMES
    if dry_run:
        outcomes = _DRY_OUTCOMES
    return PushReport(
        outcome=outcomes[decision.todo],
        dataset=version.layout.dataset,
        version=version.layout.version,
        repo=repo,
        url=hub.url,
        branch=revision,
        tag=decision.tag,
        commit=decision.commit,
        created=was_created,
        private=is_private,
        files=len(version.files),
        bytes=version.bytes,
        deleted=decision.deleted,
        left_out=version.left_out,
        scanned_rows=scanned_rows,
        findings=tuple(findings),
    )


def _scan(
    store: ReadStore, version: Published, rows_per_shard: int
) -> tuple[int, list[SecretFinding]]:
    """Refuse secrets in texts and metadata, and search rows.

    Returns:
        Number of searched rows, and their findings.
    """
    detector = Detector(os.environ)
    require_none(scan_texts(version.texts, detector), "the version's files hold")
    require_none(scan_footers(store, version, detector), "its Parquet metadata holds")
    return scan_rows(store, version.manifest, rows_per_shard, detector)


def _publish(
    store: ReadStore,
    version: Published,
    hub: HubRepository,
    state: HubState,
    decision: Decision,
    message: str | None,
    on_progress: Callable[[PushProgress], None] | None,
) -> Decision:
    """Commit and tag a version as decided; return the decision with its commit."""
    # The commit names the hash of the manifest, by which a reader can check a copy.
    digest = version.manifest.sha256
    if decision.todo == "commit":
        commit_message = (
            message or version.name,
            f"Manifest sha256:{digest}, pushed by tokenlake.",
        )
        send = partial(upload_contents, store, version, hub, on_progress or _ignore)
        commit = commit_all(
            hub, state, decision.deleted, commit_message, send, version.differing
        )
        decision = replace(decision, commit=commit)
    if decision.todo != "nothing" and decision.commit is not None:
        hub.tag(decision.tag, decision.commit, f"manifest sha256:{digest}")
    return decision


def _ignore(progress: PushProgress) -> None:
    """Ignore the progress of a push: the caller wants none."""
