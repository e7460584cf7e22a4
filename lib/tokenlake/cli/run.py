"""``tokenlake run``."""

from __future__ import annotations

import importlib
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from tokenlake.cli.console import AsJson, Config, Overrides, StoreUrl, Workers, note, with_store
from tokenlake.errors import CancelledError, MissingExtraError
from tokenlake.prefect.launch import launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenlake.etl.events import Watcher
    from tokenlake.etl.runner import BuildResult

Engine = Literal["local", "store", "ray", "dask"]


def run(
    config: Config,
    /,
    *,
    workers: Workers = None,
    set_: Overrides = (),
    store: StoreUrl = None,
    engine: Engine | None = None,
    prefect: Annotated[bool, Parameter(negative="--no-prefect")] = True,
    json: AsJson = False,
) -> int:
    """Build a dataset version.

    If a finished version of the same inputs and settings exists, nothing is built; an interrupted build is resumed. If
    the configuration mixes text, the tokens of each source are built first, as datasets of the store. The build runs
    as a Prefect flow, `tokenize` or `mix`, with a server of its own unless PREFECT_API_URL names one.

    Args:
        engine: Where units run: local, on this machine (default); store, wherever `tokenlake work` runs;
            ray or dask, on a cluster.
        prefect: Run as a Prefect flow (default); --no-prefect runs the library alone.
    """
    builder = _flow if prefect else _library
    # Imported here and not above: the flow's first act is to start a server, and every import delays it.
    progress_of = importlib.import_module("tokenlake.observability.build").RunProgress
    try:
        with progress_of("starting Prefect, planning" if prefect else "planning") as progress:
            watcher = _inviting(progress) if engine == "store" else progress
            result = builder(config, with_store(set_, store), workers, engine, watcher)
    except (KeyboardInterrupt, CancelledError):
        command = shlex.join(["tokenlake", *sys.argv[1:]])
        raise CancelledError(f"finished units are kept. To resume:  {command}") from None
    importlib.import_module("tokenlake.cli.progress").print_summary(result, progress.tallies, json)
    return 0


def _inviting(on_event: Watcher) -> Watcher:
    """Say how others join a build, once it is planned; then it waits for them."""

    def watch(event: Any) -> None:
        if type(event).__name__ == "BuildPlanned" and event.pending:
            note(f"waiting for workers: tokenlake work STORE {event.dataset}@v{event.version}")
        on_event(event)

    return watch


def _library(
    config: str, overrides: Sequence[str], workers: int | None, engine: Engine | None, on_event: Watcher
) -> BuildResult:
    """The same build without Prefect."""
    request = importlib.import_module("tokenlake.config").load_config(config, overrides)
    build = importlib.import_module("tokenlake.etl.runner").build_dataset
    measured = importlib.import_module("tokenlake.observability.build").measured
    on_event(importlib.import_module("tokenlake.etl.events").BuildRequested(request.observability))
    with measured(request.observability, on_event) as watcher:
        return build(request, workers=workers, engine=engine, on_event=watcher)


def _flow(
    config: str, overrides: Sequence[str], workers: int | None, engine: Engine | None, on_event: Watcher
) -> BuildResult:
    """The build as a flow."""
    try:
        return launch(config, overrides=overrides, workers=workers, on_event=on_event, engine=engine)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package != "prefect":
            raise  # the library alone needs it, too
        raise MissingExtraError(_NO_PREFECT) from error


_NO_PREFECT: Final = """\
running as a Prefect flow needs prefect, which is not installed

  pip install 'tokenlake[etl]'         to have it
  tokenlake run --no-prefect CONFIG    for the same build without Prefect"""
