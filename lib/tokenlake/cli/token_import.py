"""``tokenlake import``: token ids that other tools made become a version."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter, validators
from rich.text import Text

from tokenlake.base.markup import printable
from tokenlake.cli.console import (
    AsJson,
    Executor,
    Overrides,
    StoreUrl,
    Workers,
    catalog_of,
    print_json,
    with_store,
)
from tokenlake.cli.run import print_summary, run_build
from tokenlake.config.tokens import EosRule, IdType
from tokenlake.etl.reports.terminal import stdout
from tokenlake.etl.runner import BuildResult
from tokenlake.etl.token_import import ImportFormat, import_configuration
from tokenlake.query.sequences import decoders_of, read_sequences, shortened

_SAMPLE_IDS: Final = 256  # of a segment that are decoded for the sample
_SAMPLE_SEGMENTS: Final = 3  # of the first row


def import_files(
    *data: Annotated[
        str,
        Parameter(name="DATA", help="Folders, files, globs or URLs of the token ids."),
    ],
    tokenizer: str,
    format: ImportFormat,
    name: str | None = None,
    split: str | None = None,
    eos: EosRule | None = None,
    eos_id: Annotated[int | None, Parameter(metavar="ID")] = None,
    field: Annotated[str | None, Parameter(metavar="FIELD")] = None,
    loss_field: Annotated[str | None, Parameter(metavar="FIELD")] = None,
    dtype: IdType | None = None,
    length: Annotated[
        int | None, Parameter(metavar="N", validator=validators.Number(gte=1))
    ] = None,
    packed: Annotated[
        int | None, Parameter(metavar="N", validator=validators.Number(gte=1))
    ] = None,
    on_bad_record: Literal["fail", "quarantine"] = "fail",
    print_config: Annotated[bool, Parameter(negative="")] = False,
    workers: Workers = None,
    executor: Executor = None,
    prefect: Annotated[bool, Parameter(negative="--no-prefect")] = True,
    set_: Overrides = (),
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Import token ids that other tools made as a dataset version, unchanged.

    Every id is compared with the vocabulary of the tokenizer, and the audit of the
    version counts every id. The version can be packed, mixed, loaded, verified and
    explained like any other. Files of a folder that `tokenlake export` wrote are compared
    with its manifest first. An interrupted import is resumed by the same command. The
    ids of the first row are decoded at the end: read them.

    Args:
        tokenizer: The tokenizer that made the ids: a Hub id, a folder or a
            tokenizer.json.
        format: Format of the files. megatron: .bin and .idx. numpy: ids alone in .bin
            or .npy (nanoGPT, OLMo-core, llm.c). mds: MosaicML Streaming. litdata:
            chunks and index.json. array_record: Grain. datasets: a folder of
            save_to_disk. parquet, arrow, jsonl: a column of lists of ids.
        name: Name of the dataset. Default: that of the folder or file.
        split: Read only this split of a folder whose folders or file names say splits.
            Default: all splits of a folder that `tokenlake export` wrote, which become
            splits of the version; otherwise train.
        eos: End of a document. keep: its record, with EOS if it has one. split: each
            EOS. none: each EOS, which is left out. Default: split for numpy, otherwise
            keep.
        eos_id: Id of EOS in the files. Default: the tokenizer's.
        field: Field of the ids. Default: input_ids, otherwise tokens.
        loss_field: Field of the loss mask. Default: loss_mask or labels, where records
            have one.
        dtype: Type of the ids in files that do not state it. Default: found by the
            first ids.
        length: Cut arrays of ids (numpy) into records of N ids.
        packed: Records are packed rows of N ids, and are stored as they are; shorter
            ones are padded.
        on_bad_record: fail: a bad record ends the import. quarantine: set it
            aside and count it.
        print_config: Print the configuration of the import as JSON, for a file or a
            deployment, and import nothing.
        executor: Where units run: local, on this machine (default); store, wherever
            `tokenlake work` runs; ray or dask, on a cluster.
        prefect: Run as a Prefect flow (default); --no-prefect runs the library alone.
    """
    config = import_configuration(
        data,
        tokenizer=tokenizer,
        format=format,
        name=name,
        store=store,
        split=split,
        packed=packed,
        on_bad_record=on_bad_record,
        eos=eos,
        eos_token_id=eos_id,
        field=field,
        loss_field=loss_field,
        dtype=dtype,
        length=length,
    )
    # The configuration can be kept, and run again without this command.
    if print_config:
        print_json(config)
        return 0
    result, tallies = run_build(
        config, with_store(set_, store), workers, executor, prefect=prefect
    )
    print_summary(result, tallies, json)
    if not json:
        _print_sample(result, store)
    return 0


def _print_sample(result: BuildResult, store: str | None) -> None:
    """Print the beginning of the first row as text.

    Wrong text is the only sign of a wrong tokenizer: its ids are valid, too.
    """
    # By the version's own copy of the tokenizer, as a trainer would decode it.
    catalog = catalog_of(store)
    decoders: dict[str, Any] = dict(decoders_of(catalog.store, result.manifest))
    split: str | None = None
    if result.manifest.files:
        split = result.manifest.files[0].split
    sequences = list(read_sequences(catalog.store, result.manifest, split, 0, 1))
    if not sequences:
        return
    console = stdout()
    console.print(Text("\nFirst row, decoded", style="bold"))
    for segment in sequences[0].segments[:_SAMPLE_SEGMENTS]:
        text = decoders[segment.source].text(segment.ids[:_SAMPLE_IDS])
        head, hidden, tail = shortened(text)
        gap = ""
        if hidden:
            gap = f" ... {hidden:,} characters ... "
        console.print(Text(f"  {printable(head)}{gap}{printable(tail)}"))
