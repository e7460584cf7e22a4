"""Files of the Hub, downloaded before they are read (``streaming: false``), and checked against their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tokenlake.errors import SourceError
from tokenlake.sources.hub.repo import HubClient, parse_url
from tokenlake.sources.inputs import InputFile, damaged, state

_THREADS: Final = 4


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
    dataset, name = parse_url(file.url)
    path = client.download(dataset.repo, dataset.revision, name, cache_dir)
    before = path.stat()
    found = _hash(path, file.token)
    if before.st_size != file.size or found != file.token:
        raise damaged(
            file,
            f"its copy {str(path)!r} has {before.st_size} bytes and {found}, planned were {file.size} and "
            f"{file.token}; delete the copy and run again",
        )
    return replace(file, url=str(path), stat=state(before))


def _hash(path: Path, like: str) -> str:
    kind = like.partition(":")[0]
    if kind == "git":
        # Git hashes a header with the length before the content; such files are small.
        data = path.read_bytes()
        return f"git:{hashlib.sha1(b'blob %d' % len(data) + bytes(1) + data).hexdigest()}"
    if kind != "sha256":
        raise SourceError(f"{path}: expected a token sha256:... or git:..., got {like!r}")
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
