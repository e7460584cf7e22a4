"""One source of text: its place, the way it is read, and the options that it overrides.

A configuration of ``type: data_module`` is one dataset, a tokenizer, a prompt template
and a data loader. It is read as it is by :class:`tokenlake.data_pipeline.DataPipeline`,
and translated for a build:

| key | in a build |
|---|---|
| `dataset.name` | `datasets.data_files`; a Hub id unless it is a local path, a glob or a URL |
| `dataset.config_name` | `datasets.subset` |
| `dataset.splits` | an entry of `datasets` each: `split`, `splits`, `num_rows` |
| `dataset.column_mapping` | `datasets.format_fields` |
| `dataset.streaming` | `streaming` |
| `dataset.stages` | `packing`: `pack`, of rows of `tokenizer.max_length` |
| `tokenizer` | `datasets.tokenizer`, with `padding: max_length` and `truncation: true` unless they are written |
| `prompt_template` | `datasets.prompt` |
| `save`, `name` | `save`, `name` |
| `dataset.columns` | checked against the columns that the prompt uses; a build reads no other anyway |
| `dataloader`, `output_schema` | of loading alone: a version says nothing of how it is read |
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from tokenlake.base.checks import did_you_mean
from tokenlake.base.section import (
    Character,
    Count,
    DataFiles,
    DatasetName,
    Options,
    Path,
    Section,
    Seed,
    Share,
    SourceName,
    SplitName,
    Splits,
    StoredName,
    Switch,
    Text,
    problem,
    shown,
)
from tokenlake.config import stages, texts
from tokenlake.config.field_types import FieldType
from tokenlake.config.formats import FORMATS, TOKEN_TYPES, SaveFormat, TypeName
from tokenlake.config.stages import SaveStageConfig, TokenizerChoice, TokenizerConfig
from tokenlake.config.texts import PromptConfig
from tokenlake.config.tokens import TokensConfig

FileType = Annotated[
    TypeName, BeforeValidator(lambda value: "txt" if value == "text" else value)
]
EVAL_PREFIX: Final = "eval_"
"""Beginning of the names of splits of held-out documents; the source's name follows."""

# Options that may stand beside `dataset`: all others are about making tokens, which the
# dataset has.
_BESIDE_DATASET: Final = frozenset(
    {"dataset", "name", "split", "data_files", "retokenize"}
)
# Options beside `retokenize`, which makes the tokens again.
_BESIDE_RETOKENIZE: Final = _BESIDE_DATASET | {"tokenizer"}

# Options about the text of records, which records of ids do not have.
_OF_TEXTS: Final = (
    "content_field",
    "delimiter",
    "text_mode",
    "format_callback",
    "format_fields",
    "transforms",
    "chat",
    "prompt",
    "preference",
    "fim",
    "special_tokens_in_text",
    "truncation_strategy",
)


def _sentinels(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse sentinels that are not three or four different tokens."""
    # Sentinels are written as names, because their ids differ between tokenizers.
    if len(names) not in (3, 4) or len(set(names)) < len(names):
        raise problem(
            f"got {', '.join(names) or 'none'}, must be three different tokens (prefix, suffix and middle), or four "
            "(the last one ends the middle)"
        )
    return names


class FimConfig(Section):
    """Fill-in-the-middle: plain texts are cut into three parts, which are reordered.

    A share of the texts is cut. Sentinel tokens mark the parts.
    """

    rate: Share = 0.5
    """Share of the documents (or pieces) that are reordered; the others do not
    change.
    """

    spm: Share = 0.5
    """Share of the reordered ones in the order suffix, prefix, middle; the others have
    the order prefix, suffix, middle.
    """

    level: Literal["document", "context"] = "document"
    """document: reorder whole documents, which packing may cut. context: reorder
    pieces that each fit into a row.
    """

    tokens: Annotated[tuple[Text, ...], AfterValidator(_sentinels)] | None = None
    """Names of the sentinel tokens: prefix, suffix, middle, and optionally one after
    the middle; null: those of StarCoder, SantaCoder, Qwen and CodeGemma, DeepSeek or
    Code Llama, if the tokenizer has them.
    """


_SLICE: Final = re.compile(r"(?P<split>[^\[\]+]+)\[(?P<start>\d*):(?P<stop>\d*)\]")


def _no_slice(name: str) -> str:
    """Return the name of a split; a slice or a sum of splits is a problem.

    Slices and sums are those that `datasets` takes.
    """
    if "+" in name:
        # `datasets` of Hugging Face adds splits up as "train+test".
        several = " and ".join(repr(part.strip()) for part in name.split("+"))
        raise problem(
            f"got {shown(name)}, must be the name of one split; write an entry of `datasets` for each of {several}"
        )
    if "[" in name or "]" in name:
        # Its slice "train[:1000]" has an option here, if it begins at the first row.
        parts = _SLICE.fullmatch(name)
        split = name.partition("[")[0]
        # Other slices have no option of their own; two come close.
        remedy = "num_rows reads the first rows, and splits divides documents at random by fractions"
        if parts is not None and parts["stop"] and not int(parts["start"] or "0"):
            remedy = f"write split: {split} and num_rows: {parts['stop']}"
        raise problem(
            f"got {shown(name)}, a slice, must be only the name of a split; {remedy}"
        )
    return name


SplitToRead = Annotated[Text, AfterValidator(_no_slice)]


class DatasetConfig(Section):
    """One source. Options left at null inherit from the section `source` or `tokenize`.

    Example:
        >>> import tokenlake as tl
        >>> tl.DatasetConfig(name="web", data_files=["a.jsonl", "b.jsonl"]).data_files
        ('a.jsonl', 'b.jsonl')
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["data_files"]}, {"required": ["dataset"]}]
        }
    )

    hidden_values = frozenset({"storage_options", "tokenizer_kwargs"})

    # Rows: from files, or from a dataset of the store.
    data_files: DataFiles | None = None
    """Path, glob, directory, URL or Hub id, or a list of them; or a mapping of split to
    these, {train: a.jsonl, test: b.jsonl}, of which `split` is read.
    """

    dataset: StoredName | None = None
    """A dataset of the store instead of files, NAME or NAME@v3. Its tokens are packed
    or mixed, and not tokenized again.
    """

    retokenize: Switch = False
    """Tokenize the text that `dataset` was built from again, with the tokenizer of this
    configuration. The inputs must be unchanged.
    """

    # Files: their format, and which of their rows are read.
    name: SourceName | None = None
    """Name of the source; null: dataset_0, dataset_1, ... by position."""

    type: FileType | None = None
    """Format of the files; null: by the extension of each."""

    split: SplitToRead = "train"
    """Split to read, of a Hub dataset, of a folder whose file names or README.md define
    splits, or of a mapping `data_files`. Files listed one by one or matched by a glob
    are all read unless this is set. For a `dataset` of the store: the split to mix.
    Without a mixture all its splits are packed; a split of held-out documents
    (`eval_...`) is packed only by itself.
    """

    num_rows: Count | None = None
    """Largest number of rows to read."""

    dataset_split_name: SplitToRead | None = None
    """Name of the split to read, if it differs from `split`."""

    subset: Text | None = None
    """Configuration (subset) of a Hub dataset, or of a folder whose README.md has
    `configs:`.
    """

    where: Text | None = None
    """One SQL predicate (DuckDB) that rows must meet, such as "lang = 'en'"."""

    storage_options: Options | None = None
    """Options of the file system of the files; credentials as {env: NAME}."""

    # Tokenizer.
    tokenizer: stages.TokenizerChoice | None = None
    """Tokenizer of this source; null: `tokenize.default_tokenizer`, otherwise
    `default_tokenizer`.
    """

    tokenizer_kwargs: Options | None = None
    """Options of the tokenizer under their names in transformers, such as
    model_max_length and padding_side. Options that would change tokenizer.json are
    refused.
    """

    special_tokens_in_text: stages.SpecialTokensInText | None = None
    """See `tokenize.special_tokens_in_text`; null inherits it."""

    # Row-wise API, and files beside the store.
    cache_path: Path | None = None
    """Directory in which the row-wise API caches the tokens of this source; a build
    stores them in its store.
    """

    cache_enabled: Switch = True
    """Reuse results of earlier runs: cached tokens of the row-wise API, and equal units
    of older versions in a build. false: reuse neither.
    """

    save_path: Path | None = None
    """Directory to which this source alone is written: a path, s3:// or gs://. A
    build writes it after the commit.
    """

    save_format: SaveFormat | None = None
    """Format at `save_path`; null: `save.format`."""

    # Records: the field of the text, and fields that are kept.
    content_field: Text = "text"
    """Field that holds the text (or the messages of a chat)."""

    delimiter: Character | None = None
    """Character between the cells of CSV; null: a tab in .tsv, otherwise a comma."""

    text_mode: Literal["document", "lines"] = "document"
    """Documents of text files: each file (document), or each line that is not empty
    (lines). Default: document in a build, and lines if rows are read without a build
    (create_source, Pipeline, tokenize_and_save).
    """

    additional_fields: tuple[Text, ...] | None = None
    """Fields to keep with the tokens of each document, each as a column; not
    available with packing.
    """

    field_types: dict[Text, FieldType] | None = None
    """Types of `additional_fields`, such as {score: float64}; null: the types of the
    file, or those of the first records.
    """

    # Changes of records, in the order in which they are applied.
    format_callback: texts.Function | None = None
    """Function that is applied to every row first; in a file as
    'package.module:function'.
    """

    format_fields: texts.Renames | None = None
    """Fields to rename, {old: new}, after `format_callback`."""

    transforms: texts.Transforms | None = None
    """Steps that change every row after `format_fields`, in order: a list of {name
    of a step: its arguments}.
    """

    chat: texts.ChatConfig | None = None
    """Rows are conversations, rendered by a chat template; null: only if rows have
    messages and no text field.
    """

    prompt: texts.PromptConfig | None = None
    """Rows become prompts and answers by a template."""

    preference: texts.PreferenceConfig | None = None
    """Rows are preferences: better and worse answers to a prompt."""

    fim: FimConfig | None = None
    """Fill-in-the-middle; null: documents do not change. Documents that `eval` holds
    out never change.
    """

    tokens: TokensConfig | None = None
    """Records hold token ids, which the tokenizer has made already, and a build imports
    them; null: records hold text, unless `type` is a format of ids (megatron, numpy,
    mds, litdata, array_record).
    """

    # Length of documents.
    long_documents: stages.LongDocuments | None = None
    """See `tokenize.long_documents`; null inherits it."""

    truncation_strategy: stages.TruncationStrategy | None = None
    """See `tokenize.truncation_strategy`; null inherits it."""

    truncation_side: stages.TruncationSide | None = None
    """See `tokenize.truncation_side`; null inherits it."""

    shard_column: Text | None = None
    """One of `additional_fields`. Each of its values gets separate files in the
    `save_path` of a build.
    """

    # Output: shards, bad records, splits and documents to leave out.
    num_shards: Count | None = None
    """Number of files for each split of this source; null: see `save.num_shards`."""

    on_bad_record: stages.BadRecordPolicy | None = None
    """See `source.on_bad_record`; null inherits it."""

    max_bad_fraction: Share | None = None
    """See `source.max_bad_fraction`; null inherits it."""

    splits: Splits | None = None
    """See `source.splits`; null inherits it."""

    eval: Count | None = None
    """Number of records to hold out of all splits, by a hash of their identity, as the
    split `eval_NAME`. A held-out record stays held out in all later versions.
    """

    exclude: Path | None = None
    """Parquet file of documents to leave out (takedowns), with columns `file` (path,
    URL, name or identity) and `position`.
    """

    @field_validator("tokenizer_kwargs")
    @classmethod
    def _known_values(
        cls, arguments: dict[str, object] | None
    ) -> dict[str, object] | None:
        """Check the values of arguments of transformers that have an option of ours."""
        # The section of the tokenizer checks the values; its name does not matter for
        # that.
        options: dict[str, object] = {"name_or_path": "-"}
        for name, value in (arguments or {}).items():
            if name in stages.KWARGS:
                options[stages.KWARGS[name]] = value
        stages.TokenizerConfig.model_validate(options)
        return arguments

    def get_tokenizer_config(self) -> stages.TokenizerConfig | None:
        """Return the tokenizer with its options; None if the dataset names none."""
        if isinstance(self.tokenizer, str):
            return stages.TokenizerConfig(name_or_path=self.tokenizer)
        return self.tokenizer

    @property
    def ids(self) -> TokensConfig | None:
        """The section `tokens`, or that of the format; None for records of text."""
        if self.tokens is None and self.type in TOKEN_TYPES:
            return TokensConfig()
        return self.tokens

    @property
    def split_to_read(self) -> str:
        """The split that is read of the files, as they or the Hub call it."""
        return self.dataset_split_name or self.split

    @property
    def split_from(self) -> Literal["default", "option", "mapping"]:
        """Origin of the split: the default, an option, or a key of `data_files`."""
        # A mapping names its splits, so that one of its keys is always meant.
        if isinstance(self.data_files, dict):
            return "mapping"
        is_written = (
            self.dataset_split_name is not None or "split" in self.model_fields_set
        )
        if is_written:
            return "option"
        return "default"

    @property
    def files_to_read(self) -> tuple[str, ...]:
        """The entries of `data_files` that are read; () without any.

        Of a mapping they are those of the split that is read.
        """
        # One path may be written without a list.
        files = self.data_files
        if isinstance(files, dict):
            files = files[self.split_to_read]
        if files is None:
            return ()
        if isinstance(files, str):
            return (files,)
        return files

    @property
    def all_files(self) -> tuple[str, ...]:
        """The entries of `data_files`, of all splits; () without any."""
        if not isinstance(self.data_files, dict):
            return self.files_to_read
        entries: list[str] = []
        for files in self.data_files.values():
            if isinstance(files, str):
                entries.append(files)
            else:
                entries += files
        return tuple(entries)

    @model_serializer(mode="wrap")
    def _without_unwritten(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, Any]:
        """Leave out unwritten options whose default differs in meaning if written.

        A written split selects files by their names; a written text mode holds for rows
        and builds alike.
        """
        # A dump must mean the same when it is read back.
        dumped: dict[str, Any] = handler(self)
        if self.split_from == "default":
            dumped.pop("split", None)
        if "text_mode" not in self.model_fields_set:
            dumped.pop("text_mode", None)
        return dumped

    @property
    def eval_split(self) -> str:
        """The split of the documents that `eval` holds out."""
        return EVAL_PREFIX + re.sub(r"[^A-Za-z0-9_]", "_", self.name or "")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        """Require one place of the rows, and options that concern it."""
        # 1. Rows come from one place.
        if self.data_files is None and self.dataset is None:
            raise problem(
                "got neither data_files nor dataset, must have data_files (files to read) or dataset (NAME in the "
                "store)"
            )
        # 2. Files. Their records hold text or ids.
        if self.dataset is None:
            self._check_mapping()
            if self.retokenize:
                raise problem(
                    "got retokenize without dataset, must have dataset (NAME in the store); text in files is always "
                    "tokenized"
                )
            self._check_ids()
            return self
        if self.data_files is not None:
            raise problem("got data_files and dataset, must have one of them")
        # 3. A stored dataset. Options of reading and tokenizing text do nothing for
        #    tokens that exist already.
        allowed = _BESIDE_RETOKENIZE if self.retokenize else _BESIDE_DATASET
        others: list[str] = []
        for name, field in type(self).model_fields.items():
            if name not in allowed and getattr(self, name) != field.default:
                others.append(name)
        if others:
            raise problem(
                f"got {', '.join(sorted(others))} beside dataset {self.dataset!r}, which contains tokens already; "
                "set it in the build of that dataset"
            )
        return self

    def _check_ids(self) -> None:
        """Raise a problem if records hold ids, and an option is about their text."""
        if self.ids is None:
            return
        # An option with its default value changes nothing, and may be written.
        fields = type(self).model_fields
        written: list[str] = []
        for name in _OF_TEXTS:
            if getattr(self, name) != fields[name].default:
                written.append(name)
        if written:
            raise problem(
                f"got {', '.join(written)}, but the records hold token ids (tokens), which are stored as they are; "
                "must be left out"
            )

    def _check_mapping(self) -> None:
        """Raise a problem if a mapping `data_files` contradicts other options.

        It may lack the split, or stand beside an option without use.
        """
        if not isinstance(self.data_files, dict):
            return
        # `split` has a default, so that a mapping without it is found here.
        splits = ", ".join(self.data_files)
        if self.split_to_read not in self.data_files:
            near = did_you_mean(self.split_to_read, self.data_files)
            raise problem(
                f"got split {self.split_to_read!r}, but data_files has {splits}; set `split` to one of them{near}"
            )
        # A dataset on the Hub states its own splits and subsets in its card.
        if self.type in ("hf", "huggingface"):
            raise problem(
                f"got data_files by split ({splits}) with type {self.type!r}: a dataset on the Hub has its own splits; "
                "write its id, and `split`"
            )
        if self.subset is not None:
            raise problem(
                f"got subset {self.subset!r} and data_files by split ({splits}): files by split have no subsets; "
                "leave it out"
            )


DATA_MODULE: Final = "data_module"
"""Value of the key `type` in a configuration of a data module."""

_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")


def _all_extensions() -> tuple[str, ...]:
    """Return the extensions of all formats."""
    extensions: list[str] = []
    for facts in FORMATS.values():
        extensions += [*facts.extensions, *facts.prose]
    return tuple(extensions)


_EXTENSIONS: Final = _all_extensions()
SPLIT_PLACE: Final = "{split}"
"""Text in a path that stands for the name of the split."""

# Stage -> reason why it is not available, and the alternative.
_LATER: Final = {
    "fim": "fill-in-the-middle reorders documents and is not available for prompts",
    "ppo": "a query is a prompt without an answer; train on prompts with `preference: {method: grpo}` of a build",
}

Stage = Literal["sft", "packing", "fim", "ppo"]
Name = Literal["input_ids", "attention_mask", "labels", "position_ids", "segment_ids"]
PACKED_NAMES: Final = ("position_ids", "segment_ids")
"""Tensors that only packed rows have."""
Integer = Literal["int32", "int64"]


def is_hub_id(name: str) -> bool:
    """Return whether a name is the id of a dataset on the Hub.

    It has the form of an id, and is no path of this disk.
    """
    # "data/train.jsonl" has the form of an id, too: an extension of a data file
    # decides.
    names_data_file = name.lower().endswith(_EXTENSIONS)
    has_form_of_id = _ID.fullmatch(name) is not None and not names_data_file
    return has_form_of_id and not os.path.exists(name)  # noqa: PTH110 (pathlib would cost a second object)


def names_text(name: str) -> bool:
    """Return whether a path, glob or URL names text files, compressed or not."""
    # Extensions of compression come last: notes.txt.gz is text.
    stem = name.lower()
    for ending in (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4"):
        stem = stem.removesuffix(ending)
    facts = FORMATS["text"]
    return stem.endswith((*facts.extensions, *facts.prose))


class SplitSpec(Section):
    """A split of the dataset; a plain text instead of this section is its `name`."""

    name: SplitName
    """Name of the split, of the Hub's dataset and of the result."""

    sample_size: Count | None = None
    """Number of rows to use: the first ones, or random ones if `shuffle` is true."""

    shuffle: Switch = False
    """Shuffle the rows, in an order that `seed` determines."""

    seed: Seed = 0
    """Random seed of this order and of the loader's order."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Accept a name instead of the section."""
        if isinstance(value, str):
            return {"name": value}
        return value


class DataModuleDataset(Section):
    """Section `dataset`."""

    name: Path
    """Hub id, or path, glob, directory or URL of files. {split} in it is replaced by
    the name of the split. In a directory, the file names define the splits.
    """

    config_name: Text | None = None
    """Configuration (subset) of a Hub dataset, or of a directory whose README.md has
    `configs:`.
    """

    streaming: Switch = False
    """Read rows on demand; false: load them into memory, so that they can be
    shuffled as a whole.
    """

    columns: tuple[Text, ...] | None = None
    """Columns to keep; null: all."""

    splits: tuple[SplitSpec, ...] = (SplitSpec(name="train"),)
    """Splits to use."""

    column_mapping: dict[Text, Text] | None = None
    """Name in the prompt -> column of the dataset, for names that differ."""

    stages: tuple[Stage, ...] = ("sft",)
    """Stages of prompts: `sft`; `packing` puts several prompts into one row of
    `tokenizer.max_length` ids.
    """

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse splits with the same rows, and stages that are not available."""
        # A split that is named twice would be written twice.
        names = [split.name for split in self.splits]
        if not names or len(set(names)) < len(names):
            raise problem(
                f"splits: got {', '.join(names) or 'none'}, must be at least one, each once"
            )
        # One file, or a list of files, has no splits that names could tell apart.
        are_same = (
            SPLIT_PLACE not in self.name
            and not is_hub_id(self.name)
            and not os.path.isdir(self.name)  # noqa: PTH112
        )
        if len(names) > 1 and are_same:
            raise problem(
                f"splits: {', '.join(names)} would all be the rows of the same files; write {{split}} where their "
                "paths differ, such as data/{split}.jsonl, or name a folder whose names say splits"
            )
        for stage in self.stages:
            if stage in _LATER:
                raise problem(f"stages: {stage!r} is not available; {_LATER[stage]}")
        return self


class DataLoaderConfig(Section):
    """Section `dataloader`: arguments of ``torch.utils.data.DataLoader``.

    A build does not use them.
    """

    batch_size: Count = 1
    """Number of rows per batch."""

    num_workers: Count | Literal[0] = 0
    """Number of worker processes; 0: rows are loaded in the main process."""

    pin_memory: Switch = False
    """Copy batches to pinned memory."""

    persistent_workers: Switch = False
    """Keep the workers between epochs."""

    prefetch_factor: Count | None = None
    """Number of batches that each worker prepares ahead; null: the default of
    PyTorch.
    """

    shuffle: Switch = False
    """Use a different, reproducible order in every epoch; an argument of the call
    takes precedence.
    """

    drop_last: Switch = False
    """Leave out the last batch of an epoch if it is smaller. With several processes,
    leave out the rows that cannot be divided equally, instead of repeating some.
    """

    long_prompts: Literal["fail", "skip", "shorten"] = "fail"
    """Policy for prompts that leave no room for the answer in `tokenizer.max_length`.
    fail: raise an error. skip: leave the row out. shorten: cut the input columns of
    every row that is too long, and keep its answer. A warning states how many rows were
    left out or cut.
    """

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse options of workers where there are none."""
        # PyTorch raises an error for these, but only when the first batch is read.
        for name in ("persistent_workers", "prefetch_factor"):
            if getattr(self, name) and not self.num_workers:
                raise problem(
                    f"{name}: set, but num_workers is 0; set num_workers to 1 or more, or leave {name} out"
                )
        return self


class DataModuleConfig(Section):
    """A configuration of ``type: data_module``."""

    type: Literal["data_module"] = DATA_MODULE
    """Kind of the configuration."""

    version: Literal["1.0"] = "1.0"
    """Version of the schema."""

    name: DatasetName | None = None
    """Name of the dataset that a build writes to the store; null: the stem of the
    configuration's file.
    """

    dataset: DataModuleDataset
    """Source of the rows."""

    tokenizer: TokenizerChoice
    """Hub id or path, or a section with `max_length`, `padding`, `truncation`,
    `special_tokens`.
    """

    prompt_template: PromptConfig = PromptConfig(template="{text}")
    """Template of a prompt and its answer; null: the column `text`, all of which
    counts toward the loss.
    """

    dataloader: DataLoaderConfig = DataLoaderConfig()
    """Batches and worker processes of the loader; not used by a build."""

    output_schema: dict[Name, Integer] = {  # noqa: RUF012
        "input_ids": "int64",
        "attention_mask": "int64",
        "labels": "int64",
    }
    """Tensors of a batch and their types; `position_ids` and `segment_ids` require
    `packing`. Not used by a build.
    """

    save: SaveStageConfig = SaveStageConfig()
    """Store and files that a build writes."""

    @property
    def tokenizer_config(self) -> TokenizerConfig:
        """The tokenizer with the defaults of a data module.

        Rows have `max_length` ids; longer ones are cut.
        """
        # Prompts are padded to equal rows, unless several share a row.
        options: dict[str, Any] = {"max_length": 2048}
        if "packing" not in self.dataset.stages:
            options |= {"padding": "max_length", "truncation": True}
        if isinstance(self.tokenizer, str):
            options["name_or_path"] = self.tokenizer
        else:
            options |= self.tokenizer.model_dump(exclude_unset=True)
        return TokenizerConfig.model_validate(options)

    @property
    def used_columns(self) -> tuple[str, ...]:
        """Columns that the prompt names, as the dataset calls them."""
        # The prompt has names of its own; the mapping leads back to those of the
        # dataset.
        names = list(self.prompt_template.input_columns)
        if self.prompt_template.label_column:
            names.append(self.prompt_template.label_column)
        columns = self.dataset.column_mapping or {}
        return tuple(columns.get(name, name) for name in names)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse a list of columns that lacks one of the prompt's."""
        # All columns are read if none are named.
        columns = self.dataset.columns
        if columns is None:
            return self
        missing = [name for name in self.used_columns if name not in columns]
        if missing:
            raise problem(
                f"dataset.columns: {', '.join(map(repr, missing))} missing, but prompt_template uses them"
            )
        return self
