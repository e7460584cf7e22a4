"""Row groups that each of several hosts decodes in an epoch: ``STORE VARIANT HOSTS...``.

Every host is a loader of its own. The loaders run one after the other in this process,
and each delivers the whole epoch. The program prints one JSON line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenlake as tl
from benchmarks.systems.loader_sink import BATCH
from benchmarks.systems.loader_tokenlake import open_data


def run_host(data: Any, host: int, hosts: int) -> dict[str, int]:
    """Deliver an epoch of one host.

    Args:
        data: Dataset or mixture to read.
        host: Index of the host.
        hosts: Number of hosts.

    Returns:
        Numbers of `groups` and `rows` that were decoded, and of `delivered` rows.
    """
    delivered_rows = 0
    with tl.DataLoader(
        data, BATCH, seed=0, columns=("input_ids",), host=(host, hosts)
    ) as loader:
        for batch in loader:
            delivered_rows += len(batch["input_ids"])
        # The counts are those at the end of the epoch.
        decoded = loader.decoded
        return {
            "groups": decoded.groups,
            "rows": decoded.rows,
            "delivered": delivered_rows,
        }


def main(store: str, variant: str, *numbers: str) -> None:
    """Print number of hosts -> figures of each host.

    Args:
        store: Folder of the datasets.
        variant: Variant of :mod:`benchmarks.systems.loader_tokenlake`.
        numbers: Numbers of hosts.
    """
    data = open_data(Path(store), variant)
    figures: dict[int, list[dict[str, int]]] = {}
    for number in numbers:
        hosts = int(number)
        figures[hosts] = [run_host(data, host, hosts) for host in range(hosts)]
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
