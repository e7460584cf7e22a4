"""Inputs on whatever else fsspec reads, URLs that are refused, and the parts that
need no server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from glob import glob
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.sources.remote_support import (
    corpus,
    documents,
    everything,
    jsonl,
    listed,
    read_rows_of,
    require_same_as_local,
)
from tokenlake.errors import (
    ConfigError,
    InputChangedError,
    MissingExtraError,
    SourceNotFoundError,
)
from tokenlake.etl.sources.ranged_bytes import ReadAheadBytes
from tokenlake.runtime.store import close_filesystems, parse_url

PIECE_BYTES = 8 << 20
"""Size of the largest piece that is fetched at once."""


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    close_filesystems()


class TestMemory:
    def test_every_format_gives_the_texts_and_positions_of_local_files(
        self, memory: MemoryFileSystem, tmp_path: Path
    ) -> None:
        for name, data in corpus().items():
            memory.pipe_file(f"/set/{name}", data)
        require_same_as_local(tmp_path, "memory://set")
        require_same_as_local(tmp_path, "memory://set/**/*.*")

    def test_globs_folders_and_objects(self, memory: MemoryFileSystem) -> None:
        for name in ("a/x.jsonl", "a/b/y.jsonl", "a/_z.jsonl"):
            memory.pipe_file(f"/{name}", b"{}")
        assert [file.path for file in listed("memory://a")] == ["b/y.jsonl", "x.jsonl"]
        assert [file.path for file in listed("memory://a/*.jsonl")] == [
            "_z.jsonl",
            "x.jsonl",
        ]
        assert [file.path for file in listed("memory://a/x.jsonl")] == ["x.jsonl"]
        with pytest.raises(
            SourceNotFoundError, match=r"Did you mean 'memory://a/x\.jsonl'"
        ):
            listed("memory://a/xx.jsonl")

    def test_lines_of_a_file_of_type_json(self, memory: MemoryFileSystem) -> None:
        memory.pipe_file("/a/x.json", jsonl(documents(5)))
        memory.pipe_file(
            "/a/y.json", b"[" + jsonl(documents(5)).rstrip().replace(b"\n", b",") + b"]"
        )
        assert [file.format for file in listed("memory://a", type="json")] == [
            "jsonl",
            "json",
        ]
        assert [file.format for file in listed("memory://a")] == ["jsonl", "json"]
        assert len(everything("memory://a", type="json")) == 10

    def test_a_changed_object(self, memory: MemoryFileSystem) -> None:
        memory.pipe_file("/a.jsonl", jsonl(documents(5)))
        files = listed("memory://a.jsonl")
        assert files[0].token.startswith(("modified:", "created:"))
        memory.pipe_file("/a.jsonl", jsonl(documents(5)))
        with pytest.raises(InputChangedError):
            read_rows_of(files)
        memory.rm_file("/a.jsonl")
        with pytest.raises(InputChangedError, match="no longer exists"):
            read_rows_of(files)


class TestSchemes:
    def test_an_unknown_scheme_names_near_ones(self) -> None:
        with pytest.raises(
            ConfigError, match=r"sftpp:// is not a known scheme; expected s3"
        ):
            listed("sftpp://host/a.jsonl")

    def test_a_missing_package_is_named(self) -> None:
        with pytest.raises(
            MissingExtraError,
            match=r"dropbox:// needs a package that is missing: pip install dropbox",
        ):
            listed("dropbox://a.jsonl")

    def test_unknown_options_are_an_error(self) -> None:
        with pytest.raises(
            ConfigError, match=r"storage_options: the file system of gs:// refuses them"
        ):
            listed(
                "gs://lake/a.jsonl",
                storage_options={
                    "token": "anon",
                    "access": "full_control",
                    "loop": None,
                    "self": 1,
                },
            )


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "https://me:hunter2hunter2@host/a.jsonl",
            "https://hunter2hunter2@host/a.jsonl",
            "ftp://me:hunter2hunter2@host/a.jsonl",
            "s3://key:hunter2hunter2@bucket/a.jsonl",
            "https://host/a.jsonl?X-Amz-Credential=x&X-Amz-Signature=hunter2hunter2",
            "https://host/a.jsonl?sv=2024&sig=hunter2hunter2",
            "https://host/a.jsonl?access_token=hunter2hunter2",
            "https://host/a.jsonl?a=b&%73ig=hunter2hunter2",
            "https://host?token=hunter2hunter2",
        ],
    )
    def test_credentials_are_refused_and_not_shown(self, url: str) -> None:
        with pytest.raises(ConfigError, match="storage_options") as caught:
            listed(url)
        assert "hunter2" not in str(caught.value) + repr(caught.value.details)

    @pytest.mark.parametrize(
        "url",
        [
            "https://host:8443/get?file=a.jsonl&page=2",
            "abfs://container@account.dfs.core.windows.net/a.jsonl",
            "sftp://me@host/a.jsonl",
            "s3://bucket/a?b@c:d.jsonl",
        ],
    )
    def test_the_others_are_not(self, url: str) -> None:
        assert str(parse_url(url)) == url


# A name that begins with an underscore and has no ending marks that a folder is whole,
# and is no data.
NAMES = st.text("ab.-_1", min_size=1, max_size=4).filter(
    lambda name: name not in (".", "..") and name[0] != "_"
)
PARTS = st.one_of(
    st.sampled_from(["*", "**", "a*", "?", "[ab]*", "[!a]", "*.b", "?1*"]), NAMES
)


class TestGlobs:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        paths=st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=8),
        pattern=st.lists(PARTS, min_size=1, max_size=3),
    )
    @example(paths=[["..."]], pattern=["*"])
    @example(paths=[["1", "1"], ["1"], ["11"]], pattern=["*"])
    def test_they_match_what_python_matches(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        memory: MemoryFileSystem,
        paths: list[list[str]],
        pattern: list[str],
    ) -> None:
        root = tmp_path_factory.mktemp("glob")
        memory.store.clear()
        for parts in paths:
            path = root / "/".join(parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
            if path.is_file():  # not a folder of the same name
                memory.pipe_file("/top/" + "/".join(parts), b"x")
        text = "/".join(pattern)
        hits = glob(text, root_dir=root, recursive=True)  # noqa: PTH207
        # For "a/**" Python names a file "a" as "a/", which is no path of a file.
        expected = {
            f"memory://top/{hit}"
            for hit in hits
            if (root / hit).is_file() and not hit.endswith("/")
        }
        if not expected and {"*", "?", "["} & set(text):
            with pytest.raises(SourceNotFoundError):
                listed(f"memory://top/{text}", type="text")
        elif expected:
            found = listed(f"memory://top/{text}", type="text")
            assert {file.url for file in found} == expected


class TestReadAhead:
    @given(
        size=st.integers(1, 40 << 20),
        reads=st.lists(
            st.tuples(st.floats(0, 1), st.integers(1, 20 << 20)), max_size=12
        ),
        sequential=st.integers(0, 12),
        step=st.integers(1 << 16, 16 << 20),
    )
    def test_any_reads_give_the_bytes_and_stay_within_bounds(
        self, size: int, reads: list[tuple[float, int]], sequential: int, step: int
    ) -> None:
        fetched: list[tuple[int, int]] = []
        ahead = _ahead(
            size, lambda start, length: _fetched(fetched, start, length, size)
        )
        places = [(int(at * size), length) for at, length in reads]
        places += [(index * step, step) for index in range(sequential)]
        for start, length in places:
            length = min(length, 16 << 20)
            spans = ahead.spans(start, length)
            assert sum(map(len, spans)) == max(min(length, size - start), 0)
            at = start
            for span in spans:
                assert bytes(span[:8]) == _pattern(at, min(8, len(span)))
                at += len(span)
            # One read of 16 MiB and the next two pieces, besides the budget.
            assert sum(piece.size for piece in ahead._pieces) <= 60 << 20

    def test_a_long_sequence_is_fetched_once_in_large_pieces(self) -> None:
        size, step = 100 << 20, 16 << 20
        fetched: list[tuple[int, int]] = []
        ahead = _ahead(
            size, lambda start, length: _fetched(fetched, start, length, size)
        )
        for start in range(0, size, step):
            # As line formats do: a little of what was read comes again.
            assert sum(map(len, ahead.spans(max(start - 1000, 0), step))) == min(
                step, size - max(start - 1000, 0)
            )
        assert sum(length for _, length in fetched) == size
        assert len(fetched) == -(-size // PIECE_BYTES)

    def test_after_a_failure_the_next_read_tries_again(self) -> None:
        failures = [OSError("once")]

        def fetch(start: int, length: int) -> Future[bytearray]:
            future: Future[bytearray] = Future()
            if failures:
                future.set_exception(failures.pop())
            else:
                future.set_result(bytearray(length))
            return future

        ahead = _ahead(1000, fetch)
        with pytest.raises(OSError, match="once"):
            ahead.spans(0, 10)
        assert len(ahead.spans(0, 10)[0]) == 10


def _ahead(size: int, fetch: Callable[[int, int], Future[Any]]) -> ReadAheadBytes:
    return ReadAheadBytes(cast("Any", SimpleNamespace(size=size)), fetch)


def _pattern(start: int, size: int) -> bytes:
    return bytes((at * 31 + (at >> 8)) & 255 for at in range(start, start + size))


def _fetched(
    log: list[tuple[int, int]], start: int, length: int, size: int
) -> Future[bytearray]:
    """Bytes that tell where they are; only what tests look at is filled in."""
    assert 0 <= start < start + length <= size
    log.append((start, length))
    future: Future[bytearray] = Future()
    future.set_result(_Numbered(start, length))
    return future


class _Numbered(bytearray):
    """A stretch whose every slice tells its place; costs no memory."""

    def __new__(cls, start: int, length: int) -> Any:
        import numpy as np

        at = np.arange(start, start + length, dtype=np.int64)
        return bytearray(((at * 31 + (at >> 8)) & 255).astype(np.uint8).tobytes())
