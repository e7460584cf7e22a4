"""What each of several hosts decodes in an epoch: ``STORE VARIANT HOSTS...``, one JSON
line.

Every host is a loader of its own, one after the other in this process, and delivers the
whole epoch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenlake as tl
from benchmarks.systems.loader_sink import BATCH
from benchmarks.systems.loader_tokenlake import opened


def decoded(data: Any, host: int, hosts: int) -> dict[str, int]:
    """Return row groups and rows that one host decoded, and the rows it delivered."""
    rows = 0
    with tl.DataLoader(
        data, BATCH, seed=0, columns=("input_ids",), host=(host, hosts)
    ) as loader:
        for batch in loader:
            rows += len(batch["input_ids"])
        return {
            "groups": loader.decoded.groups,
            "rows": loader.decoded.rows,
            "delivered": rows,
        }


def main() -> None:
    """Print number of hosts -> what each host did."""
    data = opened(Path(sys.argv[1]), sys.argv[2])
    numbers = map(int, sys.argv[3:])
    print(
        json.dumps(
            {
                number: [decoded(data, host, number) for host in range(number)]
                for number in numbers
            }
        )
    )


if __name__ == "__main__":
    main()
