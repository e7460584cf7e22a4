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

_CARD_LIMIT: Final = 16 << 20  # bytes


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository at one commit.

    Attributes:
        token: ``sha256:<hex>`` of what LFS or Xet hold, ``git:<object id>`` of what git itself holds.
    """

    path: str
    size: int
    token: str


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
        info = self._ask(f"/revision/{quote(dataset.revision, safe='')}")[0]
        self.commit = str(info.get("sha", ""))
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise SourceError(f"{self}: the Hub named no commit of it (got {self.commit!r})")
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
        found: list[HubFile] = []
        for entry in self._tree():
            if entry.get("type") == "file":
                lfs = entry.get("lfs")
                token = f"sha256:{lfs['oid'].removeprefix('sha256:')}" if lfs else f"git:{entry['oid']}"
                found.append(HubFile(entry["path"], int((lfs or entry)["size"]), token))
        return sorted(found, key=lambda file: file.path)

    def text(self, path: str) -> str:
        """Return a small text file of the commit."""
        body = self._get(resolve_path(self.id.repo, self.commit, path), f": {path}").body
        return body[:_CARD_LIMIT].decode("utf-8", errors="replace")

    def require_access(self) -> None:
        """Raise SourceError unless the files may be read; the list of a gated dataset's files is public."""
        if self.gated:
            self._get(f"/api/datasets/{quote(self.id.repo)}/auth-check")

    def at(self, revision: str) -> HubRepo | None:
        """Return the same repository at another revision, None where there is no such revision."""
        try:
            return HubRepo(self._client, HubId(self.id.repo, revision))
        except SourceNotFoundError:
            return None

    def _tree(self) -> Iterator[Mapping[str, Any]]:
        query = {"recursive": "true", "expand": "false"}
        while True:
            page, headers = self._ask(f"/tree/{self.commit}?{urlencode(query)}")
            yield from page
            following = re.search(r'<([^>]+)>;\s*rel="next"', headers.get("link", ""))
            if not following:
                return
            # Only the cursor is taken from the link: a token never goes where a link points.
            query = dict(parse_qsl(urlsplit(following.group(1)).query))

    def _near(self) -> str:
        """Name the branches and tags, where the Hub tells them."""
        try:
            refs = self._ask("/refs")[0]
        except SourceError:
            return ""
        names = [entry["name"] for kind in ("branches", "tags") for entry in refs.get(kind) or []]
        listed = f"; it has {', '.join(names[:8])}" if names else ""
        return listed + did_you_mean(self.id.revision, names)

    def _ask(self, path: str) -> tuple[Any, Mapping[str, str]]:
        """Return what the Hub's API says of the repository, and the headers of its answer."""
        answer = self._get(f"/api/datasets/{quote(self.id.repo)}{path}")
        try:
            return json.loads(answer.body), answer.headers
        except ValueError as error:
            raise SourceError(
                f"{self}: {self._client.endpoint} does not answer as the Hub does ({error}); check HF_ENDPOINT"
            ) from error

    def _get(self, path: str, what: str = "") -> Answer:
        try:
            return self._client.get(path, what=f"{self}{what}")
        except Refused as error:
            raise refusal(error, self.id, with_token=self._client.with_token, near=self._near) from None


def resolve_path(repo: str, commit: str, path: str) -> str:
    """Return where the content of a file is, below the endpoint."""
    return f"/datasets/{quote(repo)}/resolve/{quote(commit, safe='')}/{quote(path)}"
