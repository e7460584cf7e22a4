"""What there is to do, from what is there: nothing is sent to a repository that should not get it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, Self, final

from tokenlake.errors import ConfigError, IntegrityError, VersionConflictError
from tokenlake.manifest import Manifest
from tokenlake.publish.files import Published, is_ours
from tokenlake.publish.repository import HubRepository, HubState
from tokenlake.sources.hub.api import HubFile
from tokenlake.storage.layout import CARD, MANIFEST

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

    def at(self, commit: str) -> Self:
        """Return the same, with the commit that was made."""
        return replace(self, commit=commit)


def decide(version: Published, hub: HubRepository, state: HubState | None, *, public: bool) -> Decision:
    """Compare a version with what a repository holds.

    Raises:
        ConfigError: the repository is public and must not be; its branch holds a newer version, or another dataset.
        VersionConflictError: the version's number is taken by other bytes, or files of somebody else are in the way.
    """
    tag = f"v{version.layout.version}"
    if state is None:
        return Decision("commit", tag)
    if not state.private and not public:
        raise ConfigError(
            f"{hub.target.repo} is public: everybody would see {version.name}. Push to another repository, make it "
            "private in its settings, or give --public if that is what you want"
        )
    if (commit := state.tags.get(tag)) is not None:
        return _tagged(version, hub, tag, commit)
    if state.head is None and state.main is None:
        return Decision("commit", tag)
    # A branch that is not there yet begins as main is.
    files = hub.files(state.head or state.main or "")
    if state.head is not None and not version.differing(files):
        return Decision("tag", tag, state.head)
    return Decision("commit", tag, deleted=_replaced(version, hub, state, files))


def _tagged(version: Published, hub: HubRepository, tag: str, commit: str) -> Decision:
    wrong = version.differing(hub.files(commit))
    if not wrong:
        return Decision("nothing", tag, commit)
    raise VersionConflictError(
        f"{hub.target.repo} has a {tag} already, and it is not {version.name} of this store: {_some(wrong)} differ. "
        "A version never changes: push to another repository, or remove the tag there if it should not be",
        repo=hub.target.repo,
        tag=tag,
        differing=wrong[:100],
    )


def _replaced(
    version: Published, hub: HubRepository, state: HubState, files: dict[str, HubFile]
) -> tuple[str, ...]:
    """Return the paths of the version on the branch that this one has not."""
    commit = state.head or state.main or ""
    older = _manifest(hub, commit, files)
    known = {CARD} if older is None else {MANIFEST, *(f.path for f in older.files), *older.other_files}
    strangers = sorted(path for path in files if is_ours(path) and path not in known)
    if strangers:
        raise VersionConflictError(
            f"{hub.target.repo} ({hub.target.branch}) holds {_some(strangers)}, which tokenlake did not push; readers "
            "would take them for the version's. Remove them there, or push to a repository of its own",
            repo=hub.target.repo,
            files=strangers[:100],
        )
    begun = hub.target.branch != "main" and commit == state.main  # a branch that holds nothing of its own yet
    if older is not None:
        _require_one_dataset(version, hub, older)
        if not begun:
            _require_newer(version, hub, older)
    wanted = {file.path for file in version.files}
    return tuple(sorted(path for path in files if is_ours(path) and path not in wanted))


def _require_one_dataset(version: Published, hub: HubRepository, older: Manifest) -> None:
    if older.dataset != version.layout.dataset:
        raise ConfigError(
            f"{_place(hub)} holds {older.dataset} v{older.version}, not a version of {version.layout.dataset}; a "
            "repository is for one dataset: push to another one"
        )


def _require_newer(version: Published, hub: HubRepository, older: Manifest) -> None:
    if older.version > version.layout.version:
        raise ConfigError(
            f"{_place(hub)} holds v{older.version}, which is newer than {version.name}; to publish the older one "
            f"beside it give it a branch of its own: --revision only-v{version.layout.version}"
        )


def _place(hub: HubRepository) -> str:
    return f"{hub.target.repo} ({hub.target.branch})"


def _manifest(hub: HubRepository, commit: str, files: dict[str, HubFile]) -> Manifest | None:
    """Return the manifest of the version that a commit holds, None where it holds none."""
    if MANIFEST not in files or files[MANIFEST].size > _MANIFEST_LIMIT:
        return None
    try:
        return Manifest.from_bytes(hub.read(commit, MANIFEST), f"{hub.target.repo}: {MANIFEST}")
    except IntegrityError:
        return None  # somebody else's file of this name


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
