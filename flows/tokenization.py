"""Raw text to a committed version of a token dataset."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.states import State
from pydantic import Field

from tasks.commit import commit_version
from tasks.ending import cancellable, final_state
from tasks.engine import LocalEngine
from tasks.handoff import take_prepared
from tasks.naming import flow_run_name
from tasks.planning import plan_build
from tasks.reporting import Summary, publish_table
from tasks.request import resolve_request
from tasks.shards import build_all
from tokenlake.errors import TokenlakeError


@flow(name="tokenize", flow_run_name=flow_run_name, persist_result=False)
def tokenize(
    config: str | dict[str, Any] | None = None,
    data_files: str | list[str] | None = None,
    tokenizer: str | None = None,
    output: str | None = None,
    name: str | None = None,
    workers: Annotated[int, Field(ge=1)] | None = None,
    overrides: list[str] | None = None,
) -> Summary | State[Any]:
    """Tokenize and pack raw text into a new, verified version of a dataset.

    Args:
        config: Name of a file in `deployments/` (llama2-2048), path of a YAML file, or the configuration
            itself. Empty: the defaults.
        data_files: What to read instead of the configuration's datasets: a path, a glob, a folder, or a
            list of these. Empty here and in the configuration: a small demo corpus made on the spot.
        tokenizer: Hub id, folder or tokenizer.json. Empty: the configuration's.
        output: Store to write to. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset in the store. Empty: the configuration's, else its file name.
        workers: Worker processes. Empty: one per core.
        overrides: Single values of the configuration, as `pack.seq_length=4096`.
    """
    try:
        engine = take_prepared() or LocalEngine(
            resolve_request(config, data_files, tokenizer, output, name, overrides or ()), workers=workers
        )
        with engine, cancellable(engine):
            plan_build(engine)
            build_all(engine)
            summary = commit_version(engine)
            publish_table(engine)
            return summary
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
