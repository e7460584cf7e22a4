"""Contradictions in a valid configuration: options that exclude or require each other.

Each function returns messages, one for each contradiction, so that all of them are
reported at once (:func:`raise_problems`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tokenlake.base.columns import RESERVED, columns_for
from tokenlake.base.section import MAX_SPLIT_NAME
from tokenlake.base.section_file import problems_error
from tokenlake.errors import ConfigError
from tokenlake.runtime.store.schemes import (
    OBJECT_STORES,
    STORE_URL,
    is_local,
    scheme_of,
    url_probably_meant,
)

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import TokenizerConfig, TokenizeStageConfig


def raise_problems(kind: type[ConfigError], problems: list[str]) -> None:
    """Raise one error that lists all problems, if there is any."""
    if problems:
        raise problems_error(kind, problems)


def build_problems(config: PipelineConfig) -> list[str]:
    """Return the reasons why a configuration cannot be built, one message each."""
    # Contradictions that hold for every reader of the configuration come first.
    problems = config.validate()
    if config.name is None:
        problems.append(
            "name: missing. A build needs a name for its dataset: lower-case letters, digits, '.', '_', '-', "
            "at most 64. (The default is the stem of the configuration's file, where that is such a name.)"
        )
    # Options of packing would do nothing if it is off by default.
    pack_keys = sorted(config.pack.model_fields_set)
    if pack_keys and not config.pack.enabled and "enabled" not in pack_keys:
        problems.append(
            f"pack.{pack_keys[0]}: set, but packing is not enabled; write pack.enabled: true, or pack.enabled: false "
            "to keep it off"
        )
    if not config.is_text_build:
        return [*problems, *_stored_problems(config)]
    # Options of one dataset, then those that concern several.
    for dataset in config.datasets:
        path = f"datasets.{dataset.name}"
        text_mode = dataset.text_mode
        save_format = dataset.save_format
        if config.tokenizer_of(dataset) is None:
            problems.append(
                f"{path}.tokenizer: missing, and neither tokenize.default_tokenizer nor default_tokenizer is set; "
                "write a Hub id, a directory or a tokenizer.json file"
            )
        if text_mode != "document" and dataset.type in ("jsonl", "parquet"):
            problems.append(
                f"{path}.text_mode: {text_mode!r} is for text files, but type is {dataset.type!r}"
            )
        if save_format not in (None, config.save.format) and not dataset.save_path:
            problems.append(
                f"{path}.save_format: {save_format!r}, but there is no save_path; a build writes the rows of one "
                "source there; set save_path, or leave both out"
            )
        problems += output_problems(config, dataset, config.tokenizer_of(dataset))
    problems += _shard_problems(config)
    problems += _eval_problems(config)
    problems += _fim_problems(config)
    problems += _ids_problems(config)
    problems += truncation_problems(config)
    problems += _preference_problems(config)
    return problems


def _shard_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield where the number of shards of a build contradicts those of its datasets.

    A dataset without a number needs at least one shard. If every dataset has a number,
    the sum is exact.
    """
    # Without a total, each dataset has as many shards as its own number or size gives.
    total = config.save.num_shards
    if total is None:
        return
    shard_count = 0
    without_number = 0
    for dataset in config.datasets:
        if dataset.num_shards is None:
            without_number += 1
        else:
            shard_count += dataset.num_shards
    needed = shard_count + without_number
    # Datasets without a number share the shards that are left.
    if without_number:
        bound = "at least"
        is_possible = total >= needed
    else:
        bound = "exactly"
        is_possible = total == needed
    if not is_possible:
        yield (
            f"save.num_shards: {total}, but the datasets need {bound} {needed}: their own num_shards come to "
            f"{shard_count}, and each of the {without_number} without a number needs a file of its own"
        )


def truncation_problems(config: PipelineConfig) -> list[str]:
    """Return contradictions about long documents, one message each.

    They include options of truncation without effect.
    """
    # `long_documents` is the policy, `truncation` of a tokenizer its short form.
    problems: list[str] = []
    is_any_truncated = False
    for dataset in config.datasets:
        path = f"datasets.{dataset.name}"
        policy = config.long_documents_of(dataset)
        truncation = config.truncation_of(dataset)
        # The policy and the tokenizer's option must agree, and options of truncation
        # need it.
        truncates = policy == "truncate"
        if truncation is not None and truncation != truncates:
            section = path if dataset.long_documents else "tokenize"
            problems.append(
                f"{section}.long_documents: {policy!r}, but the tokenizer of {dataset.name!r} has truncation: "
                f"{str(truncation).lower()}; leave one of them out"
            )
        if truncates:
            is_any_truncated = True
        else:
            problems += _unused_truncation(
                path, dataset, f"its long documents are not truncated ({policy})"
            )
    if not is_any_truncated:
        problems += _unused_truncation(
            "tokenize", config.tokenize, "no dataset's documents are truncated"
        )
    return problems


def _unused_truncation(
    path: str, section: DatasetConfig | TokenizeStageConfig, reason: str
) -> list[str]:
    """Return a message for each option of truncation that a section sets.

    Args:
        path: Dotted key of the section.
        section: Section that may set the options.
        reason: Reason why they have no effect.
    """
    return [
        f"{path}.{name}: set, but {reason}; write long_documents: truncate, or leave it out"
        for name in ("truncation_strategy", "truncation_side")
        if getattr(section, name) is not None
    ]


def output_problems(
    config: PipelineConfig, dataset: DatasetConfig, choice: str | TokenizerConfig | None
) -> list[str]:
    """Return problems of a dataset's kept fields and padding, one message each.

    Args:
        config: Configuration of the dataset.
        dataset: Dataset to check.
        choice: Tokenizer of the dataset.
    """
    # Fields are kept in a column each, which packed rows cannot have.
    path = f"datasets.{dataset.name}"
    problems = list(_kept_problems(config, dataset, f"{path}.additional_fields"))
    # A tokenizer that is only named has no options of padding.
    if choice is None or isinstance(choice, str):
        return problems
    # Padding is for rows of single documents, and only the mask tells it from text.
    is_padded = choice.padding in ("max_length", "longest")
    side = choice.padding_side
    if is_padded and (config.pack.enabled or dataset.preference):
        problems.append(
            f"{path}.tokenizer.padding: {choice.padding!r} is for unpacked documents; packed rows are full, and the "
            "trainers of preferences pad rows themselves: write padding: false"
        )
    elif is_padded and not choice.return_attention_mask:
        problems.append(
            f"{path}.tokenizer.return_attention_mask: false, but rows are padded, and only the mask identifies the "
            "padding; leave it out"
        )
    elif side is not None and not is_padded:
        problems.append(
            f"{path}.tokenizer.padding_side: {side!r}, but nothing is padded; set padding, or leave it out"
        )
    return problems


def _kept_problems(
    config: PipelineConfig, dataset: DatasetConfig, path: str
) -> Iterator[str]:
    """Yield why fields of a dataset cannot be kept beside its tokens.

    Args:
        config: Configuration of the dataset.
        dataset: Dataset to check.
        path: Dotted key of the option that lists the fields.
    """
    # 1. Types are those of fields that are kept.
    fields = dataset.additional_fields or ()
    preference = dataset.preference
    for name in dataset.field_types or ():
        if name not in fields:
            listed = ", ".join(map(repr, fields)) or "none"
            yield (
                f"datasets.{dataset.name}.field_types: {name!r} is not one of additional_fields ({listed}); add it "
                "there, or leave it out here"
            )
    # 2. A packed row has no single record whose fields it could keep.
    if fields and config.pack.enabled:
        yield (
            f"{path}: {', '.join(map(repr, fields))} cannot be kept beside packed rows, which hold pieces of several "
            "documents; write pack.enabled: false, or find the record again by `documents.file` and `position`"
        )
        return
    # 3. A kept field is a column, beside those of every row.
    columns = set(RESERVED)
    if preference is not None:
        columns |= {
            column.name for column in columns_for(preference.method, preference.trainer)
        }
    for name in fields:
        if name.lower() in columns:
            yield (
                f"{path}: {name!r} is a column that every row has already; rename the field: "
                f"format_fields: {{{name}: another_name}}, and keep that"
            )
        elif name in (config.tokenize.remove_columns or ()):
            yield f"{path}: {name!r} is one of additional_fields, but tokenize.remove_columns drops it"
    if len({name.lower() for name in fields}) < len(set(fields)):
        yield f"{path}: two names differ only in upper and lower case, which SQL does not distinguish"


def _eval_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield names of splits of held-out documents that are too long or taken."""
    # Split -> option that names it. Two options that name one split would mix training
    # and held-out documents.
    owners = dict.fromkeys(config.source.splits, "source.splits")
    for dataset in config.datasets:
        owners |= dict.fromkeys(dataset.splits or (), f"datasets.{dataset.name}.splits")
    for dataset in config.datasets:
        if dataset.eval is None:
            continue
        path = f"datasets.{dataset.name}.eval"
        split = dataset.eval_split
        if len(split) > MAX_SPLIT_NAME:
            yield (
                f"{path}: its split would be called {split!r}, of {len(split)} letters; expected at most "
                f"{MAX_SPLIT_NAME}: shorten the name of the dataset"
            )
        if split in owners:
            yield f"{path}: its split {split!r} is called like one of {owners[split]}; rename one of them"
        owners[split] = path


def _ids_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield options that contradict the import of token ids."""
    for dataset in config.datasets:
        section = dataset.ids
        if section is None:
            continue
        path = f"datasets.{dataset.name}"
        # Only a file of type numpy has no records: its ids are one stream, which a
        # length or EOS cuts.
        is_stream = dataset.type == "numpy"
        if section.length is not None and not is_stream:
            yield (
                f"{path}.tokens.length: {section.length}, but only files of type numpy are streams of ids; other "
                "formats have records of their own: leave it out"
            )
        elif section.eos == "keep" and is_stream and section.length is None:
            yield (
                f"{path}.tokens.eos: keep, but a file of type numpy is one stream of ids, in which only EOS ends "
                "documents; write eos: split, or length: N for records of N ids"
            )
        if section.rows:
            yield from _whole_row_problems(config, dataset, path)


def _whole_row_problems(
    config: PipelineConfig, dataset: DatasetConfig, path: str
) -> Iterator[str]:
    """Yield options that contradict `tokens.rows`.

    Its records are packed rows already.
    """
    # Whole rows pass through unchanged: any option that would change them contradicts.
    pack = config.pack
    sets_packing = (
        pack.shuffles
        or pack.max_segments is not None
        or "strategy" in pack.model_fields_set
    )
    if not pack.enabled:
        yield (
            f"{path}.tokens.rows: true, but packing is off; write pack: {{enabled: true, seq_length: N}} with the "
            "length of the records"
        )
    elif sets_packing:
        yield (
            f"{path}.tokens.rows: true stores records as they are, so that nothing is packed; leave pack.strategy, "
            "pack.shuffle_packed and pack.max_segments out"
        )
    if config.long_documents_of(dataset) != "keep":
        yield f"{path}.long_documents: {dataset.long_documents}, but tokens.rows stores rows as they are; leave it out"
    if dataset.num_shards is not None or config.save.num_shards is not None:
        yield f"{path}: num_shards is set, but tokens.rows stores the rows of each unit in their order; leave it out"
    if dataset.ids is not None and dataset.ids.eos == "none":
        yield f"{path}.tokens.eos: none, but tokens.rows stores rows as they are, with their EOS; leave it out"


_LEAST_CONTEXT: Final = 64
"""Smallest `pack.seq_length` of rows of infilled pieces: the marks of a piece must
leave room for text.
"""


def _fim_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield options that contradict a section `fim`."""
    for dataset in config.datasets:
        if dataset.fim is None:
            continue
        path = f"datasets.{dataset.name}"
        pack = config.pack
        policy = config.long_documents_of(dataset)
        # Any other form of the text than plain text.
        forms: list[str] = []
        for name in ("chat", "prompt", "preference"):
            if getattr(dataset, name) is not None:
                forms.append(name)
        if forms:
            yield (
                f"{path}.fim: set beside `{forms[0]}`, but fill-in-the-middle needs plain texts; leave one of them "
                "out"
            )
        # Whole documents are infilled before anything cuts them; pieces are infilled in
        # rows that hold them whole.
        if dataset.fim.level == "document":
            if policy != "keep":
                yield (
                    f"{path}.fim.level: document, but long documents are not kept whole ({policy}); write "
                    "long_documents: keep"
                )
        elif not pack.enabled or pack.strategy not in ("first_fit", "best_fit"):
            yield (
                f"{path}.fim.level: context, but this build does not pack, or its strategy may cut pieces; write "
                "pack: {enabled: true, strategy: best_fit} (or first_fit), or level: document, also if a "
                "mixture packs later"
            )
        elif policy != "keep":
            yield (
                f"{path}.long_documents: {policy}, but fim.level: context cuts documents into pieces that fit into a "
                "row; leave it out"
            )
        elif pack.seq_length < _LEAST_CONTEXT:
            yield (
                f"pack.seq_length: {pack.seq_length}; expected at least {_LEAST_CONTEXT} with fim.level: context of "
                f"datasets.{dataset.name}"
            )


def _preference_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield options that contradict a section `preference`.

    Nothing is yielded if no dataset has one.
    """
    # A row of a preference has several lists of ids, a packed row has one.
    paired = [dataset for dataset in config.datasets if dataset.preference is not None]
    if paired and config.pack.enabled:
        yield (
            "pack.enabled: true, but a dataset has a section `preference`, whose rows are pairs and cannot be "
            "packed; write pack.enabled: false"
        )
    # Dataset -> kind of its rows. All rows of a build have the same columns.
    kinds: dict[str | None, str] = {}
    for dataset in config.datasets:
        preference = dataset.preference
        kinds[dataset.name] = "no preference"
        if preference is not None:
            kinds[dataset.name] = f"{preference.method} for {preference.trainer}"
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        yield (
            f"datasets: their rows would have different columns ({listed}); all datasets of a build need the same "
            "preference.method and preference.trainer: make one build of each kind"
        )
    # The prompt and both answers of a pair belong together, so that only ends are cut.
    for dataset in paired:
        path = f"datasets.{dataset.name}"
        if (dataset.long_documents or config.tokenize.long_documents) == "split":
            yield (
                f"{path}.long_documents: split, but a pair cannot be cut into several; write keep, truncate (cuts the "
                "answers' ends) or drop"
            )
        yield from _truncation_of_answers(path, dataset)
        yield from _truncation_of_answers("tokenize", config.tokenize)
        for name in ("chat", "prompt"):
            if getattr(dataset, name) is None:
                continue
            yield (
                f"{path}.{name}: set beside `preference`; its conversations are rendered by the tokenizer's own chat "
                "template, and its fields are named in `preference`"
            )


def _truncation_of_answers(
    path: str, section: DatasetConfig | TokenizeStageConfig
) -> Iterator[str]:
    """Yield options of truncation that preferences do not have.

    A section sets them.
    """
    for name, usual in (
        ("truncation_strategy", "simple"),
        ("truncation_side", "right"),
    ):
        value = getattr(section, name)
        if value not in (None, usual):
            yield f"{path}.{name}: {value}, but of preferences only the answers' ends are cut: leave it out"


def _stored_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield options that a build of stored datasets needs or cannot have.

    They come on top of those of a valid configuration.
    """
    # Text among stored datasets was replaced by its tokens before, in the first steps.
    for dataset in config.datasets:
        path = f"datasets.{dataset.name}"
        if dataset.dataset is None:
            yield f"{path}.data_files: is text, which is tokenized first, see tokenlake.config.resolve"
        elif dataset.retokenize and config.tokenizer_of(dataset) is None:
            yield f"{path}.retokenize: true, but there is no tokenizer: set it, or default_tokenizer"
    # A version is finite, so that its mixture must end.
    mix = config.mix
    has_end = bool(mix.total_rows or mix.total_tokens or mix.epochs)
    if config.mixes and mix.stop_strategy == "restart" and not has_end:
        yield (
            "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs, or "
            "stop_strategy: first_exhausted or all_exhausted"
        )
    # A schedule takes the place of fixed weights.
    weights_by_path: dict[str, Mapping[str, float]] = {}
    for point in mix.weight_schedule or ():
        weights_by_path[f"mix.weight_schedule (step {point.step})"] = point.weights
    if not weights_by_path and mix.weights is not None:
        weights_by_path["mix.weights"] = mix.weights
    names = {dataset.name or "" for dataset in config.datasets}
    for path, weights in weights_by_path.items():
        absent = sorted(names - weights.keys())
        if absent:
            yield f"{path}: has no weight for {', '.join(absent)}; give every dataset one (0 leaves it out)"


def store_problems(config: PipelineConfig, store: str) -> list[str]:
    """Return problems of a store's URL and of its options.

    The URL, which is recorded, may have credentials or lack a slash. A folder lacks
    options of an object store.
    """
    # A URL with a missing slash would become a local folder.
    whole_url = url_probably_meant(store)
    if whole_url:
        return [
            f"save.output_dir: {store!r} is neither a path nor a URL; did you mean {whole_url!r}?"
        ]
    # The address is written into manifests and logs.
    url = STORE_URL.match(store)
    if url and ("@" in url[2] or "?" in url[3]):
        credential = "a query"
        if "@" in url[2]:
            credential = "a user name or password"
        return [
            f"save.output_dir: {scheme_of(store)}://... has {credential} in it (not shown); write the URL without it, "
            "and save.storage_options: {key: {env: VARIABLE}, ...}"
        ]
    if config.save.storage_options and is_local(store):
        return [
            f"save.storage_options: the store {store} is local and takes none; leave them out"
        ]
    return []


def store_not_yet(store: str) -> list[str]:
    """Return a message for a store that no build writes to."""
    if is_local(store) or scheme_of(store) in OBJECT_STORES:
        return []
    return [
        f"save.output_dir: {scheme_of(store)}:// is not available for a build; supported: a path, s3://bucket/prefix "
        "or gs://bucket/prefix"
    ]
