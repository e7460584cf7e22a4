"""``tokenlake work`` and ``clean``: builds of units without Prefect.

They build units of a planned build, and a list of documents to leave out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tokenlake.base import numbers
from tokenlake.base.sizes import parse_duration
from tokenlake.cli.console import (
    AsJson,
    Config,
    Overrides,
    StoreUrl,
    Workers,
    counting,
    emit,
    note,
    print_json,
    with_store,
    working,
)
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.errors import CancelledError, ConfigError
from tokenlake.etl.clean import Cleaning, CleanResult
from tokenlake.etl.executors import local_pool, open_pool
from tokenlake.etl.reports import Table, label, number
from tokenlake.etl.reports.terminal import near, print_tables, stdout
from tokenlake.etl.store_executor import join_build, named_build, parse_share
from tokenlake.runtime.store.address import StoreAddress
from tokenlake.runtime.store.ledger import UnitRecord
from tokenlake.runtime.store.schemes import default_store


def work(
    *names: Annotated[
        str,
        Parameter(
            name="NAME",
            help="Builds to join: NAME or NAME@v3. Several are built one after the other.",
        ),
    ],
    share: str = "0/1",
    workers: Workers = None,
    wait: str = "0",
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Build units of a build that `tokenlake run --executor store` has planned, until
    none is left.

    Any number of these may run, on any machines that reach the store and the inputs,
    and each may be killed: finished units are kept, and another worker builds the rest.
    A machine that would produce other bytes is refused.

    The store may also stand before the names, as in earlier releases: `tokenlake work
    s3://lake/artifacts books@v1`.

    Args:
        share: I/N: build every Nth unit first, from unit I on (counted from 0), then
            any unit that nobody builds.
        wait: Longest wait for each plan, such as 10m. Default: no wait.
    """
    # In earlier releases the store came first.
    builds = list(names)
    if store is None and builds and _is_store(builds[0]):
        store = builds.pop(0)
    if not builds:
        raise ConfigError(
            "no build is named; expected NAME or NAME@v3, as in `tokenlake work books@v3 --store STORE`"
        )
    # Wrong options are reported before workers start.
    address = StoreAddress.of(store or default_store())
    first_units = parse_share(share)
    patience = parse_duration(wait)
    # One pool builds units of all named builds, one build after the other. It starts
    # one worker and more as units come, because there may be nothing to do.
    built_units = 0
    other_units = 0
    try:
        with local_pool(workers, started=1) as pool:
            for name in builds:
                # The plan may not exist yet: `--wait` is the patience for it.
                layout = named_build(address, name, patience)
                progress = join_build(
                    address,
                    layout,
                    pool,
                    share=first_units,
                    patience=patience,
                    on_unit=_print_unit,
                )
                units = numbers.plural(progress.built, "unit")
                note(f"{layout.prefix}: {units} built here, {progress.found} by others")
                built_units += progress.built
                other_units += progress.found
    except (KeyboardInterrupt, CancelledError):
        note("cancelled: finished units are kept, and other workers build the rest")
        return CancelledError.exit_code
    if json:
        print_json({"built": built_units, "found": other_units})
    return 0


def _is_store(argument: str) -> bool:
    """Return True if an argument is a store and no name: a URL, a path, or a folder."""
    return "/" in argument or Path(argument).is_dir()


def _print_unit(record: UnitRecord, seconds: float) -> None:
    """Print a line about a unit that was built here on stderr."""
    rows = numbers.plural(record.account.rows_read, "row")
    duration = numbers.duration(seconds)
    sys.stderr.write(
        f"unit {record.unit:05d}: {rows}, {len(record.parts)} files, {duration}\n"
    )


def clean(
    config: Config,
    /,
    *,
    workers: Workers = None,
    set_: Overrides = (),
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the documents that a build should leave out: duplicates, poor text, parts of
    evaluation sets.

    The section `clean` of the configuration defines the search. The list is a Parquet
    file, which a build reads with `exclude` of a dataset. Signatures of the documents
    are stored in `.clean` of the store: a stopped run resumes, and a later run reads
    only new files.
    """
    cleaning = Cleaning(load_config(config, with_store(set_, store)))
    # Documents that an earlier run has read have signatures already.
    pending = cleaning.pending
    if pending:
        total_bytes = sum(unit.bytes for unit in pending)
        with (
            counting("reading") as counter,
            open_pool(None, workers, cleaning.config.ray) as pool,
        ):
            counter.set(0, total_bytes)

            def count_bytes(fields: Any) -> None:
                counter.add(int(fields.get("bytes", 0)))

            cleaning.sign(pool, on_progress=count_bytes)
    # The signatures of all documents decide which of them are left out.
    with working("comparing the documents"):
        result = cleaning.settle()
    emit(result.to_json(), json, lambda: _print_result(result))
    if not json:
        _note_use_of_list(cleaning.config, result.output, config)
    return 0


def _note_use_of_list(config: PipelineConfig, output: str, config_file: str) -> None:
    """Say on stderr how a build leaves out the documents of a list.

    Args:
        config: Configuration of the run.
        output: Path of the list.
        config_file: File that the configuration was read from.
    """
    # Datasets that do not name the list yet. Without any the build can begin.
    list_file = Path(output).absolute()
    dataset_names: list[str] = []
    for dataset in config.datasets:
        excluded_file = dataset.exclude
        if excluded_file is None or Path(excluded_file).absolute() != list_file:
            dataset_names.append(str(dataset.name))
    run = f"tokenlake run {near(config_file)}"
    if dataset_names:
        note(
            f"next: write `exclude: {near(output)}` under {', '.join(dataset_names)} of `datasets`, then `{run}`"
        )
    else:
        note(f"next: `{run}` builds without these documents")


_REASON_COLUMNS: Final = (
    label("reason"),
    number("rows"),
    number("share", write=lambda share: f"{share:.2%}"),
)


def _print_result(result: CleanResult) -> None:
    """Print the number of documents to leave out, and their reasons."""
    account = result.account
    left_out = numbers.plural(sum(account.filtered.values()), "document")
    rows_read = numbers.plural(account.rows_read, "row")
    stdout().print(
        f"{near(result.output)}: {left_out} to leave out; {account.kept:,} of {rows_read} kept"
    )
    # The most frequent reasons first, then bad records.
    reasons = sorted(account.filtered.items(), key=lambda item: (-item[1], item[0]))
    for reason, rows in sorted(account.quarantined.items()):
        reasons.append((f"bad record: {reason}", rows))
    if account.rows_read > account.kept:
        rows_of_table: list[tuple[str, int, float]] = []
        for reason, rows in reasons:
            rows_of_table.append((reason, rows, rows / account.rows_read))
        print_tables([Table(_REASON_COLUMNS, tuple(rows_of_table))])
    for line in result.notes:
        note(line)
