"""The bytes of a file on the Hub: read by ranges at the commit that was planned, or downloaded before they are read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

from tokenlake.errors import SourceError
from tokenlake.sources.hub.repo import Answer, HubClient, Refused, parse_url, refusal, resolve_path
from tokenlake.sources.inputs import InputFile, changed, damaged, state
from tokenlake.sources.readahead import ReadAheadBytes

_RETRIES: Final = 7  # about a minute in all
_THREADS: Final = 4
_GONE: Final = frozenset({"RevisionNotFound", "EntryNotFound"})


@final
class HubBytes(ReadAheadBytes):
    """A file on the Hub. Its commit never changes; every answer is checked against the planned hash all the same."""

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any] | None = None) -> None:
        """Prepare reading, without a request; see :class:`HubClient` for the options and what it raises."""
        self._client = HubClient(storage_options, retries=_RETRIES)
        self._dataset, path = parse_url(file.url)
        self._where = resolve_path(self._dataset.repo, self._dataset.revision, path)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hub")
        super().__init__(file, lambda start, size: self._threads.submit(self._fetch, start, start + size))

    def check_unchanged(self) -> None:
        """Nothing to do: every single answer was checked."""

    def close(self) -> None:
        """Stop what is under way; connections are kept for the next file."""
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, all of them."""
        try:
            answer = self._client.get(self._where, span=(start, stop), what=self.file.url)
        except Refused as error:
            raise self._refused(error) from None
        self._check(answer, start, stop)
        return answer.body

    def _refused(self, error: Refused) -> SourceError:
        if error.code in _GONE:
            return changed(
                self.file,
                f"commit {self._dataset.revision} or the file in it is gone from the Hub (the dataset was deleted, "
                "or its history rewritten)",
            )
        return refusal(error, self._dataset, with_token=self._client.with_token)

    def _check(self, answer: Answer, start: int, stop: int) -> None:
        expected = f"bytes {start}-{stop - 1}/{self.file.size}"
        got = answer.headers.get("content-range", "")
        if got != expected or len(answer.body) != stop - start:
            raise changed(self.file, f"asked for {expected}, the Hub sent {got!r} ({len(answer.body)} bytes)")
        planned = self.file.token.partition(":")[2]
        etag = answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")
        found = etag.removeprefix("W/").strip('"')
        # Only what looks like the hash we know is one: a storage host's own tag says nothing.
        if re.fullmatch(r"[0-9a-f]+", found) and len(found) == len(planned) and found != planned:
            raise changed(self.file, f"its hash is {found}, planned was {planned}")


def downloaded(
    files: Iterable[InputFile],
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
) -> list[InputFile]:
    """Return the same inputs as local files: identity stays, `url` and `stat` are those of the cache.

    What the cache of `huggingface_hub` has already is not downloaded again.

    Raises:
        DamagedFileError: what came is not what the plan's hash says, or the cache is damaged.
        SourceError: a download failed.
    """
    client = HubClient(storage_options)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda file: _local(file, client, cache_dir), files))


def _local(file: InputFile, client: HubClient, cache_dir: str | Path | None) -> InputFile:
    path = client.download(*parse_url(file.url), cache_dir)
    before = path.stat()
    found = _hash(path, file.token.partition(":")[0])
    if before.st_size != file.size or found != file.token:
        raise damaged(
            file,
            f"its copy {str(path)!r} has {before.st_size} bytes and {found}, planned were {file.size} and "
            f"{file.token}; delete the copy and run again",
        )
    return replace(file, url=str(path), stat=state(before))


def _hash(path: Path, kind: str) -> str:
    if kind == "git":
        # Git hashes a header with the length before the content; such files are small.
        data = path.read_bytes()
        return f"git:{hashlib.sha1(b'blob %d' % len(data) + bytes(1) + data).hexdigest()}"
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
