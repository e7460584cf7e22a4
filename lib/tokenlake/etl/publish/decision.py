"""The decision to publish a version: commit, only tag, or nothing.

A push compares the version with the repository before it sends anything:

====================================================  ================
the repository has                                    the push makes
====================================================  ================
the version's tag, at a commit with the same files    nothing
the version's tag, at other files                     an error
the same files at the end of the branch, without tag  the tag
anything else that tokenlake pushed                   commit and tag
====================================================  ================
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from tokenlake.errors import ConfigError, IntegrityError, VersionConflictError
from tokenlake.etl.publish.files import Published, is_ours
from tokenlake.etl.publish.repository import HubRepository, HubState
from tokenlake.runtime.store.layout import CARD, MANIFEST
from tokenlake.runtime.store.manifest import Manifest

_SHOWN_PATHS: Final = 5  # paths in the text of an error
_MOST_DETAILS: Final = 100  # paths that an error carries
_MANIFEST_LIMIT: Final = 1 << 30  # bytes: a larger file is no manifest of ours


@final
@dataclass(frozen=True)
class Decision:
    """The step that publishes a version.

    Attributes:
        todo: ``tag`` where a commit holds the version already; ``nothing`` where the
            tag exists, too.
        tag: The version's name in the repository.
        commit: Commit that holds the version; None where none does.
        deleted: Paths that the branch's version has and this version does not have.
    """

    todo: Literal["nothing", "tag", "commit"]
    tag: str
    commit: str | None = None
    deleted: tuple[str, ...] = ()


def decide(
    version: Published, hub: HubRepository, state: HubState | None, *, public: bool
) -> Decision:
    """Compare a version with the contents of a repository.

    Args:
        version: Version to publish.
        hub: Client of the repository.
        state: State of the repository; None if it does not exist.
        public: True if a public repository is allowed.

    Raises:
        ConfigError: The repository is public and must not be, or its branch holds a
            newer version or another dataset.
        VersionConflictError: The version's tag names other bytes, or files of another
            origin are in the way.
    """
    tag = f"v{version.layout.version}"
    if state is None:
        # A repository that does not exist has nothing to compare.
        return Decision("commit", tag)
    if not public:
        hub.require_private(state, version.name, "give --public")

    # A tag is final: its commit must hold this version.
    tagged_commit = state.tags.get(tag)
    if tagged_commit is not None:
        wrong_paths = version.differing(hub.files(tagged_commit))
        if not wrong_paths:
            return Decision("nothing", tag, tagged_commit)
        raise VersionConflictError(
            f"{hub.repo} already has the tag {tag}, and it is not {version.name} of this store: "
            f"{_shortened(wrong_paths)} differ. A version never changes: push to another repository, or remove that "
            "tag if it is wrong",
            repo=hub.repo,
            tag=tag,
            differing=wrong_paths[:_MOST_DETAILS],
        )

    # A new branch begins at the commit of main, so that its files are compared.
    start_commit = state.head or state.main
    if start_commit is None:
        return Decision("commit", tag)
    files = hub.files(start_commit)
    if state.head is not None and not version.differing(files):
        return Decision("tag", tag, state.head)
    return Decision("commit", tag, deleted=_paths_to_delete(version, hub, state, files))


def _paths_to_delete(
    version: Published, hub: HubRepository, state: HubState, files: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the paths of the branch's version that this version does not have."""
    commit = state.head or state.main or ""
    # 1. The version that the branch holds, by its manifest.
    branch_manifest: Manifest | None = None
    if MANIFEST in files and files[MANIFEST].size <= _MANIFEST_LIMIT:
        with suppress(IntegrityError):  # a file of this name from another tool
            branch_manifest = Manifest.from_bytes(
                hub.read(commit, MANIFEST), f"{hub.repo}: {MANIFEST}"
            )

    # 2. Every file under a name of ours must be listed by the manifest that is there.
    #    Others were added by somebody else, and would be lost.
    known_paths = {CARD}
    if branch_manifest is not None:
        known_paths.add(MANIFEST)
        known_paths.update(shard.path for shard in branch_manifest.files)
        known_paths.update(branch_manifest.other_files)
    strangers: list[str] = []
    for path in sorted(files):
        if is_ours(path) and path not in known_paths:
            strangers.append(path)
    if strangers:
        raise VersionConflictError(
            f"{hub.repo} ({hub.branch}) holds {_shortened(strangers)}, which tokenlake did not push; readers would "
            "treat them as part of the version. Remove them there, or push to a separate repository",
            repo=hub.repo,
            files=strangers[:_MOST_DETAILS],
        )

    # 3. The branch gets newer versions only. The files of its version that this one
    #    lacks would otherwise be read as rows of this one.
    if branch_manifest is not None:
        _require_predecessor(version, hub, state, branch_manifest)
    wanted_paths = {file.path for file in version.files}
    paths_to_delete: list[str] = []
    for path in sorted(files):
        if is_ours(path) and path not in wanted_paths:
            paths_to_delete.append(path)
    return tuple(paths_to_delete)


def _require_predecessor(
    version: Published, hub: HubRepository, state: HubState, branch_manifest: Manifest
) -> None:
    """Raise ConfigError unless the branch holds an older version of the dataset."""
    place = f"{hub.repo} ({hub.branch})"
    if branch_manifest.dataset != version.layout.dataset:
        raise ConfigError(
            f"{place} holds {branch_manifest.dataset} v{branch_manifest.version}, not a version of "
            f"{version.layout.dataset}; a repository holds one dataset: push to another one"
        )
    # A branch without commits of its own may receive an older version than main holds.
    commit = state.head or state.main
    is_new_branch = hub.branch != "main" and commit == state.main
    if branch_manifest.version > version.layout.version and not is_new_branch:
        raise ConfigError(
            f"{place} holds v{branch_manifest.version}, which is newer than {version.name}; to publish the older one "
            f"as well, use a separate branch: --revision only-v{version.layout.version}"
        )


def _shortened(paths: list[str]) -> str:
    """Return the first paths, and the number of the others."""
    shown = ", ".join(paths[:_SHOWN_PATHS])
    if len(paths) > _SHOWN_PATHS:
        shown += f" and {len(paths) - _SHOWN_PATHS} more"
    return shown
