"""The expected size of a plan's output, from a sample of its inputs.

A few places of each source are read (see :mod:`tokenlake.etl.plan.sampling`), and what
they hold is built as a unit would build it, in a temporary folder. Documents and text
per byte of input come from all that was read, tokens per byte of text, bytes on disk
per token and the share that counts toward the loss from the part of it that is built.
Nothing is written to the store, and the result is the same every time.

The part that is built is as large as the tokenizer backend that the build will probably
choose can encode in about a second: 16 MiB, or 1 MiB with the reference. It is not
probed here. One that differs from the reference in a sample is replaced by the
reference, as in a build.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast, final

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenlake.base.arrays import Int64
from tokenlake.base.columns import text_weights
from tokenlake.config.resolved import ResolvedPack, ResolvedSource, ResolvedTokenizer
from tokenlake.errors import EngineMismatchError, MissingExtraError, TokenizerError
from tokenlake.etl.job import REFERENCE, UnitJob
from tokenlake.etl.plan.packed_rows import LengthSample, expected_rows, part_lengths
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.plan.sample_texts import sample_of
from tokenlake.etl.plan.sampling import (
    RANGE_WIDTH,
    Floats,
    PlaceSample,
    Stratum,
    read_sample,
    standard_errors,
    strata_of,
    totals_of_places,
)
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.gate import likely_encoder
from tokenlake.etl.unit.documents import Prepared, Recipe
from tokenlake.etl.unit.text import TextBuild
from tokenlake.etl.unit.text_documents import ID_BYTES
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.layout import Layout

_SAMPLE_BYTES: Final = 1 << 20
"""Bytes of text that are built in all, by the reference."""
_FAST_SAMPLE_BYTES: Final = 16 << 20
"""The same by a faster tokenizer backend."""
_UNCOMPILED_BYTES: Final = 4 << 20
"""Bytes of text for which no backend is compiled first, which takes seconds."""
_LEAST_BYTES: Final = 16 << 10
"""Bytes of text of one batch that are built, at least."""

_TOKENS_ERROR: Final = 0.01
"""Smallest margin of tokens, as a share of them: documents are cut and packed
otherwise than in the sample.
"""
_STORED_ERROR: Final = 0.08
"""The same of bytes on disk: files of the build are larger than the sample, and so
compress otherwise.
"""

# Columns of the quantities that are estimated.
_DOCUMENTS, _ROWS, _LONG, _TOKENS, _DROPPED, _STORED, _LOSS = range(7)
_QUANTITIES: Final = 7


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected size of a source or of a whole version.

    Each margin is half of a range that holds the true number about 19 times of 20, as
    far as a sample can say: a kind of text that no sampled place holds is not counted.
    It is None where a single place was read.

    Attributes:
        documents: Number of documents.
        tokens: Number of tokens that are written, BOS and EOS included.
        sequences: Number of packed rows, or of documents where nothing is packed.
        output_bytes: Size of all shards.
        files: Number of shards. Exact with `num_shards`, otherwise an upper bound: a
            unit writes one for each split, and more past `max_shard_size`.
        long_documents: Number of documents of more than `max_length` tokens, where
            these are not kept.
        dropped_tokens: Number of tokens of these documents that are not written.
        loss_tokens: Number of tokens that count toward the loss; None where the build
            stores no loss mask.
        documents_margin: Margin of `documents`.
        tokens_margin: Margin of `tokens`.
        output_bytes_margin: Margin of `output_bytes`.
    """

    documents: int
    tokens: int
    sequences: int
    output_bytes: int
    files: int
    long_documents: int = 0
    dropped_tokens: int = 0
    loss_tokens: int | None = None
    documents_margin: int | None = None
    tokens_margin: int | None = None
    output_bytes_margin: int | None = None

    def to_json(self) -> dict[str, int | None]:
        """Return the JSON-able form."""
        return asdict(self)


def estimate(plan: Plan) -> dict[str, Estimate]:
    """Return an estimate for each source, in plan order.

    Raises:
        SourceError: An input cannot be read.
        TokenizerError: A tokenizer cannot be run.
    """
    return {source.name: _of_source(plan, source) for source in plan.build.sources}


def total(estimates: dict[str, Estimate]) -> Estimate:
    """Return the sum of the estimates of all sources, whose errors are independent
    of each other.
    """
    sums: dict[str, int | None] = {}
    for field in fields(Estimate):
        values = [getattr(part, field.name) for part in estimates.values()]
        if None in values:
            sums[field.name] = None
        elif not field.name.endswith("_margin"):
            sums[field.name] = sum(values)
        else:
            sums[field.name] = round(math.hypot(*values))
    return Estimate(**cast("dict[str, int]", sums))


def _of_source(plan: Plan, source: ResolvedSource) -> Estimate:
    """Return the estimate for one source, the sum over the kinds of its files."""
    recipe = Recipe(
        replace(source, on_bad_record="quarantine"),
        plan.tokenizers[source.name].files,
    )
    try:
        totals, margins, lengths = _totals_of_source(
            plan, source, recipe, _likely_encoder(source, recipe, plan)
        )
    except EngineMismatchError:
        totals, margins, lengths = _totals_of_source(
            plan, source, recipe, _encoder(source, recipe, plan, REFERENCE)
        )
    documents, rows, long, tokens, dropped, stored, loss = totals.tolist()
    output = math.ceil(stored)
    units = [
        unit
        for unit in plan.units
        if isinstance(unit, TextUnit) and unit.source == source.name
    ]
    files = sum(unit.files or 1 for unit in units) * len(source.split_names)
    if any(unit.files is None for unit in units):
        files += output // plan.build.max_shard_size
    if plan.build.pack is not None and not source.has_whole_rows:
        rows = _packed_rows(plan.build.pack, source, units, documents, lengths)
    return Estimate(
        documents=round(documents),
        tokens=round(tokens),
        sequences=round(rows),
        output_bytes=output,
        files=files,
        long_documents=round(long),
        dropped_tokens=round(dropped),
        loss_tokens=round(loss) if plan.build.loss_mask else None,
        documents_margin=margins[_DOCUMENTS],
        tokens_margin=margins[_TOKENS],
        output_bytes_margin=margins[_STORED],
    )


def _packed_rows(
    pack: ResolvedPack,
    source: ResolvedSource,
    units: Sequence[TextUnit],
    documents: float,
    lengths: Sequence[LengthSample],
) -> int:
    """Return the expected number of packed rows of a source.

    Args:
        pack: Packing of the build.
        source: Source.
        units: Units of the source.
        documents: Expected number of its documents.
        lengths: Tokens of sampled documents of each kind of input.
    """
    # Held-out documents have a split of their own, and the others share the rest.
    shares = [share for _, share in source.splits]
    if source.held_out is not None:
        held_out = min(1.0, source.held_out.count / max(1.0, documents))
        shares = [share * (1.0 - held_out) for share in shares]
        shares.append(held_out)
    # Files that a unit writes at a time are streams too, and divide its window.
    streams = sum(unit.files or 1 for unit in units)
    files_of_unit = max((unit.files or 1 for unit in units), default=1)
    pack = replace(pack, window_tokens=pack.window_tokens // files_of_unit)
    return expected_rows(lengths, pack, shares, streams)


def _totals_of_source(
    plan: Plan, source: ResolvedSource, recipe: Recipe, encoder: Encoder
) -> tuple[Floats, list[int | None], list[LengthSample]]:
    """Return the quantities of a source, float64[7], their margins, and the lengths of
    its sampled documents.
    """
    units = [
        unit
        for unit in plan.units
        if isinstance(unit, TextUnit) and unit.source == source.name
    ]
    totals = np.zeros(_QUANTITIES)
    squares = np.zeros(_QUANTITIES)  # of the margins
    samples: list[LengthSample] = []
    for stratum in strata_of(units).values():
        kind_totals, kind_margins, lengths = _of_stratum(
            plan, source, stratum, recipe, encoder
        )
        totals += kind_totals
        squares += kind_margins**2
        samples.append(LengthSample(lengths, float(kind_totals[_TOKENS])))
    # What the model leaves out adds to what the sample cannot say.
    squares[_TOKENS] += (_TOKENS_ERROR * totals[_TOKENS]) ** 2
    squares[_STORED] += (_STORED_ERROR * totals[_STORED]) ** 2
    margins = [
        None if math.isnan(square) else math.ceil(math.sqrt(square))
        for square in squares.tolist()
    ]
    return totals, margins, samples


def _likely_encoder(source: ResolvedSource, recipe: Recipe, plan: Plan) -> Encoder:
    """Return the encoder that a build of the sample would choose, or the reference
    where that one does not load.
    """
    try:
        return likely_encoder(
            plan.tokenizers[source.name].files,
            source.tokenizer.engine,
            recipe.special_tokens_in_text,
            size=_UNCOMPILED_BYTES,
            add_special_tokens=source.tokenizer.add_special_tokens,
        )
    except (MissingExtraError, TokenizerError):
        return _encoder(source, recipe, plan, REFERENCE)


def _encoder(
    source: ResolvedSource, recipe: Recipe, plan: Plan, engine: str
) -> Encoder:
    """Return the encoder of a source with one tokenizer backend."""
    return Encoder(
        plan.tokenizers[source.name].files,
        engine=engine,
        special_tokens_in_text=recipe.special_tokens_in_text,
        add_special_tokens=source.tokenizer.add_special_tokens,
    )


def _of_stratum(
    plan: Plan,
    source: ResolvedSource,
    stratum: Stratum,
    recipe: Recipe,
    encoder: Encoder,
) -> tuple[Floats, Floats, Int64]:
    """Return the totals of a stratum and their margins, float64[7] each, and the
    tokens of the sampled documents as they are packed, int64[n].

    1. Read places of the stratum, and choose a part of the documents of each.
    2. Build these parts: tokens per byte of text, bytes on disk per token, share that
       counts toward the loss.
    3. Encode the parts one by one, to see how their tokens per byte differ.
    4. Count each place's documents and tokens, with the policy for long documents.
    5. Add the places up where they are the whole, otherwise take the mean of their
       rates for it.
    """
    places, is_whole = read_sample(stratum, recipe)
    if not any(place.documents for place in places):
        no_lengths = np.empty(0, np.int64)
        return np.zeros(_QUANTITIES), np.zeros(_QUANTITIES), no_lengths
    batch_count = sum(len(place.batches) for place in places)
    sample_bytes = _SAMPLE_BYTES if encoder.engine == REFERENCE else _FAST_SAMPLE_BYTES
    share = max(_LEAST_BYTES, sample_bytes // batch_count)
    samples = [_samples_of(place, share) for place in places]
    built = _built(plan, source, recipe, encoder, list(chain.from_iterable(samples)))
    densities = _relative_densities(samples, encoder)

    quantities = np.zeros((len(places), _QUANTITIES))
    lengths_of_places: list[Int64] = []
    around = len(encoder.prefix) + len(encoder.suffix)
    for index, place in enumerate(places):
        if place.documents:
            lengths = _text_lengths(place, built.tokens_per_byte * densities[index])
            quantities[index] = _quantities(
                source, place, lengths, around, built.added_tokens
            )
            lengths_of_places.append(
                part_lengths(lengths, source.tokenizer, around, built.added_tokens)
            )
    packed_lengths = np.concatenate(lengths_of_places)
    quantities[:, _STORED] = quantities[:, _TOKENS] * built.bytes_per_token
    quantities[:, _LOSS] = quantities[:, _TOKENS] * built.loss_share
    if is_whole:
        totals, margins = _sums_of_whole(quantities, places, densities, built)
    else:
        totals, margins = _totals_of_sample(quantities, places, stratum)
    return totals, margins, packed_lengths


def _sums_of_whole(
    quantities: Floats,
    places: Sequence[PlaceSample],
    densities: Floats,
    built: _BuiltSample,
) -> tuple[Floats, Floats]:
    """Return the sums of places that are the whole stratum, and their margins:
    float64[7] each. All is counted but the tokens of the texts that are not built.

    Args:
        quantities: Quantities of each place, float64[places, 7].
        places: Places.
        densities: Tokens per byte at each place, relative to the mean.
        built: Figures of the part that was built.
    """
    totals = quantities.sum(axis=0)
    all_bytes = 0
    for place in places:
        all_bytes += sum(batch.documents.text_bytes for batch in place.batches)
    uncounted = max(0.0, 1.0 - built.text_bytes / max(1, all_bytes))
    error = 0.0
    if uncounted:
        error = float(standard_errors(densities[:, None])[0])
    margins = np.zeros(_QUANTITIES)
    margins[[_TOKENS, _STORED]] = (
        RANGE_WIDTH * error * math.sqrt(uncounted) * totals[[_TOKENS, _STORED]]
    )
    return totals, margins


def _totals_of_sample(
    quantities: Floats, places: Sequence[PlaceSample], stratum: Stratum
) -> tuple[Floats, Floats]:
    """Return the expected totals of a stratum from some of its places, and their
    margins: float64[7] each.

    Args:
        quantities: Quantities of each place, float64[places, 7].
        places: Places.
        stratum: Stratum that holds them.
    """
    rates = quantities / np.array([[place.bytes_read] for place in places], np.float64)
    windows = np.array([[place.window_bytes] for place in places], np.float64)
    counts = [_DOCUMENTS, _ROWS, _LONG]
    ends = np.array([[place.ends_per_row] for place in places], np.float64)
    rates[:, counts] = quantities[:, counts] * ends / windows
    totals, margins = totals_of_places(rates, stratum.weight)
    if stratum.records is not None and totals[_DOCUMENTS] > 0:
        # The files state their records: only the share of them that become documents is
        # unknown.
        rows_read = sum(place.rows_read for place in places)
        documents = sum(place.documents for place in places)
        known = stratum.records * documents / max(rows_read, 1)
        totals[counts] *= known / totals[_DOCUMENTS]
        margins[counts] = 0.0
    return totals, margins


def _samples_of(place: PlaceSample, share: int) -> list[Prepared]:
    """Return about `share` bytes of the documents of each batch, as records that
    were read without a fault.
    """
    samples: list[Prepared] = []
    for batch in place.batches:
        if not len(batch.documents):
            continue
        documents = sample_of(batch.documents, share)
        rows = (
            len(documents) if documents.extra is None else int((~documents.extra).sum())
        )
        samples.append(
            Prepared(
                documents=documents, files=batch.files, rows_read=rows, bytes_read=0
            )
        )
    return samples


def _text_lengths(place: PlaceSample, tokens_per_byte: float) -> Floats:
    """Return the tokens of each text of a place, without special tokens, float64[n]."""
    sizes = [batch.documents.sizes for batch in place.batches if len(batch.documents)]
    lengths: Floats = np.concatenate(sizes) * np.float64(tokens_per_byte)
    return lengths


def _quantities(
    source: ResolvedSource,
    place: PlaceSample,
    lengths: Floats,
    around: int,
    added_tokens: float,
) -> Floats:
    """Return the quantities of a place, float64[7]; bytes on disk and tokens of the
    loss are left at 0.
    """
    options = source.tokenizer
    if source.texts.preference is not None:
        # Each text comes with its prompt; special tokens are few.
        weights = np.array(text_weights(source.texts.preference.method), np.float64)
        counted = _counted(lengths.reshape(-1, len(weights)), weights, options, 0, 1)
    else:
        counted = _counted(lengths[:, None], np.ones(1), options, around, added_tokens)
    rows, long, tokens, dropped = counted
    return np.array(
        [
            place.documents,
            place.documents * rows,
            place.documents * long,
            tokens,
            dropped,
            0.0,
            0.0,
        ]
    )


def _relative_densities(
    samples: Sequence[Sequence[Prepared]], encoder: Encoder
) -> Floats:
    """Return the tokens per byte of text at each place, in the mean of all samples: 1.1
    is a tenth more.

    Ids are as long everywhere. Conversations and prompts count as 1: their tokens
    cannot be encoded without their structure.
    """
    tokens = np.zeros(len(samples))
    sizes = np.zeros(len(samples))
    for index, batches in enumerate(samples):
        for batch in batches:
            if batch.documents.spans is not None or batch.documents.ids is not None:
                return np.ones(len(samples))
            tokens[index] += len(encoder.encode(batch.documents.text).ids)
            sizes[index] += batch.documents.text_bytes
    if not tokens.sum():
        return np.ones(len(samples))
    mean = tokens.sum() / sizes.sum()
    densities = tokens / np.maximum(sizes, 1) / mean
    densities[sizes == 0] = 1.0
    return densities


@final
@dataclass(frozen=True, slots=True)
class _BuiltSample:
    """Figures of the part of the documents that was built.

    Attributes:
        text_bytes: UTF-8 bytes of its texts.
        tokens_per_byte: Tokens per byte of text or of stored ids, without special
            tokens that are put around documents.
        added_tokens: BOS and EOS that are put around a document, in the mean.
        bytes_per_token: Bytes on disk per stored token.
        loss_share: Share of the stored tokens that counts toward the loss; 1 where no
            loss mask is stored.
    """

    text_bytes: int
    tokens_per_byte: float
    added_tokens: float
    bytes_per_token: float
    loss_share: float


def _built(
    plan: Plan,
    source: ResolvedSource,
    recipe: Recipe,
    encoder: Encoder,
    batches: Sequence[Prepared],
) -> _BuiltSample:
    """Build batches of documents as a unit does, in a temporary folder, and return
    its figures.
    """
    first = next(unit for unit in plan.units if unit.source == source.name)
    layout = Layout(plan.build.name, 1)
    with TemporaryDirectory(prefix="tokenlake-plan-") as folder:
        address = StoreAddress(folder)
        store = open_store(address)
        job = cast("UnitJob", plan.job(first, address, layout, encoder.engine))
        job = replace(
            job,
            source=replace(job.source, on_bad_record="quarantine"),
            ranges=job.ranges[:1],
            excluded={},
            files=None,
            bad_budget=sum(len(batch.documents) for batch in batches),
        )

        def read_sample_alone(_: Sequence[FileRange]) -> Iterator[Prepared]:
            yield from batches

        record = TextBuild(
            job, store, encoder, recipe, lambda _: None, read_sample_alone
        ).build()
        loss_tokens = 0
        if plan.build.loss_mask:
            files = [Path(folder, layout.key(part.path)) for part in record.parts]
            loss_tokens = sum(_loss_tokens(file) for file in files)

    stored_tokens = sum(part.tokens for part in record.parts)
    stored_bytes = sum(part.bytes for part in record.parts)
    account = record.account
    tokens_per_byte = account.tokens / max(1, account.text_bytes)
    if source.tokens is not None:
        tokens_per_byte = 1 / ID_BYTES
    return _BuiltSample(
        text_bytes=account.text_bytes,
        tokens_per_byte=tokens_per_byte,
        added_tokens=(account.bos + account.eos) / max(1, account.documents),
        bytes_per_token=stored_bytes / max(1, stored_tokens),
        loss_share=loss_tokens / max(1, stored_tokens) if plan.build.loss_mask else 1.0,
    )


def _loss_tokens(file: Path) -> int:
    """Return the number of tokens of a shard that count toward the loss."""
    column: Any = pq.read_table(file, columns=["loss_mask"]).column(0)
    return pc.sum(pc.list_flatten(column)).as_py() or 0


def _counted(
    lengths: Floats,
    weights: Floats,
    options: ResolvedTokenizer,
    around: int,
    added: float,
) -> tuple[float, float, float, float]:
    """What the policy makes of documents: rows and long documents in the mean, ids that
    are written and dropped.

    Args:
        lengths: float64[n, texts], tokens of each, without special tokens.
        weights: float64[texts], how often the ids of each count.
        around: special tokens of a document that count for `max_length`.
        added: ids that are put around a document, in the mean.
    """
    room = max(1, options.max_length - around)
    longest = lengths.max(axis=1)
    long = (
        longest > room
        if options.long_documents != "keep"
        else np.zeros(len(lengths), np.bool_)
    )
    pieces, kept = np.ones(len(lengths)), lengths
    if options.long_documents == "truncate":
        kept = np.minimum(lengths, room)
    elif options.long_documents == "split":
        pieces = np.ceil(np.maximum(longest, 1) / room)
    elif options.long_documents == "drop":
        pieces, kept = pieces * ~long, lengths * ~long[:, None]
    written = float((kept @ weights + pieces * added).sum())
    dropped = float(((lengths - kept) @ weights).sum())
    return (
        float(pieces.mean()),
        float(long.mean()),
        max(0.0, written),
        max(0.0, dropped),
    )
