"""``tokenlake clean``."""

from __future__ import annotations

from collections.abc import Iterator

from tokenlake import numbers
from tokenlake.cli.console import (
    AsJson,
    Config,
    Overrides,
    StoreUrl,
    Workers,
    emit,
    note,
    print_tables,
    with_store,
)
from tokenlake.cli.progress import counting
from tokenlake.config.load import load_config
from tokenlake.etl.cleaning import Cleaning, CleanResult
from tokenlake.etl.engines import open_pool
from tokenlake.reports.table import Table, label, number
from tokenlake.reports.terminal import near, stdout

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
        print_tables([Table.of(_REASONS, list(_rows(result)))])
    for line in result.notes:
        note(line)


def _rows(result: CleanResult) -> Iterator[dict[str, object]]:
    account = result.account
    for reason, rows in sorted(account.filtered.items(), key=lambda item: (-item[1], item[0])):
        yield {"reason": reason, "rows": rows, "share": rows / account.rows_read}
    for reason, rows in sorted(account.quarantined.items()):
        yield {"reason": f"bad record: {reason}", "rows": rows, "share": rows / account.rows_read}
