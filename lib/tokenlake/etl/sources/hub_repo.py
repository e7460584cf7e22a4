"""A dataset's repository on the Hub at one commit: its files and its card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tokenlake.base.checks import did_you_mean
from tokenlake.errors import SourceError, SourceNotFoundError
from tokenlake.etl.sources.hub_client import Answer, HubClient, Refused, refusal
from tokenlake.etl.sources.hub_id import PREFIX, HubId, parse_url
from tokenlake.etl.sources.inputs import InputFile

_MAX_TEXT_BYTES: Final = 16 << 20
_SHOWN_REVISIONS: Final = 8


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository at one commit.

    Attributes:
        path: Path in the repository.
        size: Number of bytes.
        token: ``sha256:<hex>`` of a file that LFS or Xet hold, ``git:<object id>`` of a
            file that git itself holds.
    """

    path: str
    size: int
    token: str


def hub_commits(files: Iterable[InputFile]) -> dict[str, dict[str, str]]:
    """Return source to dataset to its commit, for the record of a run.

    No request is made.
    """
    commits: dict[str, dict[str, str]] = {}
    for file in files:
        if file.url.startswith(PREFIX):
            dataset, _ = parse_url(file.url)
            commits.setdefault(file.source, {})[dataset.repo] = dataset.revision
    return commits


@final
class HubRepo:
    """One dataset's repository at one commit.

    Its branch or tag was resolved to the commit once.

    Attributes:
        id: Dataset and revision, as they were requested.
        commit: Commit, 40 hexadecimal digits.
        gated: Whether its files are for users who were granted access.
    """

    def __init__(self, client: HubClient, dataset: HubId) -> None:
        """Resolve the revision.

        Raises:
            SourceNotFoundError: The dataset or revision does not exist.
            SourceError: The dataset may not be read, or the Hub cannot be reached.
        """
        self.id = dataset
        self._client = client
        info = self._ask(f"/revision/{quote(dataset.revision, safe='')}")[0]
        self.commit = str(info.get("sha", ""))
        # A server that is not the Hub may answer anything.
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise SourceError(
                f"{self}: the Hub returned no commit for it (got {self.commit!r})"
            )
        self.gated = bool(info.get("gated"))

    def __str__(self) -> str:
        return str(self.id)

    @property
    def name(self) -> str:
        """The part of the id after the slash."""
        return self.id.repo.rpartition("/")[2]

    def url(self, path: str) -> str:
        """Return the URL of a file at the commit."""
        return HubId(self.id.repo, self.commit).url(path)

    def files(self) -> list[HubFile]:
        """List all files of the commit, sorted by path."""
        files: list[HubFile] = []
        for entry in self._tree():
            if entry.get("type") == "file":
                files.append(_hub_file(entry))
        return sorted(files, key=lambda file: file.path)

    def text(self, path: str) -> str:
        """Return a small text file of the commit."""
        body = self._get(
            resolve_path(self.id.repo, self.commit, path), f": {path}"
        ).body
        return body[:_MAX_TEXT_BYTES].decode("utf-8", errors="replace")

    def require_access(self) -> None:
        """Raise SourceError unless the files may be read.

        The list of a gated dataset's files is public, so that its listing does not
        tell.
        """
        if self.gated:
            self._get(f"/api/datasets/{quote(self.id.repo)}/auth-check")

    def at(self, revision: str) -> HubRepo | None:
        """Return the same repository at another revision, None where it has none."""
        try:
            return HubRepo(self._client, HubId(self.id.repo, revision))
        except SourceNotFoundError:
            return None

    def _tree(self) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of the commit's tree, page by page."""
        query = {"recursive": "true", "expand": "false"}
        while True:
            page, headers = self._ask(f"/tree/{self.commit}?{urlencode(query)}")
            yield from page
            next_link = re.search(r'<([^>]+)>;\s*rel="next"', headers.get("link", ""))
            if not next_link:
                return
            # Only the cursor is taken from the link: a token is never sent to the place
            # that a link names.
            query = dict(parse_qsl(urlsplit(next_link.group(1)).query))

    def _near(self) -> str:
        """Return a clause with the branches and tags, "" if the Hub does not list them."""
        try:
            references = self._ask("/refs")[0]
        # The clause belongs to an error message: it must not replace the error by
        # another one.
        except SourceError:
            return ""
        names: list[str] = []
        for reference_kind in ("branches", "tags"):
            names += [entry["name"] for entry in references.get(reference_kind) or []]
        clause = ""
        if names:
            clause = f"; it has {', '.join(names[:_SHOWN_REVISIONS])}"
        return clause + did_you_mean(self.id.revision, names)

    def _ask(self, path: str) -> tuple[Any, Mapping[str, str]]:
        """Return the answer of the Hub's API about the repository, and its headers."""
        answer = self._get(f"/api/datasets/{quote(self.id.repo)}{path}")
        try:
            return json.loads(answer.body), answer.headers
        except ValueError as error:
            raise SourceError(
                f"{self}: {self._client.endpoint} does not respond like the Hub ({error}); check HF_ENDPOINT"
            ) from error

    def _get(self, path: str, subject: str = "") -> Answer:
        """Return the Hub's answer.

        Args:
            path: Path below the endpoint.
            subject: Text behind the dataset in a message.
        """
        try:
            return self._client.get(path, what=f"{self}{subject}")
        except Refused as error:
            raise refusal(
                error, self.id, with_token=self._client.with_token, near=self._near
            ) from None


def _hub_file(entry: Mapping[str, Any]) -> HubFile:
    """Return a file of a tree; git itself holds small files, LFS or Xet large ones."""
    # Both kinds of tokens are hashes of the content, so that they are the same at every
    # commit.
    lfs = entry.get("lfs")
    if lfs:
        return HubFile(
            entry["path"],
            int(lfs["size"]),
            f"sha256:{lfs['oid'].removeprefix('sha256:')}",
        )
    return HubFile(entry["path"], int(entry["size"]), f"git:{entry['oid']}")


def resolve_path(repo: str, commit: str, path: str) -> str:
    """Return the path of a file's content, below the endpoint."""
    return f"/datasets/{quote(repo)}/resolve/{quote(commit, safe='')}/{quote(path)}"
