"""Cleaning: from a configuration to the list of documents that its build leaves out.

First the evaluation sets are read, where there are any; then every unit of the sources gets its signatures, in worker
processes; then all signatures together say which documents are left out. The units are those of a build, and whatever
is finished is found again: a run that was killed goes on, and one after a file was added reads that file alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast, final

import pyarrow as pa

from tokenlake.base import numbers
from tokenlake.base.fingerprint import fingerprint
from tokenlake.base.markup import named_facts
from tokenlake.base.section import plain_options
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import CleanConfig, PipelineConfig
from tokenlake.config.refusals import raise_problems, store_problems
from tokenlake.config.resolve import resolve_source, signing_of, source_identity, store_of
from tokenlake.config.resolved import ResolvedSource, Signing
from tokenlake.errors import ConfigError
from tokenlake.etl.clean.duplicates import Documents
from tokenlake.etl.clean.evaluation_ngrams import EvaluationNgrams
from tokenlake.etl.clean.left_out_list import SCHEMA, CleanAbout, EarlierList, ListWriter, require_ours
from tokenlake.etl.clean.sign_unit import NO_TOKENIZER
from tokenlake.etl.clean.signatures import FORMAT, SignatureFile, evaluation_key, signature_key
from tokenlake.etl.engines import open_pool
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.job import Progress, SignJob
from tokenlake.etl.plan.exclusions import match_exclusions, of_unit
from tokenlake.etl.plan.unit_ranges import range_identity
from tokenlake.etl.plan.unit_size import LARGEST
from tokenlake.etl.planner import (
    Configuration,
    Groups,
    check_predicates,
    read_listing,
    require_use,
    with_code,
)
from tokenlake.etl.pool import Pool
from tokenlake.etl.runner import run_each
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.split_choice import every_file
from tokenlake.etl.unit.documents import Recipe
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import absolute_address, open_store
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.outputs import require_outside_stores

_OTHER_STAGES: Final = ("splits", "tokenizer", "additional_fields", "field_types", "num_shards")
"""What of a source's identity its signatures do not depend on."""


@dataclass(frozen=True, slots=True)
class CleanUnit:
    """A unit of a source that gets signatures.

    Attributes:
        source: the resolved source.
        ranges: what is read.
        excluded: file to the positions that a list of the user's own leaves out.
        fingerprint: names the signatures.
    """

    source: ResolvedSource
    ranges: Sequence[FileRange]
    excluded: Mapping[int, Sequence[int]]
    fingerprint: str

    @property
    def bytes(self) -> int:
        """Input bytes."""
        return sum(part.weight for part in self.ranges)


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What cleaning came to.

    Attributes:
        output: path of the list, for `exclude`.
        accounts: by source: ``rows_read = kept + filtered + quarantined``, all by reason.
        sets: evaluation set to its documents, those too short to be found, and its n-grams.
        units_made, units_found: units whose signatures were made now, and were there.
        notes: what a person should know.
        seconds: wall time.
    """

    output: str
    accounts: Mapping[str, Account]
    sets: Mapping[str, Mapping[str, int]]
    units_made: int
    units_found: int
    notes: tuple[str, ...]
    seconds: float

    @property
    def account(self) -> Account:
        """Of all sources together."""
        return Account.total(self.accounts.values())

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        found = {name: getattr(self, name) for name in ("output", "units_made", "units_found", "seconds")}
        sums = {name: _figures(account) for name, account in self.accounts.items()}
        more = {"sources": sums, "evaluation": dict(self.sets), "notes": list(self.notes)}
        return {**found, **_figures(self.account), **more}

    def _repr_html_(self) -> str:
        account = self.account
        facts = {"output": self.output, "rows read": account.rows_read, "kept": account.kept}
        rows = [(why, f"{many:,}") for why, many in sorted(account.filtered.items())]
        return named_facts("Documents to leave out", facts, ("reason", "rows"), rows)


def _figures(account: Account) -> dict[str, Any]:
    return {
        "rows_read": account.rows_read,
        "kept": account.kept,
        "removed": dict(sorted(account.filtered.items())),
        "quarantined": dict(sorted(account.quarantined.items())),
    }


@final
class Cleaning:
    """One run: planned, then signed, then settled.

    Args:
        config: a configuration, a mapping of one, or the path of a YAML file.
        on_event: told how far the listing is.

    Attributes:
        units: of all sources, in order.
        output: path of the list.

    Raises:
        ConfigError, SourceError: it cannot be planned.
    """

    def __init__(self, config: Configuration, on_event: Watcher = ignore) -> None:
        self._began = time.monotonic()
        self.config = load_config(config)
        self._clean: CleanConfig = self.config.clean
        self.output = output_of(self.config)
        require_ours(self.output)
        require_outside_stores(self.output, "clean.output")
        store = store_of(self.config)
        raise_problems(ConfigError, store_problems(self.config, store))
        self._address = absolute_address(store, plain_options(self.config.save.storage_options or {}))
        self._store = open_store(self._address)
        self._evaluation = _evaluation(self.config, self._store, on_event)
        self._signing = signing_of(self._clean, self._evaluation.sha256 if self._evaluation else "")
        self._earlier = [EarlierList(path, self._signing) for path in self._clean.against]
        self.units = list(_units(self.config, self._signing, self.output, on_event))
        self.notes = (*_notes(self.config, self._evaluation), *_notes_on_splits(self.units))
        self._made = 0

    @property
    def pending(self) -> list[CleanUnit]:
        """The units that have no signatures, each once."""
        units = {unit.fingerprint: unit for unit in self.units}
        return [unit for name, unit in units.items() if not self._store.exists(signature_key(name))]

    def sign(self, pool: Pool, *, retries: int = 2, on_progress: Progress = lambda fields: None) -> None:
        """Make the signatures of all pending units.

        Args:
            retries: how often a unit is tried again after an error worth a retry.
            on_progress: told ``{"bytes": more}``, from several threads.
        """
        pending = self.pending
        if not pending:
            return

        def sign(index: int) -> None:
            unit = pending[index]
            told: Any = {name: getattr(unit, name) for name in ("fingerprint", "source")}
            ranges = tuple(unit.ranges)
            pool.run(SignJob(store=self._address, signing=self._signing, ranges=ranges, **told), on_progress)

        pool.expect(len(pending))
        run_each({index: unit.bytes for index, unit in enumerate(pending)}, sign, pool, retries)
        self._made += len(pending)

    def settle(self) -> CleanResult:
        """Find out what is left out, and write the list.

        Raises:
            NotFoundError, IntegrityError: signatures are not there, or are damaged.
            AccountError: a row is missing, which would be a bug.
        """
        documents = Documents(
            self._store,
            self._earlier,
            [unit.fingerprint for unit in self.units],
            [unit.excluded for unit in self.units],
            self._clean.memory,
        )
        if self._clean.exact != "none":
            documents.drop_duplicates()
        documents.drop_near_duplicates(self._signing.bands)
        counts = self._evaluation.counts if self._evaluation else {}
        sets = {name: asdict(each) for name, each in counts.items()}
        writer = ListWriter(self.output)
        try:
            accounts = _write_list(self._store, self.units, documents, writer)
            names = tuple(unit.fingerprint for unit in self.units)
            about = CleanAbout(signing=self._signing.identity(), units=names, accounts=accounts, sets=sets)
            writer.finish(about)
        except BaseException:
            writer.discard()
            raise
        return CleanResult(
            output=self.output,
            accounts=accounts,
            sets=sets,
            units_made=self._made,
            units_found=len(self.units) - self._made,
            notes=self.notes,
            seconds=time.monotonic() - self._began,
        )


def output_of(config: PipelineConfig) -> str:
    """Return the path of the list that cleaning writes."""
    return config.clean.output or f"{config.name or 'documents'}-exclude.parquet"


def clean_dataset(
    config: Configuration,
    *,
    workers: int | None = None,
    on_event: Watcher = ignore,
    on_progress: Progress = lambda fields: None,
    pool: Pool | None = None,
) -> CleanResult:
    """Write the list of documents that the builds of a configuration leave out; its section `clean` says which.

    Args:
        config: a configuration, a mapping of one, or the path of a YAML file.
        workers: worker processes; default: the processors this process may use.
        on_event: told how far the listing of inputs is.
        on_progress: told ``{"bytes": more}`` of inputs, from several threads.
        pool: running workers to use instead of `workers` new ones; it stays open.

    Returns:
        Where the list is, and the account: what was read, what stays, and what is left out by its reason.

    Raises:
        TokenlakeError: see :mod:`tokenlake.errors`; finished units stay and a rerun goes on.
    """
    cleaning = Cleaning(config, on_event)
    if cleaning.pending:
        with nullcontext(pool) if pool else open_pool(None, workers, cleaning.config.ray) as units_on:
            cleaning.sign(units_on, on_progress=on_progress)
    return cleaning.settle()


def _evaluation(config: PipelineConfig, store: Store, on_event: Watcher) -> EvaluationNgrams | None:
    """Read the evaluation sets and put their n-grams into the store, where workers find them."""
    asked = config.clean.contamination
    if asked is None:
        return None
    sources = [replace(_source(config, each), exclude=None) for each in asked.sets]
    found = EvaluationNgrams.of(
        {source.name: _texts(source, config, on_event) for source in sources}, asked.ngram
    )
    store.put_new(evaluation_key(found.sha256), found.data)
    return found


def _texts(source: ResolvedSource, config: PipelineConfig, on_event: Watcher) -> Iterator[list[str]]:
    """Yield the texts of an evaluation set, some at a time."""
    recipe = Recipe(source, NO_TOKENIZER)
    unit_size = _unit_size(config)
    # Of a folder every split is evaluated on, unless one is named.
    _, groups = read_listing(source, unit_size, config.source.hash_threads, on_event, select=every_file)
    for part in chain.from_iterable(groups):
        for prepared in recipe.read(part):
            yield cast("list[str]", prepared.documents.text.to_pylist())


def _source(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedSource:
    """Return a source of which the text is a field.

    Raises:
        ConfigError: its text is made in another way, or a step of it is wrong.
    """
    if dataset.ids is not None:
        raise ConfigError(
            f"datasets.{dataset.name}: its records hold token ids, and cleaning compares texts; clean the text that "
            "the ids were made of, or leave this dataset out"
        )
    source = resolve_source(config, dataset)
    texts = source.texts
    made = [name for name in ("chat", "prompt", "preference") if getattr(texts, name) is not None]
    if made:
        raise ConfigError(
            f"datasets.{source.name}.{made[0]}: `clean` looks at texts that are a field, and this one is made of "
            "several; name a field by content_field in a configuration for cleaning, or make one by transforms "
            "(combine, apply)",
            source=source.name,
        )
    return with_code(replace(source, texts=replace(texts, left_open=())))


def _units(config: PipelineConfig, signing: Signing, output: str, on_event: Watcher) -> Iterator[CleanUnit]:
    """Yield the units of all sources that are text."""
    sources = [_source(config, dataset) for dataset in config.datasets if dataset.dataset is None]
    if not sources:
        raise ConfigError(
            "datasets: all are datasets of the store, whose texts are not there; `clean` needs data_files"
        )
    check_predicates(sources)
    # A list of the user's own is taken over; the one that this run writes is not there yet, or an older one.
    ours = Path(output).absolute()
    sources = [
        replace(each, exclude=None) if each.exclude and Path(each.exclude).absolute() == ours else each
        for each in sources
    ]
    stage = config.source
    unit_size = _unit_size(config)
    ranges: dict[str, Groups] = {}
    for source in sources:
        files, ranges[source.name] = read_listing(source, unit_size, stage.hash_threads, on_event)
        require_use(source, files)
    lists = match_exclusions(sources, ranges, stage.hash_threads)
    excluded = {name: files for each in lists for name, files in each.positions.items()}
    for source in sources:
        passed: dict[int, int | None] = {}
        for group in ranges[source.name]:
            mine = of_unit(group, excluded.get(source.name, {}), passed)
            yield CleanUnit(source, group, mine, _fingerprint(source, group, signing))


def _unit_size(config: PipelineConfig) -> int:
    """Return the bytes of input that are signed together, fixed so that signatures of old files are reused."""
    return config.source.unit_size or LARGEST


def _fingerprint(source: ResolvedSource, ranges: Sequence[FileRange], signing: Signing) -> str:
    same = {name: value for name, value in source_identity(source).items() if name not in _OTHER_STAGES}
    return fingerprint(
        {"format": FORMAT, "source": same, "ranges": range_identity(ranges), "signing": signing.identity()}
    )


def _notes_on_splits(units: Iterable[CleanUnit]) -> list[str]:
    """Return notes on the splits that are not looked at; they are the same for all files of a source's entries."""
    notes: dict[str, None] = {}
    for unit in units:
        origin = unit.ranges[0].file.origin
        if origin:
            notes[f"{unit.source.name}: {origin}"] = None
    return list(notes)


def _notes(config: PipelineConfig, evaluation: EvaluationNgrams | None) -> tuple[str, ...]:
    stored = [dataset.name for dataset in config.datasets if dataset.dataset is not None]
    notes = [
        f"{name}: a dataset of the store, whose texts are not there; it is not looked at" for name in stored
    ]
    for name, each in (evaluation.counts if evaluation else {}).items():
        if each.too_short:
            notes.append(
                f"{name}: {each.too_short} of {numbers.plural(each.documents, 'document')} have fewer words than an "
                "n-gram, and cannot be found (clean.contamination.ngram)"
            )
    return tuple(notes)


def _write_list(
    store: Store, units: Sequence[CleanUnit], documents: Documents, writer: ListWriter
) -> dict[str, Account]:
    """Write what is left out, in order, and return the accounts of the sources."""
    accounts = {unit.source.name: Account() for unit in units}
    kept = documents.kept_for_others()
    for index, unit in enumerate(units):
        with SignatureFile(store, unit.fingerprint) as signatures:
            out, read = documents.left_out(index, signatures, kept), signatures.account
        paths, name = {part.file.file_id: part.file.path for part in unit.ranges}, unit.source.name
        more = {"source": [name] * len(out), "path": [paths[file] for file in out.file.tolist()]}
        writer.write(pa.RecordBatch.from_pydict({**out.to_columns(), **more}, SCHEMA))
        left = dict(Counter(read.filtered) + Counter(out.reason))
        rest = {"kept": read.kept - len(out), "documents": read.documents - len(out)}
        account = replace(read, filtered=left, **rest)
        account.check(where=name)
        accounts[name] = Account.total([accounts[name], account])
    return accounts
