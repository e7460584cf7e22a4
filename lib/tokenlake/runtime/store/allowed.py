"""Folders and URLs that the owner of a worker allows.

There is one rule for inputs, outputs, tokenizers and redirects.

A list is an environment variable with folders and URLs, separated like ``PATH``::

    TOKENLAKE_ALLOWED_INPUTS=/data/raw:s3://corpora/raw:https://data.example.org:8443/sets:hf://datasets/our-org

A place is allowed if it is an entry or lies below one. The place of the bytes counts,
and not its spelling:

- A path is followed through links. Names are compared part by part, so that
  ``/data/raw`` allows no ``/data/raw-2``.
- A URL must have the scheme and host of an entry, in any case and with or without the
  port that the scheme has anyway, and a path below that of the entry, compared part by
  part. A path that a server may read in another way is refused: ``.`` and ``..``,
  percent-encoded or behind a ``;`` too, backslashes and control characters.
- A pattern is judged by the folder before its first wildcard, and has no ``..`` behind
  it: ``raw/*/../../secret`` lies in ``raw`` by its beginning alone. Braces are expanded
  before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final
from urllib.parse import unquote

from tokenlake.errors import ConfigError
from tokenlake.runtime.store.url import Url, parse_url

INPUTS: Final = "TOKENLAKE_ALLOWED_INPUTS"
"""Environment variable with the folders and URLs that inputs may lie in."""

_WILDCARD: Final = re.compile(r"[*?\[]")
# A colon separates entries, but not a scheme or a host from what follows it.
_ENTRY: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://[^/:]*(?::\d+(?=[/:]|$))?[^:]*|[^:]+"
)
# Ports that the schemes have anyway: a URL with or without one names the same server.
_PORTS: Final = {"http": ":80", "https": ":443"}
_HUB: Final = "hf://datasets"
# A revision that follows the name of a dataset, as the Hub's URLs have it.
_REVISION: Final = re.compile(r"([^/@]+/[^/@]+)@(?:refs/(?:convert|pr)/[^/]+|[^/]+)")


def entries_of(allowed: str | None) -> list[str] | None:
    """Return the entries of a list; None, for everything, where there is none."""
    return None if allowed is None else _ENTRY.findall(allowed)


def is_on_disk(place: str) -> bool:
    """Return whether a place is a path of this machine, or a ``file://`` URL of one."""
    scheme, separator, _ = place.partition("://")
    return not separator or scheme.lower() == "file"


def path_of(place: str) -> str:
    """Return a path as it is, and that of a ``file://`` URL."""
    _, separator, path = place.partition("://")
    return path if separator else place


@final
@dataclass(frozen=True, slots=True)
class AllowedPlaces:
    """Places that a worker's environment allows.

    Attributes:
        variable: Name of the list, for messages.
        entries: Folders and URLs. None: the list is not set, and everything is allowed.
    """

    variable: str
    entries: tuple[str, ...] | None

    @classmethod
    def of(cls, environment: Mapping[str, str], variable: str) -> Self:
        """Return the places that the list in a variable allows."""
        entries = entries_of(environment.get(variable))
        return cls(variable, None if entries is None else tuple(entries))

    @property
    def is_bounded(self) -> bool:
        """Whether the list is set."""
        return self.entries is not None

    @property
    def urls(self) -> list[Url]:
        """The entries that are URLs."""
        return [
            parse_url(entry) for entry in self.entries or () if not is_on_disk(entry)
        ]

    @property
    def folders(self) -> list[Path]:
        """The entries that are folders of this machine, links followed."""
        paths: list[Path] = []
        for entry in self.entries or ():
            if is_on_disk(entry):
                paths.append(real_path(path_of(entry)))
        return paths

    def require(self, place: str, option: str) -> None:
        """Refuse a path or URL that is not allowed.

        Args:
            place: Path or URL.
            option: Option that holds it, for the message.

        Raises:
            ConfigError: It lies outside, or is a URL with credentials.
        """
        if not self.is_bounded:
            return
        if is_on_disk(place):
            self._require_path(place, real_path(path_of(place)), option)
        else:
            self.require_url(place, option)

    def require_url(self, place: str, option: str) -> None:
        """Refuse a URL that is not allowed, also one without a scheme.

        Everything else is as in :meth:`require`.
        """
        if not self.is_bounded:
            return
        # Refuses URLs with credentials, so that the message shows none.
        url = parse_url(place, option)
        if not self.has_url(url):
            raise self._outside(str(url), str(url), list(map(str, self.urls)), option)

    def require_pattern(self, pattern: str, option: str) -> None:
        """Refuse a path, glob or URL of inputs that can match a place outside the list.

        Args:
            pattern: Pattern without braces.
            option: Option that holds it, for the message.
        """
        if not self.is_bounded:
            return
        if not is_on_disk(pattern):
            self.require_url(pattern, option)
            return
        # The part behind the first wildcard is not known, and must not lead upwards.
        path = path_of(pattern)
        if has_dots_behind_wildcard(path):
            raise ConfigError(
                f"{option}: {pattern!r} has '..' after a wildcard, which may leave the folders that this worker "
                "allows; write the path without it",
                got=pattern,
            )
        folder = _static_folder(path)
        # A listing takes `..` out of a path before it follows links, and the system
        # after it; both must be inside.
        self._require_path(pattern, real_path(folder), option)
        shortened = os.path.abspath(_expanded(folder))  # noqa: PTH100
        self._require_path(pattern, Path(os.path.realpath(shortened)), option)

    def has_path(self, real: Path) -> bool:
        """Return whether a path, links followed, lies in an allowed folder."""
        if not self.is_bounded:
            return True
        return any(real.is_relative_to(folder) for folder in self.folders)

    def has_url(self, url: Url) -> bool:
        """Return whether a URL, up to its first wildcard, is allowed."""
        if not self.is_bounded:
            return True
        # A path that servers may read in two ways is not below anything.
        if is_odd(url.path):
            return False
        return any(_lies_below(url, entry) for entry in self.urls)

    def _require_path(self, place: str, real: Path, option: str) -> None:
        if not self.has_path(real):
            raise self._outside(place, str(real), list(map(str, self.folders)), option)

    def _outside(
        self, place: str, real: str, allowed: list[str], option: str
    ) -> ConfigError:
        return ConfigError(
            f"{option}: {place!r} is outside the places that this worker allows; got {real!r}, expected a path in "
            f"{', '.join(allowed) or 'nothing'} ({self.variable} in the worker's environment)",
            got=real,
        )


def has_dots_behind_wildcard(path: str) -> bool:
    """Return whether a glob has a part ``..`` behind its first wildcard."""
    wildcard = _WILDCARD.search(path)
    return wildcard is not None and ".." in path[wildcard.start() :].split("/")


def real_path(path: str) -> Path:
    """Return a path with ``~`` expanded and links followed; ConfigError for none."""
    try:
        return Path(_expanded(path)).resolve()
    # A NUL character, an unknown user, a loop of links.
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigError(f"{path!r} is not a path: {error}", got=path) from error


def _expanded(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - Path raises for unknown users, the listing does not


def _static_folder(path: str) -> str:
    """Return the folder below which a glob matches.

    A path without wildcards is returned unchanged.
    """
    wildcard = _WILDCARD.search(path)
    if wildcard is None:
        return path
    folder, slash, _ = path[: wildcard.start()].rpartition("/")
    if folder:
        return folder
    return "/" if slash else "."


def is_odd(path: str) -> bool:
    """Return whether a server may take the path of a URL for another path."""
    # A server may decode a path more than once.
    decoded_path = path
    while (decoded := unquote(decoded_path)) != decoded_path:
        decoded_path = decoded
    has_control_characters = any(
        ord(letter) < 32 or ord(letter) == 127 for letter in decoded_path
    )
    if "\\" in decoded_path or has_control_characters:
        return True
        return True
    for path_part in decoded_path.split("/"):
        # Some servers take parameters off a part; a revision of the Hub follows an @.
        plain_name = path_part.partition(";")[0]
        if plain_name in (".", "..") or plain_name.rpartition("@")[2] in (".", ".."):
            return True
    return False


def _lies_below(url: Url, entry: Url) -> bool:
    """Return whether a URL, up to its first wildcard, is an entry or below it."""
    if _same_root(url) != _same_root(entry):
        return False
    # A dataset of the Hub is allowed in every revision, unless the entry names one.
    path = url.path
    is_any_revision = url.root == _HUB and "@" not in entry.path
    if is_any_revision and _REVISION.match(path):
        path = _REVISION.sub(r"\1", path, count=1)
    # Up to the first wildcard, because a glob may match anything behind it.
    folder = entry.path.strip("/")
    static_path = _WILDCARD.split(path, maxsplit=1)[0]
    if not folder or path.rstrip("/") == folder:
        return True
    return static_path.startswith(f"{folder}/")


def _same_root(url: Url) -> str:
    """Return scheme and host in one spelling; names of buckets have one only."""
    if not url.is_http:
        return url.root
    return url.root.lower().removesuffix(_PORTS[url.scheme])


# Whether the listings of this process hold every file against the list.
_bounded_here = False


def bound_inputs_here() -> None:
    """Make listings of this process compare every file with :data:`INPUTS`.

    Files below the folder that is named are compared, too.

    A command's user may name any folder, and the list then bounds links alone. Whoever
    starts a deployment's run may not, and a folder that was checked may be another one
    when it is listed.
    """
    global _bounded_here
    _bounded_here = True


def inputs_are_bounded_here() -> bool:
    """Return whether :func:`bound_inputs_here` was called in this process."""
    return _bounded_here
