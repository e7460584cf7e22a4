"""Tokens that another configuration made of the same text: found by content, not by the
name of their dataset.

The tokens of a source are kept as ``{name}.{source}.tokens``, where `name` is that of
the configuration or of its file. A configuration that was renamed, or a second one of
the same sources, would look for them under its own name and tokenize again. Their
fingerprint does not depend on the name: what was read, by which options and which
tokenizer.
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
    """Return the build of a source's tokens under the name of the dataset that has
    them; itself where none has.

    Planning is needed to know the fingerprint. So nothing is planned where no other
    dataset has tokens of a source of this name, or where this one's own are there and
    were asked for in the same words.

    Args:
        step: The build, a first step of a mixture.
        source: Name of its source.
    """
    with suppress(TokenlakeError):
        catalog = Catalog(open_store(address_of_build(resolve(step))))
        others = [
            name
            for name in catalog.datasets()
            if is_tokens_of(name, source) and name != step.name
        ]
        if not others or _is_asked_again(step):
            return step
        plan = planner.plan(step)
        if catalog.committed(plan.dataset, plan.fingerprint) is not None:
            return step
        for name in others:
            # What is damaged there is no reason to stop: the tokens are made anew.
            with suppress(TokenlakeError):
                if catalog.committed(name, plan.fingerprint) is not None:
                    return step.model_copy(update={"name": name})
    # What cannot be planned is said by the build itself.
    return step


def _is_asked_again(step: PipelineConfig) -> bool:
    """Whether the newest tokens under the build's own name were asked for in these
    words.
    """
    with suppress(TokenlakeError):
        return asked_before(step)
    return False
