"""``tokenlake run``."""

from __future__ import annotations

import importlib
import shlex
import sys
from functools import partial
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from tokenlake.cli.console import AsJson, Config, Overrides, StoreUrl, Workers, note, with_store
from tokenlake.errors import CancelledError, MissingExtraError
from tokenlake.prefect.launch import launch

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
    # Imported here and not above: the flow's first act is to start a server, and every import delays it.
    observed = importlib.import_module("tokenlake.observability.build")
    overrides = with_store(set_, store)
    try:
        with observed.RunProgress("planning") as progress:

            def watch(event: Any) -> None:
                if engine == "store" and type(event).__name__ == "BuildPlanned" and event.pending:
                    note(f"waiting for workers: tokenlake work STORE {event.dataset}@v{event.version}")
                progress(event)

            if prefect:
                starting = partial(progress.doing, "starting Prefect, planning")
                options: dict[str, Any] = {"workers": workers, "engine": engine, "on_event": watch}
                result = launch(config, overrides=overrides, on_start=starting, **options)
            else:
                request = importlib.import_module("tokenlake.config").load_config(config, overrides)
                build = importlib.import_module("tokenlake.etl.runner").build_dataset
                watch(importlib.import_module("tokenlake.etl.events").BuildRequested(request.observability))
                with observed.measured(request.observability, watch) as watcher:
                    result = build(request, workers=workers, engine=engine, on_event=watcher)
    except ModuleNotFoundError as error:
        if not prefect or (error.name or "").partition(".")[0] != "prefect":
            raise  # the library alone needs it, too
        raise MissingExtraError(_NO_PREFECT) from error
    except (KeyboardInterrupt, CancelledError):
        command = shlex.join(["tokenlake", *sys.argv[1:]])
        raise CancelledError(f"finished units are kept. To resume:  {command}") from None
    importlib.import_module("tokenlake.cli.progress").print_summary(result, progress.tallies, json)
    return 0


_NO_PREFECT: Final = """\
running as a Prefect flow needs prefect, which is not installed

  pip install 'tokenlake[etl]'         to have it
  tokenlake run --no-prefect CONFIG    for the same build without Prefect"""
