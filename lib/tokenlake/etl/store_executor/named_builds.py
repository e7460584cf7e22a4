"""Arguments of ``tokenlake work``: the build, and the worker's share of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tokenlake import errors
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.catalog import Catalog, Reference
from tokenlake.runtime.store.layout import Layout

# Index and number of shares. The number is not 0, and both are short.
_SHARE: Final = re.compile(r"([0-9]{1,7})/([1-9][0-9]{0,6})")

_SECONDS_BETWEEN_TRIES: Final = 1.0
"""Number of seconds between two attempts to find something."""

Result = TypeVar("Result")


def parse_share(text: str) -> tuple[int, int]:
    """Return the index of a share and the number of shares.

    Args:
        text: The two, as ``0/4``.

    Raises:
        ConfigError: The text has another form, or the index is not below the number.
    """
    match = _SHARE.fullmatch(text)
    if match is None or int(match[1]) >= int(match[2]):
        raise errors.ConfigError(
            f"share {text!r}: expected I/N, such as 0/4 to 3/4 for four workers"
        )
    return int(match[1]), int(match[2])


def named_build(where: StoreAddress, name: str, patience: float) -> Layout:
    """Return the layout of the named version or, without a number, of the newest one.

    Args:
        where: Address of the store.
        name: Name of the dataset, ``NAME`` or ``NAME@v3``.
        patience: Number of seconds to wait for a version.

    Raises:
        ConfigError: The name has a tag.
        NotFoundError: The dataset has no version.
    """
    reference = Reference.parse(name)
    if reference.tag is not None:
        raise errors.ConfigError(
            f"{name}: tags name finished versions; expected NAME or NAME@v3"
        )
    if reference.version is not None:
        return Layout(reference.dataset, reference.version)
    # The newest claim, which may be unfinished: a tag or the latest version would be a
    # committed one.
    catalog = Catalog(open_store(where))

    def newest_version() -> int:
        return max(info.version for info in catalog.versions(reference.dataset))

    return Layout(reference.dataset, wait_until_found(newest_version, patience))


def wait_until_found(find: Callable[[], Result], patience: float) -> Result:
    """Return the result of a function that may not find something yet.

    It is called once a second until it raises no NotFoundError.

    Args:
        find: Function that searches, and raises NotFoundError.
        patience: Number of seconds after which the NotFoundError is raised.
    """
    deadline = time.monotonic() + patience
    # The first attempt comes at once, the last one at the deadline or after it.
    while True:
        try:
            return find()
        except errors.NotFoundError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_SECONDS_BETWEEN_TRIES)
