"""Expected size of a plan's output, from a sample of its inputs.

A few places of each source are read (see :mod:`tokenlake.etl.plan.sampling`), and the
documents there are built as a unit would build them, in a temporary folder. Documents
and text per byte of input come from all that was read, tokens per byte of text, bytes
on disk per token and the share that counts toward the loss from the part of it that is
built. Nothing is written to the store, and the result is the same every time.

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
from tokenlake.etl.sources.bad_reasons import BadReason, added_up, bad_reasons
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

# Columns of the quantities that are estimated: documents, rows, long documents, tokens,
# tokens that long documents lose, bytes on disk, tokens that count toward the loss.
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
        sampled_records: Number of records in the sample.
        bad_records: Number of these that are bad.
        bad_reasons: Bad records of the sample by reason.
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
    sampled_records: int = 0
    bad_records: int = 0
    bad_reasons: tuple[BadReason, ...] = ()
    documents_margin: int | None = None
    tokens_margin: int | None = None
    output_bytes_margin: int | None = None

    def to_json(self) -> dict[str, Any]:
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
    """Return the sum of the estimates of all sources.

    Their errors are independent of each other.
    """
    sums: dict[str, int | None] = {}
    reasons: list[BadReason] = []
    for part in estimates.values():
        reasons.extend(part.bad_reasons)
    for field in fields(Estimate):
        if field.name == "bad_reasons":
            continue
        values = [getattr(part, field.name) for part in estimates.values()]
        # A number that is unknown for one source is unknown for all together. Of
        # independent errors, the squares add up.
        if None in values:
            sums[field.name] = None
        elif not field.name.endswith("_margin"):
            sums[field.name] = sum(values)
        else:
            sums[field.name] = round(math.hypot(*values))
    return Estimate(**cast("dict[str, int]", sums), bad_reasons=added_up(reasons))


def _of_source(plan: Plan, source: ResolvedSource) -> Estimate:
    """Return the estimate for one source, the sum over the kinds of its files."""
    # 1. The quantities. A bad record does not end an estimate.
    lenient_source = replace(source, on_bad_record="quarantine")
    recipe = Recipe(lenient_source, plan.tokenizers[source.name].files)
    try:
        encoder = _likely_encoder(source, recipe, plan)
        expected = _totals_of_source(plan, source, recipe, encoder)
    except EngineMismatchError:
        encoder = _encoder(source, recipe, plan, REFERENCE)
        expected = _totals_of_source(plan, source, recipe, encoder)
    totals = expected.quantities
    margins = expected.margins
    documents, rows, long, tokens, dropped, stored, loss = totals.tolist()

    # 2. The number of shards.
    output = math.ceil(stored)
    files = 0
    has_open_number = False
    for unit in _units_of(plan, source):
        files += (unit.files or 1) * len(source.split_names)
        if unit.files is None:
            has_open_number = True
    if has_open_number:
        files += output // plan.build.max_shard_size

    # 3. Rows. Packing depends on the lengths of the documents.
    if plan.build.pack is not None and not source.has_whole_rows:
        units = _units_of(plan, source)
        rows = _packed_rows(plan.build.pack, source, units, documents, expected.lengths)

    # 4. Whole numbers.
    loss_tokens = None
    if plan.build.loss_mask:
        loss_tokens = round(loss)
    return Estimate(
        documents=round(documents),
        tokens=round(tokens),
        sequences=round(rows),
        output_bytes=output,
        files=files,
        long_documents=round(long),
        dropped_tokens=round(dropped),
        loss_tokens=loss_tokens,
        sampled_records=expected.sampled_records,
        bad_records=sum(reason.records for reason in expected.bad_reasons),
        bad_reasons=expected.bad_reasons,
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


@final
@dataclass(frozen=True, slots=True)
class _ExpectedTotals:
    """Expected quantities of a source.

    Attributes:
        quantities: Quantities, float64[7].
        margins: Margin of each; None where it is unknown.
        lengths: Lengths of its sampled documents.
        sampled_records: Number of records in the sample.
        bad_reasons: Bad records of the sample by reason.
    """

    quantities: Floats
    margins: list[int | None]
    lengths: list[LengthSample]
    sampled_records: int
    bad_reasons: tuple[BadReason, ...]


def _totals_of_source(
    plan: Plan, source: ResolvedSource, recipe: Recipe, encoder: Encoder
) -> _ExpectedTotals:
    """Return the expected quantities of a source."""
    # The kinds of files are sampled apart, so the squares of their margins add up.
    totals = np.zeros(_QUANTITIES)
    squares = np.zeros(_QUANTITIES)
    samples: list[LengthSample] = []
    sampled_records = 0
    reasons: list[BadReason] = []
    for stratum in strata_of(_units_of(plan, source)).values():
        places, is_whole = read_sample(stratum, recipe)
        batches: list[Prepared] = []
        for place in places:
            sampled_records += place.rows_read
            batches.extend(place.batches)
        reasons.extend(bad_reasons(batches, source.storage_options))
        kind_totals, kind_margins, lengths = _of_stratum(
            plan, source, stratum, recipe, encoder, places, is_whole=is_whole
        )
        totals += kind_totals
        squares += kind_margins**2
        samples.append(LengthSample(lengths, float(kind_totals[_TOKENS])))
    # Errors of the model add to those of the sample.
    squares[_TOKENS] += (_TOKENS_ERROR * totals[_TOKENS]) ** 2
    squares[_STORED] += (_STORED_ERROR * totals[_STORED]) ** 2
    margins: list[int | None] = []
    for square in squares.tolist():
        if math.isnan(square):
            margins.append(None)
        else:
            margins.append(math.ceil(math.sqrt(square)))
    return _ExpectedTotals(totals, margins, samples, sampled_records, added_up(reasons))


def _units_of(plan: Plan, source: ResolvedSource) -> list[TextUnit]:
    """Return the units of a source of texts."""
    units: list[TextUnit] = []
    for unit in plan.units:
        if isinstance(unit, TextUnit) and unit.source == source.name:
            units.append(unit)
    return units


def _likely_encoder(source: ResolvedSource, recipe: Recipe, plan: Plan) -> Encoder:
    """Return the encoder that a build of the sample would choose.

    It is the reference if that one does not load.
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
    places: Sequence[PlaceSample],
    *,
    is_whole: bool,
) -> tuple[Floats, Floats, Int64]:
    """Return the totals of a stratum, their margins, and tokens of its documents.

    Totals and margins are float64[7]. The tokens are those of the sampled documents as
    they are packed, int64[n]. `places` are the sample; `is_whole` says that they are
    the whole stratum.

    1. Choose a part of the documents of each place.
    2. Build these parts: tokens per byte of text, bytes on disk per token, share that
       counts toward the loss.
    3. Encode the parts one by one, to see how their tokens per byte differ.
    4. Count each place's documents and tokens, with the policy for long documents.
    5. Add the places up where they are the whole, otherwise take the mean of their
       rates for it.
    """
    # 1. The documents of each place that are built.
    document_count = sum(place.documents for place in places)
    if document_count == 0:
        no_lengths = np.empty(0, np.int64)
        return np.zeros(_QUANTITIES), np.zeros(_QUANTITIES), no_lengths
    batch_count = sum(len(place.batches) for place in places)
    sample_bytes = _FAST_SAMPLE_BYTES
    if encoder.engine == REFERENCE:
        sample_bytes = _SAMPLE_BYTES
    share = max(_LEAST_BYTES, sample_bytes // batch_count)
    samples = [_samples_of(place, share) for place in places]

    # 2. and 3. Tokens per byte of all samples together, and of each against the mean.
    built = _built(plan, source, recipe, encoder, list(chain.from_iterable(samples)))
    densities = _relative_densities(samples, encoder)

    # 4. The quantities of each place.
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

    # 5. The whole stratum, from its places.
    if is_whole:
        totals, margins = _sums_of_places(quantities, places, built, densities)
    else:
        totals, margins = _extrapolated(quantities, places, stratum)
    return totals, margins, packed_lengths


def _sums_of_places(
    quantities: Floats,
    places: Sequence[PlaceSample],
    built: _BuiltSample,
    densities: Floats,
) -> tuple[Floats, Floats]:
    """Return the totals of places that are the whole stratum, and their margins.

    Everything is counted except the tokens of the texts that were not built.

    Args:
        quantities: float64[places, 7].
        places: Places of the stratum.
        built: Figures of the part that was built.
        densities: float64[places], tokens per byte against the mean.
    """
    totals = quantities.sum(axis=0)
    all_bytes = 0
    for place in places:
        for batch in place.batches:
            all_bytes += batch.documents.text_bytes
    uncounted_share = max(0.0, 1.0 - built.text_bytes / max(1, all_bytes))
    margins = np.zeros(_QUANTITIES)
    if uncounted_share:
        error = standard_errors(densities[:, None])[0]
        relative_margin = RANGE_WIDTH * error * math.sqrt(uncounted_share)
        for quantity in (_TOKENS, _STORED):
            margins[quantity] = relative_margin * totals[quantity]
    return totals, margins


def _extrapolated(
    quantities: Floats, places: Sequence[PlaceSample], stratum: Stratum
) -> tuple[Floats, Floats]:
    """Return the totals of a stratum of which some places were read, and the margins.

    Args:
        quantities: float64[places, 7].
        places: Places of the stratum that were read.
        stratum: Whole stratum.
    """
    # 1. Rates per byte of input. Documents are counted by the ends of lines in a
    #    window.
    bytes_read = np.array([[place.bytes_read] for place in places], np.float64)
    window_bytes = np.array([[place.window_bytes] for place in places], np.float64)
    ends_per_row = np.array([[place.ends_per_row] for place in places], np.float64)
    rates = quantities / bytes_read
    counts = [_DOCUMENTS, _ROWS, _LONG]
    rates[:, counts] = quantities[:, counts] * ends_per_row / window_bytes
    totals, margins = totals_of_places(rates, stratum.weight)

    # 2. If the files state their records, only the share of these that become documents
    #    is unknown.
    if stratum.records is not None and totals[_DOCUMENTS] > 0:
        rows_read = sum(place.rows_read for place in places)
        documents = sum(place.documents for place in places)
        expected_documents = stratum.records * documents / max(rows_read, 1)
        totals[counts] *= expected_documents / totals[_DOCUMENTS]
        margins[counts] = 0.0
    return totals, margins


def _samples_of(place: PlaceSample, share: int) -> list[Prepared]:
    """Return about `share` bytes of the documents of each batch.

    They count as records that were read without a fault.
    """
    samples: list[Prepared] = []
    for batch in place.batches:
        if not len(batch.documents):
            continue
        documents = sample_of(batch.documents, share)
        # A record may give several documents, of which all but one are extra.
        row_count = len(documents)
        if documents.extra is not None:
            row_count = int((~documents.extra).sum())
        sample = Prepared(
            documents=documents, files=batch.files, rows_read=row_count, bytes_read=0
        )
        samples.append(sample)
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
    """Return the quantities of a place: float64[7].

    Bytes on disk and tokens of the loss are left at 0.
    """
    options = source.tokenizer

    # 2. The policy for long documents. A preference has several texts.
    if source.texts.preference is not None:
        # Each text comes with its prompt; special tokens are few.
        weights = np.array(text_weights(source.texts.preference.method), np.float64)
        counted = _counted(lengths.reshape(-1, len(weights)), weights, options, 0, 1)
    else:
        counted = _counted(lengths[:, None], np.ones(1), options, around, added_tokens)
    rows_per_document, long_share, tokens, dropped_tokens = counted
    quantities = np.zeros(_QUANTITIES)
    quantities[_DOCUMENTS] = place.documents
    quantities[_ROWS] = place.documents * rows_per_document
    quantities[_LONG] = place.documents * long_share
    quantities[_TOKENS] = tokens
    quantities[_DROPPED] = dropped_tokens
    return quantities


def _relative_densities(
    samples: Sequence[Sequence[Prepared]], encoder: Encoder
) -> Floats:
    """Return the tokens per byte of text at each place, against the mean: float64[n].

    1.1 is a tenth more than the mean. Ids are as long everywhere. Conversations and
    prompts count as 1: their tokens cannot be encoded without their structure.
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
    # A place without text is like the mean.
    mean_density = tokens.sum() / sizes.sum()
    densities = tokens / np.maximum(sizes, 1) / mean_density
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
    """Build batches of documents as a unit does, and return the figures.

    The files are written to a temporary folder.
    """
    # 1. The job of the first unit, with a store in that folder, and without limits.
    first_unit = next(unit for unit in plan.units if unit.source == source.name)
    layout = Layout(plan.build.name, 1)
    with TemporaryDirectory(prefix="tokenlake-plan-") as folder:
        address = StoreAddress(folder)
        store = open_store(address)
        job = cast("UnitJob", plan.job(first_unit, address, layout, encoder.engine))
        job = replace(
            job,
            source=replace(job.source, on_bad_record="quarantine"),
            ranges=job.ranges[:1],
            excluded={},
            files=None,
            bad_budget=sum(len(batch.documents) for batch in batches),
        )

        # 2. The unit, which reads the sample in the place of its ranges.
        def read_sample_alone(_: Sequence[FileRange]) -> Iterator[Prepared]:
            yield from batches

        record = TextBuild(
            job, store, encoder, recipe, lambda _: None, read_sample_alone
        ).build()
        loss_tokens = 0
        if plan.build.loss_mask:
            for part in record.parts:
                loss_tokens += _loss_tokens(Path(folder, layout.key(part.path)))

    # 3. The figures.
    stored_tokens = sum(part.tokens for part in record.parts)
    stored_bytes = sum(part.bytes for part in record.parts)
    account = record.account
    tokens_per_byte = account.tokens / max(1, account.text_bytes)
    if source.tokens is not None:
        # The "text" of imported ids is their bytes.
        tokens_per_byte = 1 / ID_BYTES
    loss_share = 1.0
    if plan.build.loss_mask:
        loss_share = loss_tokens / max(1, stored_tokens)
    return _BuiltSample(
        text_bytes=account.text_bytes,
        tokens_per_byte=tokens_per_byte,
        added_tokens=(account.bos + account.eos) / max(1, account.documents),
        bytes_per_token=stored_bytes / max(1, stored_tokens),
        loss_share=loss_share,
    )


def _loss_tokens(shard_path: Path) -> int:
    """Return the number of tokens of a shard that count toward the loss."""
    column: Any = pq.read_table(shard_path, columns=["loss_mask"]).column(0)
    return pc.sum(pc.list_flatten(column)).as_py() or 0


def _counted(
    lengths: Floats,
    weights: Floats,
    options: ResolvedTokenizer,
    around: int,
    added: float,
) -> tuple[float, float, float, float]:
    """Return the rows and ids of documents under the policy for long documents.

    Args:
        lengths: float64[n, texts], tokens of each text, without special tokens.
        weights: float64[texts], number of times that the ids of each text are written.
        options: Options of the tokenizer, with the policy.
        around: Special tokens of a document that count for `max_length`.
        added: Mean number of ids that are put around a document.

    Returns:
        Mean number of rows of a document; share of long documents; number of ids that
        are written; and number of ids that are dropped.
    """
    # 1. Long documents. The longest text of a preference decides.
    most_tokens = max(1, options.max_length - around)
    longest = lengths.max(axis=1)
    is_long = np.zeros(len(lengths), np.bool_)
    if options.long_documents != "keep":
        is_long = longest > most_tokens

    # 2. The pieces of each document, and the tokens that remain.
    pieces = np.ones(len(lengths))
    remaining = lengths
    if options.long_documents == "truncate":
        remaining = np.minimum(lengths, most_tokens)
    elif options.long_documents == "split":
        pieces = np.ceil(np.maximum(longest, 1) / most_tokens)
    elif options.long_documents == "drop":
        pieces = pieces * ~is_long
        remaining = lengths * ~is_long[:, None]

    # 3. The ids. Each piece gets its special tokens.
    written = float((remaining @ weights + pieces * added).sum())
    dropped = float(((lengths - remaining) @ weights).sum())
    return (
        float(pieces.mean()),
        float(is_long.mean()),
        max(0.0, written),
        max(0.0, dropped),
    )
