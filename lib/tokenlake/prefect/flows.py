"""The flows `tokenize` and `mix`: the graph of a build and nothing else; logic lives in the tasks and the library.

`work` builds units of a build of theirs that waits for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeAlias, cast, get_args

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from pydantic import BaseModel, WithJsonSchema

from tokenlake import numbers
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.stages import PackStageConfig, TokenizeStageConfig
from tokenlake.config.stores import default_store
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.pool import WorkerPool
from tokenlake.etl.runner import ENGINES, EngineName
from tokenlake.etl.store_engine import StorePool, join_build, named_build, parse_share
from tokenlake.prefect.engine import LocalEngine, prepared, take_engine
from tokenlake.prefect.policy import require_allowed, require_allowed_job, require_allowed_store
from tokenlake.prefect.request import (
    DEFAULT,
    DEFAULT_MIXTURE,
    known_configurations,
    requested_name,
    require_flow,
    resolve_request,
    stage_values,
)
from tokenlake.prefect.runs import (
    WorkRuns,
    call_run,
    cancellable,
    final_state,
    progress_shown,
    result_of_flow,
    run_name,
)
from tokenlake.prefect.tasks import (
    Summary,
    artifact_key,
    build_all,
    commit_version,
    export_version,
    plan_build,
    publish_table,
    submitted,
)
from tokenlake.store.address import StoreAddress
from tokenlake.store.gc import parse_duration
from tokenlake.threads import available_cpus

# None works, too; the schemas without it give plain fields in the form that starts a run.

_TEXTS = {"type": "array", "items": {"type": "string"}}
_FILES = {"anyOf": [{"type": "string"}, _TEXTS]}
_SHARE = {"type": "number", "minimum": 0}


def _by_name(values: dict[str, Any]) -> Any:
    return WithJsonSchema({"type": "object", "additionalProperties": values})


Text: TypeAlias = Annotated[str | None, WithJsonSchema({"type": "string"})]
Texts: TypeAlias = Annotated[Sequence[str] | None, WithJsonSchema(_TEXTS)]
Count: TypeAlias = Annotated[int | None, WithJsonSchema({"type": "integer", "minimum": 0})]
Files: TypeAlias = Annotated[str | Sequence[str] | None, WithJsonSchema(_FILES)]
_CONFIGS = {
    "anyOf": [
        {"title": "Known", "type": "string", "enum": ["", *known_configurations()]},
        {"title": "File", "type": "string"},
        {"title": "Written out", "type": "object"},
    ]
}
Config: TypeAlias = Annotated[str | dict[str, Any] | None, WithJsonSchema(_CONFIGS)]
Splits: TypeAlias = Annotated[Mapping[str, float] | None, _by_name({**_SHARE, "maximum": 1})]


def _one_of(section: type[BaseModel], key: str) -> Any:
    """The choices of a key of a configuration as a dropdown, which may stay empty."""
    choices = get_args(section.model_fields[key].annotation)
    return WithJsonSchema({"type": "string", "enum": ["", *choices]})


Strategy: TypeAlias = Annotated[str | None, _one_of(PackStageConfig, "strategy")]
TokenizerEngine: TypeAlias = Annotated[str | None, _one_of(TokenizeStageConfig, "engine")]
Options: TypeAlias = Annotated[Mapping[str, Any] | None, WithJsonSchema({"type": "object"})]
Engine: TypeAlias = Annotated[str | None, WithJsonSchema({"type": "string", "enum": ["", *ENGINES]})]
FilesBySource: TypeAlias = Annotated[Mapping[str, str | Sequence[str]] | None, _by_name(_FILES)]
Weights: TypeAlias = Annotated[Mapping[str, float] | None, _by_name(_SHARE)]


_named = partial(requested_name, DEFAULT)
_mixture_named = partial(requested_name, DEFAULT_MIXTURE)


@flow(name="tokenize", flow_run_name=run_name(_named), persist_result=False)
def tokenize(
    config: Config = "",
    data_files: Files = "",
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    seq_length: Count = 0,
    strategy: Strategy = "",
    tokenizer_engine: TokenizerEngine = "",
    splits: Splits = None,
    engine: Engine = "",
    work_runs: Count = 0,
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
        seq_length: Tokens of a row. 0: what the configuration says.
        strategy: How documents are laid into rows. Empty: what the configuration says.
        tokenizer_engine: What makes ids of text, always the same ids. Empty: what the configuration says.
        splits: Part of the documents of each split, by its name; they sum to 1: `{"train": 0.98, "validation": 0.02}`. Empty: the configuration's.
        engine: Where units run, always with the same bytes: `local`, `store` (wherever `tokenlake work` runs), `ray`, `dask`. Empty: `local`, or `ray` where its section is enabled.
        work_runs: With `engine` `store`: so many runs of `work/units` are started to build the units, in that deployment's work pool. 0: whoever runs `tokenlake work` builds.
        workers: Worker processes, of each of these runs if there are any. 0: one per core, or as the engine has it.
        overrides: Single values of the configuration, such as `pack.seq_length=4096`.
    """  # noqa: E501 - a line break here is a line break in the form
    values = [*stage_values(seq_length, strategy, tokenizer_engine, splits), *(overrides or ())]
    asked = partial(resolve_request, config, data_files, tokenizer, output, name, values)
    return _run("tokenize", _named, asked, workers, engine, work_runs)


@flow(name="mix", flow_run_name=run_name(_mixture_named), persist_result=False)
def mix(
    config: Config = "",
    data_files: FilesBySource = None,
    weights: Weights = None,
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    seq_length: Count = 0,
    strategy: Strategy = "",
    tokenizer_engine: TokenizerEngine = "",
    splits: Splits = None,
    engine: Engine = "",
    work_runs: Count = 0,
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
        seq_length: Tokens of a row. 0: what the configuration says.
        strategy: How documents are laid into rows. Empty: what the configuration says.
        tokenizer_engine: What makes ids of text, always the same ids. Empty: what the configuration says.
        splits: Part of the documents of each split, by its name; they sum to 1: `{"train": 0.98, "validation": 0.02}`. Empty: the configuration's.
        engine: Where units run, always with the same bytes: `local`, `store` (wherever `tokenlake work` runs), `ray`, `dask`. Empty: `local`, or `ray` where its section is enabled.
        work_runs: With `engine` `store`: so many runs of `work/units` are started to build the units, in that deployment's work pool. 0: whoever runs `tokenlake work` builds.
        workers: Worker processes, of each of these runs if there are any. 0: one per core, or as the engine has it.
        overrides: Single values of the configuration, such as `mix.total_tokens=1000000000`.
    """  # noqa: E501 - a line break here is a line break in the form
    config = config or DEFAULT_MIXTURE
    values = [*stage_values(seq_length, strategy, tokenizer_engine, splits), *(overrides or ())]
    asked = partial(resolve_request, config, data_files, tokenizer, output, name, values, weights=weights)
    return _run("mix", _mixture_named, asked, workers, engine, work_runs)


def _work_named(parameters: Mapping[str, Any]) -> str:
    return f"{parameters.get('name')} {parameters.get('share') or ''}".strip()


@flow(name="work", flow_run_name=run_name(_work_named), persist_result=False)
def work(
    name: str,
    store: Text = "",
    storage_options: Options = None,
    share: Text = "",
    workers: Count = 0,
    wait: Text = "",
) -> dict[str, int] | State[Any]:
    """Build units of a build that another run has planned with `engine` `store`, until none is left: `tokenlake work` as a flow. Runs of `tokenize` and `mix` with `work_runs` start it.

    Args:
        name: What is being built: `books`, or `books@v3`.
        store: Store that it goes to. Empty: `TOKENLAKE_STORE`, else `./artifacts`.
        storage_options: Of the store, with secrets as `{"env": NAME}`. Empty: `TOKENLAKE_STORE_OPTIONS`.
        share: `I/N`: take every Nth unit first, from the Ith on (from 0), then any that nobody builds. Empty: any.
        workers: Worker processes. 0: one per core.
        wait: How long to wait for the plan, such as `10m`. Empty: not at all.
    """  # noqa: E501 - a line break here is a line break in the form
    try:
        where = StoreAddress(store or default_store(), dict(storage_options or {}))
        require_allowed_store(where.url, where.options)
        part, patience = parse_share(share or "0/1"), parse_duration(wait or "0")
        log = get_run_logger().info
        with WorkerPool(workers or available_cpus()) as pool:
            done = join_build(
                where,
                named_build(where, name, patience),
                pool,
                share=part,
                patience=patience,
                on_unit=lambda record, seconds: log(f"unit {record.unit:05d}: {numbers.duration(seconds)}"),
                worker=flow_run.id,
                allow=require_allowed_job,
            )
        return asdict(done)
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)


def _run(
    flow: str,
    named: Callable[[dict[str, Any]], str],
    asked: Callable[..., PipelineConfig],
    workers: int | None,
    units_on: str | None,
    work_runs: int | None,
) -> Summary | State[Any]:
    """Build with the engine that a command has made ready; of a deployment's run, what its parameters ask for."""
    try:
        engine = take_engine()
        if engine is None:
            request = asked(report=get_run_logger().info)
            require_flow(flow, request)
            require_allowed(request)
            # Those of the runs that are started: this one has none.
            own = None if units_on == "store" and work_runs else workers
            engine = LocalEngine(request, workers=own, engine=cast("EngineName | None", units_on or None))
        return _build(engine, named, work_runs or 0, workers or 0)
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)


def _build(
    engine: LocalEngine, named: Callable[[dict[str, Any]], str], work_runs: int = 0, workers: int = 0
) -> Summary:
    """The graph of both flows: the tokens of each source by a flow of its own, then the build itself."""
    progress = progress_shown(engine, artifact_key("progress", engine.config.name or "build"))
    with engine, cancellable(engine), progress, _helped(engine, work_runs, workers):
        parts: list[State[Any]] = []
        for part in engine.parts():
            with prepared(part):
                config = part.config.model_dump(mode="json", exclude_unset=True)
                parts.append(tokenize(config=config, workers=part.workers, return_state=True))
            result_of_flow(parts[-1])
        plan = submitted(plan_build, engine, after=parts)
        planned = plan.result()
        call_run(f"{planned['dataset']} v{planned['version']}", named)
        last = commit_version(engine, [plan, *build_all(engine, [plan])])
        if engine.config.has_exports:
            last = submitted(export_version, engine, after=[last])
        summary = last.result()
        submitted(publish_table, engine, after=[last]).result()
        return summary


def _helped(engine: LocalEngine, work_runs: int, workers: int) -> AbstractContextManager[object]:
    """Have so many runs of `work/units` build for an engine that waits for others."""
    if not work_runs or engine.is_part:
        return nullcontext()
    pool = engine.pool
    if not isinstance(pool, StorePool):
        why = "without the engine `store`, which waits for them"
        raise ConfigError(f"work_runs={work_runs} {why}; set engine=store")
    return WorkRuns(pool, work_runs, workers, get_run_logger().info)
