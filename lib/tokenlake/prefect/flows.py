"""The flows `tokenize` and `mix`: the graph of a build and nothing else; logic lives in the tasks and the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import WithJsonSchema

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.errors import TokenlakeError
from tokenlake.prefect.engine import LocalEngine, prepared, take_engine
from tokenlake.prefect.policy import require_allowed
from tokenlake.prefect.request import DEFAULT, DEFAULT_MIXTURE, requested_name, require_flow, resolve_request
from tokenlake.prefect.run_state import cancellable, final_state, result_of_flow, run_name
from tokenlake.prefect.tasks import (
    Summary,
    build_all,
    commit_version,
    export_version,
    plan_build,
    publish_table,
)

# None works, too; the schemas without it give plain fields in the form that starts a run.

_FILES = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

Text: TypeAlias = Annotated[str | None, WithJsonSchema({"type": "string"})]
Texts: TypeAlias = Annotated[
    Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})
]
Count: TypeAlias = Annotated[int | None, WithJsonSchema({"type": "integer", "minimum": 0})]
Files: TypeAlias = Annotated[str | Sequence[str] | None, WithJsonSchema(_FILES)]
Config: TypeAlias = Annotated[
    str | dict[str, Any] | None, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]
FilesBySource: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]] | None,
    WithJsonSchema({"type": "object", "additionalProperties": _FILES}),
]
Weights: TypeAlias = Annotated[
    Mapping[str, float] | None,
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}),
]


@flow(name="tokenize", flow_run_name=run_name(partial(requested_name, DEFAULT)), persist_result=False)
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
    asked = partial(resolve_request, config, data_files, tokenizer, output, name, overrides or ())
    return _run("tokenize", asked, workers)


@flow(name="mix", flow_run_name=run_name(partial(requested_name, DEFAULT_MIXTURE)), persist_result=False)
def mix(
    config: Config = "",
    data_files: FilesBySource = None,
    weights: Weights = None,
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    workers: Count = 0,
    overrides: Texts = (),
) -> Summary | State[Any]:
    """Mix several sources by weight, and pack the mixture, into a new, verified version of a dataset. Sources that are text are tokenized first, each by a run of the flow `tokenize`.

    Args:
        config: Name of a file in `deployments/` such as `pretrain-2048`, path of a YAML file, or the configuration itself. Empty: `pretrain-2048`.
        data_files: What to read instead of the configuration's data, by source: `{"code": "code/*.parquet", "web": ["a.jsonl", "b.jsonl"]}`. Needed where the configuration names none.
        weights: Share of each source, by its name; they sum to 1. Empty: the configuration's.
        tokenizer: Hub id, folder or tokenizer.json of what is text still. Empty: the configuration's.
        output: Store to write to, which holds the tokens of the sources too. Empty: the configuration's, else `TOKENLAKE_STORE`, else `./artifacts`.
        name: Name of the dataset in the store. Empty: the configuration's, else its file's.
        workers: Worker processes. 0: one per core.
        overrides: Single values of the configuration, such as `mix.total_tokens=1000000000`.
    """  # noqa: E501 - a line break here is a line break in the form
    config = config or DEFAULT_MIXTURE
    asked = partial(resolve_request, config, data_files, tokenizer, output, name, overrides or ())
    return _run("mix", partial(asked, weights=weights), workers)


def _run(flow: str, asked: Callable[..., PipelineConfig], workers: int | None) -> Summary | State[Any]:
    """Build with the engine that a command has made ready; of a deployment's run, what its parameters ask for."""
    try:
        engine = take_engine()
        if engine is None:
            request = asked(report=get_run_logger().info)
            require_flow(flow, request)
            require_allowed(request)
            engine = LocalEngine(request, workers=workers)
        return _build(engine)
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)


def _build(engine: LocalEngine) -> Summary:
    """The graph of both flows: the tokens of each source by a flow of its own, then the build itself."""
    with engine, cancellable(engine):
        for part in engine.parts():
            with prepared(part):
                config = part.config.model_dump(mode="json", exclude_unset=True)
                result_of_flow(tokenize(config=config, workers=engine.workers, return_state=True))
        plan_build(engine)
        build_all(engine)
        summary = commit_version(engine)
        if engine.has_exports:
            summary = export_version(engine)
        publish_table(engine)
        return summary
