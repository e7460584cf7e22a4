"""Import of token ids that other tools made.

An import is a build whose configuration has a section `tokens`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, Literal, TypeAlias

from tokenlake.base.checks import require_one_of
from tokenlake.config.tokens import EosRule, IdType
from tokenlake.errors import ConfigError
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.executors import ExecutorName
from tokenlake.etl.export.exported_inputs import export_at, require_whole, splits_of
from tokenlake.etl.runner import BuildResult, build_dataset
from tokenlake.etl.sources.layout import TRAIN
from tokenlake.runtime.store.schemes import default_store

ImportFormat: TypeAlias = Literal[
    "megatron",
    "numpy",
    "mds",
    "litdata",
    "array_record",
    "datasets",
    "parquet",
    "arrow",
    "jsonl",
]
"""Format of files of token ids."""

_TYPES: Final[Mapping[ImportFormat, str]] = {
    "megatron": "megatron",
    "numpy": "numpy",
    "mds": "mds",
    "litdata": "litdata",
    "array_record": "array_record",
    # Files of `save_to_disk` are Arrow streams.
    "datasets": "arrow",
    "parquet": "parquet",
    "arrow": "arrow",
    "jsonl": "jsonl",
}
"""Format -> type of a dataset in a configuration."""

_MOST_NAME: Final = 64
"""Largest number of letters in the name of a dataset."""


def import_tokens(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str],
    format: ImportFormat,
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
    split: str | None = None,
    eos: EosRule | None = None,
    eos_token_id: int | None = None,
    field: str | None = None,
    loss_field: str | None = None,
    dtype: IdType | None = None,
    length: int | None = None,
    packed: int | None = None,
    on_bad_record: Literal["fail", "quarantine"] = "fail",
    workers: int | None = None,
    executor: ExecutorName | None = None,
    on_event: Watcher = ignore,
) -> BuildResult:
    """Import token ids that another tool made as a dataset version, unchanged.

    Every id is compared with the vocabulary of the tokenizer. Units are imported in
    parallel, and an interrupted import is resumed by calling it again. The version
    records the files with their hashes.

    Args:
        data: Path, glob, folder or URL of the files, or a list of them.
        tokenizer: Hub id, folder or tokenizer.json of the tokenizer that made the ids.
        format: Format of the files.
        name: Name of the dataset; None for that of the folder or file.
        store: Path or URL of the store; None for the default one.
        split: Split to read of a folder whose folders or file names say splits. None
            for all splits of an export of Tokenlake, which become splits of the
            version, and otherwise for `train`.
        eos: ``keep``: a record is a document. ``split``: a document ends after each
            EOS. ``none``: like ``split``, and EOS is left out. None for ``split`` of
            arrays of ids (numpy), otherwise ``keep``.
        eos_token_id: Id of EOS; None for the tokenizer's.
        field: Field of the ids; None for ``input_ids``.
        loss_field: Field of the loss mask; None for ``loss_mask`` or ``labels``, where
            records have one.
        dtype: Type of ids in files that do not state it; None to find it.
        length: Ids of a record of an array of ids that EOS does not divide.
        packed: Ids of a packed row, if records are packed rows, which are stored as
            they are; None to store documents.
        on_bad_record: ``fail``: a bad record ends the import. ``quarantine``:
            it is set aside and counted.
        workers: Number of worker processes; None for one for each processor.
        executor: Place where units run: ``local``, ``store``, ``ray`` or ``dask``; None
            for this machine.
        on_event: Function that receives all events, from several threads.

    Returns:
        The committed version; where an equal one existed, that one.

    Raises:
        ConfigError: An option is wrong, or does not fit the files.
        BadRecordError: An id is not in the vocabulary, or a record holds no ids; the
            message names file and record.
        SourceError: A file is missing or damaged, or a file of an export differs from
            the manifest of the export.

    Example:
        >>> from pathlib import Path
        >>> import tokenlake as tl
        >>> lines = Path("ids.jsonl").write_text('{"input_ids": [10, 11, 12]}\\n' * 3)
        >>> gpt2 = "openai-community/gpt2"
        >>> result = tl.import_tokens("ids.jsonl", tokenizer=gpt2, format="jsonl", store="new", workers=1)
        >>> result.dataset, result.manifest.totals.tokens
        ('ids', 9)
    """
    # The checks of the configuration, of the ids and of the files are those of a build.
    config = import_configuration(
        data,
        tokenizer=tokenizer,
        format=format,
        name=name,
        store=store,
        split=split,
        eos=eos,
        eos_token_id=eos_token_id,
        field=field,
        loss_field=loss_field,
        dtype=dtype,
        length=length,
        packed=packed,
        on_bad_record=on_bad_record,
    )
    return build_dataset(config, workers=workers, executor=executor, on_event=on_event)


def import_configuration(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str],
    format: ImportFormat,
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
    split: str | None = None,
    packed: int | None = None,
    on_bad_record: Literal["fail", "quarantine"] = "fail",
    **tokens: str | int | None,
) -> dict[str, Any]:
    """Return the configuration of an import.

    Arguments are those of :func:`import_tokens`.

    Args:
        data: Path, glob, folder or URL of the files, or a list of them.
        tokenizer: Tokenizer that made the ids.
        format: Format of the files.
        name: Name of the dataset.
        store: Path or URL of the store.
        split: Split to read; None: all of an export, otherwise train.
        packed: Ids of each record, if records are packed rows.
        on_bad_record: Treatment of bad records.
        **tokens: Options of the section `tokens`; those that are None are left out.

    Raises:
        ConfigError: The format is unknown, or no name can be made of the path.
        DamagedFileError: A file of an export is missing, or has another size.
    """
    # 1. The files, and a name that follows from the first of them.
    require_one_of("format", format, tuple(_TYPES))
    if isinstance(data, str | os.PathLike):
        paths = [os.fspath(data)]
    else:
        paths = [os.fspath(entry) for entry in data]
    if not paths:
        raise ConfigError(
            "data: got no path, expected the files or the folder of the token ids"
        )
    name = name or _name_of(paths[0])

    # 2. The options of the ids. Packed rows are stored as they are; in an array of ids
    #    nothing but the length divides them.
    section = {option: value for option, value in tokens.items() if value is not None}
    pack: dict[str, Any] = {"enabled": False}
    if packed is not None:
        section["rows"] = True
        if format == "numpy":
            section["length"] = packed
        pack = {"enabled": True, "seq_length": packed}
    dataset: dict[str, Any] = {
        "name": "imported",
        "data_files": paths,
        "type": _TYPES[format],
        "tokens": section,
    }

    # 3. The configuration.
    output_dir = default_store()
    if store is not None:
        output_dir = os.fspath(store)
    return {
        "name": name,
        "datasets": _datasets_of_splits(dataset, paths, split),
        "default_tokenizer": os.fspath(tokenizer),
        "source": {"on_bad_record": on_bad_record},
        "pack": pack,
        "save": {"output_dir": output_dir},
    }


def _datasets_of_splits(
    dataset: Mapping[str, Any], paths: Sequence[str], split: str | None
) -> list[dict[str, Any]]:
    """Return the datasets of an import: one for each split that is read.

    Args:
        dataset: Dataset without a split.
        paths: Paths of its files.
        split: Split to read; None: all of an export, otherwise train.

    Raises:
        DamagedFileError: A file of an export is missing, or has another size.
    """
    # 1. An export states its splits. Names and sizes of its files cost no reading, and
    #    a missing file would not be noticed later.
    export_splits: list[str] = []
    if len(paths) == 1:
        export = export_at(paths[0])
        if export is not None:
            store, manifest = export
            require_whole(store, manifest, split)
            export_splits = splits_of(manifest)
    # 2. One split: rows of an export that has no other keep their split.
    if split is not None:
        return [{**dataset, "split": split}]
    if export_splits in ([], [TRAIN]):
        return [dict(dataset)]
    # 3. All splits: the rows of each become a split of the same name.
    datasets: list[dict[str, Any]] = []
    for export_split in export_splits:
        dataset_of_split = {
            **dataset,
            "name": f"{dataset['name']}-{export_split}",
            "split": export_split,
            "splits": {export_split: 1.0},
        }
        datasets.append(dataset_of_split)
    return datasets


def _name_of(path: str) -> str:
    """Return the name of the folder or file of some data as a name of a dataset.

    Example: "data/My Books/*.jsonl" gives "my-books".

    Raises:
        ConfigError: The path has no letters that a name may have.
    """
    # The last part of the path that is no pattern, and neither "." nor "..".
    stem = ""
    for part in PurePosixPath(path).parts:
        if not re.search(r"[*?\[{]|^[./]*$", part):
            stem = part.partition(".")[0]
    dataset_name = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:_MOST_NAME]
    if not dataset_name:
        raise ConfigError(
            f"name: missing, and none can be made of {path!r}; give the dataset a name",
            got=path,
        )
    return dataset_name
