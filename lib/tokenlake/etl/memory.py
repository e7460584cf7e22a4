"""How much memory the worker processes of this machine may use, and how many of them it
has room for.

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

_USED: Final = (
    # Of the available memory for workers; the rest is for the page cache and the
    # process that plans.
    0.8
)

_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60  # a limit of version 1 above this says that there is none


def total_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory of this machine, or of its container where that is
    limited.

    Args:
        root: Folder in which ``proc`` and ``sys`` are.

    Returns:
        None where the system does not say.
    """
    limits = [limit for limit, _ in _cgroup_limits(root)]
    machine = _meminfo(root).get("MemTotal") or _physical()
    if machine is not None:
        limits.append(machine)
    return min(limits, default=None)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that nobody uses now, within the limit of the
    container.

    The page cache of a container counts as used where it cannot be told apart.

    Args:
        root: Folder in which ``proc`` and ``sys`` are.

    Returns:
        None where the system does not say.
    """
    free = [max(0, limit - used) for limit, used in _cgroup_limits(root)]
    machine = _meminfo(root).get("MemAvailable") or _physical()
    if machine is not None:
        free.append(machine)
    return min(free, default=None)


def default_workers() -> int:
    """Return the number of workers where none is asked for: one for each processor,
    as far as the memory goes.
    """
    available = available_memory()
    processors = available_cpus()
    if available is None:
        return processors
    return max(1, min(processors, available // WORKER_BYTES))


def require_memory(workers: int) -> None:
    """Require that a machine has the memory for a number of workers.

    Raises:
        ConfigError: All the memory that this process may use is less than
            :data:`LEAST_BYTES` for each.
    """
    total = total_memory()
    if total is None or workers * LEAST_BYTES <= total:
        return
    most = max(1, total // LEAST_BYTES)
    raise ConfigError(
        f"workers={workers}: each worker process needs at least {numbers.size(LEAST_BYTES)}, together "
        f"{numbers.size(workers * LEAST_BYTES)}; this machine, or its container, has {numbers.size(total)}. Expected "
        f"at most {most}; the default is {default_workers()} here",
        option="workers",
        got=workers,
        expected=most,
    )


def share_of(workers: int) -> int:
    """Return the resident bytes after which one of so many workers is replaced.

    Other pools may have the other processors of the machine, as the slots of a cluster
    do. So a share is never that of fewer workers than there are processors.
    """
    available = available_memory()
    if available is None:
        return LARGEST_SHARE
    sharing = max(workers, available_cpus())
    return max(LEAST_BYTES, min(LARGEST_SHARE, int(available * _USED) // sharing))


def _meminfo(root: Path) -> dict[str, int]:
    """Return the fields of ``/proc/meminfo`` in bytes; none where there is no such
    file.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    fields: dict[str, int] = {}
    for line in lines:
        name, _, value = line.partition(":")
        amount, _, unit = value.strip().partition(" ")
        if unit == "kB" and amount.isdecimal():
            fields[name] = int(amount) * 1024
    return fields


def _physical() -> int | None:
    """Return the bytes of memory of the machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _cgroup_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use) of each control group above this process that limits
    memory.

    In version 2 ``/proc/self/cgroup`` has one line ``0::/path``, and the limits of all
    folders above hold. In version 1 the line of the memory controller names a folder
    below ``memory``. Inside a container the path may be one of the machine's, which is
    not there: the root of the file system is the container's own group then.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / _CGROUPS.relative_to("/")
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _limits(
                base, path, "memory.max", "memory.current", "inactive_file"
            )
        elif "memory" in controllers.split(","):
            names = (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
            yield from _limits(base / "memory", path, *names)


def _limits(
    base: Path, path: str, limit_name: str, used_name: str, cached_name: str
) -> Iterator[tuple[int, int]]:
    below = base / path.strip("/")
    for folder in (below, *below.parents):
        limit = _number(folder / limit_name)
        if limit is not None and limit < _UNLIMITED:
            used = _number(folder / used_name) or 0
            # Pages of files that were not used lately are given up as soon as memory is
            # needed.
            yield limit, max(0, used - _cached(folder / "memory.stat", cached_name))
        if folder == base:
            return


def _number(path: Path) -> int | None:
    """Return the number that a file holds; None without a file, or for ``max``."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _cached(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        field, _, value = line.partition(" ")
        if field == name and value.isdecimal():
            return int(value)
    return 0
