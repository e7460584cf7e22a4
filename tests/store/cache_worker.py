"""A process that opens shards of a remote store through a cache, as told on its
standard input.

``python -m tests.store.cache_worker URL FOLDER BYTES [LIMIT]``; a line ``open KEY SIZE
SHA256`` is answered with the sha256 of what was read, ``keep`` before it keeps the
shard open, ``end`` ends it. LIMIT is the size of the largest file that it may write.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import warnings

from tokenlake.runtime.store import open_read_store


def main(url: str, folder: str, max_bytes: str, limit: str = "") -> None:
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    store, kept = open_read_store(url, cache=folder, cache_bytes=int(max_bytes)), []
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "end":
            return
        key, size, sha256 = rest
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            stream = store.open(key, size=int(size), sha256=sha256)
        data = stream.read()
        told = [
            hashlib.sha256(data).hexdigest(),
            "copy" if hasattr(stream, "raw") else "remote",
        ]
        print(
            *told, *(str(one.message).replace(" ", "_") for one in warned), flush=True
        )
        if word == "keep":
            kept.append(stream)
        else:
            stream.close()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    finally:
        sys.stdout.flush()
        # Nothing is left to clean up, and what would be is what these tests are about.
        os._exit(0)
