"""Rows that a build of a mixture decodes for each row that it writes: ``CONFIG``.

The units are built in this process. The program prints one JSON line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenlake.etl.in_process_pool import InProcessPool
from tokenlake.etl.job import NO_BACKEND
from tokenlake.etl.session import BuildSession
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import UnitRecord


def main(config: dict[str, Any]) -> None:
    """Build the pending units, without a commit.

    Args:
        config: Configuration of the build.
    """
    session = BuildSession.open(config)
    pool = InProcessPool()
    layout = Layout(session.dataset, session.version)
    decoded_rows = 0
    written_rows = 0
    for index in session.pending:
        pending_unit = session.plan.units[index]
        job = session.plan.job(pending_unit, session.plan.store, layout, NO_BACKEND)
        progress: list[dict[str, Any]] = []
        sealed_record = pool.run(job, progress.append)
        record = UnitRecord.from_bytes(
            sealed_record.encode(), f"the record of unit {index}"
        )
        # The last report has the count of the whole unit.
        decoded_rows += progress[-1]["decoded_rows"]
        written_rows += record.account.rows_read
    figures = {
        "decoded": decoded_rows,
        "rows": written_rows,
        "units": len(session.plan.units),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_bytes()))
