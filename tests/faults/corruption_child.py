"""One process that reads damaged stores: ``python -m tests.faults.corruption_child
STORE FOLDER`` with cases on stdin.

A case is ``[reader, seed]``. Before it is done a line ``{"case": ...}`` is written to
FOLDER/outcomes, and after it one that says what became of it, so that a process that
dies or hangs says with which case.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.faults.damage import BYTES, Change, Damage, choose, files_below, put
from tests.faults.readers import READERS, Place, Reader
from tokenlake.errors import TokenlakeError

# Bytes of addresses beyond those taken before: an allocation that is believed fails.
_ROOM = 6 << 30
_MEMORY = 400 << 20  # bytes that damage may make a process grow by


def main() -> None:
    """Do all cases."""
    store, folder = map(Path, sys.argv[1:3])
    cases: list[tuple[str, int]] = json.load(sys.stdin)
    root = folder / "copy" / "store"
    shutil.rmtree(root.parent, ignore_errors=True)
    shutil.copytree(store, root)
    place = Place(root, folder / "scratch")
    files = files_below(root)
    expected: dict[str, list[Any]] = {}
    with (folder / "outcomes").open("a") as outcomes, contextlib.ExitStack() as servers:

        def tell(**fields: Any) -> None:
            outcomes.write(json.dumps(fields) + "\n")
            outcomes.flush()

        first = 0
        for name, seed in cases:
            reader = READERS[name]
            if reader.served and not place.url:
                served = servers.enter_context(_serving(reader.served, files))
                place.url, place.server, place.options = (
                    served.url,
                    served.server,
                    dict(served.options),
                )
            if name not in expected:
                expected[name] = [] if reader.finds else list(_pieces(reader, place))
                for _ in range(2):  # what is imported and allocated once
                    assert not different(
                        list(_pieces(reader, place)), expected[name]
                    ), name
                first = _bounded()
            tell(case=[name, seed])
            outcome, note = _case(name, seed, reader, place, files, expected[name])
            tell(outcome=outcome, note=note)
            if (grown := _peak() - first) > _MEMORY:
                tell(case=[name, seed])
                tell(outcome="memory", note=f"the process grew by {grown >> 20} MiB")
                first = _peak()


def _case(
    name: str,
    seed: int,
    reader: Reader,
    place: Place,
    files: dict[str, bytes],
    expected: list[Any],
) -> tuple[str, str]:
    """Read the store with one damage done to it, and mend it again."""
    dice = random.Random(f"{name} {seed}")
    if reader.cached:
        return _cached(dice, reader, place, expected)
    damage = choose(dice, files, reader.wanted)
    _put_all(place, damage.changes)
    began = time.process_time()
    try:
        outcome = _judged(reader, place, damage, expected)
    finally:
        _put_all(place, {key: files[key] for key in damage.changes})
        shutil.rmtree(place.scratch, ignore_errors=True)
    if (seconds := time.process_time() - began) > 10:
        return "slow", f"{damage.what}: {seconds:.1f} CPU s"
    return outcome


def _cached(
    dice: random.Random, reader: Reader, place: Place, expected: list[Any]
) -> tuple[str, str]:
    """Damage the copies of a cache, which are fetched again."""
    list(_pieces(reader, place))
    cache = place.scratch / "cache"
    path = dice.choice(sorted(path for path in cache.iterdir() if len(path.name) == 64))
    what, _, change = dice.choice(BYTES)
    path.chmod(0o644)
    path.write_bytes(change(dice, path.read_bytes()))
    try:
        return _judged(reader, place, Damage(f"{what} in a copy"), expected)
    finally:
        shutil.rmtree(place.scratch, ignore_errors=True)


def _judged(
    reader: Reader, place: Place, damage: Damage, expected: list[Any]
) -> tuple[str, str]:
    found: list[Any] = []
    error = ""
    try:
        found.extend(_pieces(reader, place))  # what came before an error stays
    except TokenlakeError as raised:
        error = str(raised)
    except BaseException:
        return "crash", f"{damage.what}: {traceback.format_exc()[-1500:]}"
    if reader.finds:
        named = {path for path, _ in found}
        looked_at = [key for key in damage.changes if re.fullmatch(reader.wanted, key)]
        missed = [key for key in looked_at if key not in named]
        if error and all(
            key.endswith("/manifest.json") and damage.changes[key] is None
            for key in missed
        ):
            # Without its manifest there is no such version, and that is said.
            return "error", error
        return (
            ("error", error)
            if not missed and not error
            else ("silent", f"{damage.what}: {found} {error}")
        )
    whole = expected[: len(found)] if error else expected
    if problem := different(found, whole):
        return "silent", f"{damage.what}: {problem}"
    return ("error", error[:200]) if error else ("right", damage.what)


def _pieces(reader: Reader, place: Place) -> Iterator[Any]:
    place.scratch.mkdir(parents=True, exist_ok=True)
    yield from reader.read(place)


def _put_all(place: Place, changes: Any) -> None:
    for key, what in changes.items():
        _put_one(place, key, what)


def _put_one(place: Place, key: str, what: Change) -> None:
    put(place.root, key, what)
    if place.server is None:
        return
    server: Any = place.server
    if isinstance(what, bytes):
        server.files[f"store/{key}"] = what
    else:
        server.files.pop(f"store/{key}", None)


def different(found: Any, expected: Any) -> str:
    """Return how two values differ, empty where they do not."""
    arrow: Any = expected
    if isinstance(expected, pa.RecordBatch | pa.Table | pa.Schema):
        if type(found) is type(expected) and arrow.equals(found):
            return ""
        return f"got {str(found)[:300]}, expected {str(expected)[:300]}"
    if isinstance(expected, np.ndarray):
        same = isinstance(found, np.ndarray) and found.dtype == expected.dtype
        return (
            ""
            if same and np.array_equal(found, expected)
            else f"got {found!r}, expected {expected!r}"
        )
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return f"got {str(found)[:300]}, expected {str(expected)[:300]}"
        return next(
            (
                text
                for key in expected
                if (text := different(found[key], expected[key]))
            ),
            "",
        )
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return f"{len(found)} pieces, expected {len(expected)}"
        return next(
            (
                text
                for a, b in zip(found, expected, strict=True)
                if (text := different(a, b))
            ),
            "",
        )
    return (
        ""
        if found == expected
        else f"got {str(found)[:300]}, expected {str(expected)[:300]}"
    )


def _serving(protocol: str, files: dict[str, bytes]) -> Any:
    from tests.store.remote_store_support import serving

    return serving(protocol, files)


def _bounded() -> int:
    """Refuse allocations that nothing here needs; return the peak so far."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf(
        "SC_PAGE_SIZE"
    )
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + _ROOM, hard))
    return _peak()


def _peak() -> int:
    # Not ru_maxrss, which begins with what the process had that started this one.
    peak = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(peak.split()[1]) << 10


if __name__ == "__main__":
    main()
