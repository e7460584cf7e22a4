"""Reading of evaluation sets, whose n-grams are put into the store for the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import cast

from tokenlake.base import numbers
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.clean.clean_units import text_source, unit_size_of
from tokenlake.etl.clean.evaluation_ngrams import EvaluationNgrams
from tokenlake.etl.clean.signatures import evaluation_key
from tokenlake.etl.events import Watcher
from tokenlake.etl.planner import read_listing
from tokenlake.etl.sources.split_choice import every_file
from tokenlake.etl.tokenizers.files import NO_TOKENIZER
from tokenlake.etl.unit.documents import Recipe
from tokenlake.runtime.store.base import Store


def stored_ngrams(
    config: PipelineConfig, store: Store, on_event: Watcher
) -> EvaluationNgrams | None:
    """Read the evaluation sets of a configuration and put their n-grams into the store.

    Args:
        config: Configuration; its `clean.contamination` names the sets.
        store: Store for the n-grams.
        on_event: Function that is told how far the listing is.

    Returns:
        The n-grams; None if the configuration names no set.
    """
    contamination = config.clean.contamination
    if contamination is None:
        return None
    texts_of: dict[str, Iterator[list[str]]] = {}
    for dataset in contamination.sets:
        # A list of documents to leave out is for the sources: a test set is read whole.
        source = replace(text_source(config, dataset), exclude=None)
        texts_of[source.name] = _texts(source, config, on_event)
    ngrams = EvaluationNgrams.of(texts_of, contamination.ngram)
    store.put_new(evaluation_key(ngrams.sha256), ngrams.data)
    return ngrams


def short_document_notes(evaluation: EvaluationNgrams | None) -> list[str]:
    """Return a note for each set with documents that are too short to be found."""
    notes: list[str] = []
    if evaluation is not None:
        for name, counts in evaluation.counts.items():
            if counts.too_short:
                documents = numbers.plural(counts.documents, "document")
                notes.append(
                    f"{name}: {counts.too_short} of {documents} have fewer words than an n-gram, and cannot be found "
                    "(clean.contamination.ngram)"
                )
    return notes


def _texts(
    source: ResolvedSource, config: PipelineConfig, on_event: Watcher
) -> Iterator[list[str]]:
    """Yield the texts of an evaluation set in batches."""
    recipe = Recipe(source, NO_TOKENIZER)
    # All splits of a folder are used unless one is named.
    _, groups = read_listing(
        source,
        unit_size_of(config),
        config.source.hash_threads,
        on_event,
        select=every_file,
    )
    for file_range in chain.from_iterable(groups):
        for prepared in recipe.read(file_range):
            yield cast("list[str]", prepared.documents.text.to_pylist())
