"""A committed version as a flat directory.

The format and the number of files may differ, and one source or split may be exported
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Final

import msgspec

from tokenlake._version import __version__
from tokenlake.base import numbers
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl.export.directory import NEW, FolderTarget, Target, target_of
from tokenlake.etl.export.flat_manifest import (
    FOLDER,
    FileFormat,
    FlatManifest,
    Origin,
    WriteStats,
    put_manifest,
)
from tokenlake.etl.export.options import ExportOptions
from tokenlake.etl.export.row_export import write_rows
from tokenlake.etl.export.shard_files import DEFAULT_NAMING
from tokenlake.etl.export.shard_folder import SHARDS, ExportProgress, ShardFolder
from tokenlake.etl.export.token_export import write_tokens
from tokenlake.etl.export.verification import file_problems, in_words
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.file_check import Problem
from tokenlake.runtime.store.layout import CONFIG, QUARANTINE, TOKENIZER, Layout
from tokenlake.runtime.store.manifest import Manifest

_NAMED_PROBLEMS: Final = 3
"""Damaged files that a message describes."""


def export_version(
    where: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    format: str = "parquet",
    compression: str | None = None,
    num_shards: int | None = None,
    max_shard_size: int | str | None = None,
    *,
    name: str | None = None,
    split: str | None = None,
    source: str | None = None,
    overwrite: bool = False,
    attention_mask: bool = True,
    provenance: bool = False,
    naming: str = DEFAULT_NAMING,
    shard_column: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    output_options: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    drop_loss_mask: bool = False,
    append_eos: bool = False,
    on_progress: Callable[[ExportProgress], object] | None = None,
) -> WriteStats:
    """Write a committed version as a flat directory, which any tool reads.

    The version stays as it is.

    Formats of rows (``parquet``, ``arrow``, ``jsonl``) have all columns. Formats of
    trainers have the ids, and their masks and segments as far as the format can hold
    them:

    - ``megatron``: ``train.bin`` and ``train.idx`` of Megatron-Core's
      ``IndexedDataset``
    - ``numpy``: ids alone, ``train.bin``, as nanoGPT reads them
    - ``npy``: ids alone, ``train.npy``, as OLMo-core reads them, and the loss mask
    - ``mds``: shards of MosaicML Streaming in ``train/``
    - ``litdata``: chunks of litdata in ``train/``
    - ``array_record``: records of int32, ``train-00000-of-00001.array_record``, for
      Grain

    A directory that holds this export already is left as it is, once its files have
    their recorded sizes and, on this machine, hashes. In a bucket sizes are compared;
    :func:`tokenlake.verify_export` compares hashes. If files are missing, the export is
    written again. A file that differs is an error. An export that was
    interrupted resumes: the same call keeps the finished files, which are compared with
    their hashes, and writes the rest. The files are those of an export that was not
    interrupted.

    Args:
        where: Dataset, or one version of it, as :func:`tokenlake.open` takes it.
        output_path: Directory, made if it is missing: a path, ``s3://bucket/folder`` or
            ``gs://bucket/folder``.
        format: Format of the files.
        compression: Compression of the files, as for :func:`tokenlake.create_writer`.
        num_shards: Number of files of each split, as for
            :func:`tokenlake.create_writer`.
        max_shard_size: Largest size of a file, as for :func:`tokenlake.create_writer`.
            None for 500 MB; for 64 MiB in mds and litdata; for one file of each split
            in megatron, numpy and npy.
        name: Name of the dataset in the store `where`.
        split: Name of the only split to export; None: all.
        source: Name of the only source to export, of a version that is no mixture;
            None: all.
        overwrite: True to replace the data files of a directory that is not empty, and
            those of a damaged export; otherwise that is an error.
        attention_mask: True to add the column (int32; 1 for ids, 0 for padding) if rows
            have none.
        provenance: True to keep the columns that say which input each document comes
            from.
        naming: Names of the files, as for :func:`tokenlake.create_writer`.
        shard_column: Kept field of text, whole numbers or truth values, with at most
            256 values. Each value has files of its own,
            ``train-lang=en-00000-of-00001.parquet``, with its rows in order. None:
            files hold rows of all values.
        storage_options: Options of the store, as for :func:`tokenlake.open`.
        output_options: Options of a bucket at `output_path`; None: those of the
            environment.
        dtype: Type of the ids, ``uint16`` or ``int32`` in megatron, ``uint16`` or
            ``uint32`` in numpy and npy. None: the smallest that holds the vocabulary.
        drop_loss_mask: True to leave out a loss mask in a format of trainers, so that
            all ids count toward the loss.
        append_eos: True to end each document of a version of kind ``tokens`` with EOS,
            unless it does already. Packed rows have EOS. Trainers that lay documents
            end to end need it.
        on_progress: Function that is called after each finished file, and once at the
            start if an interrupted export resumes; None: no reports. Its argument has
            `shards`, `shards_total`, `rows`, `rows_total` and `is_resumed`.

    Returns:
        Numbers of rows, files and bytes, and the paths of the files; and, of an export
        that was there already, how it was compared.

    Raises:
        ConfigError: An argument is not allowed, or the target is not empty, or another
            export to it was interrupted; nothing was changed.
        NotFoundError: The version does not exist.
        IntegrityError: A page is damaged, or a file of this export in the target; the
            target stays as it was.

    Example:
        >>> import tokenlake as tl
        >>> stats = tl.export_version("artifacts/books@v3", "out", "jsonl", "gzip", num_shards=2, split="train")
        >>> stats.num_shards
        2
    """
    # A version is named by its store and its name, or by a path of both.
    place, name = parted(where, name)
    store = open_read_store(place, storage_options=storage_options)
    manifest = Catalog(store).manifest_of(name)
    options = ExportOptions(
        num_shards=num_shards,
        max_shard_size=max_shard_size,
        split=split,
        source=source,
        attention_mask=attention_mask,
        provenance=provenance,
        naming=naming,
        shard_column=shard_column,
        dtype=dtype,
        drop_loss_mask=drop_loss_mask,
        append_eos=append_eos,
    )
    form = FileFormat.of(format, compression)
    target = target_of(output_path, output_options)
    return exported(
        store,
        manifest,
        target,
        form,
        options,
        overwrite=overwrite,
        # Reading a bucket costs as much as writing it: with `overwrite` a file that
        # differs is replaced, whatever its size.
        with_hashes=overwrite or isinstance(target, FolderTarget),
        on_progress=on_progress,
    )


def exported(
    store: ReadStore,
    manifest: Manifest,
    target: Target,
    form: FileFormat,
    options: ExportOptions,
    *,
    overwrite: bool,
    with_hashes: bool = False,
    discard_interrupted: bool = False,
    on_progress: Callable[[ExportProgress], object] | None = None,
) -> WriteStats:
    """Write a version to a target, unless this very export is there.

    Args:
        store: Store of the version.
        manifest: Manifest of the version.
        target: Place of the files.
        form: Format of the files.
        options: Rows and their division into files.
        overwrite: True to replace the data files of the target, and to discard those of
            another export that was interrupted.
        with_hashes: True to compare the hashes of an export that is there already;
            otherwise its names and sizes.
        discard_interrupted: True to discard the latter alone.
        on_progress: Function that is called after each file.

    Raises:
        ConfigError, IntegrityError: as :func:`export_version`.
    """
    # 1. An export that is there already.
    flat_manifest = target.manifest()
    is_same = flat_manifest is not None and _is_export(
        flat_manifest, manifest, form, options
    )
    missing_paths: list[str] = []
    if flat_manifest is not None and is_same:
        problems = file_problems(
            target.read_store(), flat_manifest.files, with_hashes=with_hashes
        )
        if not problems:
            target.clear()
            stats = WriteStats.of(flat_manifest, target.url)
            return replace(stats, compared="hashes" if with_hashes else "sizes")
        if not overwrite:
            _require_only_missing(target, manifest, flat_manifest, problems)
        for problem in problems:
            if problem.problem == "missing":
                missing_paths.append(problem.path)
    # 2. A new one, or the rest of an interrupted one.
    export = {
        "format": form.format,
        "compression": form.compression,
        **_export_facts(manifest, form, options),
    }
    written_by = _packages_of(form)
    with target.placed(
        overwrite=overwrite or is_same,
        export=export,
        discard_interrupted=overwrite or discard_interrupted,
    ) as work_folder:
        shard_folder = ShardFolder.resumed(work_folder / SHARDS, export, written_by)
        flat_manifest = write_version(
            store,
            manifest,
            work_folder / NEW,
            form,
            options,
            shard_folder=shard_folder,
            on_progress=on_progress,
        )
    stats = WriteStats.of(flat_manifest, target.url)
    return replace(stats, missing_paths=missing_paths)


def _require_only_missing(
    target: Target,
    manifest: Manifest,
    flat_manifest: FlatManifest,
    problems: Sequence[Problem],
) -> None:
    """Raise IntegrityError if a file of an export differs from its manifest.

    Writing a missing file again loses nothing. A file that differs may hold the work of
    a person, so that it is replaced on request alone.

    Args:
        target: Place of the export.
        manifest: Manifest of its version.
        flat_manifest: Manifest of the export.
        problems: All problems of its files.
    """
    damaged = [problem for problem in problems if problem.problem != "missing"]
    if not damaged:
        return
    descriptions = "; ".join(in_words(problem) for problem in damaged[:_NAMED_PROBLEMS])
    if len(damaged) > _NAMED_PROBLEMS:
        descriptions += "; ..."
    verb = "differs" if len(damaged) == 1 else "differ"
    raise IntegrityError(
        f"{target.url} holds this export of {manifest.dataset}@v{manifest.version}, but {len(damaged)} of its "
        f"{numbers.plural(len(flat_manifest.files), 'file')} {verb} from the manifest: {descriptions}. Nothing was "
        "changed. Write the export again (overwrite=True, --overwrite), or give another path",
        path=target.url,
        files=[problem.path for problem in damaged],
    )


def _packages_of(form: FileFormat) -> dict[str, str]:
    """Return the name and version of each package that decides the bytes of files."""
    # Bytes of Parquet and Arrow files depend on the release of pyarrow.
    packages = {"tokenlake": __version__, "pyarrow": package_version("pyarrow")}
    if form.format == "array_record":
        with suppress(PackageNotFoundError):  # a missing one is an error of its own
            packages["array_record"] = package_version("array_record")
    return packages


def _report_progress(
    shard_folder: ShardFolder,
    manifest: Manifest,
    splits: Sequence[str],
    options: ExportOptions,
    on_progress: Callable[[ExportProgress], object],
) -> None:
    """Report the shards of an interrupted export, and each shard from now on.

    Args:
        shard_folder: Folder of the shards.
        manifest: Manifest of the rows that are exported.
        splits: Names of the splits that are exported.
        options: Options of the export.
        on_progress: Function to call.
    """
    # Totals. Without a number of files, that of shards is known at the end alone.
    rows_total = 0
    for split in splits:
        if split in manifest.splits:
            rows_total += manifest.splits[split].rows
    shards_total = None
    if options.num_shards is not None:
        shards_total = options.num_shards * len(splits)

    def report(*, is_resumed: bool = False) -> None:
        complete_shards, rows = shard_folder.counts
        progress = ExportProgress(
            shards=complete_shards,
            shards_total=shards_total,
            rows=rows,
            rows_total=rows_total,
            is_resumed=is_resumed,
        )
        on_progress(progress)

    # An interrupted export begins with a report, before its first new shard.
    shard_folder.on_shard = report
    _complete_shards, finished_rows = shard_folder.counts
    if finished_rows:
        report(is_resumed=True)


def _is_export(
    flat: FlatManifest, manifest: Manifest, form: FileFormat, options: ExportOptions
) -> bool:
    """Return True if a flat directory is this export of a version."""
    # The facts contain the hash of the version's manifest, so that an equal name of
    # another store does not count.
    if (flat.format, flat.compression) != (form.format, form.compression):
        return False
    return flat.made_of.get("export") == _export_facts(manifest, form, options)


def _export_facts(
    manifest: Manifest, form: FileFormat, options: ExportOptions
) -> dict[str, Any]:
    """Return the facts by which a flat directory is known as an export."""
    facts = {
        "dataset": manifest.dataset,
        "version": manifest.version,
        "manifest": manifest.sha256,
        **asdict(options),
        "max_shard_size": options.max_bytes(form),
    }
    # Exports of older releases have no facts of options that came later.
    for option in ("shard_column", "dtype", "drop_loss_mask", "append_eos"):
        if not facts[option]:
            del facts[option]
    return facts


def write_version(
    store: ReadStore,
    manifest: Manifest,
    folder: Path,
    form: FileFormat,
    options: ExportOptions,
    *,
    quarantine: bool = False,
    shard_folder: ShardFolder | None = None,
    on_progress: Callable[[ExportProgress], object] | None = None,
) -> FlatManifest:
    """Write the files of an export into a folder.

    Configuration, tokenizer and manifest lie below ``_tokenlake/``.

    Args:
        store: Store of the version.
        manifest: Manifest of the version.
        folder: Folder to write into.
        form: Format of the files.
        options: Rows and their division into files.
        quarantine: True to export the bad records that were set aside, too.
        shard_folder: Folder of the shards until they get their names; None: `folder`.
        on_progress: Function that is called after each shard.

    Raises:
        ConfigError, IntegrityError: as :func:`export_version`.
    """
    # The rows may be those of one source; all other facts are those of the version.
    splits = _splits_of(manifest, options)
    chosen = manifest
    if options.source is not None:
        chosen = _of_source(store, manifest, options.source)
    if shard_folder is None:
        shard_folder = ShardFolder(folder)
    if on_progress is not None:
        _report_progress(shard_folder, chosen, splits, options, on_progress)
    # 1. Rows.
    write_files = write_tokens
    if form.is_of_rows:
        write_files = write_rows
    schema, files = write_files(
        store, chosen, splits, folder, form, options, shard_folder
    )
    # 2. Other files of the version.
    layout = Layout(manifest.dataset, manifest.version)
    copied_folders = [f"{TOKENIZER}/"]
    if quarantine:
        copied_folders.append(f"{QUARANTINE}/")
    for file_path in manifest.other_files:
        if file_path == CONFIG or file_path.startswith(tuple(copied_folders)):
            target = folder / FOLDER / file_path
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download(layout.key(file_path), target)
    # 3. The manifest of the directory.
    made_of = {
        "fingerprint": manifest.fingerprint,
        "config": manifest.config,
        "tokenizer": manifest.tokenizer,
        "inputs": msgspec.to_builtins(manifest.inputs),
        "account": manifest.account.to_json(),
        "export": _export_facts(manifest, form, options),
    }
    origin = Origin(manifest.kind, made_of, manifest.produced_by)
    return put_manifest(folder, form, schema, files, origin)


def _splits_of(manifest: Manifest, options: ExportOptions) -> tuple[str, ...]:
    """Return the names of the splits to export."""
    # A version without rows has no splits, and its export has one empty file.
    splits = tuple(manifest.splits) or ("train",)
    if options.split is None:
        return splits
    if options.split not in splits:
        version_name = f"{manifest.dataset}@v{manifest.version}"
        raise ConfigError(
            f"split: {version_name} has no {options.split!r}; expected one of {', '.join(splits)}"
        )
    return (options.split,)


def _of_source(store: ReadStore, manifest: Manifest, source: str) -> Manifest:
    """Return the manifest of a version as if it had one source alone."""
    # The rows of a mixture are of many sources in turn; its files cannot be divided.
    version_name = f"{manifest.dataset}@v{manifest.version}"
    if manifest.mixture is not None:
        raise _no_such_source(version_name, source, "none, because its rows are mixed")
    if source not in manifest.accounts:
        raise _no_such_source(version_name, source, ", ".join(manifest.accounts))
    if len(manifest.accounts) == 1:
        return manifest
    # The ledger states the source of each unit, and a file is of one unit.
    records = Catalog(store).ledger(
        manifest.dataset, manifest.version, manifest=manifest
    )
    if not records:
        raise ConfigError(
            f"source: {version_name} has no ledger, which assigns units to {source!r}; export all"
        )
    source_files = tuple(
        file for file in manifest.files if records[file.unit].source == source
    )
    return replace(manifest, files=source_files)


def _no_such_source(name: str, source: str, sources: str) -> ConfigError:
    return ConfigError(
        f"source: {name} has no files with rows of {source!r} alone; expected one of {sources}"
    )
