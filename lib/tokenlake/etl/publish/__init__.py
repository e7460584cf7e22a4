"""Publishing a version: looked at first, sent in parts that nobody sees, made visible by one commit, then named.

::

    what is there?  ->  nothing to do | only the tag is missing | a commit is missing
    secrets?        ->  any in texts or metadata: refused
    contents        ->  shards in groups, each compared with the manifest and uploaded
    commit          ->  all files at once, on top of what was looked at; then listed and compared
    tag             ->  v3, the name under which `revision="v3"` finds it

Interrupted at any point nothing is visible, and the same command sends what is missing. Shards are copied to this
machine a group at a time, so that the disk holds no more; what is sent is the copy that was compared, so that a store
that changes underneath cannot change what is published.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, final

from tokenlake.errors import ConfigError, IntegrityError, StoreError, VersionConflictError
from tokenlake.etl.publish.files import (
    Detector,
    Published,
    PublishedFile,
    SecretFinding,
    is_ours,
    require_none,
    scan_footers,
    scan_rows,
    scan_texts,
)
from tokenlake.etl.publish.repository import HubRepository, HubState
from tokenlake.runtime.reading.file_hashes import require_same
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.layout import CARD, MANIFEST
from tokenlake.runtime.store.manifest import Manifest

_SHOWN: Final = 5
_MANIFEST_LIMIT: Final = 1 << 30  # bytes


@final
@dataclass(frozen=True)
class Decision:
    """What there is to do.

    Attributes:
        todo: ``tag``: a commit holds the version already.
        tag: the version's name in the repository.
        commit: the one that holds the version, where there is one.
        deleted: what the branch's version has and this one has not.
    """

    todo: Literal["nothing", "tag", "commit"]
    tag: str
    commit: str | None = None
    deleted: tuple[str, ...] = ()


def decide(version: Published, hub: HubRepository, state: HubState | None, *, public: bool) -> Decision:
    """Compare a version with what a repository holds.

    Raises:
        ConfigError: the repository is public and must not be; its branch holds a newer version, or another dataset.
        VersionConflictError: the version's number is taken by other bytes, or files of somebody else are in the way.
    """
    tag = f"v{version.layout.version}"
    if state is None:
        return Decision("commit", tag)
    if not public:
        hub.require_private(state, version.name, "give --public")
    if (commit := state.tags.get(tag)) is not None:
        if not (wrong := version.differing(hub.files(commit))):
            return Decision("nothing", tag, commit)
        raise VersionConflictError(
            f"{hub.repo} has a {tag} already, and it is not {version.name} of this store: {_some(wrong)} "
            "differ. A version never changes: push to another repository, or remove the tag there if it should not be",
            repo=hub.repo,
            tag=tag,
            differing=wrong[:100],
        )
    if state.head is None and state.main is None:
        return Decision("commit", tag)
    # A branch that is not there yet begins as main is.
    files = hub.files(state.head or state.main or "")
    if state.head is not None and not version.differing(files):
        return Decision("tag", tag, state.head)
    return Decision("commit", tag, deleted=_replaced(version, hub, state, files))


def _replaced(
    version: Published, hub: HubRepository, state: HubState, files: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the paths of the version on the branch that this one has not."""
    commit = state.head or state.main or ""
    older: Manifest | None = None
    if MANIFEST in files and files[MANIFEST].size <= _MANIFEST_LIMIT:
        with suppress(IntegrityError):  # somebody else's file of this name
            older = Manifest.from_bytes(hub.read(commit, MANIFEST), f"{hub.repo}: {MANIFEST}")
    known = {CARD} if older is None else {MANIFEST, *(f.path for f in older.files), *older.other_files}
    strangers = sorted(path for path in files if is_ours(path) and path not in known)
    if strangers:
        raise VersionConflictError(
            f"{hub.repo} ({hub.branch}) holds {_some(strangers)}, which tokenlake did not push; readers "
            "would take them for the version's. Remove them there, or push to a repository of its own",
            repo=hub.repo,
            files=strangers[:100],
        )
    begun = hub.branch != "main" and commit == state.main  # a branch that holds nothing of its own yet
    place = f"{hub.repo} ({hub.branch})"
    if older is not None and older.dataset != version.layout.dataset:
        raise ConfigError(
            f"{place} holds {older.dataset} v{older.version}, not a version of {version.layout.dataset}; a "
            "repository is for one dataset: push to another one"
        )
    if older is not None and not begun and older.version > version.layout.version:
        raise ConfigError(
            f"{place} holds v{older.version}, which is newer than {version.name}; to publish the older one "
            f"beside it give it a branch of its own: --revision only-v{version.layout.version}"
        )
    wanted = {file.path for file in version.files}
    return tuple(sorted(path for path in files if is_ours(path) and path not in wanted))


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


GROUP_BYTES: Final = 1 << 30
GROUP_FILES: Final = 16


def groups_of(shards: Sequence[PublishedFile]) -> Iterator[list[PublishedFile]]:
    """Yield the shards in order, in groups of at most 16 files and, unless it is one file, 1 GiB."""
    group: list[PublishedFile] = []
    for shard in shards:
        full = len(group) == GROUP_FILES or sum(s.bytes for s in group) + shard.bytes > GROUP_BYTES
        if group and full:
            yield group
            group = []
        group.append(shard)
    if group:
        yield group


SCANNED_ROWS: Final = 8
"""Rows of each shard that are decoded and searched for secrets, if nothing else is said."""

Outcome: TypeAlias = Literal["pushed", "tagged", "unchanged", "would push", "would tag"]


@final
@dataclass(frozen=True, slots=True)
class PushProgress:
    """How far a push is; bytes that the Hub had already count as well."""

    bytes: int
    bytes_total: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """What a push did, or would do.

    Attributes:
        outcome: ``pushed``; ``tagged``: all was there but the tag; ``unchanged``: all was there; after a dry run
            ``would push`` or ``would tag``.
        commit: of the repository; None after a dry run that would make one.
        created: whether the repository is new; None after a dry run without a token that found none.
        private: whether only those with access see it.
        files, bytes: of the version as it is published.
        deleted: files of the version that was on the branch, which this one does not have.
        left_out: files that the manifest lists and that are not published.
        scanned_rows: rows that were decoded and searched.
        findings: what looks like a secret in them; nothing else is tolerated.
    """

    outcome: Outcome
    dataset: str
    version: int
    repo: str
    url: str
    branch: str
    tag: str
    commit: str | None
    created: bool | None
    private: bool
    files: int
    bytes: int
    deleted: tuple[str, ...]
    left_out: tuple[str, ...]
    scanned_rows: int
    findings: tuple[SecretFinding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return asdict(self)


_OUTCOMES: Final[Mapping[str, tuple[Outcome, Outcome]]] = {
    "nothing": ("unchanged", "unchanged"),
    "tag": ("tagged", "would tag"),
    "commit": ("pushed", "would push"),
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
    place, name = parted(where, name)
    store = open_read_store(place, storage_options=storage_options)
    version = Published.read(store, *Catalog(store).resolve(name))
    hub = HubRepository(repo, revision, token, look=dry_run)
    before = state = hub.state()
    decision = decide(version, hub, before, public=public)

    rows, findings = 0, list[SecretFinding]()
    if decision.todo == "commit":
        detector = Detector(os.environ)
        require_none(scan_texts(version.texts, detector), "the version's files hold")
        require_none(scan_footers(store, version, detector), "its Parquet metadata holds")
        rows, findings = scan_rows(store, version.manifest, scan_data, detector)
        if strict:
            require_none(findings, "its rows hold")

    if not dry_run:
        if state is None:
            state = hub.created(public=public)
            decision = decide(version, hub, state, public=public)
        digest = version.manifest.sha256
        if decision.todo == "commit":
            told = (message or version.name, f"Manifest sha256:{digest}, pushed by tokenlake.")
            send = partial(_send, store, version, hub, on_progress or (lambda _: None))
            commit = commit_all(hub, state, decision.deleted, told, send, version.differing)
            decision = replace(decision, commit=commit)
        if decision.todo != "nothing" and decision.commit is not None:
            hub.tag(decision.tag, decision.commit, f"manifest sha256:{digest}")

    return PushReport(
        outcome=_OUTCOMES[decision.todo][dry_run],
        dataset=version.layout.dataset,
        version=version.layout.version,
        repo=repo,
        url=hub.url,
        branch=revision,
        tag=decision.tag,
        commit=decision.commit,
        # A private repository is not seen without a token.
        created=before is None if hub.with_token or before else None,
        private=not public if state is None else state.private,
        files=len(version.files),
        bytes=version.bytes,
        deleted=decision.deleted,
        left_out=version.left_out,
        scanned_rows=rows,
        findings=tuple(findings),
    )


def _send(
    store: ReadStore, version: Published, hub: HubRepository, tell: Callable[[PushProgress], None]
) -> list[Any]:
    """Upload all contents, which nobody sees yet, and return what a commit takes.

    Raises:
        NotFoundError: a shard is missing.
        IntegrityError: it is not what the manifest says.
        StoreError: it cannot be copied; the temporary folder is full, perhaps.
    """
    done, total = 0, version.bytes
    additions: list[Any] = []
    for group in groups_of(version.shards):
        with tempfile.TemporaryDirectory(prefix="tokenlake-push-") as folder:
            copies = [(shard, Path(folder, f"{number}.parquet")) for number, shard in enumerate(group)]
            for shard, path in copies:
                key = version.layout.key(shard.path)
                try:
                    got = store.download(key, path)
                except OSError as error:
                    raise StoreError(
                        f"cannot keep a copy of {key}, {shard.bytes} bytes, in {tempfile.gettempdir()}: "
                        f"{error.strerror}; set TMPDIR to a folder with more room"
                    ) from error
                require_same(key, shard.sha256, got.sha256)
            additions += hub.upload(copies)
        done += sum(shard.bytes for shard in group)
        tell(PushProgress(done, total))
    additions += hub.upload([(text, None) for text in version.texts])
    tell(PushProgress(total, total))
    return additions


def commit_all(
    hub: HubRepository,
    state: HubState,
    deleted: Sequence[str],
    message: tuple[str, str],
    send: Callable[[], list[Any]],
    differing: Callable[[Mapping[str, Any]], list[str]],
) -> str:
    """Send everything and commit it, on top of what was looked at; return the commit.

    Args:
        state: of the repository, as it was looked at.
        deleted: paths to remove.
        message: of the commit, in short and in full.
        send: uploads all contents.
        differing: tells which paths of a repository's files are not what was sent.

    Raises:
        StoreError, VersionConflictError: nothing is visible.
        IntegrityError: what is there is not what was sent.
    """
    if state.head is None:
        hub.create_branch(state.main)
    parent = state.head or hub.head()
    additions = send()
    try:
        hub.commit(additions, deleted, *message, parent)
    except (StoreError, VersionConflictError):
        # Perhaps only the answer was lost.
        if differing(hub.files(hub.head())):
            raise
    head = hub.head()
    if wrong := differing(hub.files(head)):
        raise IntegrityError(
            f"{hub.repo} at {head}: {', '.join(wrong[:5])} on the Hub is not what was sent; it was not "
            "tagged. Somebody pushed at the same moment, or the Hub is at fault: look at it, and push again"
        )
    return head
