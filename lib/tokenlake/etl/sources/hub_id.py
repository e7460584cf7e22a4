"""Names of datasets on the Hub: ids and ``hf://datasets/...`` URLs.

An id is ``org/name`` or ``org/name@revision``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from tokenlake.errors import ConfigError

PREFIX: Final = "hf://datasets/"
CONVERTED: Final = "refs/convert/parquet"
"""Branch to which the Hub converts a dataset, as Parquet."""

# Abbreviations of revisions that may be written in a configuration.
_SHORT: Final = {"~parquet": CONVERTED}
_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# A branch in a URL has its slashes escaped, but the Hub's own references may stand as
# they are. The oldest datasets have a name alone; in a URL that is clear only if a
# revision follows.
_URL: Final = re.compile(
    rf"{PREFIX}([^/@]+/[^/@]+|[^/@]+(?=@))(?:(@)(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class HubId:
    """A dataset of the Hub, at a branch, tag or commit.

    Attributes:
        repo: Id of the dataset, ``org/name`` or ``name``.
        revision: Branch, tag or commit.
    """

    repo: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"dataset {self.repo!r}"

    def url(self, path: str) -> str:
        """Return the URL of a file of the dataset."""
        return f"{PREFIX}{self.repo}@{quote(self.revision, safe='')}/{path}"


def parse_id(entry: str) -> HubId:
    """Read ``org/name``, ``org/name@revision`` or ``hf://datasets/org/name@revision``.

    Raises:
        ConfigError: The entry has another form.
    """
    repo, at_sign, revision = entry.removeprefix(PREFIX).rstrip("/").partition("@")
    # In a URL the slashes of a branch are escaped. An id is written as it is.
    if entry.startswith(PREFIX):
        revision = unquote(revision)
    is_revision = (
        bool(revision.strip("/")) and ".." not in revision and revision.isprintable()
    )
    if not _ID.fullmatch(repo) or (at_sign and not is_revision):
        raise ConfigError(
            f"data_files: {entry!r} is not the id of a dataset on the Hub; expected org/name or "
            "org/name@revision. Leave `type` out for files of this machine and for URLs.",
            got=entry,
        )
    return HubId(repo, _SHORT.get(revision, revision) or "main")


def parse_url(url: str) -> tuple[HubId, str]:
    """Split ``hf://datasets/org/name@revision/path`` into the dataset and the path.

    Raises:
        ConfigError: The URL has another form.
    """
    url_match = _URL.fullmatch(url)
    if url_match is None:
        raise ConfigError(
            f"data_files: {url!r}: expected hf://datasets/org/name/path or hf://datasets/org/name@revision/path "
            "(models and spaces contain no datasets)",
            got=url,
        )
    repo, at_sign, revision, path = url_match.groups()
    # Such a part could lead out of the dataset where the Hub's server resolves it.
    if path and any(part in (".", "..") for part in path.split("/")):
        raise ConfigError(
            f"data_files: {url!r} has a part '.' or '..'; write the path without it",
            got=url,
        )
    entry = repo
    if at_sign:
        entry = f"{repo}@{unquote(revision)}"
    return parse_id(entry), path or ""
