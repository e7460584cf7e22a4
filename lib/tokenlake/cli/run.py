"""``tokenlake run``."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tokenlake.cli.options import AsJson, Config, Overrides, StoreUrl, Workers, with_store
from tokenlake.errors import CancelledError, MissingExtraError, NotAvailableError

if TYPE_CHECKING:
    from tokenlake.build.events import Watcher
    from tokenlake.build.runner import BuildResult
    from tokenlake.config import PipelineConfig

Engine = Literal["local", "ray", "dask"]
Builder = Callable[["PipelineConfig", int | None, "Watcher"], "BuildResult"]


def run(
    config: Config,
    /,
    *,
    workers: Workers = None,
    set_: Overrides = (),
    store: StoreUrl = None,
    engine: Annotated[Engine, Parameter(help="Where units run.")] = "local",
    prefect: Annotated[bool, Parameter(help="Run as a Prefect flow, or with the library alone.")] = True,
    json: AsJson = False,
) -> int:
    """Build a dataset version.

    A finished version of the same inputs and settings is found and nothing is done; an interrupted one is
    resumed. The flow `tokenize` starts a Prefect server of its own unless PREFECT_API_URL names one.
    """
    if engine != "local":
        raise NotAvailableError(
            f"--engine {engine} is not available in this release; expected --engine local, which uses every "
            "processor of this machine (--workers N for fewer)",
            option="engine",
            value=engine,
        )
    # First of all: importing the flow starts Prefect's server in a second process, which takes longest.
    builder = _flow() if prefect else _library
    # Only now the modules that take time to import: they load while the server starts.
    finish = importlib.import_module("tokenlake.cli.building").build_and_report
    try:
        return int(finish(builder, config, with_store(set_, store), workers, json))
    except (KeyboardInterrupt, CancelledError):
        return _cancelled()


def _library(config: PipelineConfig, workers: int | None, on_event: Watcher) -> BuildResult:
    build = importlib.import_module("tokenlake.build.runner").build
    return build(config, workers=workers, on_event=on_event)


def _flow() -> Builder:
    """Find ``flows.launch``. By name: the library never imports Prefect, and its wheel holds no flows."""
    try:
        launch: Any = importlib.import_module("flows.launch").launch
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "flows":
            raise MissingExtraError(_NO_FLOWS) from error
        if package == "tokenlake":
            raise
        raise MissingExtraError(
            f"running as a Prefect flow needs {package}, which is not installed\n\n"
            "  pip install 'tokenlake[etl]'\n\n"
            "or run without Prefect: add --no-prefect"
        ) from error
    return lambda config, workers, on_event: launch(config, workers=workers, on_event=on_event)


_NO_FLOWS = (
    "the Prefect flows are not installed: the wheel of tokenlake holds the library alone\n\n"
    "  pip install -e '.[etl]'     in a checkout of the project, for the flows\n"
    "  tokenlake run --no-prefect  for the same build without Prefect"
)


def _cancelled() -> int:
    command = shlex.join(["tokenlake", *sys.argv[1:]])
    print(  # noqa: T201 - the last line of a cancelled run
        f"\ncancelled: what is finished is kept. To resume:  {command}", file=sys.stderr
    )
    return CancelledError.exit_code
