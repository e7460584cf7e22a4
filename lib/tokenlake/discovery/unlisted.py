"""Files of a directory that its listing passes over, so that nobody misses them unawares."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path, PurePath

from tokenlake.discovery.inspection import Finding
from tokenlake.sources.formats import belongs

_SHOWN = 6


def passed_over(given: tuple[str, ...], wanted: str | None) -> tuple[Finding, ...]:
    """Count the files with other extensions in the directories among `given`; hidden ones mean nothing."""
    found: Counter[str] = Counter()
    for entry in given:
        for _, folders, names in os.walk(Path(entry.removeprefix("file://")).expanduser()):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            found.update(
                "".join(PurePath(name).suffixes[-2:]) or name
                for name in names
                if not name.startswith((".", "_")) and not belongs(name, wanted)
            )
    if not found:
        return ()
    most = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{name} {count:,}" for name, count in most[:_SHOWN])
    more = f" and {len(most) - _SHOWN} more endings" if len(most) > _SHOWN else ""
    return (Finding(file="", what=f"files that are not read, because of their names: {told}{more}"),)
