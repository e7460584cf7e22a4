"""Memory that worker processes may use, and the number of workers that fit into it.

A worker holds the tokenizer, the tables of its tokenizer engine, and the documents, ids
and row group of the unit that it builds. Peaks of one worker that builds 200 MB of
text: 320 MiB for GPT-2, 460 MiB for Llama 3.1, 470 MiB for Llama 2, 510 MiB for
DeepSeek V4, 880 MiB for Gemma 3 (580 MiB of it the tokenizer as its library holds it).

Three numbers follow, all functions of the memory that is available when the workers are
started and of their number:

- The default number of workers is one for each processor, but no more than have
  :data:`WORKER_BYTES` each.
- A number of workers that would leave less than :data:`LEAST_BYTES` for each of all the
  machine's memory is refused.
- A worker that holds more than its share is replaced after its job, because engines
  never shrink their caches. It is kept as long as it has grown by less than
  :data:`GROWTH_BYTES` since its first job: the tokenizer alone may be larger than a
  share, and a new worker would be as large at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenlake.base import numbers
from tokenlake.base.threads import available_cpus
from tokenlake.errors import ConfigError

MIB: Final = 1 << 20

WORKER_BYTES: Final = 768 * MIB
"""Memory that each worker should have: most tokenizers need less, the largest
vocabularies a little more.
"""

LEAST_BYTES: Final = 256 * MIB
"""Memory below which no worker can build anything: its imports and a small tokenizer
take as much.
"""

LARGEST_SHARE: Final = 2048 * MIB
"""Resident bytes after which a worker is replaced however much memory there is."""

GROWTH_BYTES: Final = 512 * MIB
"""Resident bytes by which a worker may grow after its first job before it is
replaced.
"""

# Share of the available memory for workers. The rest is for the page cache and the
# process that plans.
_USED: Final = 0.8

_CGROUPS: Final = Path("/sys/fs/cgroup")
# A limit of version 1 from this on means that there is none.
_UNLIMITED: Final = 1 << 60


def total_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory of this machine, or of its container if limited.

    Args:
        root: Folder in which ``proc`` and ``sys`` are.

    Returns:
        None where the system does not say.
    """
    byte_limits = [byte_limit for byte_limit, _ in _cgroup_limits(root)]
    machine_bytes = _meminfo(root).get("MemTotal") or _physical()
    if machine_bytes is not None:
        byte_limits.append(machine_bytes)
    return min(byte_limits, default=None)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that are free now, within the container's limit.

    The page cache of a container counts as used where it cannot be told apart.

    Args:
        root: Folder in which ``proc`` and ``sys`` are.

    Returns:
        None where the system does not say.
    """
    available_bytes = [
        max(0, byte_limit - used_bytes)
        for byte_limit, used_bytes in _cgroup_limits(root)
    ]
    machine_bytes = _meminfo(root).get("MemAvailable") or _physical()
    if machine_bytes is not None:
        available_bytes.append(machine_bytes)
    return min(available_bytes, default=None)


def default_workers() -> int:
    """Return the number of workers where none is asked for.

    It is one for each processor, as far as the memory goes.
    """
    available_bytes = available_memory()
    processors = available_cpus()
    if available_bytes is None:
        return processors
    return max(1, min(processors, available_bytes // WORKER_BYTES))


def require_memory(workers: int) -> None:
    """Require that a machine has the memory for a number of workers.

    Raises:
        ConfigError: All the memory that this process may use is less than
            :data:`LEAST_BYTES` for each.
    """
    total_bytes = total_memory()
    if total_bytes is None or workers * LEAST_BYTES <= total_bytes:
        return
    most_workers = max(1, total_bytes // LEAST_BYTES)
    raise ConfigError(
        f"workers={workers}: each worker process needs at least {numbers.size(LEAST_BYTES)}, together "
        f"{numbers.size(workers * LEAST_BYTES)}; this machine, or its container, has {numbers.size(total_bytes)}. "
        f"Expected at most {most_workers}; the default is {default_workers()} here",
        option="workers",
        got=workers,
        expected=most_workers,
    )


def share_of(workers: int) -> int:
    """Return the resident bytes after which one of a number of workers is replaced.

    Other pools may have the other processors of the machine, as the slots of a cluster
    do. So a share is never that of fewer workers than there are processors.
    """
    available_bytes = available_memory()
    if available_bytes is None:
        return LARGEST_SHARE
    sharing_workers = max(workers, available_cpus())
    share = int(available_bytes * _USED) // sharing_workers
    return max(LEAST_BYTES, min(LARGEST_SHARE, share))


def _meminfo(root: Path) -> dict[str, int]:
    """Return the fields of ``/proc/meminfo`` in bytes, empty without such a file."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    fields: dict[str, int] = {}
    for line in lines:
        # "MemTotal:       16384000 kB"
        field, _, entry = line.partition(":")
        amount, _, unit = entry.strip().partition(" ")
        if unit == "kB" and amount.isdecimal():
            fields[field] = int(amount) * 1024
    return fields


def _physical() -> int | None:
    """Return the bytes of memory of the machine, None if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _cgroup_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use) of each control group that limits this process.

    In version 2 ``/proc/self/cgroup`` has one line ``0::/path``, and the limits of all
    folders above hold. In version 1 the line of the memory controller names a folder
    below ``memory``. Inside a container the path may be one of the machine's, which is
    not there: the root of the file system is the container's own group then.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / _CGROUPS.relative_to("/")
    for line in lines:
        hierarchy, _, remainder = line.partition(":")
        controllers, _, path = remainder.partition(":")
        if hierarchy == "0" and not controllers:
            # Version 2.
            yield from _limits(
                mount, path, "memory.max", "memory.current", "inactive_file"
            )
        elif "memory" in controllers.split(","):
            # Version 1.
            names = (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
            yield from _limits(mount / "memory", path, *names)


def _limits(
    mount: Path, path: str, limit_name: str, used_name: str, cached_name: str
) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use) of a control group and of all groups above it.

    Args:
        mount: Folder of the outermost group.
        path: Path of the group below it.
        limit_name, used_name: Names of the files with the limit and the bytes in use.
        cached_name: Field of ``memory.stat`` with the bytes that can be given up.
    """
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        byte_limit = _number(folder / limit_name)
        if byte_limit is not None and byte_limit < _UNLIMITED:
            used_bytes = _number(folder / used_name) or 0
            # Pages of files that were not used lately are given up as soon as memory is
            # needed.
            yield (
                byte_limit,
                max(0, used_bytes - _cached(folder / "memory.stat", cached_name)),
            )
        if folder == mount:
            return


def _number(path: Path) -> int | None:
    """Return the number that a file holds; None without a file, or for ``max``."""
    try:
        content = path.read_text().strip()
    except OSError:
        return None
    if not content.isdecimal():
        return None
    return int(content)


def _cached(path: Path, field_name: str) -> int:
    """Return a field of a ``memory.stat``, 0 without it."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        field, _, amount = line.partition(" ")
        if field == field_name and amount.isdecimal():
            return int(amount)
    return 0
