"""A dataset's repository on the Hub: its state, and the changes that publishing makes.

All requests go through :meth:`HubRepository._call`, which repeats those that failed for
a moment, and turns errors of the Hub into errors of this library.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from tokenlake.base.secrets import remember
from tokenlake.errors import (
    ConfigError,
    MissingExtraError,
    StoreError,
    VersionConflictError,
)
from tokenlake.etl.publish.files import PublishedFile
from tokenlake.etl.publish.hub_errors import hub_error, is_offline, status_of

# HTTP statuses after which the same request may succeed: timeouts, too many requests,
# and failures of the server.
_TEMPORARY_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
_TRIES: Final = 4
# Seconds before the second try; each further wait is twice as long.
_FIRST_WAIT: Final = 1.0

# Names of a repository (org/name) and of a branch. A branch must not look like the tag
# of a version, a commit or a reference, by which a reader could mean something else.
_REPO: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
)
_BRANCH: Final = re.compile(
    r"(?!v[0-9]+\Z|[0-9a-f]{40}\Z|refs/)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
)
_NO_IGNORE: Final = "# what the manifest lists is uploaded, whatever a .gitignore of the repository says\n"
_THREADS: Final = 4  # that upload at a time


@final
@dataclass(frozen=True)
class HubState:
    """State of a repository.

    Attributes:
        private: True if only accounts with access see it.
        head: Commit of the branch; None if there is no such branch.
        main: Commit of main; None while the repository is empty.
        tags: Tag -> commit.
    """

    private: bool
    head: str | None
    main: str | None
    tags: dict[str, str]


@final
class HubRepository:
    """Client of one repository. It sends no request before a method is called.

    Args:
        repo: Repository, as ``org/name``.
        branch: Branch to publish on.
        token: Token; None: that of ``HF_TOKEN``, or else of the saved login.
        look: True to change nothing, which needs no token.

    Attributes:
        repo: Repository, as ``org/name``.
        branch: Branch to publish on.
        with_token: True if requests carry a token; otherwise only what everybody sees
            is visible.
        url: Address of the repository.

    Raises:
        MissingExtraError: `huggingface_hub` is not installed.
        ConfigError: A name is not allowed, or a token is needed and there is none.
    """

    def __init__(
        self,
        repo: str,
        branch: str = "main",
        token: str | None = None,
        *,
        look: bool = False,
    ) -> None:
        # Names of the Hub have neither of these; `..` could lead out of a path.
        if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
            raise ConfigError(
                f"the repository {repo!r} is refused; expected org/name, of a dataset on the Hub"
            )
        if not _BRANCH.fullmatch(branch) or ".." in branch:
            raise ConfigError(
                f"the branch {branch!r} is refused; expected a name such as main, and not like the tag of a version "
                "(v3) or a commit"
            )
        try:
            from huggingface_hub import HfApi, constants, get_token
            from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
        except ImportError as error:
            raise MissingExtraError(
                "pushing to the Hub needs huggingface_hub: pip install 'tokenlake[etl]'"
            ) from error
        # A dry run needs no token: it sees all that is public.
        token = token or get_token()
        self.with_token = bool(token)
        if not token and not look:
            raise ConfigError(
                "pushing to the Hub needs a token with write access, and there is none: log in with `hf auth login`, "
                "set HF_TOKEN, or name the variable that holds it: --token-env NAME"
            )
        # The token is removed from messages and logs of this process.
        remember([token or ""])
        self.repo = repo
        self.branch = branch
        # The variable is read now: huggingface_hub read it when it was imported.
        endpoint = os.environ.get("HF_ENDPOINT") or cast("str", constants.ENDPOINT)
        endpoint = endpoint.rstrip("/")
        self._api: Any = HfApi(
            endpoint=endpoint, token=token or False, library_name="tokenlake"
        )
        self._not_found_error = cast("type[Exception]", RepositoryNotFoundError)
        # Releases of `huggingface_hub` use different HTTP libraries: this is the base
        # class of the library's errors.
        self._http_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])
        self.url = f"{endpoint}/datasets/{repo}"

    def state(self) -> HubState | None:
        """Return the state of the repository; None if the token sees none.

        Raises:
            ConfigError: The Hub does not accept the token.
            StoreError: The Hub cannot be reached.
        """
        action = "reading the state of the repository"
        try:
            info = self._call(action, "repo_info", passed=self._not_found_error)
        except self._not_found_error as error:
            # The Hub answers 401 for a repository that a visitor may not see, and for a
            # wrong token.
            if status_of(error) == 401 and self.with_token:
                raise hub_error(error, self.repo, action) from None
            return None
        refs = self._call(action, "list_repo_refs")
        branches = {entry.name: entry.target_commit for entry in refs.branches}
        tags = {entry.name: entry.target_commit for entry in refs.tags}
        # A repository of unknown visibility counts as public, so that nothing is pushed
        # to it by mistake.
        is_private = info.private is True
        return HubState(
            is_private, branches.get(self.branch), branches.get("main"), tags
        )

    def present(self) -> HubState:
        """Return the state of a repository that exists."""
        state = self.state()
        if state is None:
            raise StoreError(
                f"{self.repo} existed a moment ago and no longer does; check it on the Hub"
            )
        return state

    def created(self, *, public: bool) -> HubState:
        """Create the repository and return its state.

        The state may be a surprise: somebody else may have created the repository, or
        new repositories of the organization may be public.
        """
        self._call(
            "creating the repository", "create_repo", private=not public, exist_ok=True
        )
        return self.present()

    def require_private(self, state: HubState, rows: str, remedy: str) -> None:
        """Raise ConfigError if the repository is public.

        Args:
            state: State of the repository.
            rows: Name of the rows that everybody would see.
            remedy: Instruction for a user who wants them to be public.
        """
        if not state.private:
            raise ConfigError(
                f"{self.repo} is public: everybody would see {rows}. Push to another repository, make it "
                f"private in its settings, or {remedy} if that is intended"
            )

    def head(self) -> str:
        """Return the commit of the branch."""
        head = self.present().head
        if head is None:
            raise StoreError(
                f"{self.repo}: the Hub names no commit for the branch {self.branch}; push again"
            )
        return head

    def files(self, commit: str) -> dict[str, Any]:
        """Return path -> ``RepoFile`` of `huggingface_hub`, for a commit's files."""
        if not commit:
            return {}
        entries = self._call(
            "listing files", "list_repo_tree", revision=commit, recursive=True
        )
        # Folders have no blob.
        files: dict[str, Any] = {}
        for entry in entries:
            if hasattr(entry, "blob_id"):
                files[entry.path] = entry
        return files

    def read(self, commit: str, path: str) -> bytes:
        """Return a file of a commit."""
        # Not through the cache of `huggingface_hub`, which would keep the file.
        with tempfile.TemporaryDirectory(prefix="tokenlake-push-") as temporary_folder:
            copied_path = self._call(
                f"reading {path}",
                "hf_hub_download",
                path,
                revision=commit,
                local_dir=temporary_folder,
            )
            return Path(copied_path).read_bytes()

    def create_branch(self, start: str | None) -> None:
        """Create the branch at the commit `start`."""
        action = f"creating the branch {self.branch}"
        self._call(
            action, "create_branch", branch=self.branch, revision=start, exist_ok=True
        )

    def upload(self, files: Sequence[tuple[PublishedFile, Path | None]]) -> list[Any]:
        """Send the contents of files, and return the additions for :meth:`commit`.

        The contents are not visible yet.

        Contents that the Hub has already are not sent again. The paths are not needed
        after this call.

        Args:
            files: Files, each with the path of a local copy if its bytes are not in
                memory.
        """
        from huggingface_hub import CommitOperationAdd

        additions: list[Any] = []
        # One addition for each file. The hash is known and was compared when the copy
        # was made: no need to hash the bytes again.
        additions: list[Any] = []
        for file, local_path in files:
            content: Any = file.data
            if content is None:
                content = local_path
            addition: Any = CommitOperationAdd(file.path, content)
            addition.upload_info.sha256 = bytes.fromhex(file.sha256)
            additions.append(addition)

        action = f"uploading {len(files)} files"
        if len(files) == 1:
            action = f"uploading {files[0][0].path}"
        self._call(
            action,
            "preupload_lfs_files",
            additions,
            tries=1,  # it retries by itself
            revision=self.branch,
            num_threads=_THREADS,
            gitignore_content=_NO_IGNORE,
        )
        for addition in additions:
            # The Hub keeps small files in git: these are sent with the commit, when the
            # copy is gone.
            if not addition._is_uploaded and isinstance(addition.path_or_fileobj, str):
                addition.path_or_fileobj = Path(addition.path_or_fileobj).read_bytes()
        return additions

    def commit(
        self,
        additions: list[Any],
        deleted: Sequence[str],
        message: str,
        about: str,
        parent: str,
    ) -> None:
        """Make one commit of all changes.

        Args:
            additions: Result of :meth:`upload`.
            deleted: Paths to delete.
            message: First line of the commit's message.
            about: Description of the commit.
            parent: Commit on top of which it goes.

        Raises:
            VersionConflictError: The branch has another commit by now.
            StoreError: The Hub could not be reached; the commit may exist nevertheless.
        """
        from huggingface_hub import CommitOperationDelete

        # `parent_commit` makes the Hub refuse the commit if the branch has moved on.
        operations = list(additions)
        for path in deleted:
            operations.append(CommitOperationDelete(path, is_folder=False))
        self._call(
            "committing",
            "create_commit",
            operations,
            tries=1,
            revision=self.branch,
            commit_message=message,
            commit_description=about,
            parent_commit=parent,
        )

    def tag(self, name: str, commit: str, message: str) -> None:
        """Tag a commit.

        Raises:
            VersionConflictError: Another commit has this tag.
        """
        try:
            self._call(
                f"tagging {name}",
                "create_tag",
                tag=name,
                tag_message=message,
                revision=commit,
            )
        # A tag that exists already may be that of an earlier try, whose answer was
        # lost.
        except VersionConflictError:
            state = self.state()
            if state is None or state.tags.get(name) != commit:
                raise

    def _call(
        self,
        action: str,
        method: str,
        *arguments: object,
        tries: int = _TRIES,
        passed: type[Exception] | tuple[()] = (),
        **options: object,
    ) -> Any:
        """Call a method of `HfApi` for this repository.

        It is called again after a temporary error.

        Args:
            action: Purpose of the call, for errors.
            method: Name of the method.
            arguments: Arguments after the repository.
            tries: Largest number of calls.
            passed: Errors that are raised as they are.
            options: Keyword arguments.

        Returns:
            The result; of a generator, a list of its values.
        """
        call = getattr(self._api, method)
        wait_seconds = _FIRST_WAIT
        for tries_left in reversed(range(tries)):
            try:
                with _no_progress_bars():
                    result = call(self.repo, *arguments, repo_type="dataset", **options)
                    # A generator sends its requests only when it is read.
                    if isinstance(result, Iterator):
                        return list(result)
                    return result
            except passed:
                raise
            except (OSError, ValueError, RuntimeError, self._http_error) as error:
                if not tries_left or not _is_temporary(error):
                    raise hub_error(error, self.repo, action) from None
                time.sleep(wait_seconds)
                wait_seconds *= 2
        raise AssertionError("unreachable")


def _is_temporary(error: Exception) -> bool:
    """Return True if the same request may succeed later."""
    status = status_of(error)
    if status is not None:
        return status in _TEMPORARY_STATUSES
    # Without an answer the connection failed, unless the request was wrong or none was
    # allowed.
    return not isinstance(error, ValueError | TypeError) and not is_offline(error)


@contextmanager
def _no_progress_bars() -> Generator[None]:
    """Switch the progress bars of `huggingface_hub` off.

    The caller shows progress of its own.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    # If the variable is set, the functions only warn, and the user has decided.
    is_decided_by_user = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    must_switch = not is_decided_by_user and not are_progress_bars_disabled()
    if must_switch:
        disable_progress_bars()
    try:
        yield
    finally:
        if must_switch:
            enable_progress_bars()
