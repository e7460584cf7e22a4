"""Judgement of sampled records by the code of a build.

A record that can be read may still be bad: a conversation without a role, a text that
is null. The first records of a sampled file are read again, and prepared like those of
a build of the proposal, so that an inspection and a plan name the same bad records.

A remote file is not read again, which takes time and traffic. Conversations, prompts
and preferences need a tokenizer of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tokenlake.config.load import load_config
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import TokenlakeError
from tokenlake.etl.introspection.file_group import FileGroup
from tokenlake.etl.introspection.sample import (
    BLOCK_BYTES,
    FILE_BYTES,
    SAMPLE_ROWS,
    FileSample,
    first_blocks,
)
from tokenlake.etl.plan.planned_tokenizer import plan_tokenizers
from tokenlake.etl.plan.source import settle
from tokenlake.etl.sources.bad_reasons import bad_reasons
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.splits import split_file
from tokenlake.etl.tokenizers.files import NO_TOKENIZER
from tokenlake.etl.unit.documents import Prepared, Recipe

_NAME: Final = "inspected"


def judged(
    part: FileGroup, entry: Mapping[str, Any], tokenizer: str | None
) -> FileGroup:
    """Return a group of files with the bad records that a build would find.

    Samples that cannot be judged stay as they are.

    Args:
        part: Group of files.
        entry: Options of a configuration's dataset for it.
        tokenizer: Tokenizer of the proposal; None for none.
    """
    files = [look.file for look in part.good if _can_be_judged(look)]
    if not files:
        return part
    # A tokenizer or a configuration that a build refuses is not this inspection's
    # subject: `plan` reports it.
    try:
        source, recipe = _recipe(part, entry, tokenizer, files)
    except TokenlakeError:
        return part
    if recipe is None:
        return part
    samples: list[FileSample] = []
    for look in part.looks:
        if look.damage is None and _can_be_judged(look):
            look = _judged_sample(look, source, recipe)
        samples.append(look)
    return replace(part, looks=tuple(samples))


def _can_be_judged(look: FileSample) -> bool:
    """Return True for a sample of a local file whose first records could be read."""
    # A document is read as a whole, which is too much of a large one.
    is_large_document = look.lengths is not None and look.file.size > FILE_BYTES
    has_records = look.remark is None and look.seen > 0
    return look.file.is_local and has_records and not is_large_document


def _recipe(
    part: FileGroup,
    entry: Mapping[str, Any],
    tokenizer: str | None,
    files: list[InputFile],
) -> tuple[ResolvedSource, Recipe | None]:
    """Return the source of a build, and its preparation; None if a tokenizer lacks.

    A Hub id is not looked up, which needs the network.
    """
    has_tokenizer = tokenizer is not None and Path(tokenizer).expanduser().exists()
    dataset = {**entry, "name": _NAME, "on_bad_record": "quarantine"}
    config = load_config(
        {
            "name": _NAME,
            "datasets": [dataset],
            "default_tokenizer": tokenizer if has_tokenizer else "none",
        }
    )
    build = resolve(config)
    source = build.sources[0]
    if not has_tokenizer:
        # A text is judged without a tokenizer; everything else is rendered.
        if part.kind != "text" or not source.texts.is_plain:
            return source, None
        return source, Recipe(source, NO_TOKENIZER)
    planned = plan_tokenizers(build)[source.name]
    eos_id = planned.eos_id if planned.eos_id >= 0 else None
    source, _ = settle(source, files, planned.files, eos_id)
    return source, Recipe(source, planned.files)


def _judged_sample(
    look: FileSample, source: ResolvedSource, recipe: Recipe
) -> FileSample:
    """Return a sample with the bad records that a build finds in its first records."""
    batches: list[Prepared] = []
    try:
        prepared = _prepared(look.file, source, recipe)
        first_blocks(prepared, lambda batch: batch.rows_read, look.file, batches)
    except TokenlakeError:
        # The file is damaged after its first records, which a build reports.
        return look
    records = sum(batch.rows_read for batch in batches)
    reasons = bad_reasons(batches, source.storage_options)
    return replace(look, bad=reasons, judged=records)


def _prepared(
    file: InputFile, source: ResolvedSource, recipe: Recipe
) -> Iterable[Prepared]:
    """Read the records of a file as a build does, or the sampled ones of many."""
    part = FileRange(file=file, start=0, stop=file.size, weight=file.size)
    # A row group may be large: only the rows of the sample are read.
    if file.has_blocks:
        part = split_file(file, 1, source.storage_options)[0]
        part = replace(part, rows=SAMPLE_ROWS)
    return recipe.read(part, BLOCK_BYTES)
