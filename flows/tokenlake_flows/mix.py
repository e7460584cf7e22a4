"""Flow `mix`, which mixes sources by weight into a new, verified version."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from tokenlake.runs.build_run import BuildRun
from tokenlake.runs.request import (
    DEFAULT_MIXTURE,
    requested_name,
    resolve_request,
    stage_values,
)
from tokenlake_flows.builds import run_build
from tokenlake_flows.names import run_name
from tokenlake_flows.parameters import (
    Config,
    Count,
    Executor,
    FilesBySource,
    Splits,
    Strategy,
    Text,
    Texts,
    TokenizerBackend,
    Weights,
    present_value,
)
from tokenlake_flows.prepared import prepared
from tokenlake_flows.states import result_of_flow
from tokenlake_flows.tokenize import build_version, tokenize
from tokenlake_tasks.summary import Summary


@flow(
    name="mix",
    flow_run_name=run_name(partial(requested_name, DEFAULT_MIXTURE)),
    persist_result=False,
)
def mix(
    config: Config = "",
    data_files: FilesBySource = None,
    weights: Weights = None,
    tokenizer: Text = "",
    output: Text = "",
    name: Text = "",
    seq_length: Count = 0,
    strategy: Strategy = "",
    tokenizer_backend: TokenizerBackend = "",
    splits: Splits = None,
    executor: Executor = "",
    work_runs: Count = 0,
    workers: Count = 0,
    overrides: Texts = (),
    tokenizer_engine: TokenizerBackend = "",
    engine: Executor = "",
) -> Summary | State[Any]:
    """Mix several sources by weight into a new, verified version of a dataset. Sources that are text are tokenized first, each in a run of the flow `tokenize`.

    Args:
        config: Name of a configuration in `deployments/`, such as `pretrain-2048`; path of a YAML file; or the configuration itself. Default: `pretrain-2048`.
        data_files: Input files of each source, by name, in place of the configuration's: `{"code": "code/*.parquet", "web": ["a.jsonl", "b.jsonl"]}`. Required unless the configuration names its data.
        weights: Share of each source, by name, with a sum of 1. Default: that of the configuration.
        tokenizer: Hub id, folder or tokenizer.json of the tokenizer, for sources that are text. Default: that of the configuration.
        output: Path or URL of the store to write to. It also holds the tokens of the sources. Default: that of the configuration, then `TOKENLAKE_STORE`, then `./artifacts`.
        name: Name of the dataset in the store. Default: that of the configuration, then the name of its file.
        seq_length: Number of tokens in a packed row. 0: the configuration's value.
        strategy: Packing strategy, which decides how documents are placed in rows. Default: that of the configuration.
        tokenizer_backend: Tokenizer implementation. All of them give the same ids. Default: that of the configuration.
        splits: Share of the documents in each split, by name, with a sum of 1: `{"train": 0.98, "validation": 0.02}`. Default: that of the configuration.
        executor: Place where the units run: `local` (this machine), `store` (all machines that run `tokenlake work`), `ray` or `dask`. The output is the same. Default: `local`, or `ray` if the configuration enables it.
        work_runs: Number of runs of `work/units` to start, with executor `store`. They build the units in the work pool of that deployment. 0: none; machines that run `tokenlake work` build the units.
        workers: Number of worker processes, in each of these runs if there are any. 0: one per core.
        overrides: Single values of the configuration, such as `mix.total_tokens=1000000000`.
        tokenizer_engine: Former name of `tokenizer_backend`, for one release.
        engine: Former name of `executor`, for one release.
    """  # noqa: E501 - a line break here is a line break in the form
    config = config or DEFAULT_MIXTURE
    tokenizer_backend = present_value(
        "tokenizer_engine", tokenizer_engine, "tokenizer_backend", tokenizer_backend
    )
    executor = present_value("engine", engine, "executor", executor)
    values = [
        *stage_values(seq_length, strategy, tokenizer_backend, splits),
        *(overrides or ()),
    ]
    request = partial(
        resolve_request,
        config,
        data_files,
        tokenizer,
        output,
        name,
        values,
        weights=weights,
    )
    return run_build(
        "mix",
        build_mixture,
        request,
        workers=workers,
        executor=executor,
        work_runs=work_runs,
    )


def build_mixture(build_run: BuildRun) -> Summary:
    """Tokenize the sources that are text, each in a run, then build the mixture."""
    states: list[State[Any]] = []
    # The parameters of each run show only the values that were set.
    for source_run in build_run.parts():
        config = source_run.config.model_dump(mode="json", exclude_unset=True)
        with prepared(source_run):
            state = tokenize(
                config=config, workers=source_run.workers, return_state=True
            )
        result_of_flow(state)
        states.append(state)
    return build_version(build_run, after=states)
