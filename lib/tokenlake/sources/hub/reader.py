"""The bytes of a file on the Hub, read by ranges at the commit that was planned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, final

from tokenlake.errors import SourceError
from tokenlake.sources.hub.repo import Answer, HubClient, Refused, parse_url, refusal, resolve_path
from tokenlake.sources.inputs import InputBytes, InputFile, InputReader, changed

_RETRIES: Final = 7  # about a minute in all
_LEAST: Final = 256 << 10  # bytes of a request; small ones cost as much time
_MOST: Final = 8 << 20  # bytes fetched ahead while reading goes straight on
_LARGEST: Final = 64 << 20  # bytes of one request
_GONE: Final = frozenset({"RevisionNotFound", "EntryNotFound"})


@final
class HubBytes(InputBytes):
    """A file on the Hub. Its commit never changes; every answer is checked against the planned hash all the same."""

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any] | None = None) -> None:
        """Prepare reading, without a request; see :class:`HubClient` for the options and what it raises."""
        self.file = file
        self._client = HubClient(storage_options, retries=_RETRIES)
        self._dataset, path = parse_url(file.url)
        self._where = resolve_path(self._dataset.repo, self._dataset.revision, path)
        self._window = _Window(self)

    def read_into(self, view: memoryview, offset: int) -> int:
        return self._window.read_into(view, offset)

    def for_arrow(self) -> Any:
        return InputReader(self)

    def check_unchanged(self) -> None:
        """Nothing to do: every single answer was checked."""

    def close(self) -> None:
        """Nothing to do: connections are kept for the next file."""

    def fetch(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, all of them; raises like :meth:`InputBytes.read_into`."""
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


@final
class _Window:
    """Fetches ahead while reading goes straight on, and keeps what was fetched last."""

    def __init__(self, data: HubBytes) -> None:
        self._data, self._size = data, data.file.size
        self._start, self._kept = 0, b""
        self._end, self._ahead = -1, _LEAST

    def read_into(self, view: memoryview, offset: int) -> int:
        size = max(0, min(len(view), self._size - offset))
        at = 0
        while at < size:
            piece = self._piece(offset + at, size - at)
            view[at : at + len(piece)] = piece
            at += len(piece)
        return size

    def _piece(self, offset: int, wanted: int) -> memoryview:
        """Return at least one byte from `offset` on, at most `wanted`."""
        if not self._start <= offset < self._start + len(self._kept):
            straight = offset == self._end
            self._ahead = min(2 * self._ahead, _MOST) if straight else _LEAST
            length = min(max(wanted, self._ahead), _LARGEST, self._size - offset)
            self._kept = b""  # before the next one comes
            self._start, self._kept = offset, self._data.fetch(offset, offset + length)
            self._end = offset + length
        at = offset - self._start
        return memoryview(self._kept)[at : at + wanted]
