"""What a configuration wants done with documents of more than `max_length` tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.tokenize_stage import TokenizeStageConfig
    from tokenlake.config.tokenizer import LongDocuments, TruncationSide, TruncationStrategy


def long_documents(
    config: PipelineConfig, dataset: DatasetConfig
) -> tuple[LongDocuments, TruncationStrategy, TruncationSide]:
    """Return the policy of a source, and for `truncate` where documents are cut."""
    stage = config.tokenize
    return (
        _policy(config, dataset),
        dataset.truncation_strategy or stage.truncation_strategy or "simple",
        dataset.truncation_side or stage.truncation_side or "right",
    )


def contradictions(config: PipelineConfig) -> list[str]:
    """Return where the policy contradicts itself, and options of truncation that would do nothing."""
    found = [problem for dataset in config.datasets for problem in _in_dataset(config, dataset)]
    if any(_policy(config, dataset) == "truncate" for dataset in config.datasets):
        return found
    return found + _idle("tokenize", config.tokenize, "no dataset's documents are truncated")


def _in_dataset(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    policy, truncation = _policy(config, dataset), _truncation(config, dataset)
    found: list[str] = []
    if truncation is not None and truncation != (policy == "truncate"):
        where = f"{path}.long_documents" if dataset.long_documents else "tokenize.long_documents"
        found.append(
            f"{where}: {policy!r}, but the tokenizer of {dataset.name!r} has truncation: {str(truncation).lower()}; "
            "leave one of them out"
        )
    if policy != "truncate":
        found += _idle(path, dataset, f"its long documents are not truncated ({policy})")
    return found


def _idle(path: str, section: DatasetConfig | TokenizeStageConfig, why: str) -> list[str]:
    given = {
        "truncation_strategy": section.truncation_strategy,
        "truncation_side": section.truncation_side,
    }
    return [
        f"{path}.{name}: set, but {why}; write long_documents: truncate, or leave it out"
        for name, value in given.items()
        if value is not None
    ]


def _policy(config: PipelineConfig, dataset: DatasetConfig) -> LongDocuments:
    if asked := dataset.long_documents or config.tokenize.long_documents:
        return asked
    truncation = _truncation(config, dataset)
    # Packing cuts documents itself and loses nothing, so only an explicit True truncates before it.
    return "truncate" if (not config.pack.enabled if truncation is None else truncation) else "keep"


def _truncation(config: PipelineConfig, dataset: DatasetConfig) -> bool | None:
    choice = dataset.tokenizer or config.tokenize.default_tokenizer or config.default_tokenizer
    return None if choice is None or isinstance(choice, str) else choice.truncation
