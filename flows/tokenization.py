"""Raw text to a committed version of a token dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import WithJsonSchema

from tasks.commit import commit_version
from tasks.ending import cancellable, final_state
from tasks.engine import LocalEngine
from tasks.handoff import take_prepared
from tasks.naming import flow_run_name
from tasks.planning import plan_build
from tasks.policy import require_allowed
from tasks.reporting import Summary, publish_table
from tasks.request import resolve_request
from tasks.shards import build_all
from tokenlake.errors import TokenlakeError

# None works too; the schemas without it give plain fields in the form that starts a run.
_Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
_Texts = Annotated[Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})]
_Files = Annotated[
    str | Sequence[str] | None,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
_Config = Annotated[
    str | dict[str, Any] | None, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]
_Count = Annotated[int | None, WithJsonSchema({"type": "integer", "minimum": 0})]


@flow(name="tokenize", flow_run_name=flow_run_name, persist_result=False)
def tokenize(
    config: _Config = "",
    data_files: _Files = "",
    tokenizer: _Text = "",
    output: _Text = "",
    name: _Text = "",
    workers: _Count = 0,
    overrides: _Texts = (),
) -> Summary | State[Any]:
    """Tokenize and pack raw text into a new, verified version of a dataset.

    Args:
        config: Name of a file in `deployments/` such as `llama2-2048`, path of a YAML file, or the configuration itself. Empty: `demo`.
        data_files: What to read instead of the configuration's data: a path, a glob, a folder, or a list of these. Empty here and there: a small demo corpus, made on the spot.
        tokenizer: Hub id, folder or tokenizer.json. Empty: the configuration's.
        output: Store to write to. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset in the store. Empty: the configuration's, else its file's.
        workers: Worker processes. 0: one per core.
        overrides: Single values of the configuration, such as `pack.seq_length=4096`.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        engine = take_prepared()
        if engine is None:
            log = get_run_logger().info
            request = resolve_request(config, data_files, tokenizer, output, name, overrides or (), log)
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
