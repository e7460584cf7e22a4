"""Choices of a source of token ids that only its files and tokenizer can decide.

1. Which type do ids have, where the files do not state one?
2. Which field holds the ids, and which fields mark the loss, padding and segments?
3. Where do documents end?

Step 1: the type is the smallest one that holds the vocabulary, as nanoGPT and OLMo-core
choose it. Ids that were written in a wider type look like ids with a 0 behind each of
them. The type is doubled while this is so.

Example: the ids 5 and 7 as uint32 are ``05 00 00 00 07 00 00 00``. Read as uint16 they
are 5 0 7 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tokenlake.base.checks import did_you_mean
from tokenlake.config.resolved import ResolvedSource, ResolvedTokens
from tokenlake.errors import ConfigError, DamagedFileError
from tokenlake.etl.layouts import numpy_flat
from tokenlake.etl.plan.first_records import FIELDS_SHOWN, field_names
from tokenlake.etl.plan.planned_tokenizer import PlannedTokenizer
from tokenlake.etl.sources.first_records import first_rows
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.unit.imported import MASK_FIELDS, SEGMENTS

IdType: TypeAlias = Literal["uint16", "int32", "uint32", "int64"]

_UNTYPED_FORMATS: Final = ("numpy", "mds", "array_record")
"""Formats of which some files do not state the type of their ids."""

_INPUT_IDS: Final = "input_ids"
_OTHER_FIELDS: Final = ("tokens", "token_ids", "ids")
"""Fields of ids that other tools write, in the order in which they are looked for."""
_LOSS_FIELDS: Final = ("loss_mask", "labels")
"""Fields that mark the loss, in the same order."""
# Number of ids that a uint16 holds.
_UINT16_IDS: Final = 1 << 16

# Number of records of the sample.
_SAMPLE_RECORDS: Final = 64
_SAMPLE_IDS: Final = 1024
"""Ids of a record of the sample, of a stream of ids."""
_LEAST_IDS: Final = 32
"""Number of ids below which zeros behind ids show nothing."""
# Type of twice the size. A vocabulary never needs more than 32 bits with a sign.
_WIDER: Final[dict[IdType, IdType]] = {"uint16": "uint32", "uint32": "int64"}


def settle_tokens(
    source: ResolvedSource, files: Sequence[InputFile], tokenizer: PlannedTokenizer
) -> tuple[ResolvedSource, list[str]]:
    """Return a source of ids with all choices made, and notes for the plan.

    Args:
        source: Source whose records hold ids.
        files: Its input files.
        tokenizer: Tokenizer that made the ids.

    Raises:
        ConfigError: The records have no field of ids, or nothing says where documents
            end.
        SourceError: A file cannot be read.
    """
    tokens = source.tokens
    assert tokens is not None
    notes: list[str] = []
    tokens = replace(tokens, vocab_size=tokenizer.files.vocab_size)
    # Companions (indexes, metadata) hold no ids.
    data_files = [file for file in files if not file.companion]
    try:
        # 1. The type of ids.
        has_untyped_file = any(file.format in _UNTYPED_FORMATS for file in data_files)
        if tokens.dtype is None and has_untyped_file:
            dtype = _type_of_ids(source, tokens, data_files, notes)
            tokens = replace(tokens, dtype=dtype)
        # 2. The fields.
        if data_files:
            rows = _sample(source, tokens, data_files)
            tokens = _with_fields(tokens, field_names(rows), notes)
        # 3. The ends of documents.
        tokens = _with_ends(tokens, data_files, tokenizer)
    except ConfigError as error:
        raise ConfigError(
            f"datasets.{source.name}: {error}", **error.details
        ) from error
    return replace(source, tokens=tokens), [f"{source.name}: {note}" for note in notes]


def _sample(
    source: ResolvedSource, tokens: ResolvedTokens, files: Sequence[InputFile]
) -> Rows:
    """Return the first records, with all fields.

    A stream of ids is cut into records, as if it had no documents.
    """
    options = replace(tokens, length=_SAMPLE_IDS)
    return first_rows(replace(source, tokens=options), files, _SAMPLE_RECORDS)


def _type_of_ids(
    source: ResolvedSource,
    tokens: ResolvedTokens,
    files: Sequence[InputFile],
    notes: list[str],
) -> IdType:
    """Return the type of ids in files that do not state one.

    Files that state one do not use it.
    """
    stated = _type_of_metadata(source, files)
    if stated is not None:
        return stated
    # The smallest type of the vocabulary, doubled while the ids look wider.
    dtype: IdType = "uint32"
    if tokens.vocab_size <= _UINT16_IDS:
        dtype = "uint16"
    while dtype in _WIDER and _are_wider(source, replace(tokens, dtype=dtype), files):
        dtype = _WIDER[dtype]
    states_none = any(file.format in ("numpy", "array_record") for file in files)
    if states_none:
        notes.append(
            f"ids in files that do not state their type are read as {dtype}; tokens.dtype names another one"
        )
    return dtype


def _type_of_metadata(
    source: ResolvedSource, files: Sequence[InputFile]
) -> IdType | None:
    """Return the type of ids in ``metadata.json`` beside a stream of ids.

    None if no stream has such a file.
    """
    for file in files:
        if file.format != "numpy":
            continue
        for companion in file.companions:
            if companion.companion != numpy_flat.METADATA:
                continue
            with opened(companion, source.storage_options) as content:
                metadata_bytes = content.pread(companion.size, 0)
            metadata = numpy_flat.FlatMetadata.of(metadata_bytes, companion.url)
            if metadata.dtype == "uint16":
                return "uint16"
            return "uint32"
    return None


def _are_wider(
    source: ResolvedSource, tokens: ResolvedTokens, files: Sequence[InputFile]
) -> bool:
    """Whether the first ids look as if they were written in a type of twice the size.

    Each of them has a 0 behind it then.
    """
    try:
        rows = _sample(source, tokens, files)
    except DamagedFileError:
        # The size of a file is no multiple of this type. The build says so, if it is no
        # multiple of a wider one either.
        return False
    # Ids that are all 0 show nothing, and neither do a few.
    id_count = 0
    has_ids = False
    for ids in _lists_of(rows, tokens):
        even_count = len(ids) // 2 * 2
        if ids[1:even_count:2].any():
            return False
        has_ids |= bool(ids[:even_count:2].any())
        id_count += even_count
    return has_ids and id_count >= _LEAST_IDS


def _lists_of(rows: Rows, tokens: ResolvedTokens) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the ids of each record of a sample."""
    names = field_names(rows)
    for field in (tokens.field, *_OTHER_FIELDS):
        if field in names:
            for record_ids in rows.values(field):
                yield np.asarray(record_ids or (), np.int64)
            return


def _with_fields(
    tokens: ResolvedTokens, names: Sequence[str], notes: list[str]
) -> ResolvedTokens:
    """Return the options with the fields that the records have.

    Args:
        tokens: Options of the source.
        names: Fields of the first records; none where there are no records.
        notes: Notes for the plan, which are added to.

    Raises:
        ConfigError: The records have no field of ids.
    """
    # 1. The ids.
    if not names:
        return tokens
    field = tokens.field
    if field == _INPUT_IDS and field not in names:
        candidates = [candidate for candidate in _OTHER_FIELDS if candidate in names]
        if candidates:
            field = candidates[0]
            notes.append(f"the ids are in the field {field!r}")
    for option_field in (field, tokens.loss_field or field):
        if option_field not in names:
            shown_names = ", ".join(list(names)[:FIELDS_SHOWN])
            option = "tokens.loss_field"
            if option_field == field:
                option = "tokens.field"
            raise ConfigError(
                f"{option}: got {option_field!r}, but none of the first records has it; their fields are "
                f"{shown_names}{did_you_mean(option_field, names)}",
                field=option_field,
            )

    # 2. The loss, if a usual field is there.
    loss_field = tokens.loss_field
    if loss_field is None:
        loss_fields = [candidate for candidate in _LOSS_FIELDS if candidate in names]
        if loss_fields:
            loss_field = loss_fields[0]
            notes.append(f"the loss mask is made of the field {loss_field!r}")

    # 3. Padding and segments.
    mask_fields = tuple(candidate for candidate in MASK_FIELDS if candidate in names)
    if mask_fields:
        notes.append(f"padding is left out by {' and '.join(mask_fields)}")
    return replace(tokens, field=field, loss_field=loss_field, mask_fields=mask_fields)


def _with_ends(
    tokens: ResolvedTokens, files: Sequence[InputFile], tokenizer: PlannedTokenizer
) -> ResolvedTokens:
    """Return the options with the EOS rule, and the id of EOS if the rule needs it.

    Raises:
        ConfigError: EOS ends documents, and nothing says which id it is.
    """
    # 1. A stream of ids without borders or a length is divided by EOS alone.
    needs_eos = False
    for file in files:
        companion_kinds = [companion.companion for companion in file.companions]
        has_borders = numpy_flat.BORDERS_SUFFIX in companion_kinds
        if file.format == "numpy" and not has_borders and tokens.length is None:
            needs_eos = True

    # 2. The rule. Rows that were packed elsewhere have documents behind each other.
    eos = tokens.eos
    if eos is None:
        is_packed = tokens.row_length is not None
        has_joined_documents = is_packed and SEGMENTS not in tokens.mask_fields
        eos = "keep"
        if needs_eos or has_joined_documents:
            eos = "split"
    if eos == "keep" and not needs_eos:
        return replace(tokens, eos=eos, eos_token_id=None)

    # 3. The id, of the configuration or of the tokenizer.
    eos_id = tokens.eos_token_id
    if eos_id is None:
        eos_id = tokenizer.eos_id
    if not 0 <= eos_id < tokens.vocab_size:
        raise ConfigError(
            f"tokens.eos_token_id: EOS ends documents (eos: {eos}), and tokenizer {tokenizer.files.name!r} names no "
            f"EOS token; set the id, from 0 to {tokens.vocab_size - 1}",
            tokenizer=tokenizer.files.name,
        )
    return replace(tokens, eos=eos, eos_token_id=eos_id)
