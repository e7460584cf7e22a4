"""The ledger record of a unit of stored rows, once its parts are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenlake.etl.job import NO_BACKEND, MixJob, RepackJob, produced_by
from tokenlake.etl.step_clock import CLOCK
from tokenlake.etl.unit.source_shares import check_written
from tokenlake.etl.unit.stored_rows import DocumentsOut, SequencesOut
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.ledger import MIXED, ShardEntry, UnitRecord


def write_record(
    job: MixJob | RepackJob,
    source: str,
    outputs: Sequence[DocumentsOut | SequencesOut],
    write_rows: Callable[[], None],
) -> UnitRecord:
    """Write the rows of a unit, finish its parts and return its record.

    Args:
        job: Job of the unit.
        source: Name of the unit's source, or ``MIXED``.
        outputs: Outputs of the unit.
        write_rows: Function that writes all rows into the outputs.

    Raises:
        AccountError: The written rows are not those that were read, which is a bug.
    """
    entries: list[ShardEntry] = []
    # A unit that fails leaves no temporary file behind.
    try:
        write_rows()
        CLOCK.begin("pack")
        for output in outputs:
            entries += output.finish()
        CLOCK.end()
    except BaseException:
        for output in outputs:
            output.discard()
        raise
    # The account of the unit: those of its sources, and the rows and padding that belong
    # to no single source. Only a mixture has accounts of several sources.
    shares: dict[str, Account] = {}
    accounts: list[Account] = []
    for output in outputs:
        shares_of_output = output.shares.accounts()
        accounts += shares_of_output.values()
        if source == MIXED:
            shares |= shares_of_output
    for output in outputs:
        accounts.append(output.rows_of_all)
    account = Account.total(accounts)
    check_written(account, entries, job.out.width, where=f"unit {job.unit}")
    # Inputs and quarantine are those of the builds that the rows come from.
    return UnitRecord(
        unit=job.unit,
        fingerprint=job.fingerprint,
        source=source,
        inputs=(),
        parts=tuple(entries),
        account=account,
        shares=shares,
        quarantine=None,
        engine=NO_BACKEND,
        produced_by=produced_by(),
    )
