"""``tokenlake run``, and the summary of a run."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.cli.console import (
    AsJson,
    Config,
    Executor,
    FormerExecutor,
    Overrides,
    StoreUrl,
    Workers,
    emit,
    executor_of,
    note,
    with_store,
)
from tokenlake.cli.training import training_lines
from tokenlake.errors import CancelledError, MissingExtraError
from tokenlake.etl.reports import Table, dataset, facts, label, listed, number
from tokenlake.etl.reports.terminal import near, print_tables, stdout
from tokenlake.query.loss_tokens import LossShare, loss_share
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.schemes import default_store, is_local

if TYPE_CHECKING:
    from tokenlake.etl.observability.tally import RunTally
    from tokenlake.etl.runner import BuildResult


def run(
    config: Config,
    /,
    *,
    workers: Workers = None,
    set_: Overrides = (),
    store: StoreUrl = None,
    executor: Executor = None,
    engine: FormerExecutor = None,
    prefect: Annotated[bool, Parameter(negative="--no-prefect")] = True,
    json: AsJson = False,
) -> int:
    """Build a dataset version.

    If a finished version of the same inputs and settings exists, nothing is built; an
    interrupted build is resumed. If the configuration mixes text, the tokens of each
    source are built first, as datasets of the store. The build runs as a Prefect flow,
    `tokenize` or `mix`, with a server of its own unless PREFECT_API_URL names one.

    Args:
        executor: Where units run: local, on this machine (default); store, wherever
            `tokenlake work` runs; ray or dask, on a cluster.
        prefect: Run as a Prefect flow (default); --no-prefect runs the library alone.
    """
    executor = executor_of(executor, engine)
    result, tallies = run_build(
        config, with_store(set_, store), workers, executor, prefect=prefect
    )
    print_summary(result, tallies, json)
    return 0


def run_build(
    config: str | dict[str, Any],
    overrides: Sequence[str],
    workers: int | None,
    executor: Executor,
    *,
    prefect: bool,
) -> tuple[BuildResult, list[RunTally]]:
    """Build a configuration, and show the progress on stderr.

    Args:
        config: Path of a YAML file, or a configuration as a mapping.
        overrides: Texts ``key=value``.
        workers: Number of workers; None for the default.
        executor: Place where units run; None for this machine.
        prefect: True to run as a Prefect flow, False to run the library alone.

    Returns:
        The result of the last build, and the figures of each build of the run.

    Raises:
        CancelledError: The run was cancelled; the message has the command that resumes
            it.
        MissingExtraError: Prefect is not installed.
    """
    # Imported here and not above: the flow's first act is to start a server, and every
    # import delays it.
    observed = importlib.import_module("tokenlake.etl.observability.build")
    try:
        with observed.RunProgress("planning") as progress:
            # Without a worker such a run waits for ever, so that the command to start
            # one comes at once. Events are imported by the build, and not before.
            def watch(event: Any) -> None:
                is_plan = type(event).__name__ == "BuildPlanned"
                if executor == "store" and is_plan and event.pending:
                    build_name = f"{event.dataset}@v{event.version}"
                    note(
                        f"waiting for workers: tokenlake work {build_name} --store STORE"
                    )
                progress(event)

            if prefect:
                launch = importlib.import_module("tokenlake_flows.launch").launch
                starting = partial(progress.doing, "starting Prefect, planning")
                options: dict[str, Any] = {
                    "workers": workers,
                    "executor": executor,
                    "on_event": watch,
                }
                result = launch(
                    config, overrides=overrides, on_start=starting, **options
                )
            else:
                load_config = importlib.import_module("tokenlake.config").load_config
                build = importlib.import_module("tokenlake.etl.runner").build_dataset
                events = importlib.import_module("tokenlake.etl.events")
                request = load_config(config, overrides)
                # The event has the options of the display, before anything is planned.
                watch(events.BuildRequested(request.observability))
                with observed.measured(request.observability, watch) as watcher:
                    result = build(
                        request, workers=workers, executor=executor, on_event=watcher
                    )
    except ModuleNotFoundError as error:
        missing_package = (error.name or "").partition(".")[0]
        if not prefect or missing_package not in _FLOWS:
            raise  # the library alone needs it, too
        message = _NO_PREFECT.format(missing=missing_package)
        raise MissingExtraError(message) from error
    except (KeyboardInterrupt, CancelledError):
        # The same command resumes the build: finished units are found by their
        # fingerprints.
        command = shlex.join(["tokenlake", *sys.argv[1:]])
        raise CancelledError(
            f"finished units are kept. To resume:  {command}"
        ) from None
    return result, list(progress.tallies)


_FLOWS: Final = ("prefect", "tokenlake_flows", "tokenlake_tasks")
"""Packages that a run without Prefect does not need."""

_NO_PREFECT: Final = """\
running as a Prefect flow needs {missing}, which is not installed

  pip install 'tokenlake[etl]'         to have it
  tokenlake run --no-prefect CONFIG    for the same build without Prefect"""


def print_summary(result: BuildResult, tallies: Sequence[RunTally], json: bool) -> None:
    """Print a finished run on stdout, for people or as JSON.

    Args:
        result: Result of the last build.
        tallies: Figures of each build of the run, those of the result last.
        json: True to print JSON.
    """
    manifest = result.manifest
    record: dict[str, Any] = {
        "dataset": result.dataset,
        "version": result.version,
        "path": result.path,
        "status": result.status,
        "units": {
            "built": result.units_built,
            "resumed": result.units_resumed,
            "reused": result.units_reused,
        },
        "seconds": round(result.seconds, 3),
        "input_bytes_built": tallies[-1].built,
        "totals": asdict(manifest.totals),
        "splits": dataset.split_figures(manifest),
        "account": manifest.account.to_json(),
        "fingerprint": manifest.fingerprint,
        "notes": list(result.notes),
    }
    # Keys that only some runs have.
    if result.exports:
        record["exports"] = list(result.exports)
    share = _loss_share(result)
    if share is not None:
        record["loss"] = asdict(share)
    if manifest.mixture is not None:
        record["mixture"] = dataset.mixture_table(manifest.mixture).records()
    if len(tallies) > 1:
        record["steps"] = _steps(tallies).records()
    emit(record, json, lambda: _print(result, tallies, share))


def _loss_share(result: BuildResult) -> LossShare | None:
    """Return the share of the tokens that counts toward the loss.

    It is None if no loss mask is stored on this machine: a bucket would be read.
    """
    root = _store_of(result)
    if not is_local(root):
        return None
    return loss_share(open_store(root), result.manifest)


def _store_of(result: BuildResult) -> str:
    """Return the store of a version, a path or a URL."""
    return result.path.removesuffix(f"/{result.dataset}/v{result.version}")


def _steps(tallies: Sequence[RunTally]) -> Table:
    """Return a table of the builds of a run."""
    columns = [
        label("what", "step"),
        label("dataset"),
        number("version", "version", lambda version: f"v{version}"),
        number("units"),
        number("built", "built now"),
        number("written", "tokens"),
        number("seconds", "time", numbers.duration),
    ]
    records = [_step_record(tally) for tally in tallies]
    return Table.of(columns, records, "Steps")


def _step_record(tally: RunTally) -> dict[str, Any]:
    """Return the record of one build of a run."""
    return {
        "what": tally.step.what,
        "dataset": tally.plan.dataset,
        "version": tally.plan.version,
        "units": tally.plan.units,
        "built": tally.plan.pending,
        # Nothing is counted of a version that existed before the run.
        "written": tally.written or None,
        "seconds": round(tally.seconds(), 3),
    }


def _print(
    result: BuildResult, tallies: Sequence[RunTally], share: LossShare | None
) -> None:
    """Print a finished run for people: the version, the work, and the next commands."""
    # 1. The version, and the work of this run.
    manifest = result.manifest
    console = stdout()
    heading = (f"{result.dataset} v{result.version}", "bold")
    outcome = _OUTCOMES.get(result.status, "committed")
    console.print(Text.assemble(heading, f" {outcome}\n"))
    headline: list[Any] = [*dataset.headline(manifest).rows]
    if share is not None:
        headline.append(("loss", share.in_words()))
    headline.append(("work", _work(result, tallies[-1])))
    headline.append(("path", near(result.path)))
    for place in result.exports:
        headline.append(("export", near(place)))

    # 2. Splits, builds, shares and audit. The headline has the figures of a single
    #    split.
    tables = [facts(headline)]
    if len(manifest.splits) > 1:
        tables.append(dataset.splits_table(manifest, with_fill=True))
    if len(tallies) > 1:
        tables.append(_steps(tallies))
    if manifest.mixture is not None:
        tables.append(dataset.mixture_table(manifest.mixture))
    tables.append(dataset.account_table(manifest))
    notes = [*dataset.remarks(manifest.account), *result.notes]
    if notes:
        tables.append(listed(notes, "Notes"))
    print_tables(tables)

    # 3. Commands that work as printed, from this folder; and lines of Python that
    #    train, anywhere on this machine.
    root = _store_of(result)
    store_option = ""
    if Path(default_store()).expanduser().resolve() != Path(root):
        store_option = f" --store {shlex.quote(near(root))}"
    # A name without a number is the newest version. A build that was resumed, or
    # existed already, may be older.
    name = f"{result.dataset}@v{result.version}"
    if result.status == "built":
        name = result.dataset
    commands: list[str] = []
    for command in ("peek", "report", "verify"):
        commands.append(f"tokenlake {command} {name}{store_option}")
    if any(manifest.account.quarantined.values()):
        statement = f'select place, reason, detail from "{name}/quarantine"'
        commands.append(f"tokenlake sql {shlex.quote(statement)}{store_option}")
    _print_lines("Next", commands)
    _print_lines("Train", training_lines(root, manifest))


def _print_lines(title: str, lines: Sequence[str]) -> None:
    """Print lines to copy under a title; nothing if there are none."""
    if not lines:
        return
    console = stdout()
    console.print(Text(f"\n{title}", style="bold"))
    for line in lines:
        # A wrapped command could not be copied.
        console.print(Text(line), soft_wrap=True)


_OUTCOMES: Final = {
    "exists": "already exists with the same inputs and settings: nothing to do",
    "resumed": "committed, after resuming an earlier run",
}


def _work(result: BuildResult, tally: RunTally) -> str:
    """Return the number of units that were built, resumed and reused, and the speed."""
    if not result.units_built:
        return f"none, {numbers.duration(result.seconds)}"
    units = f"{numbers.plural(result.units_built, 'unit')} built"
    if result.units_resumed:
        units += f", {numbers.plural(result.units_resumed, 'unit')} resumed"
    if result.units_reused:
        units += f", {numbers.plural(result.units_reused, 'unit')} reused"
    seconds = tally.seconds()
    speed = f"{numbers.duration(seconds)}, {numbers.rate(tally.built, seconds)}"
    return f"{units}: {numbers.size(tally.built)} in {speed}; {numbers.duration(result.seconds)} in all"
