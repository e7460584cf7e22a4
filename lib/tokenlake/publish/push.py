"""Publishing a version: looked at first, sent in parts that nobody sees, made visible by one commit, then named.

::

    what is there?  ->  nothing to do | only the tag is missing | a commit is missing
    secrets?        ->  any in texts or metadata: refused
    contents        ->  shards in groups, each compared with the manifest and uploaded
    commit          ->  all files at once, on top of what was looked at; then listed and compared
    tag             ->  v3, the name under which `revision="v3"` finds it

Interrupted at any point nothing is visible, and the same command sends what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, final

from tokenlake.errors import IntegrityError, StoreError, VersionConflictError
from tokenlake.publish.decision import Decision, decide
from tokenlake.publish.files import Published
from tokenlake.publish.repository import HubRepository, HubState, HubTarget
from tokenlake.publish.scan import Finding, require_none, scan_footers, scan_rows, scan_texts
from tokenlake.publish.secrets import Detector
from tokenlake.publish.staging import groups_of, staged
from tokenlake.storage import ReadStore

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
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return asdict(self)


def push(
    store: ReadStore,
    dataset: str,
    version: int,
    target: HubTarget,
    *,
    public: bool = False,
    message: str | None = None,
    dry_run: bool = False,
    scanned_rows: int = SCANNED_ROWS,
    strict: bool = False,
    environment: Mapping[str, str] = os.environ,
    on_progress: Callable[[PushProgress], None] | None = None,
) -> PushReport:
    """Publish a committed version on the Hub; see the module.

    Args:
        public: create the repository as a public one, or push to one that is public.
        message: of the commit; None: ``small v3``.
        dry_run: look at everything, and change nothing; needs no token.
        scanned_rows: rows of each shard to decode and search for secrets, 0 for none.
        strict: refuse the push for findings in rows, too.
        environment: variables whose values must not be in what is published, where their names are telling.
        on_progress: called after each part.

    Raises:
        NotFoundError: there is no such version.
        IntegrityError: a file is not what the manifest says; nothing is visible.
        ConfigError: a secret was found, the repository is public and must not be, or the token may not do it.
        VersionConflictError: the repository holds another version of that number, other files, or was changed
            meanwhile.
        StoreError, SourceError: the Hub could not be reached; the same command goes on where this one ended.
    """
    work = _Push(
        store,
        Published.read(store, dataset, version),
        HubRepository(target, look=dry_run),
        public,
        message,
        on_progress or (lambda progress: None),
    )
    state = before = work.hub.state()
    decision = decide(work.version, work.hub, state, public=public)
    rows, findings = 0, []
    if decision.todo == "commit":
        rows, findings = work.scan(Detector(environment), scanned_rows, strict=strict)
    if dry_run:
        private = not public if before is None else before.private
        # A private repository is not seen without a token.
        created = before is None if work.hub.with_token or before else None
        return work.report(decision, _WOULD[decision.todo], created, private, rows, findings)
    if state is None:
        state = work.create()
        # Somebody may have been faster, or new repositories of the organization are public.
        decision = decide(work.version, work.hub, state, public=public)
    if decision.todo == "commit":
        decision = work.make_visible(state, decision)
    if decision.todo != "nothing":
        assert decision.commit is not None
        work.hub.tag(decision.tag, decision.commit, f"manifest sha256:{work.version.manifest.sha256}")
    return work.report(decision, _DONE[decision.todo], before is None, state.private, rows, findings)


_WOULD: Final[Mapping[str, Outcome]] = {"nothing": "unchanged", "tag": "would tag", "commit": "would push"}
_DONE: Final[Mapping[str, Outcome]] = {"nothing": "unchanged", "tag": "tagged", "commit": "pushed"}


@final
@dataclass(frozen=True)
class _Push:
    store: ReadStore
    version: Published
    hub: HubRepository
    public: bool
    message: str | None
    tell: Callable[[PushProgress], None]

    def scan(self, detector: Detector, number: int, *, strict: bool) -> tuple[int, list[Finding]]:
        """Return how many rows were searched, and what was found in them."""
        require_none(scan_texts(self.version.texts, detector), "the version's files hold")
        require_none(scan_footers(self.store, self.version, detector), "its Parquet metadata holds")
        rows: list[int] = []
        findings = scan_rows(self.store, self.version.manifest, number, detector, rows.append)
        if strict:
            require_none(findings, "its rows hold")
        return sum(rows), findings

    def create(self) -> HubState:
        """Create the repository, and return what is there then."""
        self.hub.create(private=not self.public)
        return self._state()

    def make_visible(self, state: HubState, decision: Decision) -> Decision:
        """Send everything and commit it."""
        if state.head is None:
            self.hub.create_branch(state.main)
            state = self._state()
        parent = self._head_of(state)
        additions = self._send()
        about = f"Manifest sha256:{self.version.manifest.sha256}, pushed by tokenlake."
        try:
            self.hub.commit(additions, decision.deleted, self.message or self.version.name, about, parent)
        except (StoreError, VersionConflictError):
            # Perhaps only the answer was lost.
            if not self._is_there():
                raise
        head = self._head()
        if wrong := self.version.differing(self.hub.files(head)):
            raise IntegrityError(
                f"{self.hub.target.repo} at {head}: {', '.join(wrong[:5])} on the Hub is not what was sent; it was not "
                "tagged. Somebody pushed at the same moment, or the Hub is at fault: look at it, and push again"
            )
        return decision.at(head)

    def _send(self) -> list[Any]:
        done, total = 0, self.version.bytes
        additions: list[Any] = []
        for group in groups_of(self.version.shards):
            with staged(self.store, self.version.layout, group) as files:
                additions += self.hub.upload(files)
            done += sum(shard.bytes for shard in group)
            self.tell(PushProgress(done, total))
        additions += self.hub.upload([(text, None) for text in self.version.texts])
        self.tell(PushProgress(total, total))
        return additions

    def _is_there(self) -> bool:
        head = self._state().head
        return head is not None and not self.version.differing(self.hub.files(head))

    def _state(self) -> HubState:
        found = self.hub.state()
        if found is None:
            raise StoreError(
                f"{self.hub.target.repo} was there a moment ago, and now it is not; look at it on the Hub"
            )
        return found

    def _head(self) -> str:
        return self._head_of(self._state())

    def _head_of(self, state: HubState) -> str:
        if state.head is None:
            raise StoreError(
                f"{self.hub.target.repo}: the Hub tells no commit of the branch {self.hub.target.branch}; push again"
            )
        return state.head

    def report(
        self,
        decision: Decision,
        outcome: Outcome,
        created: bool | None,
        private: bool,
        rows: int,
        findings: list[Finding],
    ) -> PushReport:
        target = self.hub.target
        return PushReport(
            outcome=outcome,
            dataset=self.version.layout.dataset,
            version=self.version.layout.version,
            repo=target.repo,
            url=self.hub.url,
            branch=target.branch,
            tag=decision.tag,
            commit=decision.commit,
            created=created,
            private=private,
            files=len(self.version.files),
            bytes=self.version.bytes,
            deleted=decision.deleted,
            left_out=self.version.left_out,
            scanned_rows=rows,
            findings=tuple(findings),
        )
