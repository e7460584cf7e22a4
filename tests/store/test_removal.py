"""Removing a version: what is refused, what goes, and that no reader ever sees half
of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokenlake as tl
from tests.etl.remote_builds_support import Bucket, bucket
from tests.store.memory_store import MemoryStore
from tests.store.support import build_store, copy_store, files, settings
from tests.store.test_gc_interleavings import built, commit, visible, whole
from tokenlake import Catalog, verify
from tokenlake.cli.app import main
from tokenlake.errors import ConfigError, NotFoundError, StoreError
from tokenlake.etl import build_dataset
from tokenlake.runtime.store import Layout, collect, open_store
from tokenlake.runtime.store.remove import remove

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """``small`` v1 and v2, which reuses units of v1; ``tok`` and ``packed``, which
    is made from it.
    """
    root = tmp_path_factory.mktemp("removal")
    store = build_store(root, tokenizer_dir)
    plain = settings(root, tokenizer_dir) | {"pack": {"enabled": False}}
    build_dataset(plain | {"name": "tok"}, workers=1)
    parent = {
        "datasets": [{"name": "t", "dataset": "tok@v1"}],
        "save": plain["save"],
        "name": "packed",
    }
    build_dataset(parent | {"pack": {"enabled": True, "seq_length": 32}}, workers=1)
    return store


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return copy_store(made, tmp_path / "store")


def test_a_version_goes_and_the_others_stay_whole(store: Path, capsys: Output) -> None:
    before = files(store)
    assert main(["rm", "small@v1", "--dry-run", "--store", str(store)]) == 0
    told = {
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("small/")
    }
    assert files(store) == before
    assert main(["rm", "small@v1", "--store", str(store)]) == 0
    assert before - files(store) == told
    left = {path for path in files(store) if path.startswith("small/v1/")}
    assert left == {"small/v1/claim.json", "small/v1/manifest.json"}
    lake = open_store(store)
    assert verify(lake, "small", 2, deep=True).ok
    with pytest.raises(NotFoundError, match=r"small@v1 .* was removed"):
        verify(lake, "small", 1)
    assert main(["rm", "small@v1", "--store", str(store)]) == 2
    assert [info.version for info in Catalog(lake).versions("small")] == [2]
    assert collect(lake, grace=0).removed == ()


def test_numbers_are_not_used_again(
    store: Path, made: Path, tokenizer_dir: Path
) -> None:
    whole_ = settings(made.parent, tokenizer_dir) | {"save": {"output_dir": str(store)}}
    assert build_dataset(whole_, workers=1).status == "exists"
    for version in (2, 1):
        assert tl.remove_version(store, f"small@v{version}").bytes > 0
    with pytest.raises(NotFoundError):
        tl.open(f"{store}/small")
    again = build_dataset(whole_, workers=1)
    assert (again.version, again.status) == (3, "built")
    assert verify(open_store(store), "small", 3, deep=True).ok


def test_what_others_are_made_from_stays(store: Path) -> None:
    before = files(store)
    with pytest.raises(
        StoreError,
        match=r"tok@v1 is not removed: packed@v1 is made from it.*`tokenlake rm packed@v1`",
    ):
        tl.remove_version(store, "tok@v1")
    assert files(store) == before
    tl.remove_version(store, "packed@v1")
    tl.remove_version(store, "tok@v1")
    assert Catalog(open_store(store)).datasets() == ["small"]


def test_what_a_tag_names_stays(store: Path, capsys: Output) -> None:
    assert main(["tag", "small@v1", "prod", "--store", str(store)]) == 0
    before = files(store)
    for arguments in (["small@v1"], ["small@v1", "--dry-run"]):
        assert main(["rm", *arguments, "--store", str(store)]) == 1
        assert "the tag 'prod' names it" in capsys.readouterr().err
    assert files(store) == before
    assert main(["tag", "small", "prod", "--remove", "--store", str(store)]) == 0
    assert main(["rm", "small@v1", "--json", "--store", str(store)]) == 0


def test_a_removal_lists_the_files_of_the_version(store: Path, capsys: Output) -> None:
    arguments = ["rm", "small@v1", "--dry-run", "--json", "--store", str(store)]
    assert main(arguments) == 0
    removed = json.loads(capsys.readouterr().out)["removed"]
    assert {file["kind"] for file in removed} == {"version"}


WRONG = {
    "small": ConfigError,
    "small@prod": ConfigError,
    "small@v7": NotFoundError,
    "tiny@v1": NotFoundError,
}


@pytest.mark.parametrize(("name", "error"), WRONG.items())
def test_only_a_version_by_its_number_is_removed(
    name: str, error: type[Exception], store: Path
) -> None:
    before = files(store)
    with pytest.raises(error):
        tl.remove_version(store, name)
    assert files(store) == before


def test_a_damaged_version_can_be_removed(store: Path) -> None:
    manifest = store / "small" / "v2" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    tl.remove_version(f"{store}/small@v2")
    assert Catalog(open_store(store)).latest("small") == 1


class Died(Exception):
    """The process is gone."""


def test_dying_at_any_step_leaves_the_version_whole_or_gone() -> None:
    start = MemoryStore(built())
    commit(start)
    layout, steps = Layout("d", 1), 0
    while True:
        left = steps

        def step(action: str, key: str) -> None:
            nonlocal left
            left -= 1
            if left < 0 and action in ("swap", "delete"):
                raise Died

        objects = dict(start.objects)
        try:
            remove(MemoryStore(objects, step), layout)
        except Died:
            whole(objects)
            seen = visible(objects)
            collect(MemoryStore(objects), grace=1e9, now=1.0, workers=1)
            assert visible(objects) == seen
            assert seen or set(objects) == {layout.claim, layout.manifest}
        else:
            break
        steps += 1
    assert steps > 5
    assert set(objects) == {layout.claim, layout.manifest}
    assert Catalog(MemoryStore(objects)).claim("d", "a" * 64, {}).version == 2


def test_a_tag_that_is_set_meanwhile_keeps_its_version() -> None:
    objects = MemoryStore(built()).objects
    commit(MemoryStore(objects))
    before = dict(objects)

    def step(action: str, key: str) -> None:
        if (action, key) == (
            "swap",
            "d/v1/manifest.json",
        ) and "d/tags/prod.json" not in objects:
            Catalog(MemoryStore(objects)).set_tag("d", "prod", 1)

    with pytest.raises(StoreError, match="the tag 'prod' names it"):
        remove(MemoryStore(objects, step), Layout("d", 1))
    assert {key: objects[key] for key in before} == before


def test_a_version_in_a_bucket_is_removed(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
    with bucket("gs") as lake:
        remove_from(lake, made)


def remove_from(lake: Bucket, made: Path) -> None:
    lake.put(
        "removed",
        {
            name: (made / name).read_bytes()
            for name in files(made)
            if name.startswith("small/")
        },
    )
    address = lake.address("removed")
    planned = tl.remove_version(address, "small@v1", dry_run=True)
    done = tl.remove_version(address, "small@v1")
    assert (done.removed, done.kept) == (planned.removed, ())
    left = [name for name in lake.everything("removed") if name.startswith("small/v1/")]
    assert sorted(left) == ["small/v1/claim.json", "small/v1/manifest.json"]
    assert Catalog(open_store(address)).resolve("small") == ("small", 2)
    assert verify(open_store(address), "small", 2, deep=True).ok
