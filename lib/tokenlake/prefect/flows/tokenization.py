"""Raw text to a committed version of a token dataset."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from tokenlake.errors import TokenlakeError
from tokenlake.prefect.flows.parameters import Config, Count, Files, Text, Texts
from tokenlake.prefect.tasks.commit import commit_version
from tokenlake.prefect.tasks.ending import cancellable, final_state
from tokenlake.prefect.tasks.engine import LocalEngine
from tokenlake.prefect.tasks.handoff import take_engine
from tokenlake.prefect.tasks.naming import flow_run_name
from tokenlake.prefect.tasks.planning import plan_build
from tokenlake.prefect.tasks.policy import require_allowed
from tokenlake.prefect.tasks.reporting import Summary, publish_table
from tokenlake.prefect.tasks.request import require_text, resolve_request
from tokenlake.prefect.tasks.shards import build_all


@flow(name="tokenize", flow_run_name=flow_run_name, persist_result=False)
def tokenize(
    config: Config = "",
    data_files: Files = "",
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    workers: Count = 0,
    overrides: Texts = (),
) -> Summary | State[Any]:
    """Tokenize and pack raw text into a new, verified version of a dataset.

    Args:
        config: Name of a file in `deployments/` such as `llama2-2048`, path of a YAML file, or the configuration itself. Empty: `demo`.
        data_files: What to read instead of the configuration's data: a path, a glob, a folder, or a list of these. Only `demo` has some of its own.
        tokenizer: Hub id, folder or tokenizer.json. Empty: the configuration's.
        output: Store to write to. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset in the store. Empty: the configuration's, else its file's.
        workers: Worker processes. 0: one per core.
        overrides: Single values of the configuration, such as `pack.seq_length=4096`.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        engine = take_engine()
        if engine is None:
            log = get_run_logger().info
            request = resolve_request(config, data_files, tokenizer, output, name, overrides or (), log)
            require_text(request)
            require_allowed(request)
            engine = LocalEngine(request, workers=workers)
        with engine, cancellable(engine):
            plan_build(engine)
            build_all(engine)
            summary = commit_version(engine)
            publish_table(engine)
            return summary
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
