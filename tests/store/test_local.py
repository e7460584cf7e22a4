"""The local store: keys stay below the root, publishing is create-only, verified and
leaves nothing behind.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store.support import files, sha256
from tokenlake.errors import (
    IntegrityError,
    NotAvailableError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.runtime.store import (
    HashingFile,
    Layout,
    Link,
    LocalStore,
    ObjectInfo,
    Store,
    StoreAddress,
    new_temp_name,
    open_store,
    shard_path,
)


def written(store: Store, data: bytes, prefix: str = "d/v1") -> Path:
    temp = store.temp(prefix)
    temp.write_bytes(data)
    return temp


# Names


@pytest.mark.parametrize("name", ["a", "llama2-2048", "0.x_y", "a" * 64])
def test_dataset_names(name: str) -> None:
    assert Layout(name, 1).prefix == f"{name}/v1"


@pytest.mark.parametrize(
    "name", ["", "A", ".a", "-a", "a/b", "..", "a" * 65, "a b", "ä", "a\n"]
)
def test_other_dataset_names_are_refused(name: str) -> None:
    with pytest.raises(StoreError, match="is refused"):
        Layout(name, 1)


UNSAFE = [
    "",
    "/etc/passwd",
    "a/../b",
    "..",
    "a//b",
    "a/",
    "./a",
    "a\\b",
    "a\0b",
    "a\nb",
    "x/.tmp-1",
]


@pytest.mark.parametrize("key", [*UNSAFE, "a" * 256, "\ud800", "a/" * 40 + "b"])
def test_unsafe_keys_are_refused_everywhere(store: Store, key: str) -> None:
    temp = written(store, b"x")
    calls: list[Callable[[], object]] = [
        lambda: store.read(key),
        lambda: store.open(key),
        lambda: store.local_path(key),
        lambda: store.size(key),
        lambda: store.put_new(key, b""),
        lambda: store.publish(temp, key, sha256(b"x")),
        lambda: store.link(key, "a", ""),
        lambda: store.link("a", key, ""),
        lambda: store.delete(key),
    ]
    if key:
        calls += [
            lambda: list(store.list(key)),
            lambda: store.list_dirs(key),
            lambda: store.temp(key),
        ]
    for call in calls:
        with pytest.raises(StoreError, match="is refused"):
            call()
    assert files(store) == {f"d/v1/{temp.name}"}


def test_symlinks_are_refused_not_followed(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store.put_new("d/v1/a", b"a")
    root = Path(store.url)
    (root / "d/v1/data").symlink_to(outside)
    (root / "d/v1/link").symlink_to(outside / "secret")
    (root / "d/v1/loop").symlink_to("loop")
    for key in ("d/v1/data/secret", "d/v1/link", "d/v1/data/new"):
        for call in (
            store.read,
            store.size,
            store.delete,
            lambda key: store.put_new(key, b"x"),
        ):
            with pytest.raises(StoreError, match="symlink"):
                call(key)
    with pytest.raises(StoreError):
        store.read("d/v1/loop")
    assert [info.key for info in store.list("")] == [
        "d/v1/a",
        "d/v1/data",
        "d/v1/link",
        "d/v1/loop",
    ]
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_root_behind_a_symlink_is_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    store = open_store(tmp_path / "alias")
    store.put_new("a/b", b"x")
    assert (tmp_path / "real/a/b").read_bytes() == b"x"


def test_pipes_and_folders_are_not_objects(store: Store) -> None:
    store.put_new("d/a", b"a")
    os.mkfifo(Path(store.url) / "d/pipe")
    for key in ("d/pipe", "d"):
        assert store.size(key) is None
        with pytest.raises(StoreError, match="regular file"):
            store.read(key)


def test_layout_is_pinned() -> None:
    layout = Layout("llama2-2048", 1)
    assert (
        layout.key(shard_path("train", 17, 0))
        == "llama2-2048/v1/data/train-00017-00.parquet"
    )
    assert layout.ledger(17) == "llama2-2048/v1/ledger/00017.json"
    assert (layout.manifest, layout.claim) == (
        "llama2-2048/v1/manifest.json",
        "llama2-2048/v1/claim.json",
    )
    assert layout.run("20261121-x") == "llama2-2048/v1/runs/20261121-x.json"
    for bad in (
        lambda: Layout("a", 0),
        lambda: Layout("A", 1),
        lambda: layout.key("../v2/x"),
        lambda: shard_path("a/b", 0, 0),
    ):
        with pytest.raises(StoreError):
            bad()


# Opening


def test_open_store_takes_paths_and_file_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        open_store("lake").url
        == open_store((tmp_path / "lake").as_uri()).url
        == str(tmp_path / "lake")
    )
    assert not (tmp_path / "lake").exists()
    assert open_store("file:///a%20b").url == "/a b"


def test_other_schemes_are_not_available_and_credentials_not_repeated() -> None:
    for url in (
        "https://user:hunter2@host/x",
        "abfs://user:hunter2@container/x",
        "memory://x",
    ):
        with pytest.raises(NotAvailableError, match=url.partition("//")[0]) as caught:
            open_store(url)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "file://host/x", "file://", "file:///a?b"])
def test_strange_addresses_are_refused(url: str) -> None:
    with pytest.raises(StoreError):
        open_store(url)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        open_store(tmp_path / "f")


def test_an_address_travels_as_json_and_shows_no_options() -> None:
    address = StoreAddress("s3://bucket/lake", {"key": {"env": "LAKE_KEY"}})
    assert msgspec.convert(msgspec.to_builtins(address), StoreAddress) == address
    assert "LAKE_KEY" not in repr(address) and str(address) == "s3://bucket/lake"
    assert StoreAddress.of(address) is address


# Reading and listing


def test_objects_read_back(store: Store) -> None:
    assert store.put_new("d/v1/x", b"hello") == "created"
    assert store.read("d/v1/x") == b"hello"
    with store.open("d/v1/x") as stream:
        assert stream.seek(1) == 1 and stream.read(2) == b"el"
    assert (store.size("d/v1/x"), store.exists("d/v1/x")) == (5, True)
    assert (store.size("d/v1/y"), store.exists("d/v1/x/y")) == (None, False)
    assert stat.S_IMODE(store.local_path("d/v1/x").stat().st_mode) == 0o444
    for call in (store.read, store.open, store.delete):
        with pytest.raises(NotFoundError, match="d/v1/y"):
            call("d/v1/y")
    store.delete("d/v1/x")
    assert files(store) == set()


def test_a_listing_leaves_out_what_is_removed_meanwhile(store: Store) -> None:
    store.put_all({f"a/{name}": b"x" for name in "xyz"})
    listing = store.list("a")
    assert next(listing).key == "a/x"
    store.delete("a/y")
    assert [info.key for info in listing] == ["a/z"]


def test_listing_is_sorted_by_key_and_hides_temporary_files(store: Store) -> None:
    keys = ["a/x", "a-b/x", "a.b", "a/b/c", "a0"]
    for key in keys:
        store.put_new(key, key.encode())
    store.temp("a")
    assert [info.key for info in store.list("")] == sorted(keys)
    os.utime(store.local_path("a/x"), (1000, 1000.5))
    assert [(info.key, info.size) for info in store.list("a")] == [
        ("a/b/c", 5),
        ("a/x", 3),
    ]
    assert list(store.list("a"))[1] == ObjectInfo("a/x", 3, 1000.5)
    assert store.list_dirs("") == ["a", "a-b"]
    assert (list(store.list("none")), store.list_dirs("none")) == ([], [])


# Publishing


@pytest.mark.parametrize("size", [6, 16 << 20])  # of which several are hashed at a time
def test_many_links_are_judged_one_by_one(store: Store, size: int) -> None:
    data = {name: name.encode() * 6 for name in ("a", "b", "c", "d", "e")}
    store.put_all({f"d/v1/{name}": content for name, content in data.items()})
    store.delete("d/v1/c")
    store.put_new("d/v2/d", data["d"])
    store.put_new("d/v2/e", b"left by another run")
    links = [
        Link(
            source=f"d/v1/{name}",
            target=f"d/v2/{name}",
            size=size,
            sha256=sha256(data["a" if name == "b" else name]),
            orphan=name == "e",
        )
        for name in data
    ]
    found = store.link_all(links)
    outcomes = [each if isinstance(each, str) else type(each) for each in found]
    assert outcomes == ["created", IntegrityError, NotFoundError, "equal", "replaced"]
    assert files(store) == {
        *(f"d/v1/{name}" for name in "abde"),
        "d/v2/a",
        "d/v2/d",
        "d/v2/e",
    }
    assert store.read("d/v2/e") == data["e"]
    assert store.local_path("d/v2/a").samefile(store.local_path("d/v1/a"))
    with pytest.raises(VersionConflictError):
        store.link_all([replace(links[0], target="d/v2/d")])


def test_many_objects_are_put_whole_or_refused(store: Store) -> None:
    objects = {f"d/v1/{number:03d}": b"%d" % number for number in range(100)}
    store.put_new("d/v1/007", b"7")
    store.put_all(objects)
    assert {key: store.read(key) for key in files(store)} == objects
    with pytest.raises(VersionConflictError):
        store.put_all({"d/v1/100": b"new", "d/v1/008": b"other"})
    assert store.read("d/v1/008") == b"8"
    assert not store.leftovers("")


def test_a_file_that_is_replaced_while_it_is_linked_is_hashed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_new("d/v1/x", b"shared")
    real = os.link

    def link(source: Path, target: Path) -> None:
        if source.name == "x":
            source.unlink()
            source.write_bytes(b"mended" if target.name == "z" else b"shared")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert store.link("d/v1/x", "d/v2/y", sha256(b"shared")) == "created"
    with pytest.raises(IntegrityError, match="cannot reuse"):
        store.link("d/v1/x", "d/v2/z", sha256(b"shared"))


def test_linking_copies_where_links_fail(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_new("d/v1/x", b"shared")
    real = os.link

    def link(source: Path, target: Path) -> None:
        if source.name == "x":
            raise OSError(18, "Invalid cross-device link", str(source))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert store.link("d/v1/x", "d/v2/x", sha256(b"shared")) == "created"
    assert not store.local_path("d/v2/x").samefile(store.local_path("d/v1/x"))
    assert store.read("d/v2/x") == b"shared"
    assert files(store) == {"d/v1/x", "d/v2/x"}


@pytest.mark.parametrize("call", ["fsync", "link", "fchmod"])
def test_a_failing_file_system_is_a_store_error_with_a_hint(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store.put_new("d/v1/x", b"x")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(
        StoreError, match=r"cannot publish d/v1/y: No space left.*Free space"
    ):
        store.put_new("d/v1/y", b"y")
    monkeypatch.undo()
    assert files(store) == {"d/v1/x"}


# Temporary files


def test_sweeping_removes_only_what_dead_processes_left(store: Store) -> None:
    mine = store.temp("d/v1")
    machine = mine.name.removeprefix(".tmp-").rsplit("-", 2)[0]
    folder = mine.parent
    dead, alive, elsewhere = (
        f".tmp-{machine}-{2**22 + 5}-00",
        f".tmp-{machine}-1-00",
        ".tmp-other.1f-99999999-00",
    )
    for name in (dead, alive, elsewhere, ".tmp-strange", f".tmp-{machine}-{10**30}-aa"):
        (folder / name).touch()
    assert store.sweep_temp("d/v1") == 2
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [mine.name, alive, elsewhere, ".tmp-strange"]
    )
    assert store.sweep_temp("d/none") == 0


def test_leftovers_are_found_wherever_they_lie_and_removed_by_name(
    store: Store,
) -> None:
    alive = store.temp("d/v1")
    dead = alive.parent.parent / new_temp_name().replace(
        f"-{os.getpid()}-", f"-{2**22 + 5}-"
    )
    dead.write_bytes(b"12345")
    os.utime(dead, (1000, 1000))
    store.put_new("d/v1/x", b"x")
    found = {leftover.name: leftover for leftover in store.leftovers("")}
    assert set(found) == {f"d/{dead.name}", f"d/v1/{alive.name}"}
    assert (found[f"d/{dead.name}"].dead, found[f"d/{dead.name}"].bytes) == (True, 5)
    assert found[f"d/{dead.name}"].modified == 1000
    assert not found[f"d/v1/{alive.name}"].dead
    assert [one.name for one in store.leftovers("d/v1")] == [f"d/v1/{alive.name}"]
    assert store.remove_leftover(found[f"d/{dead.name}"])
    assert not store.remove_leftover(found[f"d/{dead.name}"])
    assert alive.exists() and store.read("d/v1/x") == b"x"


# HashingFile


def test_hashing_file_is_a_sink_for_parquet(store: Store) -> None:
    table = pa.table({"x": pa.array(range(200_000), pa.int32())})
    temp = store.temp("d/v1")
    with (
        HashingFile(temp) as sink,
        pq.ParquetWriter(sink, table.schema, write_page_checksum=True) as writer,
    ):
        writer.write_table(table, row_group_size=50_000)
    assert store.publish(temp, "d/v1/x", sink.sha256) == "created"
    assert store.size("d/v1/x") == sink.bytes
    with store.open("d/v1/x") as stream:
        assert pq.read_table(stream).equals(table)


def test_hashing_file_writes_on_after_a_short_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    with HashingFile(tmp_path / "f") as sink:
        sink.write(b"0123456789" * 10)
    assert (tmp_path / "f").read_bytes() == b"0123456789" * 10


def test_a_full_disk_is_a_store_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with (
        HashingFile("/dev/full") as sink,
        pytest.raises(StoreError, match="No space left"),
    ):
        sink.write(b"x")


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to tell a zombie"
)
def test_temporary_files_of_a_dead_process_that_nobody_reaped_are_swept(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    # Dead, and a zombie until `wait`
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    left = store.temp("set/v1")
    orphan = left.with_name(left.name.replace(f"-{os.getpid()}-", f"-{process.pid}-"))
    left.rename(orphan)
    assert store.sweep_temp("set/v1") == 1
    assert not orphan.exists()
    process.wait()


def test_an_orphan_is_replaced_by_a_new_inode(store: Store) -> None:
    store.put_new("d/v1/x", b"orphan")
    old = store.open("d/v1/x")
    new = sha256(b"new")
    assert (
        store.publish(written(store, b"new"), "d/v1/x", new, replace_orphan=True)
        == "replaced"
    )
    assert (store.read("d/v1/x"), old.read()) == (b"new", b"orphan")
    assert (
        store.publish(written(store, b"new"), "d/v1/x", new, replace_orphan=True)
        == "equal"
    )
    assert store.put_new("d/v1/x", b"newer", replace_orphan=lambda: True) == "replaced"
    with pytest.raises(VersionConflictError):
        store.publish(
            written(store, b"new"), "d/v1/x", new, replace_orphan=lambda: False
        )
    old.close()
    assert files(store) == {"d/v1/x"}


def test_a_closed_file_writes_into_no_other_file_that_has_its_descriptor(
    tmp_path: Path,
) -> None:
    sink = HashingFile(tmp_path / "f")
    sink.write(b"first")
    sink.close()
    # The lowest free descriptor: that of the closed file.
    with (tmp_path / "other").open("wb") as other:
        with pytest.raises(ValueError, match="is closed: nothing more can be written"):
            sink.write(b"stray")
        other.write(b"mine")
    assert (tmp_path / "other").read_bytes() == b"mine"


def test_a_discarded_file_ignores_what_its_writer_still_writes(tmp_path: Path) -> None:
    sink = HashingFile(tmp_path / "f")
    sink.write(b"first")
    sink.discard()
    assert sink.write(b"stray") == 5
    assert (tmp_path / "f").read_bytes() == b"first"
