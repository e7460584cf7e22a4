"""A dataset's repository on the Hub: what is there now, and the few changes that publishing makes, through HfApi."""

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

from tokenlake.base.secrets import remember, scrub
from tokenlake.errors import ConfigError, MissingExtraError, StoreError, TokenlakeError, VersionConflictError
from tokenlake.etl.publish.files import PublishedFile
from tokenlake.etl.sources.hub_client import offline

_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})  # the same request may succeed after it
_TRIES: Final = 4
_FIRST_WAIT: Final = 1.0  # seconds; doubles
_REPO: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_BRANCH: Final = re.compile(r"(?!v[0-9]+\Z|[0-9a-f]{40}\Z|refs/)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_NO_IGNORE: Final = "# what the manifest lists is uploaded, whatever a .gitignore of the repository says\n"
_THREADS: Final = 4
_AGAIN: Final = "run the same command again: what was uploaded is not sent again, and nothing is visible yet"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error, or what caused it, stands for."""
    seen: BaseException | None = error
    while seen is not None:
        response: Any = getattr(seen, "response", None)
        if response is not None:
            return int(response.status_code)
        seen = seen.__cause__
    return None


def explained(error: Exception, repo: str, doing: str) -> TokenlakeError:
    """Return the error for people that stands for one of `huggingface_hub`, or of its HTTP library.

    Args:
        doing: what was being done, such as ``"uploading data/train-00000-00.parquet"``.
    """
    if "offline" in type(error).__name__.lower():
        return offline(f"{repo} on the Hub")
    status, said = status_of(error), _said(error)
    details = {"repo": repo, "status": status}
    if any(word in said.lower() for word in ("quota", "storage limit", "exceeded your", "payment required")):
        return StoreError(
            f"{repo}: the Hub has no space for it ({said}); free private storage of the account or raise its limit, "
            f"and {_AGAIN}",
            **details,
        )
    kind: type[TokenlakeError] = ConfigError
    match status:
        case 401:
            told = (
                "the Hub does not accept the token; it may be expired, revoked or mistyped. Log in again with `hf auth "
                "login`, set HF_TOKEN, or name the variable that holds it: --token-env NAME"
            )
        case 403:
            told = (
                f"the token does not permit this ({doing}; the Hub says {said!r}). It needs write access to the "
                "repository, and to its organization where it is new: https://huggingface.co/settings/tokens"
            )
        case 404:
            told = (
                f"the Hub has no such repository, organization or branch, or the token may not see it ({doing}); check "
                "the spelling, and whose token it is"
            )
        case 409 | 412:
            kind = VersionConflictError
            told = (
                f"somebody else changed the repository meanwhile ({doing}); nothing of this push is visible. Look at "
                "what they pushed, and run the same command again"
            )
        case _:
            kind, told = (
                StoreError,
                f"the Hub could not be reached or failed while {doing} ({said}); {_AGAIN}",
            )
    return kind(f"{repo}: {told}", **details)


def _said(error: BaseException) -> str:
    """Return the Hub's own sentence, without addresses and secrets."""
    found = getattr(error, "server_message", None)
    cause = error.__cause__
    if not found and cause is not None and isinstance(error, RuntimeError):
        return _said(cause)
    text = str(found or error).strip() or type(error).__name__
    first = scrub(" ".join(text.split()))
    return first if len(first) <= 300 else f"{first[:300]}..."


@final
@dataclass(frozen=True)
class HubState:
    """What is there.

    Attributes:
        private: whether it is for those with access only.
        head: commit of the branch, None where there is no such branch.
        main: commit of main, None while the repository is empty.
        tags: tag to commit.
    """

    private: bool
    head: str | None
    main: str | None
    tags: dict[str, str]


@final
class HubRepository:
    """One repository; asks for nothing until it is told to.

    Attributes:
        repo: ``org/name``.
        branch: of it, to publish on.
        with_token: whether it is seen as somebody's, and not as everybody sees it.
    """

    def __init__(
        self, repo: str, branch: str = "main", token: str | None = None, *, look: bool = False
    ) -> None:
        """Prepare the client.

        Args:
            token: None: ``HF_TOKEN``, then the saved login.
            look: change nothing, which needs no token.

        Raises:
            MissingExtraError: `huggingface_hub` is not installed.
            ConfigError: a name is none; or there is no token, and one is needed.
        """
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
            told = "pushing to the Hub needs huggingface_hub: pip install 'tokenlake[etl]'"
            raise MissingExtraError(told) from error
        token = token or get_token()
        self.with_token = bool(token)
        if not token and not look:
            raise ConfigError(
                "pushing to the Hub needs a token with write access, and there is none: log in with `hf auth login`, "
                "set HF_TOKEN, or name the variable that holds it: --token-env NAME"
            )
        remember([token or ""])
        self.repo, self.branch = repo, branch
        # Read now, not when huggingface_hub was imported.
        endpoint = (os.environ.get("HF_ENDPOINT") or cast("str", constants.ENDPOINT)).rstrip("/")
        self._api: Any = HfApi(endpoint=endpoint, token=token or False, library_name="tokenlake")
        self._missing = cast("type[Exception]", RepositoryNotFoundError)
        # The root of what the HTTP library of `huggingface_hub` raises; releases differ in the library.
        self._fault = cast("type[Exception]", HfHubHTTPError.__bases__[0])
        self.url = f"{endpoint}/datasets/{repo}"

    def state(self) -> HubState | None:
        """Ask what is there; None: there is no such repository, as far as the token can see.

        Raises:
            ConfigError: the Hub does not accept the token.
            StoreError: it cannot be reached.
        """
        doing = "reading the state of the repository"
        try:
            info = self._call(doing, "repo_info", passed=self._missing)
        except self._missing as error:
            if status_of(error) == 401 and self.with_token:
                raise explained(error, self.repo, doing) from None
            return None
        refs = self._call(doing, "list_repo_refs")
        branches = {entry.name: entry.target_commit for entry in refs.branches}
        tags = {entry.name: entry.target_commit for entry in refs.tags}
        # A repository whose visibility is not told is none that may be written to.
        return HubState(info.private is True, branches.get(self.branch), branches.get("main"), tags)

    def present(self) -> HubState:
        """Ask what is there, in a repository that was there."""
        found = self.state()
        if found is None:
            raise StoreError(f"{self.repo} existed a moment ago and no longer does; check it on the Hub")
        return found

    def created(self, *, public: bool) -> HubState:
        """Create the repository, and ask what is there.

        Somebody may have been faster, or new repositories of the organization may be public.
        """
        self._call("creating the repository", "create_repo", private=not public, exist_ok=True)
        return self.present()

    def require_private(self, state: HubState, rows: str, remedy: str) -> None:
        """Raise ConfigError where the repository is public: ``rows`` are what everybody would see."""
        if not state.private:
            raise ConfigError(
                f"{self.repo} is public: everybody would see {rows}. Push to another repository, make it private in "
                f"its settings, or {remedy} if that is intended"
            )

    def head(self) -> str:
        """Return the commit of the branch."""
        head = self.present().head
        if head is None:
            raise StoreError(f"{self.repo}: the Hub names no commit for the branch {self.branch}; push again")
        return head

    def files(self, commit: str) -> dict[str, Any]:
        """List the files of a commit, by path, as `huggingface_hub` describes them (``RepoFile``)."""
        if not commit:
            return {}
        listed = self._call("listing files", "list_repo_tree", revision=commit, recursive=True)
        return {entry.path: entry for entry in listed if hasattr(entry, "blob_id")}

    def read(self, commit: str, path: str) -> bytes:
        """Return a file of a commit."""
        with tempfile.TemporaryDirectory(prefix="tokenlake-push-") as folder:
            where: dict[str, Any] = {"revision": commit, "local_dir": folder}
            return Path(self._call(f"reading {path}", "hf_hub_download", path, **where)).read_bytes()

    def create_branch(self, start: str | None) -> None:
        """Create the target's branch where `start` is."""
        options: dict[str, Any] = {"branch": self.branch, "revision": start, "exist_ok": True}
        self._call(f"creating the branch {self.branch}", "create_branch", **options)

    def upload(self, files: Sequence[tuple[PublishedFile, Path | None]]) -> list[Any]:
        """Send the contents of files, without making them visible; return what :meth:`commit` takes.

        Contents that the Hub has already are not sent again. A path is not needed any more after this.

        Args:
            files: with, for those whose bytes are not held, a file of this machine with the same bytes.
        """
        from huggingface_hub import CommitOperationAdd

        made: list[Any] = []
        for file, path in files:
            content: Any = path if file.data is None else file.data
            addition: Any = CommitOperationAdd(file.path, content)
            # Known, and just compared: hashing it once more would only take time.
            addition.upload_info.sha256 = bytes.fromhex(file.sha256)
            made.append(addition)
        what = files[0][0].path if len(files) == 1 else f"{len(files)} files"
        self._call(
            f"uploading {what}",
            "preupload_lfs_files",
            made,
            tries=1,  # what is worth another try has had several
            revision=self.branch,
            num_threads=_THREADS,
            gitignore_content=_NO_IGNORE,
        )
        for addition in made:
            if not addition._is_uploaded and isinstance(addition.path_or_fileobj, str):
                # The Hub keeps it in git itself, and the file is about to go.
                addition.path_or_fileobj = Path(addition.path_or_fileobj).read_bytes()
        return made

    def commit(
        self, additions: list[Any], deleted: Sequence[str], message: str, about: str, parent: str
    ) -> None:
        """Make one commit of all, on top of `parent`.

        Raises:
            VersionConflictError: the branch is elsewhere by now.
            StoreError: the Hub could not be reached; the commit may have been made all the same.
        """
        from huggingface_hub import CommitOperationDelete

        operations = [*additions, *(CommitOperationDelete(path, is_folder=False) for path in deleted)]
        options: dict[str, Any] = {
            "commit_message": message,
            "commit_description": about,
            "parent_commit": parent,
        }
        self._call("committing", "create_commit", operations, tries=1, revision=self.branch, **options)

    def tag(self, name: str, commit: str, message: str) -> None:
        """Name a commit; VersionConflictError if the name is another one's."""
        try:
            self._call(f"tagging {name}", "create_tag", tag=name, tag_message=message, revision=commit)
        except VersionConflictError:
            state = self.state()
            if state is None or state.tags.get(name) != commit:
                raise

    def _call(
        self,
        doing: str,
        method: str,
        *arguments: object,
        tries: int = _TRIES,
        passed: type[Exception] | tuple[()] = (),
        **options: object,
    ) -> Any:
        """Call a method of `HfApi` for this repository, again where that may help; a generator is read to its end.

        Args:
            passed: errors that are the caller's.
        """
        call = getattr(self._api, method)
        for left in reversed(range(tries)):
            try:
                with _no_bars():
                    found = call(self.repo, *arguments, repo_type="dataset", **options)
                    return list(found) if isinstance(found, Iterator) else found
            except passed:
                raise
            except (OSError, ValueError, RuntimeError, self._fault) as error:
                status = status_of(error)
                # Without an answer it is the connection, unless we did something wrong.
                wrong = isinstance(error, ValueError | TypeError) or "offline" in type(error).__name__.lower()
                if not left or (wrong if status is None else status not in _PASSING):
                    raise explained(error, self.repo, doing) from None
                time.sleep(_FIRST_WAIT * 2 ** (tries - 1 - left))
        raise AssertionError("unreachable")


@contextmanager
def _no_bars() -> Generator[None]:
    """Silence the bars of `huggingface_hub`: progress is told by whoever shows ours."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    # A variable that says yes or no is the user's word; the functions would only warn.
    ours = constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled()
    if ours:
        disable_progress_bars()
    try:
        yield
    finally:
        if ours:
            enable_progress_bars()
