"""Several sources to a committed version of one weighted mixture."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from tokenlake.errors import TokenlakeError
from tokenlake.prefect.flows.parameters import Config, Count, FilesBySource, Text, Texts, Weights
from tokenlake.prefect.flows.tokenization import tokenize
from tokenlake.prefect.tasks.commit import commit_version
from tokenlake.prefect.tasks.ending import cancellable, final_state, result_of_flow
from tokenlake.prefect.tasks.handoff import prepared, take_steps
from tokenlake.prefect.tasks.naming import flow_run_name
from tokenlake.prefect.tasks.planning import plan_build
from tokenlake.prefect.tasks.policy import require_allowed
from tokenlake.prefect.tasks.reporting import Summary, publish_table
from tokenlake.prefect.tasks.request import require_mixture, resolve_mixture
from tokenlake.prefect.tasks.shards import build_all
from tokenlake.prefect.tasks.steps import LocalSteps


@flow(name="mix", flow_run_name=flow_run_name, persist_result=False)
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
    try:
        steps = take_steps()
        if steps is None:
            log = get_run_logger().info
            request = resolve_mixture(
                config, data_files, weights, tokenizer, output, name, overrides or (), log
            )
            require_mixture(request)
            require_allowed(request)
            steps = LocalSteps(request, workers=workers)
        with steps, cancellable(steps):
            for step in steps.first():
                with prepared(step.engine):
                    result_of_flow(tokenize(config=step.config, workers=steps.workers, return_state=True))
            engine = steps.last()
            plan_build(engine)
            build_all(engine)
            summary = commit_version(engine)
            publish_table(engine)
            return summary
    except (KeyboardInterrupt, TokenlakeError) as error:
        return final_state(error)
