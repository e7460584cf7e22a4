"""Every order of the steps of three processes: builds, commits, collections. Minutes: with ``--faults all`` only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.conftest import Cases
from tests.store.memory_store import Stops
from tests.store.test_gc_interleavings import asleep, build, built, commit, gc, walk

#: Whatever changes an object, listings, and looks at a claim or a manifest.
CHANGES: Stops = frozenset(
    {"put_new", "swap", "delete", "list_dirs", "list", ("read", "claim.json"), ("size", "manifest.json")}
)
WALKS: dict[str, tuple[dict[str, bytes], list[Any]]] = {
    "a commit and two collections": (built(), [commit, gc, gc]),
    "a commit, its rerun and a collection": (built(), [commit, build, gc]),
    "a commit that slept and two collections": (asleep(), [commit, gc, gc]),
    "two equal builds": ({}, [build, build]),
}


@pytest.mark.parametrize("name", WALKS)
def test_every_order(cases: Cases, name: str) -> None:
    if not cases.all and name != "two equal builds":
        pytest.skip("minutes of interleavings: --faults all")
    begin, works = WALKS[name]
    found = walk(
        begin, works, CHANGES
    )  # fails where a visible version is not whole, with the steps that led there
    cases.add(f"gc: {name}, states", count=len(found.states))
