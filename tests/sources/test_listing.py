"""Which files a source has, in which order, and the ranges they are cut into."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sqlite3
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.support import Source, inputs, one, renamed
from tokenlake.base import in_order
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.sources import HashCache, InputFile, list_inputs, split_file

NAMES = [
    "a.jsonl",
    "b/c.jsonl.gz",
    "b/d.txt",
    "b/e/f.ndjson",
    "b/e/g.txt.zst",
    "z.JSONL",
]
OTHERS = [
    ".hidden.jsonl",
    "_part.jsonl",
    ".git/x.jsonl",
    "_tmp/x.jsonl",
    "README.md",
    "b/x.bin",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for name in NAMES + OTHERS:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def test_a_directory_is_searched_for_known_extensions(tree: Path) -> None:
    files = inputs(tree)
    assert [file.path for file in files] == sorted(NAMES)
    assert [file.format for file in files] == [
        "jsonl",
        "jsonl",
        "text",
        "jsonl",
        "text",
        "jsonl",
    ]
    assert [file.compression for file in files] == [
        None,
        "gzip",
        None,
        None,
        "zstd",
        None,
    ]


def test_what_a_file_is_identified_by(tree: Path) -> None:
    (file,) = inputs(tree / "b" / "d.txt", text_mode="lines")
    stat = (tree / "b" / "d.txt").stat()
    assert file.path == "d.txt"
    assert file.url == str(tree / "b" / "d.txt")
    assert file.size == 7
    assert file.token == "sha256:" + hashlib.sha256(b"b/d.txt").hexdigest()
    assert file.stat == (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    assert file.file_id == -7519265493397168012  # of "web" and "d.txt"
    assert file.text_mode == "lines"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # A pattern takes what it says, but not what is hidden.
        (["*.jsonl"], ["_part.jsonl", "a.jsonl"]),
        (["**/[a-z]*.jsonl"], ["_tmp/x.jsonl", "a.jsonl"]),
        (["b/*", "b/e/*"], None),
        (["b/[c-d]*"], ["c.jsonl.gz", "d.txt"]),
        (["b/**/*.txt*"], ["d.txt", "e/g.txt.zst"]),
        (["a.jsonl", "b/d.txt"], ["a.jsonl", "b/d.txt"]),
        (["b/e", "b/d.txt"], ["d.txt", "e/f.ndjson", "e/g.txt.zst"]),
        (["b/e/f.ndjson", "b/e/../e/f.ndjson", "b/e/*.ndjson"], ["f.ndjson"]),
        (["b/?.txt", "a.jsonl"], ["a.jsonl", "b/d.txt"]),
    ],
)
def test_paths_are_relative_to_the_deepest_common_directory(
    tree: Path, entries: list[str], expected: list[str] | None
) -> None:
    found = [tree / entry for entry in entries]
    if expected is None:
        with pytest.raises(ConfigError, match=r"x\.bin: the extension is unknown"):
            inputs(*found)
    else:
        assert [file.path for file in inputs(*found)] == expected


def test_the_place_of_the_tree_and_the_order_of_the_entries_are_not_identity(
    tree: Path,
) -> None:
    before = [(file.path, file.token, file.file_id) for file in inputs(tree)]
    tree.rename(tree.parent / "elsewhere")
    moved = tree.parent / "elsewhere"
    after = inputs(
        moved / "z.JSONL", moved / "b", moved / "a.jsonl", moved / "b" / "d.txt"
    )
    assert [(file.path, file.token, file.file_id) for file in after] == before


def test_relative_paths_and_file_urls_are_local(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    assert (
        inputs("a.jsonl")
        == inputs(f"file://{tree}/a.jsonl")
        == inputs("b/../[a]*.jsonl")
    )


def test_a_name_that_looks_like_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a[1].jsonl").write_text("x")
    (tmp_path / "a1.jsonl").write_text("y")
    assert [file.path for file in inputs(tmp_path / "a[1].jsonl")] == ["a[1].jsonl"]


def test_a_link_back_to_a_folder_above_is_not_followed_for_ever(tree: Path) -> None:
    (tree / "b" / "loop").symlink_to(tree)
    assert [file.path for file in inputs(tree)] == sorted(NAMES)


_PARTS = st.sampled_from(
    [
        "*",
        "**",
        "?",
        "a*",
        "[ab]",
        "[!a]",
        "a",
        "b",
        ".*",
        ".h",
        "*.x",
        "[.]h",
        "a?",
        "**a",
    ]
)


@pytest.fixture(scope="module")
def many_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("globs")
    folders = [root / name for name in ("a/b", "a/a.x", "b/.h", ".h/a", "ab/a/b", "")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for path in [
        folder / name for folder in folders for name in ("b", "a.x", ".h", "ba")
    ]:
        if not path.exists():
            path.write_text("")
    return root


@settings(max_examples=80)
@given(st.lists(_PARTS, min_size=1, max_size=5))
def test_globs_find_what_pythons_glob_finds(many_names: Path, parts: list[str]) -> None:
    pattern = str(many_names / Path(*parts))
    hits = glob.glob(pattern, recursive=True)  # noqa: PTH207
    # for Python `x/**` is also the file x, as "x/"; here it is what is below x
    expected = {hit for hit in hits if Path(hit).is_file() and not hit.endswith("/")}
    if not expected:
        with pytest.raises(SourceNotFoundError):
            inputs(pattern, type="text")
    else:
        assert {file.url for file in inputs(pattern, type="text")} == {
            str(Path(hit)) for hit in expected
        }


def test_a_glob_does_not_go_round_where_a_link_leads_back(tree: Path) -> None:
    (tree / "b" / "loop").symlink_to(tree)
    found = [file.path for file in inputs(tree / "**" / "[a-d]*.[jt]*")]
    assert "b/d.txt" in found
    assert not any("loop/b/loop" in path for path in found)


def test_a_link_to_nothing_is_an_error_and_not_a_file_less(tree: Path) -> None:
    (tree / "b" / "gone.jsonl").symlink_to(tree / "nowhere")
    for entry in (tree, tree / "b" / "*.jsonl*", tree / "**" / "*.jsonl"):
        with pytest.raises(
            SourceNotFoundError, match=r"b/gone\.jsonl: cannot be read \(No such file"
        ):
            inputs(entry)


def test_files_that_are_only_looked_at_are_not_read(tree: Path) -> None:
    (file,) = list_inputs(Source(data_files=(str(tree / "a.jsonl"),)), hashed=False)  # type: ignore[arg-type]
    stat = (tree / "a.jsonl").stat()
    assert file.token == f"stat:{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"


def test_a_listing_ends_where_it_is_enough(tree: Path) -> None:
    seen: list[str] = []

    def second(file: InputFile) -> bool:
        seen.append(file.path)
        return len(seen) == 2

    files = list_inputs(Source(data_files=(str(tree),)), enough=second)  # type: ignore[arg-type]
    assert [file.path for file in files] == seen == sorted(NAMES)[:2]


def test_an_explicit_type_names_the_format_of_every_file(tree: Path) -> None:
    assert one(tree / "README.md", type="text").format == "text"
    assert one(tree / "b" / "x.bin", type="jsonl").format == "jsonl"
    assert [file.path for file in inputs(tree, type="jsonl")] == [
        n for n in sorted(NAMES) if "txt" not in n
    ]
    assert [file.path for file in inputs(tree, type="text")] == [
        "README.md",
        "b/d.txt",
        "b/e/g.txt.zst",
    ]


@pytest.mark.parametrize(
    ("entry", "near"),
    [
        ("a.json", "a.jsonl"),
        ("A.jsonl", "a.jsonl"),
        ("b/c.jsonl", "b/c.jsonl.gz"),
        ("bb/d.txt", "b"),
        ("b/*.tx", None),
        ("b/e/**/nothing*.jsonl", None),
    ],
)
def test_a_mistyped_path_is_an_error_that_names_what_is_near(
    tree: Path, entry: str, near: str | None
) -> None:
    with pytest.raises(SourceNotFoundError, match="nothing matches") as caught:
        inputs(tree / entry)
    if near:
        assert "Did you mean" in str(caught.value)
        assert str(tree / near) in caught.value.details["near"]


def test_what_could_be_a_hub_id_is_never_taken_for_one(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    with pytest.raises(SourceNotFoundError, match=r"'org/corpus'.*Hub"):
        inputs("org/corpus")


def test_a_directory_without_inputs_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_text("")
    with pytest.raises(SourceNotFoundError, match=r"It holds \.bin"):
        inputs(tmp_path)
    with pytest.raises(SourceNotFoundError, match="of type parquet"):
        inputs(tmp_path, type="parquet")
    with pytest.raises(SourceNotFoundError, match="has no data_files"):
        inputs()


@pytest.mark.parametrize("name", ["x.jason", "x", "x.jsonl.br"])
def test_an_extension_that_says_nothing_needs_a_type(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match="the extension is unknown"):
        inputs(tmp_path / name)


def test_parquet_is_not_compressed_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "x.parquet.gz").write_text("")
    with pytest.raises(ConfigError, match="Decompress it first"):
        inputs(tmp_path / "x.parquet.gz")


def test_progress_reaches_the_total(tree: Path) -> None:
    seen: list[Any] = []
    lock = threading.Lock()

    def report(progress: Any) -> None:
        with lock:
            seen.append(progress)

    files = list_inputs(
        Source(data_files=(str(tree),)), hash_threads=4, on_progress=report
    )  # type: ignore[arg-type]
    total = sum(file.size for file in files)
    hashed = [progress for progress in seen if progress.step == "hashing"]
    assert (hashed[-1].files, hashed[-1].all_files) == (len(files), len(files))
    assert (hashed[-1].bytes, hashed[-1].all_bytes) == (total, total)
    assert [progress.bytes for progress in hashed] == sorted(
        progress.bytes for progress in hashed
    )


# ---- the cache of hashes
# ----------------------------------------------------------------------------


def _old(path: Path) -> os.stat_result:
    """Make a file look as if it had been left alone for a while, as far as a test
    can (not its ctime).
    """
    os.utime(path, ns=(1, 1))
    return path.stat()


def test_a_hash_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}")
    stat = _old(path)
    now = stat.st_ctime_ns + 3_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    with HashCache(tmp_path / "cache" / "x.sqlite") as cache:
        cache.put_many([(stat, "0" * 64)])
        assert cache.get_many([stat])[0] == "0" * 64
    with HashCache(tmp_path / "cache" / "x.sqlite") as cache:
        source = Source(data_files=(str(path),))
        assert list_inputs(source, cache=cache)[0].token == "sha256:" + "0" * 64  # type: ignore[arg-type]
        path.write_text("[]")
        (file,) = list_inputs(source, cache=cache)  # type: ignore[arg-type]
        assert file.token == "sha256:" + hashlib.sha256(b"[]").hexdigest()


def test_a_file_that_just_changed_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    with HashCache(tmp_path / "x.sqlite") as cache:
        cache.put_many([(path.stat(), "0" * 64)])
        assert cache.get_many([path.stat()])[0] is None


@pytest.mark.parametrize(
    "break_it", ["garbage", "directory", "read-only", "other table", "closed"]
)
def test_a_broken_cache_is_no_error(tmp_path: Path, break_it: str) -> None:
    path, data = tmp_path / "x.sqlite", tmp_path / "a.jsonl"
    data.write_text("{}")
    stat = _old(data)
    if break_it == "garbage":
        path.write_bytes(b"not a database " * 100)
    elif break_it == "directory":
        path.mkdir()
    elif break_it == "read-only":
        path = Path("/proc/nowhere/x.sqlite")
    elif break_it == "other table":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE sha256 (a TEXT)")
        connection.close()
    with HashCache(path) as cache:
        if break_it == "closed":
            cache.close()
        cache.put_many([(stat, "0" * 64)])
        assert cache.get_many([stat])[0] is None
        (file,) = list_inputs(Source(data_files=(str(data),)), cache=cache)  # type: ignore[arg-type]
    assert file.token.endswith(hashlib.sha256(b"{}").hexdigest())


def test_a_locked_cache_is_no_error(tmp_path: Path) -> None:
    path, data = tmp_path / "x.sqlite", tmp_path / "a"
    data.write_text("x")
    with HashCache(path) as cache:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        assert cache.get_many([data.stat()])[0] is None
        other.close()


def test_what_is_put_together_is_found_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = []
    for number in range(3):
        (tmp_path / f"{number}").write_text("x")
        stats.append(_old(tmp_path / f"{number}"))
    now = max(stat.st_ctime_ns for stat in stats) + 3_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    with HashCache(tmp_path / "x.sqlite") as cache:
        cache.put_many([(stats[0], "0" * 64)])
        cache.put_many([(stats[2], "2" * 64)])
        assert cache.get_many(stats) == ["0" * 64, None, "2" * 64]
        cache.put_many([(stats[1], "1" * 64)])  # still waiting when the cache is closed
    with HashCache(tmp_path / "x.sqlite") as cache:
        assert cache.get_many(stats) == ["0" * 64, "1" * 64, "2" * 64]


def test_an_error_in_one_thread_ends_the_others(tmp_path: Path) -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        time.sleep(0.01)
        return number

    found: list[int] = []
    with pytest.raises(ValueError, match="three"):
        found.extend(in_order(work, range(2000), 2))
    assert list(in_order(work, range(4, 50), 3)) == list(range(4, 50))
    assert list(in_order(work, [], 3)) == []
    assert len(begun) < 2000


def test_where_the_cache_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TOKENLAKE_CACHE", raising=False)
    HashCache().close()
    assert (tmp_path / "xdg" / "tokenlake" / "sha256.sqlite").is_file()
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "own"))
    HashCache().close()
    assert (tmp_path / "own" / "sha256.sqlite").is_file()


# ---- ranges
# -----------------------------------------------------------------------------------------

NAMED = {
    "source": "web",
    "path": "a.jsonl",
    "url": "/a.jsonl",
    "token": "sha256:",
    "file_id": 0,
}
PLAIN = InputFile(**NAMED, size=0, stat=(0, 0, 0), format="jsonl", compression=None)


@given(st.integers(0, 10**13), st.integers(1 << 20, 1 << 30))
def test_ranges_of_a_plain_file_meet_and_are_about_a_unit_long(
    size: int, unit_size: int
) -> None:
    file = renamed(PLAIN, size=size)
    if size // unit_size > 2000:
        return
    parts = split_file(file, unit_size)
    assert parts[0].start == 0
    assert parts[-1].stop == size
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert sum(part.weight for part in parts) == size
    if size > unit_size:
        assert all(
            unit_size // 2 <= part.weight < unit_size * 3 // 2 + 1 for part in parts
        )


def test_which_files_can_be_split() -> None:
    big = renamed(PLAIN, size=10**9)
    for whole in (
        {"compression": "gzip"},
        {"format": "text"},
        {"format": "csv"},
        {"format": "json"},
    ):
        assert len(split_file(renamed(big, **whole), 1 << 20)) == 1
    for lines in ({}, {"format": "text", "text_mode": "lines"}):
        assert len(split_file(renamed(big, **lines), 1 << 20)) > 900
    (whole,) = split_file(renamed(PLAIN, compression="zstd", size=10**9), 1 << 20)
    assert (whole.start, whole.stop, whole.weight) == (0, 10**9, 10**9)


def test_a_url_beside_a_local_entry_is_refused_and_its_credentials_are_not_repeated(
    tree: Path,
) -> None:
    with pytest.raises(
        ConfigError, match=r"data_files mix URLs \(s3://\.\.\.\) and local files"
    ) as caught:
        inputs("s3://key:hunter22@lake/in/*.jsonl", tree / "a.jsonl")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    ["/no-such-folder-here/a.jsonl", "/no-such-file-here.jsonl", "/*.no-such-ending"],
)
def test_an_error_lists_nothing_of_the_root_of_the_file_system(entry: str) -> None:
    with pytest.raises(SourceNotFoundError) as caught:
        inputs(entry)
    words = set(re.findall(r"[\w.-]+", str(caught.value).replace(entry, "")))
    assert not words & set(os.listdir("/"))  # noqa: PTH208
