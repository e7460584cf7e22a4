"""The flow `mix`: sources are mixed by weight into a new, verified version of a dataset."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from tokenlake.runs.engine import LocalEngine
from tokenlake.runs.request import DEFAULT_MIXTURE, requested_name, resolve_request, stage_values
from tokenlake_flows.builds import run_build
from tokenlake_flows.names import run_name
from tokenlake_flows.parameters import (
    Config,
    Count,
    Engine,
    FilesBySource,
    Splits,
    Strategy,
    Text,
    Texts,
    TokenizerEngine,
    Weights,
)
from tokenlake_flows.prepared import prepared
from tokenlake_flows.states import result_of_flow
from tokenlake_flows.tokenize import build_version, tokenize
from tokenlake_tasks.summary import Summary


@flow(name="mix", flow_run_name=run_name(partial(requested_name, DEFAULT_MIXTURE)), persist_result=False)
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
    request = partial(resolve_request, config, data_files, tokenizer, output, name, values, weights=weights)
    return run_build("mix", build_mixture, request, workers=workers, executor=engine, work_runs=work_runs)


def build_mixture(engine: LocalEngine) -> Summary:
    """Tokenize the sources that are text, each in a flow run of its own, then build the mixture."""
    tokenized: list[State[Any]] = []
    for part in engine.parts():
        config = part.config.model_dump(mode="json", exclude_unset=True)
        with prepared(part):
            state = tokenize(config=config, workers=part.workers, return_state=True)
        result_of_flow(state)
        tokenized.append(state)
    return build_version(engine, after=tokenized)
