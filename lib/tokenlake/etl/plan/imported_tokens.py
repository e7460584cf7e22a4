"""The choices of a source of token ids that only its files and its tokenizer can
decide.

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
_UINT16_IDS: Final = 1 << 16

_SAMPLE_RECORDS: Final = 64
_SAMPLE_IDS: Final = 1024
"""Ids of a record of the sample, of a stream of ids."""
_LEAST_IDS: Final = 32
"""Number of ids below which zeros behind ids show nothing."""
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
    data_files = [file for file in files if not file.companion]
    try:
        # 1. The type of ids.
        if tokens.dtype is None and any(
            file.format in _UNTYPED_FORMATS for file in data_files
        ):
            tokens = replace(
                tokens, dtype=_type_of_ids(source, tokens, data_files, notes)
            )
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
    """Return the first records, with all fields. A stream of ids is cut into
    records, as if it had no documents.
    """
    options = replace(tokens, length=_SAMPLE_IDS)
    return first_rows(replace(source, tokens=options), files, _SAMPLE_RECORDS)


def _type_of_ids(
    source: ResolvedSource,
    tokens: ResolvedTokens,
    files: Sequence[InputFile],
    notes: list[str],
) -> IdType:
    """Return the type of ids in files that do not state one; files that state one do
    not use it.
    """
    stated = _type_of_metadata(source, files)
    if stated is not None:
        return stated
    dtype: IdType = "uint16" if tokens.vocab_size <= _UINT16_IDS else "uint32"
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
    """Return the type of ids in ``metadata.json`` beside a stream of ids; None where
    there is no such file.
    """
    for file in files:
        if file.format != "numpy":
            continue
        for companion in file.companions:
            if companion.companion != numpy_flat.METADATA:
                continue
            with opened(companion, source.storage_options) as data:
                metadata = numpy_flat.FlatMetadata.of(
                    data.pread(companion.size, 0), companion.url
                )
            return "uint16" if metadata.dtype == "uint16" else "uint32"
    return None


def _are_wider(
    source: ResolvedSource, tokens: ResolvedTokens, files: Sequence[InputFile]
) -> bool:
    """Say whether the first ids have a 0 behind each of them, and so were written in
    a type of twice the size.
    """
    try:
        rows = _sample(source, tokens, files)
    except DamagedFileError:
        # The size of a file is no multiple of this type. The build says so, if it is no
        # multiple of a wider one either.
        return False
    seen_ids = 0
    has_ids = False
    for ids in _lists_of(rows, tokens):
        count = len(ids) // 2 * 2
        if ids[1:count:2].any():
            return False
        has_ids |= bool(ids[:count:2].any())
        seen_ids += count
    return has_ids and seen_ids >= _LEAST_IDS


def _lists_of(rows: Rows, tokens: ResolvedTokens) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the ids of each record of a sample."""
    names = field_names(rows)
    for name in (tokens.field, *_OTHER_FIELDS):
        if name in names:
            for value in rows.values(name):
                yield np.asarray(value or (), np.int64)
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
    if not names:
        return tokens
    field = tokens.field
    if field == _INPUT_IDS and field not in names:
        candidates = [name for name in _OTHER_FIELDS if name in names]
        if candidates:
            field = candidates[0]
            notes.append(f"the ids are in the field {field!r}")
    for name in (field, tokens.loss_field or field):
        if name not in names:
            shown_names = ", ".join(list(names)[:FIELDS_SHOWN])
            option = "tokens.field" if name == field else "tokens.loss_field"
            raise ConfigError(
                f"{option}: got {name!r}, but none of the first records has it; their fields are "
                f"{shown_names}{did_you_mean(name, names)}",
                field=name,
            )
    loss_field = tokens.loss_field
    if loss_field is None:
        loss_field = next((name for name in _LOSS_FIELDS if name in names), None)
        if loss_field is not None:
            notes.append(f"the loss mask is made of the field {loss_field!r}")
    mask_fields = tuple(name for name in MASK_FIELDS if name in names)
    if mask_fields:
        notes.append(f"padding is left out by {' and '.join(mask_fields)}")
    return replace(tokens, field=field, loss_field=loss_field, mask_fields=mask_fields)


def _with_ends(
    tokens: ResolvedTokens, files: Sequence[InputFile], tokenizer: PlannedTokenizer
) -> ResolvedTokens:
    """Return the options with the EOS rule, and with the id of EOS where the rule needs
    it.

    Raises:
        ConfigError: EOS ends documents, and nothing says which id it is.
    """
    needs_eos = False
    for file in files:
        has_borders = any(
            companion.companion == numpy_flat.BORDERS_SUFFIX
            for companion in file.companions
        )
        needs_eos |= (
            file.format == "numpy" and not has_borders and tokens.length is None
        )
    eos = tokens.eos
    if eos is None:
        # Rows that were packed elsewhere have documents behind each other.
        has_joined_documents = (
            tokens.row_length is not None and SEGMENTS not in tokens.mask_fields
        )
        eos = "split" if needs_eos or has_joined_documents else "keep"
    if eos == "keep" and not needs_eos:
        return replace(tokens, eos=eos, eos_token_id=None)
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
