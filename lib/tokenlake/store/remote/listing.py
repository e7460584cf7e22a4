"""Listings of remote storages, page by page."""

from __future__ import annotations

from functools import partial

from tokenlake.store.remote.asking import ask
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import Found, Objects
from tokenlake.store.remote.retry import Patience
from tokenlake.store.remote.url import Url


def listed(objects: Objects, place: Url, patience: Patience, *, flat: bool) -> list[Found]:
    """Return what begins with the path of `place`, itself left out; only what is in its folder if `flat`."""
    found: list[Found] = []
    mark: str | None = None
    while True:
        one_page = partial(objects.page, place, flat=flat, mark=mark)
        page = on_loop(ask(objects, place, patience, one_page))
        found += (one for one in page.found if one.path != place.path)
        mark = page.following
        if mark is None:
            return found
