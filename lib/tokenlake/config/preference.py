"""How rows of preferences become what a preference trainer reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenlake.config.section import Section
from tokenlake.config.values import Text
from tokenlake.preferences import Method, Trainer, columns_for

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig


class PreferenceConfig(Section):
    """Section `preference` of a dataset: rows hold answers that are better and worse, texts or conversations."""

    method: Method
    """Which trainer the rows are for: pairs (dpo, orpo, cpo, reward), judged answers (kto, bco), or prompts (grpo)."""

    trainer: Trainer = "easydel"
    """Whose column names the rows have: those of EasyDeL's trainers or of TRL's."""

    prompt_field: Text = "prompt"
    """Field of the prompt; where rows lack it, what `chosen` and `rejected` begin with alike."""

    chosen_field: Text = "chosen"
    """Field of the better answer."""

    rejected_field: Text = "rejected"
    """Field of the worse answer."""

    completion_field: Text = "completion"
    """Field of an answer that was judged by itself."""

    label_field: Text = "label"
    """Field that says whether it was good: true or false."""

    tools_field: Text = "tools"
    """Field of the tools that a conversation may call, where rows have it."""


def preference_problems(config: PipelineConfig) -> list[str]:
    """Return what contradicts a preference section; nothing where no dataset has one."""
    asked = {dataset.name: dataset.preference for dataset in config.datasets}
    if not any(asked.values()):
        return []
    problems: list[str] = []
    if config.pack.enabled:
        problems.append(
            "pack.enabled: true, but a dataset has a section `preference`, whose rows are pairs, not one stretch of "
            "tokens; write pack.enabled: false"
        )
    kinds = {name: (each.method, each.trainer) if each else None for name, each in asked.items()}
    if len(set(kinds.values())) > 1:
        told = ", ".join(
            f"{name}: {' for '.join(kind) if kind else 'no preference'}" for name, kind in kinds.items()
        )
        problems.append(
            f"datasets: their rows would have different columns ({told}); all datasets of a build need the same "
            "preference.method and preference.trainer: make one build of each kind"
        )
    for dataset in config.datasets:
        problems += _in_dataset(config, dataset)
    return problems


def _in_dataset(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    if dataset.preference is None:
        return []
    problems: list[str] = []
    if (dataset.long_documents or config.tokenize.long_documents) == "split":
        problems.append(
            f"{path}.long_documents: split, but a pair cannot be cut into several; write keep, truncate (cuts the "
            "answers' ends) or drop"
        )
    for section, where in ((dataset, path), (config.tokenize, "tokenize")):
        given = {"truncation_strategy": "simple", "truncation_side": "right"}
        problems += [
            f"{where}.{name}: {getattr(section, name)}, but of preferences only the answers' ends are cut: leave it out"
            for name, usual in given.items()
            if getattr(section, name) not in (None, usual)
        ]
    taken = {column.name for column in columns_for(dataset.preference.method, dataset.preference.trainer)}
    problems += [
        f"{path}.additional_fields: {name!r} is a column that these rows have already; rename the field: "
        f"format_fields: {{{name}: another_name}}, and keep that"
        for name in dataset.additional_fields or ()
        if name.lower() in taken
    ]
    choice = dataset.tokenizer or config.tokenize.default_tokenizer or config.default_tokenizer
    if choice is not None and not isinstance(choice, str) and choice.padding in ("max_length", "longest"):
        problems.append(
            f"{path}.tokenizer.padding: {choice.padding!r}, but rows of preferences are not padded, their trainers do "
            "that; write padding: false"
        )
    return problems + [
        f"{path}.{other}: set beside `preference`; its conversations are rendered by the tokenizer's own chat "
        "template, and its fields are named in `preference`"
        for other in ("chat", "prompt")
        if getattr(dataset, other) is not None
    ]
