"""The units of a mixture built in this process: ``CONFIG``, one JSON line of rows
decoded and rows written.
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
    """Build what is pending, without a commit."""
    session, pool = BuildSession.open(config), InProcessPool()
    layout = Layout(session.dataset, session.version)
    decoded = rows = 0
    for index in session.pending:
        told: list[dict[str, Any]] = []
        job = session.plan.job(
            session.plan.units[index], session.plan.store, layout, NO_BACKEND
        )
        record = UnitRecord.from_bytes(
            pool.run(job, told.append).encode(), f"the record of unit {index}"
        )
        decoded, rows = (
            decoded + told[-1]["decoded_rows"],
            rows + record.account.rows_read,
        )
    print(
        json.dumps({"decoded": decoded, "rows": rows, "units": len(session.plan.units)})
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_bytes()))
