"""``tokenlake peek``, ``report``, ``export`` and ``push``: data that leaves a store."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import orjson
from cyclopts import Parameter, validators
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.base.numbers import count
from tokenlake.cli.console import (
    AsJson,
    Name,
    StoreUrl,
    catalog_of,
    counting,
    emit,
    note,
    print_json,
    working,
)
from tokenlake.cli.serving import DEFAULT_PORT, Port, serve_until_interrupt
from tokenlake.cli.store_pages import write_store_pages
from tokenlake.cli.streams import can_show
from tokenlake.config.formats import SaveFormat
from tokenlake.errors import ConfigError
from tokenlake.etl.export import ExportProgress
from tokenlake.etl.export.trainers import lacks_eos
from tokenlake.etl.export.version import export_version
from tokenlake.etl.publish import SCANNED_ROWS, PushReport, push_to_hub
from tokenlake.etl.publish.push_report import PushProgress
from tokenlake.etl.reports.terminal import near, stdout
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.query.report import report as write
from tokenlake.query.sequences import (
    Sequence,
    decoders_of,
    mixed_as,
    read_sequences,
    shortened,
)
from tokenlake.query.store_pages import SAMPLE_ROWS
from tokenlake.runtime.store.schemes import default_store


def peek(
    name: Name,
    /,
    *,
    number: Annotated[
        int, Parameter(name=["-n", "--number"], validator=validators.Number(gte=1))
    ] = 3,
    row: int = 0,
    split: str | None = None,
    full: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Decode a few rows of a dataset, and show the boundaries and the provenance of
    their documents.

    If only some tokens count toward the loss, ▸ marks them.

    The version's own copy of its tokenizer decodes the rows; special tokens stay
    visible.

    Args:
        number: Number of rows, at least 1. Default: 3.
        row: Index of the first row; negative numbers count from the end. Default: 0.
        split: Name of the split. Default: train.
        full: Print whole texts.
    """
    catalog = catalog_of(store)
    manifest = catalog.manifest(*catalog.resolve(name))
    decoders = decoders_of(catalog.store, manifest)
    names = mixed_as(catalog, manifest)
    sequences = list(read_sequences(catalog.store, manifest, split, row, number))
    if json:
        print_json([_as_json(sequence, decoders, names) for sequence in sequences])
        return 0
    for index, sequence in enumerate(sequences):
        if index > 0:
            stdout().print()
        _print_sequence(sequence, decoders, names, full)
    return 0


def _print_sequence(
    sequence: Sequence,
    decoders: dict[str, Decoder],
    names: dict[tuple[str, str], str],
    full: bool,
) -> None:
    """Print a row: a heading, the text of its segments, and the kept fields.

    Args:
        sequence: Row to print.
        decoders: Source -> decoder of its tokens.
        names: Name of each source and file in the mixture.
        full: True to print whole texts.
    """
    # A terminal without these characters gets similar ones.
    console = stdout()
    has_symbols = can_show("─▸", sys.stdout)
    rule = "-- "
    loss_mark = "> "
    if has_symbols:
        rule = "── "
        loss_mark = "▸ "
    heading = Text(f"{sequence.split} row {count(sequence.row)}", style="bold")
    console.print(heading, Text(f"  {sequence.content()}", style="dim"), sep="")
    first_place = 0  # place of the segment's first token in the row
    for segment in sequence.segments:
        # The line of a segment, such as `-- code  asyncio/events.py:0  ids 0-511`; for
        # a preference `-- chosen  pairs/a.jsonl:0  12 tokens`.
        segment_line = Text.assemble((rule, "dim"))
        if segment.part:
            segment_line.append(f"{segment.part}  ", "bold")
        segment_line.append(printable(segment.origin(names)), "cyan")
        segment_line.append(f"  {segment.place(first_place)}", "dim")
        console.print(segment_line)
        # The texts of its runs. Only a dataset with a loss mask has marks.
        for is_learned, ids in segment.runs():
            mark = ""
            if segment.learned is not None and is_learned:
                mark = loss_mark
            body = _body(decoders[segment.source].text(ids), full)
            console.print(Text.assemble((mark, "bold green"), body))
        first_place += len(segment.ids)
    for field_name, value in sequence.kept.items():
        value_text = printable(orjson.dumps(value, default=str).decode())
        body = _body(value_text, full)
        heading_of_field = (f"   {printable(field_name)}: ", "dim")
        console.print(Text.assemble(heading_of_field, body))


def _as_json(
    sequence: Sequence, decoders: dict[str, Decoder], names: dict[tuple[str, str], str]
) -> dict[str, Any]:
    """Return the record of a row that ``--json`` prints.

    Fields that a row does not have are left out.
    """
    record = asdict(sequence)
    if sequence.label is None:
        del record["label"]
    segment_records = record["segments"]
    for segment, segment_record in zip(sequence.segments, segment_records, strict=True):
        if segment.part is None:
            del segment_record["part"]
        if segment.learned is None:
            del segment_record["learned"]
        # Of a mixture that names the source otherwise.
        mixture_name = names.get((segment.source, segment.path))
        if mixture_name is not None:
            segment_record["mixed_as"] = mixture_name
        segment_record["ids"] = list(segment.ids)
        segment_record["text"] = decoders[segment.source].text(segment.ids)
    return record


def _body(text: str, full: bool) -> Text:
    """Return a text with visible control characters.

    Without `full`, the middle of a long text is left out.
    """
    if full:
        return Text(printable(text.rstrip("\n")))
    head, hidden, tail = shortened(text)
    gap = ""
    if hidden:
        gap = f" ... {count(hidden)} characters ... "
    return Text.assemble(printable(head), (gap, "dim italic"), printable(tail))


def export(
    name: Name,
    target: Annotated[str, Parameter(name="TARGET")],
    /,
    *,
    format: SaveFormat = "parquet",
    compression: Literal["none", "gzip", "lz4", "zstd"] | None = None,
    num_shards: Annotated[int | None, Parameter(metavar="N")] = None,
    max_shard_size: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    split: str | None = None,
    source: str | None = None,
    provenance: bool = False,
    shard_column: Annotated[str | None, Parameter(metavar="FIELD")] = None,
    dtype: Literal["uint16", "uint32", "int32"] | None = None,
    drop_loss_mask: bool = False,
    append_eos: bool = False,
    overwrite: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Write a version as a folder of data files for any tool, or for another trainer.

    Parquet, Arrow and JSON Lines have all columns. The other formats hold tokens for a
    trainer: megatron for Megatron-Core, numpy for nanoGPT, npy for OLMo-core, mds for
    MosaicML Streaming, litdata, and array_record for Grain. Of these, mds, litdata and
    array_record keep padding, masks and segments, and npy keeps the loss mask.

    Every page is compared with its checksum. The folder appears when it is complete,
    with a manifest, the configuration and the tokenizer in `_tokenlake/`. The files of a
    folder that already holds this export are compared with their sizes and hashes (in a
    bucket, sizes): missing files are written again, and one that differs is an error.
    `tokenlake verify FOLDER` checks an export anywhere. After an interruption the same command
    resumes: finished files are compared with their hashes and kept.

    Args:
        target: The folder: a path, s3://bucket/folder or gs://bucket/folder.
        format: Format of the files. Default: parquet.
        compression: Compression of the files. Default: zstd for Parquet, otherwise
            none.
        num_shards: Number of files per split.
        max_shard_size: Largest size of a file, such as 100MB. Default: 500MB; 64MiB in
            mds and litdata; one file per split in megatron, numpy and npy.
        split: Write only this split.
        source: Write only the rows of this source.
        provenance: Keep the provenance columns, which name the input of each document.
        shard_column: One of additional_fields. Each of its values, at most 256, gets
            separate files.
        dtype: Type of the ids in megatron, numpy and npy. Default: the smallest that
            holds the vocabulary.
        drop_loss_mask: Leave out the loss mask in a format of trainers, so that all
            tokens count toward the loss.
        append_eos: End each document with EOS in a format of a trainer, unless it does
            already. Packed rows have EOS.
        overwrite: Replace the data files of a folder that is not empty, and those of a
            damaged export.
    """
    with working(f"exporting {printable(name)}"):
        stats = export_version(
            store or default_store(),
            target,
            format,
            compression,
            num_shards,
            max_shard_size,
            name=name,
            split=split,
            source=source,
            overwrite=overwrite,
            provenance=provenance,
            shard_column=shard_column,
            dtype=dtype,
            drop_loss_mask=drop_loss_mask,
            append_eos=append_eos,
            on_progress=_note_resumption,
        )
    # The outcome on stdout, for people or programs.
    rows = numbers.plural(stats.num_examples, "row")
    files = numbers.plural(stats.num_shards, "file")
    sentence = f"{rows} in {near(target)}: {files}, {numbers.size(stats.total_bytes)}"
    if stats.compared == "hashes":
        sentence += "; already there, sizes and hashes match"
    elif stats.compared == "sizes":
        sentence += (
            f"; already there, sizes match (`tokenlake verify {near(target)}` also "
            "compares hashes)"
        )
    emit(asdict(stats), json, lambda: stdout().print(sentence))
    if stats.missing_paths:
        note(_note_on_missing(stats.missing_paths))
    # A trainer that reads documents end to end would not know where they end.
    catalog = catalog_of(store)
    if not append_eos and lacks_eos(catalog.manifest(*catalog.resolve(name)), format):
        note(
            "note: trainers lay the documents of this format end to end, and these have no EOS; --append-eos adds it"
        )
    return 0


def _note_on_missing(missing_paths: list[str]) -> str:
    """Return a sentence on files that were missing from an export."""
    names = ", ".join(printable(path) for path in missing_paths[:_SHOWN_MISSING])
    if len(missing_paths) > _SHOWN_MISSING:
        names += ", ..."
    if len(missing_paths) == 1:
        return f"note: 1 file of this export was missing, and it was written again: {names}"
    return f"note: {len(missing_paths)} files of this export were missing, and they were written again: {names}"


def _note_resumption(progress: ExportProgress) -> None:
    """Say on stderr how much of an interrupted export is finished."""
    if not progress.is_resumed:
        return
    rows = f"{count(progress.rows)} of {numbers.plural(progress.rows_total, 'row')}"
    if progress.shards_total is None:
        finished = f"{numbers.plural(progress.shards, 'file')} with {rows}"
        if progress.shards == 0:
            finished = rows
    else:
        finished = f"{count(progress.shards)} of {count(progress.shards_total)} shards"
    verb = "is" if finished.startswith("1 file ") else "are"
    note(f"resumes: {finished} {verb} finished")


_SHOWN_MISSING = 3  # missing files of an export that are named

_SHOWN_FINDINGS = 5  # places that look like secrets and are listed


def push(
    name: Name,
    /,
    *,
    repo: str,
    public: bool = False,
    revision: Annotated[str, Parameter(metavar="BRANCH")] = "main",
    message: str | None = None,
    token_env: Annotated[str | None, Parameter(metavar="NAME")] = None,
    scan_data: Annotated[int, Parameter(metavar="N")] = SCANNED_ROWS,
    strict: bool = False,
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Upload a version to a dataset repository of the Hugging Face Hub, private unless
    --public is given.

    This uploads the files that the manifest lists: shards, tokenizer, configuration,
    card, ledger and the manifest. Each file is compared with its hash first; all of
    them go up in one commit with a tag such as v3. The quarantine, the runs and files
    that the manifest does not list are never uploaded. A version that is already there
    is not sent again. An interrupted push leaves nothing visible, and the same command
    resumes it.

    Texts and Parquet metadata are searched for secrets: known forms of credentials,
    random values under names such as `password`, and the secrets of this process and
    its environment. Any finding stops the push. A few rows of each shard are also
    decoded and searched; a finding there is reported, or stops the push with --strict.

    `load_dataset("org/name", revision="v3")` reads the version. `hf download org/name
    --repo-type dataset --revision v3 --local-dir STORE/NAME/v3` makes it a version of a
    store again, without its quarantine.

    Args:
        repo: The dataset repository, org/name; it is created if it does not exist.
        public: Make the repository public, or push to a public one.
        revision: The branch to push to. Default: main.
        message: Message of the commit. Default: the name and number of the version.
        token_env: The environment variable that holds the token. Default: HF_TOKEN,
            then the saved login.
        scan_data: Rows of each shard to decode and search for secrets; 0 for none.
            Default: 8.
        strict: Stop the push also if rows contain secrets.
        dry_run: Check and search, and print what a push would do. Needs no token.
    """
    if scan_data < 0:
        raise ConfigError(
            f"--scan-data is a number of rows, 0 or more; got {scan_data}"
        )
    # The token itself is never an argument: other users of the machine can read those.
    token: str | None = None
    if token_env is not None:
        token = os.environ.get(token_env, "").strip()
    if token == "":
        raise ConfigError(
            f"--token-env {token_env}: there is no such environment variable, or it is empty; set it to a "
            "token with write access"
        )
    # Search, upload and commit; then secrets that were found in rows are reported.
    with counting("pushing") as counter:

        def show_progress(progress: PushProgress) -> None:
            counter.set(progress.bytes, progress.bytes_total)

        pushed = push_to_hub(
            store or default_store(),
            repo,
            name=name,
            public=public,
            revision=revision,
            message=message,
            token=token,
            dry_run=dry_run,
            scan_data=scan_data,
            strict=strict,
            on_progress=show_progress,
        )
    if pushed.findings:
        _warn_of_secrets(pushed)
    emit(pushed.to_json(), json, lambda: stdout().print(_push_in_words(pushed)))
    return 0


def _warn_of_secrets(report: PushReport) -> None:
    """Say on stderr how many sampled places look like secrets, and list some.

    The secret itself is never shown.
    """
    findings = report.findings
    kinds = Counter(finding.kind for finding in findings)
    counts = ", ".join(f"{kind}: {places}" for kind, places in kinds.most_common())
    places = numbers.plural(len(findings), "place")
    rows = numbers.plural(report.scanned_rows, "row")
    verb = "look"
    if len(findings) == 1:
        verb = "looks"
    note(f"warning: {places} in {rows} of the data {verb} like secrets ({counts}):")
    for finding in findings[:_SHOWN_FINDINGS]:
        note(f"  {finding}")


def _push_in_words(report: PushReport) -> str:
    """Return the sentence about the outcome of a push."""
    version = f"{report.dataset} v{report.version}"
    visibility = "public"
    if report.private:
        visibility = "private"
    place = f"{report.url} ({visibility}, {report.branch})"
    size = f"{numbers.plural(report.files, 'file')}, {numbers.size(report.bytes)}"
    # A sentence says which of the files, the commit and the tag were there before.
    match report.outcome:
        case "unchanged":
            return f"{version} is at {report.url} already, as {report.tag}; nothing was sent"
        case "tagged":
            return f"{version} was already at {place}; it now has the tag {report.tag}, and nothing else was sent"
        case "would tag":
            return f"{version} is already at {place}; a push would only set the tag {report.tag}"
        case "would push":
            # Without a token a private repository looks as if it did not exist.
            repository = ""
            if report.created is None:
                repository = ", which nobody without a token can see"
            elif report.created:
                repository = ", which it would create"
            return f"{version} would go to {place}{repository}, as {report.tag}: {size}; nothing was sent"
        case "pushed":
            return f"{version} is at {place}, as {report.tag}: {size}"


def report(
    name: Name | None = None,
    /,
    *,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], metavar="PATH")
    ] = None,
    include: Annotated[tuple[str, ...], Parameter(metavar="PATH")] = (),
    rows: Annotated[
        int, Parameter(metavar="N", validator=validators.Number(gte=0))
    ] = SAMPLE_ROWS,
    serve: bool = False,
    port: Port = DEFAULT_PORT,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Write a report of a version as one HTML file; without a NAME, the pages of a
    whole store.

    The report of a version shows the audit as a flow, lengths, how full rows are,
    shares of a mixture, bad records, decoded rows, the share that each host of a loader
    reads, the versions of the dataset and their differences, and the lineage. Only some
    row groups of a large version are read; the report names them.

    The pages of a store list its datasets, versions and unfinished builds, draw their
    lineage, and have a report and a browser of decoded rows for each version. They need
    no server and no network. Written again, only pages of versions that changed are
    replaced.

    Args:
        output: File of a report, or folder of pages. Default: NAME-vN.html, or
            store-report, in this folder.
        include: An export's folder or a statement's file to show in the lineage of a
            store. Repeatable.
        rows: Number of decoded rows of a version in the pages of a store, about; 0 for
            none. Default: 64.
        serve: Serve the pages on 127.0.0.1 until Ctrl-C.
    """
    # Without a name the report is that of the store.
    place = store or default_store()
    if name is None:
        return write_store_pages(
            place, output, include, rows, serve=serve, port=port, json=json
        )
    if include:
        raise ConfigError(
            "--include shows exports and statements in the lineage of a whole store, and the report of one version has "
            f"none; leave out {name}, or --include"
        )
    # A report that is only served needs no file in this folder.
    if serve and output is None:
        return _serve_report(place, name, port)
    with working(f"writing the report of {printable(name)}"):
        path = write(place, output, name=name)
    size = path.stat().st_size
    record = {"path": str(path), "bytes": size}
    sentence = f"{path}: {numbers.size(size)}"
    emit(record, json, lambda: stdout().print(sentence, soft_wrap=True))
    if serve:
        return _serve_report(place, name, port)
    return 0


def _serve_report(store: str, name: str, port: int) -> int:
    """Serve the report of a version from a folder of its own.

    Other files beside the report must not be readable.
    """
    with TemporaryDirectory(prefix="tokenlake-report-") as folder:
        write(store, Path(folder, "index.html"), name=name)
        return serve_until_interrupt(Path(folder), port)
