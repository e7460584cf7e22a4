"""The units of a mixture built in this process: ``CONFIG``, one JSON line of rows decoded and rows written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenlake.etl.job import MixJob
from tokenlake.etl.session import BuildSession
from tokenlake.etl.workbench import Workbench


def main(config: dict[str, Any]) -> None:
    """Build what is pending, without a commit."""
    session, bench = BuildSession.open(config), Workbench()
    pool: Any = None  # the jobs of a mixture need no engine
    decoded = rows = 0
    for index in session.pending:
        told: list[dict[str, Any]] = []
        record = bench.mix(MixJob.from_json(session.work.job(index, pool)), told.append)
        decoded, rows = decoded + told[-1]["decoded_rows"], rows + record.account.rows_read
    print(json.dumps({"decoded": decoded, "rows": rows, "units": len(session.plan.units)}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_bytes()))
