"""``tokenlake work`` and ``tokenlake clean``: work of this machine's processes, without Prefect."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

from cyclopts import Parameter

from tokenlake import numbers
from tokenlake.cli.console import (
    AsJson,
    Config,
    Overrides,
    StoreUrl,
    Workers,
    emit,
    note,
    print_json,
    print_tables,
    with_store,
)
from tokenlake.cli.progress import counting
from tokenlake.config.load import load_config
from tokenlake.errors import CancelledError, ConfigError
from tokenlake.etl.cleaning import Cleaning, CleanResult
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import open_pool
from tokenlake.etl.store_engine import WorkDone, join_build, named_build, parse_share
from tokenlake.reports.table import Table, label, number
from tokenlake.reports.terminal import near, stdout
from tokenlake.store.address import StoreAddress
from tokenlake.store.gc import parse_duration
from tokenlake.store.ledger import UnitRecord
from tokenlake.threads import available_cpus


def work(
    store: str,
    /,
    *names: Annotated[
        str, Parameter(help="What is being built: NAME or NAME@v3; several, one after the other.")
    ],
    share: str = "0/1",
    workers: Workers = None,
    wait: str = "0",
    json: AsJson = False,
) -> int:
    """Build units of a build that `tokenlake run --engine store` has planned, until none is left.

    Any number of these may run, on any machines that reach the store and the inputs, and each may be killed: what is
    finished is kept, and what is not is built by another. A machine that would make other bytes is refused.

    Args:
        store: The store: a path, s3:// or gs://.
        share: I/N: take every Nth unit first, from the Ith on (from 0), then any that nobody builds.
        wait: How long to wait for each plan, such as 10m. Default: not at all.
    """
    if not names:
        raise ConfigError("no build is named; expected NAME or NAME@v3 after the store")
    where, part, patience = StoreAddress.of(store), parse_share(share), parse_duration(wait)
    done: list[WorkDone] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    # A scheduler that wants the machine back sends SIGTERM, as Ctrl-C is.
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with WorkerPool(workers or available_cpus()) as pool:
            for name in names:
                layout = named_build(where, name, patience)
                one = join_build(where, layout, pool, share=part, patience=patience, on_unit=_tell)
                units = numbers.plural(one.built, "unit")
                note(f"{layout.prefix}: {units} built here, {one.found} by others")
                done.append(one)
    except (KeyboardInterrupt, CancelledError):
        note("cancelled: finished units are kept, and others build the rest")
        return CancelledError.exit_code
    finally:
        signal.signal(signal.SIGTERM, before)
    if json:
        print_json({key: sum(getattr(one, key) for one in done) for key in ("built", "found")})
    return 0


def _tell(record: UnitRecord, seconds: float) -> None:
    account = record.account
    sys.stderr.write(
        f"unit {record.unit:05d}: {numbers.plural(account.rows_read, 'row')}, "
        f"{len(record.parts)} files, {numbers.duration(seconds)}\n"
    )


_REASONS = (label("reason"), number("rows"), number("share", write=lambda share: f"{share:.2%}"))


def clean(
    config: Config,
    /,
    *,
    workers: Workers = None,
    set_: Overrides = (),
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the documents that a build is to leave out: duplicates, poor text, parts of evaluation sets.

    The section `clean` of the configuration says what is looked for. The list is a Parquet file, which a build takes
    by `exclude` of a dataset. What is found out about each document is kept in the store, in `.clean`: a run that was
    stopped goes on, and another one reads new files alone.
    """
    cleaning = Cleaning(load_config(config, with_store(set_, store)))
    pending = cleaning.pending
    if pending:
        total = sum(unit.bytes for unit in pending)
        with counting("reading") as counter, open_pool(None, workers, cleaning.config.ray) as pool:
            counter.set(0, total)
            cleaning.sign(pool, on_progress=lambda fields: counter.add(int(fields.get("bytes", 0))))
    result = cleaning.settle()
    emit(result.to_json(), json, lambda: _print(result))
    return 0


def _print(result: CleanResult) -> None:
    account = result.account
    out = account.rows_read - account.kept
    stdout().print(
        f"{near(result.output)}: {numbers.plural(sum(account.filtered.values()), 'document')} to leave out; "
        f"{account.kept:,} of {numbers.plural(account.rows_read, 'row')} stay"
    )
    if out:
        reasons = sorted(account.filtered.items(), key=lambda item: (-item[1], item[0]))
        reasons += ((f"bad record: {reason}", rows) for reason, rows in sorted(account.quarantined.items()))
        rows = tuple((reason, rows, rows / account.rows_read) for reason, rows in reasons)
        print_tables([Table(_REASONS, rows)])
    for line in result.notes:
        note(line)
