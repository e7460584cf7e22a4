"""The formats of other trainers by their names, and the rows that they cannot hold."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tokenlake.base.checks import expected, require_one_of
from tokenlake.errors import ConfigError
from tokenlake.etl.export.flat_manifest import FileFormat
from tokenlake.etl.export.options import ExportOptions
from tokenlake.etl.export.token_rows import COLUMNS
from tokenlake.etl.export.trainers.array_record_files import (
    ArrayRecordLayout,
    load_writer,
)
from tokenlake.etl.export.trainers.litdata_files import LitdataLayout
from tokenlake.etl.export.trainers.mds_files import MdsLayout
from tokenlake.etl.export.trainers.megatron_files import MegatronLayout
from tokenlake.etl.export.trainers.numpy_files import NumpyLayout
from tokenlake.etl.export.trainers.token_layout import TokenFacts, TokenLayout
from tokenlake.etl.layouts import megatron, numpy_flat
from tokenlake.runtime.reading.version import id_limit, stored_schema
from tokenlake.runtime.store.manifest import Manifest

ID_TYPES: Final = {
    "megatron": ("uint16", "int32"),
    "numpy": numpy_flat.TYPES,
    "npy": numpy_flat.TYPES,
}
"""Name of a format whose ids have several types -> the types."""

WITHOUT_LOSS_MASK: Final = ("megatron", "numpy")
"""Formats of ids alone."""

END_TO_END: Final = ("megatron", "numpy", "npy", "litdata")
"""Formats whose trainers lay documents end to end and cut them at other places."""


def require_fit(manifest: Manifest, format: str, options: ExportOptions) -> TokenFacts:
    """Return the facts about the rows of a version.

    ConfigError if a format cannot hold them.

    Args:
        manifest: Manifest of the version.
        format: Name of the format.
        options: Options of the export.
    """
    # 1. The kind of the rows, and the type of the ids.
    version_name = f"{manifest.dataset}@v{manifest.version}"
    if manifest.kind not in ("tokens", "packed"):
        raise ConfigError(
            f"format: {version_name} is of kind {manifest.kind}, whose rows have several columns of ids; {format!r} "
            "holds one. Export it as 'parquet', 'arrow' or 'jsonl'"
        )
    if options.dtype is not None and format not in ID_TYPES:
        raise ConfigError(
            f"dtype: {options.dtype!r}, but ids of format {format!r} are always int32; leave it out, or choose one of "
            f"{', '.join(ID_TYPES)}"
        )
    # 2. The columns. A loss mask is never dropped in silence: training would change.
    columns = set(stored_schema(manifest).names).intersection(COLUMNS)
    if options.drop_loss_mask:
        columns.discard("loss_mask")
    if "loss_mask" in columns and format in WITHOUT_LOSS_MASK:
        raise ConfigError(
            f"format: {version_name} has a loss mask, which {format!r} cannot hold, so that a trainer would learn all "
            "ids. Choose npy, mds, litdata or array_record, or leave the mask out (drop_loss_mask=True, "
            "--drop-loss-mask)"
        )
    # 3. EOS. It is appended to documents alone, and must be one id in all of them.
    eos_id = _common(manifest, options.source, "eos_id")
    appended_eos: int | None = None
    if options.append_eos:
        appended_eos = eos_id
        if manifest.kind == "packed" or "attention_mask" in columns:
            raise ConfigError(
                f"append_eos: set, but rows of {version_name} have one length: packed rows have EOS already, and "
                "padded documents have no room for it; leave it out"
            )
        if eos_id is None:
            raise ConfigError(
                f"append_eos: set, but the tokenizers of {version_name} have no EOS in common; export the sources one "
                "by one (source, --source)"
            )
    return TokenFacts(
        width=manifest.width or None,
        columns=frozenset(columns),
        vocab_size=id_limit(manifest),
        bos_id=_common(manifest, options.source, "bos_id"),
        eos_id=eos_id,
        pad_id=_common(manifest, options.source, "pad_id"),
        appended_eos=appended_eos,
    )


def require_package(format: str) -> None:
    """Raise MissingExtraError if the package of a format is not installed."""
    if format == "array_record":
        load_writer()


def lacks_eos(manifest: Manifest, format: str) -> bool:
    """Return True if a format lays documents end to end that do not end with EOS."""
    if format not in END_TO_END or manifest.kind != "tokens":
        return False
    # The suffix is the ids that a tokenizer puts behind each document.
    for tokenizer_facts in manifest.tokenizer.values():
        suffix = list(tokenizer_facts.get("suffix") or ())
        if tokenizer_facts.get("eos_id") not in suffix[-1:]:
            return True
    return False


def layout_of(
    form: FileFormat,
    facts: TokenFacts,
    *,
    dtype: str | None,
    max_bytes: int | None,
) -> TokenLayout:
    """Return a format for one export.

    Args:
        form: Format of the files.
        facts: Facts about the rows.
        dtype: Name of the type of the ids; None: the smallest one.
        max_bytes: Largest size of a file; None: no limit.

    Raises:
        ConfigError: The format has no such type, or it is too small for the vocabulary.
        MissingExtraError: A package is missing.
    """
    # 1. Formats with one type of ids.
    format = form.format
    if format == "mds":
        return MdsLayout(facts, max_bytes)
    if format == "litdata":
        compression = None
        if form.compression != "none":
            compression = form.compression
        return LitdataLayout(facts, max_bytes, compression)
    if format == "array_record":
        return ArrayRecordLayout(facts)
    # 2. Formats with several: the smallest is chosen as the trainers' own tools do.
    if format == "megatron":
        type_name = dtype or megatron.ids_type(facts.vocab_size)
        return MegatronLayout(facts, _id_type(format, facts, type_name))
    type_name = dtype or numpy_flat.ids_type(facts.vocab_size)
    id_type = _id_type(format, facts, type_name)
    suffix = numpy_flat.NPY_SUFFIX
    if format == "numpy":
        suffix = numpy_flat.BIN_SUFFIX
    return NumpyLayout(facts, id_type, suffix)


def _id_type(format: str, facts: TokenFacts, dtype: str) -> np.dtype[Any]:
    """Return a type of ids, little-endian."""
    # A type that is too small would wrap ids around, and nothing would show it.
    require_one_of(f"dtype of format {format!r}", dtype, ID_TYPES[format])
    id_type = np.dtype(dtype).newbyteorder("<")
    most_ids = np.iinfo(id_type).max + 1
    if facts.vocab_size > most_ids:
        required_type = f"a type for the {facts.vocab_size:,} ids of the vocabulary; this one has {most_ids:,}"
        raise expected("dtype", dtype, required_type)
    return id_type


def _common(manifest: Manifest, source: str | None, fact: str) -> int | None:
    """Return a special id of the exported sources' tokenizers.

    None if they have none, or differ in it.
    """
    # One set of files has one description: an id that holds for a part only is none.
    special_ids: set[int | None] = set()
    for source_name, tokenizer_facts in manifest.tokenizer.items():
        if source in (None, source_name):
            special_ids.add(tokenizer_facts.get(fact))
    if len(special_ids) != 1:
        return None
    return special_ids.pop()
