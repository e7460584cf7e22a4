"""Memory of the machine and of its container, and how many workers there is room
for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenlake.config import RayConfig
from tokenlake.errors import ConfigError
from tokenlake.etl import memory, open_pool

GIB = 1 << 30
MACHINE = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"


def system(folder: Path, files: dict[str, str]) -> Path:
    """Write files of /proc and /sys below a folder."""
    for name, text in {"proc/meminfo": MACHINE, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"

SYSTEMS = {
    "no control groups": ({}, 16, 8),
    "version 2 without a limit": (
        {"proc/self/cgroup": "0::/user\n", f"{V2}/user/memory.max": "max\n"},
        16,
        8,
    ),
    "version 2, the nearest folder limits": (
        {
            "proc/self/cgroup": "0::/pod/job\n",
            f"{V2}/pod/job/memory.max": f"{4 * GIB}\n",
            f"{V2}/pod/job/memory.current": f"{GIB}\n",
            f"{V2}/pod/memory.max": "max\n",
        },
        4,
        3,
    ),
    "version 2, a folder above limits": (
        {
            "proc/self/cgroup": "0::/pod/job\n",
            f"{V2}/pod/job/memory.max": "max\n",
            f"{V2}/pod/memory.max": f"{4 * GIB}\n",
            f"{V2}/pod/memory.current": f"{2 * GIB}\n",
        },
        4,
        2,
    ),
    "version 2, a container whose root is its own group": (
        {
            "proc/self/cgroup": "0::/../../pod\n",
            f"{V2}/memory.max": f"{2 * GIB}\n",
            f"{V2}/memory.current": f"{GIB}\n",
        },
        2,
        1,
    ),
    "the page cache is not in use": (
        {
            "proc/self/cgroup": "0::/\n",
            f"{V2}/memory.max": f"{4 * GIB}\n",
            f"{V2}/memory.current": f"{4 * GIB}\n",
            f"{V2}/memory.stat": f"anon 5\ninactive_file {3 * GIB}\n",
        },
        4,
        3,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job\n",
            f"{V1}/job/memory.limit_in_bytes": f"{8 * GIB}\n",
            f"{V1}/job/memory.usage_in_bytes": f"{7 * GIB}\n",
            f"{V1}/job/memory.stat": f"total_inactive_file {GIB}\n",
            f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
        },
        8,
        2,
    ),
    "a limit beyond the machine": (
        {
            "proc/self/cgroup": "0::/\n",
            f"{V2}/memory.max": f"{64 * GIB}\n",
            f"{V2}/memory.current": "0\n",
        },
        16,
        8,
    ),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_memory_is_that_of_the_machine_or_of_its_container(
    name: str, tmp_path: Path
) -> None:
    files, total, available = SYSTEMS[name]
    root = system(tmp_path, files)
    assert memory.total_memory(root) == total * GIB
    assert memory.available_memory(root) == available * GIB


def test_a_system_without_proc_says_what_sysconf_knows(tmp_path: Path) -> None:
    total = memory.total_memory(tmp_path)
    assert total is not None
    assert total > 1 << 20


@pytest.mark.parametrize(
    ("processors", "available", "workers"),
    [
        (64, 1024 * GIB, 64),
        (64, 16 * GIB, 21),
        (8, 3 * GIB, 4),
        (2, 1, 1),
        (4, None, 4),
    ],
)
def test_the_default_is_a_worker_for_each_processor_as_far_as_memory_goes(
    processors: int,
    available: int | None,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_cpus", lambda: processors)
    monkeypatch.setattr(memory, "available_memory", lambda: available)
    assert memory.default_workers() == workers
    with open_pool("local", None, RayConfig()) as pool:
        assert pool.workers == workers


@pytest.mark.parametrize(
    ("workers", "available", "share"),
    [
        (1, 64 * GIB, memory.LARGEST_SHARE),
        (64, 64 * GIB, int(64 * GIB * 0.8) // 64),
        (64, GIB, memory.LEAST_BYTES),
        (64, None, memory.LARGEST_SHARE),
        # Slots of a cluster have the other processors.
        (1, 16 * GIB, int(16 * GIB * 0.8) // 8),
    ],
)
def test_the_workers_share_the_memory(
    workers: int, available: int | None, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: available)
    monkeypatch.setattr(memory, "available_cpus", lambda: 8)
    assert memory.share_of(workers) == share


def test_more_workers_than_the_memory_can_hold_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "total_memory", lambda: 4 * GIB)
    monkeypatch.setattr(memory, "available_memory", lambda: 3 * GIB)
    monkeypatch.setattr(memory, "available_cpus", lambda: 64)
    with pytest.raises(ConfigError) as caught:
        open_pool("local", 17, RayConfig())
    assert str(caught.value) == (
        "workers=17: each worker process needs at least 256 MiB, together 4.25 GiB; this machine, or its container, "
        "has 4.00 GiB. Expected at most 16; the default is 4 here"
    )
    with open_pool("local", 16, RayConfig()) as pool:
        assert pool.workers == 16
