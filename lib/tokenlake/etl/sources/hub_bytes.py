"""The bytes of a file on the Hub, read by ranges at a fixed commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, final

from tokenlake.etl.sources.hub_client import HubClient, Refused, refusal
from tokenlake.etl.sources.hub_id import parse_url
from tokenlake.etl.sources.hub_repo import resolve_path
from tokenlake.etl.sources.input_errors import changed
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.ranged_bytes import ReadAheadBytes

_READ_RETRIES: Final = 7  # about a minute in all
_PARALLEL_REQUESTS: Final = 4
_CODES_OF_GONE: Final = frozenset({"RevisionNotFound", "EntryNotFound"})


@final
class HubBytes(ReadAheadBytes):
    """A file on the Hub at a fixed commit.

    A commit never changes; every answer is checked against the planned hash all the
    same.
    """

    def __init__(
        self, file: InputFile, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Prepare reading, without a request.

        Options and errors are those of :class:`HubClient`.
        """
        self._client = HubClient(storage_options, retries=_READ_RETRIES)
        self._dataset, path = parse_url(file.url)
        self._path = resolve_path(self._dataset.repo, self._dataset.revision, path)
        self._threads = ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="hub")
        super().__init__(
            file,
            lambda start, size: self._threads.submit(self._fetch, start, start + size),
        )

    def close(self) -> None:
        """Stop what is under way; connections are kept for the next file."""
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, all of them.

        Raises:
            InputChangedError: The file is gone, or another one.
            SourceError: The Hub refuses, or cannot be reached.
        """
        file = self.file
        dataset = self._dataset
        try:
            answer = self._client.get(self._path, span=(start, stop), what=file.url)
        # A dataset can be deleted, or its history rewritten, while a build reads it.
        except Refused as error:
            if error.code in _CODES_OF_GONE:
                raise changed(
                    file,
                    f"commit {dataset.revision} or its file no longer exists on the Hub (the dataset was deleted, or "
                    "its history rewritten)",
                ) from None
            raise refusal(error, dataset, with_token=self._client.with_token) from None

        # The range of the answer.
        expected = f"bytes {start}-{stop - 1}/{file.size}"
        received = answer.headers.get("content-range", "")
        if received != expected or len(answer.body) != stop - start:
            raise changed(
                file,
                f"asked for {expected}, the Hub sent {received!r} ({len(answer.body)} bytes)",
            )

        # The hash of the file. A tag that does not look like the planned hash is a
        # storage host's own, and says nothing.
        planned_hash = file.token.partition(":")[2]
        etag = answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")
        tag = etag.removeprefix("W/").strip('"')
        looks_like_hash = re.fullmatch(r"[0-9a-f]+", tag) is not None
        if looks_like_hash and len(tag) == len(planned_hash) and tag != planned_hash:
            raise changed(file, f"its hash is {tag}, planned was {planned_hash}")
        return answer.body
