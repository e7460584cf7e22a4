"""Search for tokens that another configuration made of the same text.

The tokens of a source are stored as ``{name}.{source}.tokens``, where `name` is that of
the configuration or of its file. A configuration that was renamed, or a second one of
the same sources, would look for them under its own name and tokenize again. Their
fingerprint does not depend on the name, only on the inputs, the options and the
tokenizer. So they are found by it.
"""

from __future__ import annotations

from contextlib import suppress

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import is_tokens_of, resolve
from tokenlake.errors import TokenlakeError
from tokenlake.etl import planner
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.run_log import asked_before
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog


def under_their_name(step: PipelineConfig, source: str) -> PipelineConfig:
    """Return the build of a source's tokens under the name of the dataset with them.

    It is the build itself if no other dataset has them.

    Planning is needed to know the fingerprint. So nothing is planned if no other
    dataset has tokens of a source of this name, or if the newest tokens under the own
    name came from an equal configuration.

    Args:
        step: Build of the tokens, a first step of a mixture.
        source: Name of its source.
    """
    with suppress(TokenlakeError):
        # 1. The datasets that may have the tokens.
        catalog = Catalog(open_store(address_of_build(resolve(step))))
        candidates: list[str] = []
        for dataset in catalog.datasets():
            if is_tokens_of(dataset, source) and dataset != step.name:
                candidates.append(dataset)
        if not candidates or _is_asked_again(step):
            return step

        # 2. The own name comes first, then the first dataset with a version of the
        #    fingerprint.
        plan = planner.plan(step)
        if catalog.committed(plan.dataset, plan.fingerprint) is not None:
            return step
        for dataset in candidates:
            # A damaged dataset is no reason to stop: the tokens are made again.
            with suppress(TokenlakeError):
                if catalog.committed(dataset, plan.fingerprint) is not None:
                    return step.model_copy(update={"name": dataset})
    # The build itself reports an error of planning.
    return step


def _is_asked_again(step: PipelineConfig) -> bool:
    """Whether the newest tokens under the own name came from an equal configuration."""
    with suppress(TokenlakeError):
        return asked_before(step)
    return False
