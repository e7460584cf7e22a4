"""A dataset's repository on the Hub: its commits, its files, its card. Nothing here reads data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tokenlake.config.near import did_you_mean
from tokenlake.errors import ConfigError, SourceError, SourceNotFoundError
from tokenlake.sources.hub.http import HubClient, Refused, quoted
from tokenlake.sources.inputs import InputFile

PREFIX: Final = "hf://datasets/"
CONVERTED: Final = "refs/convert/parquet"
"""Branch to which the Hub converts a dataset, as Parquet, by itself."""

_SHORT: Final = {"~parquet": CONVERTED}
_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# A branch in a URL has its slashes escaped, but the Hub's own references may stand as they are. The oldest
# datasets have a name alone; in a URL that is clear only where a revision follows.
_URL: Final = re.compile(
    rf"{PREFIX}([^/@]+/[^/@]+|[^/@]+(?=@))(?:(@)(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL
)
_CARD_LIMIT: Final = 16 << 20  # bytes


@dataclass(frozen=True, slots=True)
class HubId:
    """A dataset of the Hub, at a branch, tag or commit."""

    repo: str
    revision: str = "main"

    def url(self, path: str) -> str:
        """Return the URL of a file of it."""
        return f"{PREFIX}{self.repo}@{quote(self.revision, safe='')}/{path}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository at one commit.

    Attributes:
        token: ``sha256:<hex>`` of what LFS or Xet hold, ``git:<object id>`` of what git itself holds.
    """

    path: str
    size: int
    token: str


def parse_id(entry: str) -> HubId:
    """Read ``org/name``, ``org/name@revision`` or ``hf://datasets/org/name@revision``.

    Raises:
        ConfigError: it is none of these.
    """
    repo, at, revision = entry.removeprefix(PREFIX).rstrip("/").partition("@")
    revision = unquote(revision) if entry.startswith(PREFIX) else revision
    if not _ID.fullmatch(repo) or (at and not revision.strip("/")):
        raise ConfigError(
            f"data_files: {entry!r} is not the id of a dataset on the Hub; expected org/name or "
            "org/name@revision. Leave `type` out for files of this machine and for URLs.",
            got=entry,
        )
    return HubId(repo, _SHORT.get(revision, revision) or "main")


def parse_url(url: str) -> tuple[HubId, str]:
    """Split ``hf://datasets/org/name@revision/path`` into the dataset and the path in it.

    Raises:
        ConfigError: it is no such URL.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise ConfigError(
            f"data_files: {url!r}: expected hf://datasets/org/name/path or "
            "hf://datasets/org/name@revision/path (models and spaces hold no datasets)",
            got=url,
        )
    repo, at, revision, path = found.groups()
    return parse_id(f"{repo}@{unquote(revision)}" if at else repo), path or ""


def hub_commits(files: Iterable[InputFile]) -> dict[str, dict[str, str]]:
    """Return source to dataset to the commit it is read at, for the record of a run; no request is made."""
    found: dict[str, dict[str, str]] = {}
    for file in files:
        if file.url.startswith(PREFIX):
            dataset, _ = parse_url(file.url)
            found.setdefault(file.source, {})[dataset.repo] = dataset.revision
    return found


@final
class HubRepo:
    """One dataset's repository at one commit, to which its branch or tag was resolved once.

    Attributes:
        id: as it was asked for.
        commit: 40 hexadecimal digits.
        gated: whether its files are for users who were granted access.
    """

    def __init__(self, client: HubClient, dataset: HubId) -> None:
        """Resolve the revision.

        Raises:
            SourceNotFoundError: there is no such dataset, or no such revision.
            SourceError: it may not be read, or the Hub cannot be reached.
        """
        self.id, self._client = dataset, client
        self._api = f"/api/datasets/{quoted(dataset.repo)}"
        info = self._json(f"/revision/{quote(dataset.revision, safe='')}")
        self.commit = str(info.get("sha", ""))
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise SourceError(f"{self}: the Hub names no commit of it (got {self.commit!r})")
        self.gated = bool(info.get("gated"))

    def __str__(self) -> str:
        return f"dataset {self.id.repo!r}"

    @property
    def name(self) -> str:
        """The part of the id after the slash."""
        return self.id.repo.rpartition("/")[2]

    def url(self, path: str) -> str:
        """Return the URL of a file at the commit."""
        return HubId(self.id.repo, self.commit).url(path)

    def files(self) -> list[HubFile]:
        """List all files of the commit, sorted by path."""
        entries = self._pages(f"/tree/{self.commit}", {"recursive": "true", "expand": "false"})
        return sorted((_file(e) for e in entries if e.get("type") == "file"), key=lambda file: file.path)

    def text(self, path: str) -> str:
        """Return a small text file of the commit."""
        what = f"{self}: {path}"
        try:
            answer = self._client.get(resolve_path(self.id.repo, self.commit, path), what=what)
        except Refused as error:
            raise self.refusal(error) from None
        return answer.body[:_CARD_LIMIT].decode("utf-8", errors="replace")

    def start(self, path: str, size: int) -> bytes:
        """Return the first `size` bytes of a file that is not empty."""
        where = resolve_path(self.id.repo, self.commit, path)
        try:
            return self._client.get(where, span=(0, size), what=f"{self}: {path}").body
        except Refused as error:
            raise self.refusal(error) from None

    def require_access(self) -> None:
        """Raise SourceError unless the files may be read; the list of a gated dataset's files is public."""
        if self.gated:
            self._get("/auth-check")

    def at(self, revision: str) -> HubRepo | None:
        """Return the same repository at another revision, None where there is no such revision."""
        try:
            return HubRepo(self._client, HubId(self.id.repo, revision))
        except SourceNotFoundError:
            return None

    def refusal(self, error: Refused) -> SourceError:
        """Return what a refusal means, for people."""
        return refusal(error, self.id, with_token=self._client.with_token, near=self._near)

    def _near(self) -> str:
        """Name the branches and tags, where the Hub tells them."""
        try:
            refs = self._json("/refs")
        except SourceError:
            return ""
        groups = cast("list[list[dict[str, str]]]", [refs.get("branches") or [], refs.get("tags") or []])
        names = [entry["name"] for group in groups for entry in group]
        listed = f"; it has {', '.join(names[:8])}" if names else ""
        return listed + did_you_mean(self.id.revision, names)

    def _pages(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        while True:
            body, headers = self._get(f"{path}?{urlencode(query)}")
            yield from cast("list[dict[str, Any]]", self._parsed(body))
            following = re.search(r'<([^>]+)>;\s*rel="next"', headers.get("link", ""))
            if not following:
                return
            # Only the cursor is taken from the link: a token never goes where a link points.
            query = dict(parse_qsl(urlsplit(following.group(1)).query))

    def _json(self, path: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self._parsed(self._get(path)[0]))

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except ValueError as error:
            raise SourceError(
                f"{self}: {self._client.endpoint} does not answer as the Hub does ({error}); check HF_ENDPOINT"
            ) from error

    def _get(self, path: str) -> tuple[bytes, Mapping[str, str]]:
        try:
            answer = self._client.get(self._api + path, what=str(self))
        except Refused as error:
            raise self.refusal(error) from None
        return answer.body, answer.headers


def resolve_path(repo: str, commit: str, path: str) -> str:
    """Return where the content of a file is, below the endpoint."""
    return f"/datasets/{quoted(repo)}/resolve/{quote(commit, safe='')}/{quoted(path)}"


def _file(entry: dict[str, Any]) -> HubFile:
    lfs = entry.get("lfs")
    if lfs:
        return HubFile(entry["path"], int(lfs["size"]), f"sha256:{lfs['oid'].removeprefix('sha256:')}")
    return HubFile(entry["path"], int(entry["size"]), f"git:{entry['oid']}")


def refusal(error: Refused, dataset: HubId, *, with_token: bool, near: Any = None) -> SourceError:
    """Return the error that a refused request stands for.

    Args:
        with_token: whether the request carried a token.
        near: called for what to say about revisions there are.
    """
    what, page = f"dataset {dataset.repo!r}", f"https://huggingface.co/datasets/{dataset.repo}"
    if error.code == "GatedRepo":
        return SourceError(
            f"{what} is gated: its files are for users who were granted access, and "
            f"{'this token is not one of theirs' if with_token else 'no token was given'}. Request access at "
            f"{page}, then log in with `hf auth login` or set HF_TOKEN.",
            repo=dataset.repo,
        )
    if error.code == "RevisionNotFound":
        return SourceNotFoundError(
            f"{what} has no revision {dataset.revision!r}{near() if near else ''}",
            repo=dataset.repo,
            revision=dataset.revision,
        )
    if error.status == 401 and with_token and error.code != "RepoNotFound":
        return SourceError(
            f"{what}: the Hub does not accept the token that was given; it may be expired or mistyped. Log in "
            "again with `hf auth login`, or mend HF_TOKEN or storage_options.token.",
            repo=dataset.repo,
        )
    if error.code == "RepoNotFound" or error.status in (401, 404):
        return SourceNotFoundError(
            f"the Hub has no {what}, or it is private and "
            f"{'the token that was given may not see it' if with_token else 'no token was given'}. Check the "
            f"spelling at {page}; for a private dataset log in with `hf auth login` or set HF_TOKEN. "
            "(Files of this machine are read without `type: huggingface`.)",
            repo=dataset.repo,
        )
    said = f", {error.said!r}" if error.said else ""
    return SourceError(
        f"{what}: the Hub refuses it (status {error.status} {error.code}{said})", repo=dataset.repo
    )
