"""Tags: a name that moves, for versions that do not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.memory_store import MemoryStore
from tests.store.test_catalog import commit, manifest, overwrite
from tests.store.test_races import race
from tokenlake import Catalog
from tokenlake.errors import (
    IntegrityError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.runtime.store import Layout, Store, VersionInfo, open_store, seal

KEY = "code/tags/prod.json"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = open_store(tmp_path)
    for version in (1, 2, 3):
        commit(found, "code", version)
    return found


def tag(version: int, name: str = "prod") -> Any:
    """The tag of a version, as a store that holds nothing else would set it."""
    alone = MemoryStore(
        {Layout("code", version).manifest: manifest("code", version).to_bytes()}
    )
    return Catalog(alone).set_tag("code", name, version).tag


def test_a_tag_is_set_moved_listed_and_removed(store: Store) -> None:
    catalog = Catalog(store)
    assert catalog.tags("code") == []
    new = catalog.set_tag("code", "prod", 1)
    assert (new.tag, new.was, new.changed) == (tag(1), None, True)
    assert catalog.resolve("code@prod") == ("code", 1)
    moved = catalog.set_tag("code", "prod", 3)
    assert (moved.tag, moved.was, moved.changed) == (tag(3), tag(1), True)
    again = catalog.set_tag("code", "prod", 3)
    assert (again.tag, again.was, again.changed) == (tag(3), tag(3), False)
    catalog.set_tag("code", "best.of-2", 2)
    assert catalog.tags("code") == [tag(2, "best.of-2"), tag(3)]
    assert catalog.tag("code", "prod") == tag(3)
    assert (
        catalog.manifest_of("code@prod")
        == catalog.manifest_of("code@v3")
        == manifest("code", 3)
    )
    assert catalog.manifest_of("code") == manifest("code", 3)
    assert catalog.remove_tag("code", "prod") == 3
    assert catalog.tags("code") == [tag(2, "best.of-2")]
    with pytest.raises(NotFoundError, match=r"no tag 'prod'; there are: best.of-2"):
        catalog.remove_tag("code", "prod")


def test_the_file_is_pinned(store: Store) -> None:
    Catalog(store).set_tag("code", "prod", 1)
    assert store.read(KEY).decode() == (
        '{"dataset":"code","format_version":1,'
        '"manifest_sha256":"befbf9e2d4251491eba3abdb8090bf3e4bdc55f882db0d2243d070d6b3840e06",'
        '"sha256":"1f2251a665d491d5bd198acc2a326078b06bef5140aec99cefc350c3886098b3","tag":"prod","version":1}'
    )


def test_an_unknown_tag_names_near_matches_and_all(store: Store) -> None:
    catalog = Catalog(store)
    with pytest.raises(
        NotFoundError,
        match=r"has no tag 'prod'; there are: none. `tokenlake tag code@vN prod`",
    ):
        catalog.resolve("code@prod")
    catalog.set_tag("code", "prod", 1)
    catalog.set_tag("code", "best", 1)
    with pytest.raises(
        NotFoundError, match=r"did you mean prod\? There are: best, prod\."
    ) as caught:
        catalog.resolve("code@prdo")
    assert caught.value.details["near"] == ["prod"]
    for ask in (catalog.tags, lambda name: catalog.resolve(f"{name}@prod")):
        with pytest.raises(NotFoundError, match=r"no dataset 'cod'.*did you mean code"):
            ask("cod")


@pytest.mark.parametrize(
    "name",
    [
        "v3",
        "3",
        "v0",
        "007",
        "v1234567890",
        "Prod",
        "",
        ".x",
        "a/b",
        "../x",
        "a" * 65,
        "é",
        "x\n",
    ],
)
def test_what_is_no_tag_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match=r"the tag name .* is refused"):
        Catalog(store).set_tag("code", name, 1)
    with pytest.raises(StoreError):
        Catalog(store).tag("code", name)
    assert not (Path(store.url) / "code" / "tags").exists()


def test_only_committed_versions_are_tagged(store: Store) -> None:
    catalog = Catalog(store)
    claimed = catalog.claim("code", "b" * 64, {}).version
    for version, message in ((claimed, "is not committed"), (9, "does not exist")):
        with pytest.raises(NotFoundError, match=message):
            catalog.set_tag("code", "prod", version)
    assert catalog.tags("code") == []


def test_a_tag_whose_version_is_gone_says_so(store: Store) -> None:
    catalog = Catalog(store)
    catalog.set_tag("code", "prod", 2)
    store.delete(Layout("code", 2).manifest)
    for read in (catalog.resolve, catalog.manifest_of):
        with pytest.raises(
            NotFoundError,
            match=r"the tag code@prod is of v2, but code@v2 .* does not exist.*v1, v3.*--remove",
        ):
            read("code@prod")
    assert catalog.tags("code") == [tag(2)]
    assert catalog.set_tag("code", "prod", 3).was == tag(2)


def test_a_tag_whose_version_was_replaced_says_so(store: Store) -> None:
    catalog, key = Catalog(store), Layout("code", 2).manifest
    catalog.set_tag("code", "prod", 2)
    other = replace(manifest("code", 2), config={"x": 1})
    overwrite(store, key, other.to_bytes())
    for read in (catalog.resolve, catalog.manifest_of):
        with pytest.raises(
            IntegrityError,
            match=rf"code@prod was set .*{tag(2).manifest_sha256}; now it has {other.sha256}",
        ):
            read("code@prod")
    change = catalog.set_tag("code", "prod", 2)
    assert (change.was, change.changed) == (tag(2), True)
    assert catalog.resolve("code@prod") == ("code", 2)
    overwrite(store, key, store.read(key)[:-1])
    for read in (catalog.resolve, catalog.manifest_of):
        with pytest.raises(
            IntegrityError, match=r"code/v2/manifest\.json: not valid JSON"
        ):
            read("code@prod")


def test_damaged_and_misplaced_tags_are_refused_and_can_be_removed(
    store: Store,
) -> None:
    catalog = Catalog(store)
    catalog.set_tag("code", "prod", 1)
    good = store.read(KEY)
    for bad, message in (
        (good[:-1], "not valid JSON"),
        (good.replace(b'"version":1', b'"version":2'), "sha256 is"),
        (
            seal({**json.loads(good), "tag": "other"}),
            "it is code@other; expected code@prod",
        ),
        (
            seal({**json.loads(good), "dataset": "prose"}),
            "it is prose@prod; expected code@prod",
        ),
        (seal({**json.loads(good), "tag": "v3"}), 'tag is "v3"'),
        (seal({**json.loads(good), "version": 0}), "version is 0"),
        (seal({**json.loads(good), "more": 1}), "more is no known key"),
    ):
        overwrite(store, KEY, bad)
        for read in (
            lambda: catalog.resolve("code@prod"),
            lambda: catalog.tags("code"),
            lambda: catalog.set_tag("code", "prod", 2),
        ):
            with pytest.raises(IntegrityError, match=f"code/tags/prod.json: {message}"):
                read()
    assert catalog.remove_tag("code", "prod") is None
    assert catalog.set_tag("code", "prod", 2).was is None


def test_foreign_files_among_tags_are_named(store: Store) -> None:
    store.put_new("code/tags/Notes.txt", b"x")
    with pytest.raises(
        IntegrityError, match=r"code/tags/Notes\.txt: not a tag's name; remove the file"
    ):
        Catalog(store).tags("code")


def test_the_folder_of_tags_is_no_version_and_no_dataset(store: Store) -> None:
    catalog = Catalog(store)
    catalog.set_tag("code", "prod", 3)
    with pytest.raises(NotFoundError, match="no dataset 'gone'"):
        catalog.tag("gone", "prod")
    store.put_new("gone/tags/prod.json", replace(tag(1), dataset="gone").to_bytes())
    store.put_new("tags/v1/manifest.json", manifest("tags", 1).to_bytes())
    assert store.list_dirs("code") == ["tags", "v1", "v2", "v3"]
    assert catalog.datasets() == ["code", "tags"]
    assert catalog.versions("code") == [
        VersionInfo(version, True) for version in (1, 2, 3)
    ]
    assert catalog.latest("code") == 3
    assert catalog.claim("code", "b" * 64, {}).version == 4
    assert catalog.set_tag("tags", "prod", 1).tag.reference == "tags@prod"
    assert catalog.resolve("tags@prod") == ("tags", 1)


def test_who_sets_a_tag_that_moved_meanwhile_learns_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(store)
    catalog.set_tag("code", "prod", 1)
    real = type(store).swap

    def slow(self: Store, key: str, data: bytes, expected: bytes | None) -> str:
        real(self, key, tag(2).to_bytes(), expected)
        return real(self, key, data, expected)

    monkeypatch.setattr(type(store), "swap", slow)
    with pytest.raises(
        VersionConflictError,
        match=r"tags/prod\.json: .*other bytes.*, which should have been replaced",
    ):
        catalog.set_tag("code", "prod", 3)
    assert catalog.resolve("code@prod") == ("code", 2)


MOVE = """
from tokenlake.errors import NotFoundError
moves = []
for index in range(10):
    try:
        change = Catalog(store).set_tag("code", "prod", 1 + (arguments + index) % 3)
        if change.changed:
            moves.append([change.was and change.was.version, change.tag.version])
    except VersionConflictError:
        pass
print(json.dumps(moves))
"""


def test_moves_of_several_processes_form_one_chain(store: Store) -> None:
    moves = [
        tuple(move) for each in race(Path(store.url), MOVE, [0, 1]) for move in each
    ]
    first = [move for move in moves if move[0] is None]
    assert len(first) == 1
    # Each version is left as often as it is reached, but for the last one.
    last = Catalog(store).resolve("code@prod")[1]
    for version in (1, 2, 3):
        reached, left = (sum(move[at] == version for move in moves) for at in (1, 0))
        assert reached - left == (version == last)
