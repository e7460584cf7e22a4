"""``tokenlake run``."""

from __future__ import annotations

import importlib
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from tokenlake.cli.console import AsJson, Config, Overrides, StoreUrl, Workers, with_store
from tokenlake.errors import CancelledError, MissingExtraError, NotAvailableError
from tokenlake.prefect.launch import launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenlake.etl.events import Watcher
    from tokenlake.etl.runner import BuildResult

Engine = Literal["local", "ray", "dask"]


def run(
    config: Config,
    /,
    *,
    workers: Workers = None,
    set_: Overrides = (),
    store: StoreUrl = None,
    engine: Engine = "local",
    prefect: Annotated[bool, Parameter(negative="--no-prefect")] = True,
    json: AsJson = False,
) -> int:
    """Build a dataset version.

    If a finished version of the same inputs and settings exists, nothing is built; an interrupted build is resumed. If
    the configuration mixes text, the tokens of each source are built first, as datasets of the store. The build runs
    as a Prefect flow, `tokenize` or `mix`, with a server of its own unless PREFECT_API_URL names one.

    Args:
        engine: Where units run. Default: local.
        prefect: Run as a Prefect flow (default); --no-prefect runs the library alone.
    """
    if engine != "local":
        raise NotAvailableError(
            f"--engine {engine} is not available in this release; expected --engine local, which uses every "
            "processor of this machine (--workers N for fewer)",
            option="engine",
            value=engine,
        )
    builder = _flow if prefect else _library
    # Imported here and not above: the flow's first act is to start a server, and every import delays it.
    progress_of = importlib.import_module("tokenlake.observability.build").RunProgress
    try:
        with progress_of("starting Prefect, planning" if prefect else "planning") as progress:
            result = builder(config, with_store(set_, store), workers, progress)
    except (KeyboardInterrupt, CancelledError):
        command = shlex.join(["tokenlake", *sys.argv[1:]])
        raise CancelledError(f"finished units are kept. To resume:  {command}") from None
    importlib.import_module("tokenlake.cli.progress").print_summary(result, progress.tallies, json)
    return 0


def _library(config: str, overrides: Sequence[str], workers: int | None, on_event: Watcher) -> BuildResult:
    """The same build without Prefect."""
    request = importlib.import_module("tokenlake.config").load_config(config, overrides)
    build = importlib.import_module("tokenlake.etl.runner").build_dataset
    measured = importlib.import_module("tokenlake.observability.build").measured
    on_event(importlib.import_module("tokenlake.etl.events").BuildRequested(request.observability))
    with measured(request.observability, on_event) as watcher:
        return build(request, workers=workers, on_event=watcher)


def _flow(config: str, overrides: Sequence[str], workers: int | None, on_event: Watcher) -> BuildResult:
    """The build as a flow."""
    try:
        return launch(config, overrides=overrides, workers=workers, on_event=on_event)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package != "prefect":
            raise  # the library alone needs it, too
        raise MissingExtraError(_NO_PREFECT) from error


_NO_PREFECT: Final = """\
running as a Prefect flow needs prefect, which is not installed

  pip install 'tokenlake[etl]'         to have it
  tokenlake run --no-prefect CONFIG    for the same build without Prefect"""
