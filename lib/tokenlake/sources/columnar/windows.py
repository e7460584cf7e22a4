"""A remote input as Arrow and our own look-ahead read it: a few large reads, each byte fetched about once."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, final

from tokenlake.sources.inputbytes import InputBytes

WINDOW_BYTES: Final = 4 << 20
_KEPT: Final = 48 << 20  # bytes of windows that are kept
_AHEAD: Final = 4  # windows of a column between what is looked at and what is decoded
_SMALL: Final = 256 << 10
_GAP: Final = 64 << 10  # not worth a request of its own


@final
class Windows:
    """Windows onto an input, the latest ones kept; those of a file's columns take turns."""

    def __init__(self, data: InputBytes, columns: int = 1) -> None:
        """Read `data`, of which so many columns are read side by side."""
        self._data, self._stretches = data, [(0, 0)]
        self._size = max(_SMALL, min(WINDOW_BYTES, _KEPT // (_AHEAD * max(columns, 1))))
        self._windows: OrderedDict[int, bytes] = OrderedDict()

    def expect(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Note the stretches [start, stop) that will be read through; others are read as asked for."""
        merged = [(0, 0)]
        for start, stop in sorted(stretches):
            if start <= merged[-1][1] + _GAP:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            else:
                merged.append((start, stop))
        self._stretches = merged

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer only at the end."""
        parts: list[bytes] = []
        while size > 0 and (part := self._held(size, offset) or self._fetched(size, offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _held(self, size: int, offset: int) -> bytes:
        for start, window in self._windows.items():
            if start <= offset < start + len(window):
                self._windows.move_to_end(start)
                return window[offset - start : offset - start + size]
        return b""

    def _fetched(self, size: int, offset: int) -> bytes:
        _, stop = self._stretches[max(bisect_right(self._stretches, (offset, 1 << 63)) - 1, 0)]
        wanted = max(size, min(self._size, max(stop - offset, _GAP)))
        held = min((start for start in self._windows if start > offset), default=self._data.file.size)
        window = self._data.pread(min(wanted, max(held - offset, 0)), offset)
        if len(window) <= self._size:
            self._windows[offset] = window
            while len(self._windows) > 1 and sum(map(len, self._windows.values())) > _KEPT:
                self._windows.popitem(last=False)
        return window[:size]


@final
class WindowFile(io.RawIOBase):
    """An input as Python's own raw file, over windows that others may look through as well."""

    def __init__(self, windows: Windows, size: int) -> None:
        super().__init__()
        self._windows, self._size, self._at = windows, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as view, view.cast("B") as target:
            data = self._windows.pread(len(target), self._at)
            target[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at
