"""Cleaning: from a configuration to the list of documents that its build leaves out.

1. Plan: the evaluation sets are read, if there are any, and the sources are divided
   into units.
2. Sign: worker processes make the signatures of every unit that has none.
3. Settle: all signatures together decide which documents are left out, and the list is
   written.

Signatures stay in the store. A run that was killed is resumed, and a run after a file
was added reads only that file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, final

import pyarrow as pa

from tokenlake.base.section import plain_options
from tokenlake.config.contradictions import raise_problems, store_problems
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import CleanConfig, PipelineConfig
from tokenlake.config.resolve import signing_of, store_of
from tokenlake.errors import ConfigError
from tokenlake.etl.clean.clean_result import CleanResult
from tokenlake.etl.clean.clean_units import CleanUnit, split_notes, units_of
from tokenlake.etl.clean.duplicates import Documents
from tokenlake.etl.clean.evaluation_sets import short_document_notes, stored_ngrams
from tokenlake.etl.clean.fate import LeftOut
from tokenlake.etl.clean.left_out_list import (
    SCHEMA,
    CleanAbout,
    EarlierList,
    ListWriter,
    require_ours,
)
from tokenlake.etl.clean.signatures import SignatureFile, signature_key
from tokenlake.etl.events import Watcher, ignore
from tokenlake.etl.executors import open_pool
from tokenlake.etl.job import Progress, SignJob
from tokenlake.etl.planner import Configuration
from tokenlake.etl.pool import Pool
from tokenlake.etl.runner import run_each
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import absolute_address, open_store
from tokenlake.runtime.store.outputs import require_outside_stores


@final
class Cleaning:
    """One cleaning run: planned when it is created, then signed, then settled.

    Args:
        config: Configuration, a mapping of one, or the path of a YAML file.
        on_event: Function that is told how far the listing is.

    Attributes:
        units: Units of all sources, in order.
        output: Path of the list.
        notes: Sentences for the user.

    Raises:
        ConfigError: The configuration cannot be cleaned.
        SourceError: Files cannot be listed.
    """

    def __init__(self, config: Configuration, on_event: Watcher = ignore) -> None:
        self._start = time.monotonic()
        self.config = load_config(config)
        self._clean: CleanConfig = self.config.clean

        # The list may replace only a list of an earlier run, outside of all stores.
        self.output = output_of(self.config)
        require_ours(self.output)
        require_outside_stores(self.output, "clean.output")

        store = store_of(self.config)
        raise_problems(ConfigError, store_problems(self.config, store))
        self._address = absolute_address(
            store, plain_options(self.config.save.storage_options or {})
        )
        self._store = open_store(self._address)

        # N-grams are part of the signatures: other evaluation sets give other names.
        self._evaluation = stored_ngrams(self.config, self._store, on_event)
        evaluation_hash = ""
        if self._evaluation is not None:
            evaluation_hash = self._evaluation.sha256
        self._signing = signing_of(self._clean, evaluation_hash)
        # Lists of earlier runs, whose documents always stay.
        self._earlier: list[EarlierList] = []
        for path in self._clean.against:
            self._earlier.append(EarlierList(path, self._signing))

        # The listing comes last: it may take long, and all other errors come before it.
        self.units = list(units_of(self.config, self._signing, self.output, on_event))
        self.notes = (
            *_stored_dataset_notes(self.config),
            *short_document_notes(self._evaluation),
            *split_notes(self.units),
        )
        self._units_made = 0

    @property
    def pending(self) -> list[CleanUnit]:
        """Units without signatures, each once."""
        # Two sources of the same files and settings share a unit's signatures.
        units = {unit.fingerprint: unit for unit in self.units}
        pending_units: list[CleanUnit] = []
        for unit_name, unit in units.items():
            if not self._store.exists(signature_key(unit_name)):
                pending_units.append(unit)
        return pending_units

    def sign(
        self,
        pool: Pool,
        *,
        retries: int = 2,
        on_progress: Progress = lambda fields: None,
    ) -> None:
        """Make the signatures of all pending units.

        Args:
            pool: Worker processes.
            retries: Number of times that a unit is tried again after an error that may
                pass.
            on_progress: Function that is called with ``{"bytes": n}`` for each n bytes
                read, from several threads.
        """
        pending_units = self.pending
        if not pending_units:
            return

        def sign_unit(index: int) -> None:
            unit = pending_units[index]
            job = SignJob(
                store=self._address,
                signing=self._signing,
                source=unit.source,
                ranges=tuple(unit.ranges),
                fingerprint=unit.fingerprint,
            )
            pool.run(job, on_progress)

        # Large units begin first, so that no worker is left with one at the end.
        pool.expect(len(pending_units))
        unit_sizes = {index: unit.bytes for index, unit in enumerate(pending_units)}
        run_each(unit_sizes, sign_unit, pool, retries)
        self._units_made += len(pending_units)

    def settle(self) -> CleanResult:
        """Decide which documents are left out, and write the list.

        Raises:
            NotFoundError: Signatures are missing.
            IntegrityError: Signatures are damaged.
            AccountError: The audit does not balance, which would be a bug.
        """
        # 1. Exact duplicates first: near duplicates are searched among the others.
        fingerprints = [unit.fingerprint for unit in self.units]
        excluded = [unit.excluded for unit in self.units]
        documents = Documents(
            self._store, self._earlier, fingerprints, excluded, self._clean.memory
        )
        if self._clean.exact != "none":
            documents.drop_duplicates()
        documents.drop_near_duplicates(self._signing.bands)

        # 2. The numbers of the evaluation sets, for the list and the result.
        sets: dict[str, Mapping[str, int]] = {}
        if self._evaluation is not None:
            for name, counts in self._evaluation.counts.items():
                sets[name] = asdict(counts)

        # 3. The list appears whole at the end, or not at all.
        writer = ListWriter(self.output)
        try:
            accounts = self._write_rows(documents, writer)
            about = CleanAbout(
                signing=self._signing.identity(),
                units=tuple(fingerprints),
                accounts=accounts,
                sets=sets,
            )
            writer.finish(about)
        except BaseException:
            writer.discard()
            raise
        # Units whose signatures an earlier run left in the store count as found.
        return CleanResult(
            output=self.output,
            accounts=accounts,
            sets=sets,
            units_made=self._units_made,
            units_found=len(self.units) - self._units_made,
            notes=self.notes,
            seconds=time.monotonic() - self._start,
        )

    def _write_rows(
        self, documents: Documents, writer: ListWriter
    ) -> dict[str, Account]:
        """Write the documents that are left out, in order.

        Returns:
            Audit of each source.
        """
        accounts: dict[str, list[Account]] = {}
        kept_places = documents.kept_for_others()
        for unit_index, unit in enumerate(self.units):
            with SignatureFile(self._store, unit.fingerprint) as signatures:
                left_out = documents.left_out(unit_index, signatures, kept_places)
                unit_account = _without(signatures.account, left_out)
            writer.write(_list_rows(unit, left_out))
            # An audit that does not balance names its source before it is added up.
            unit_account.check(where=unit.source.name)
            accounts.setdefault(unit.source.name, []).append(unit_account)
        return {name: Account.total(parts) for name, parts in accounts.items()}


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
    """Write the list of documents that the builds of a configuration leave out.

    Section `clean` of the configuration describes it.

    Args:
        config: Configuration with section `clean`, mapping of its keys, or path of a
            YAML file.
        workers: Number of worker processes; None: one for each processor that this
            process may use.
        on_event: Function that receives events of the listing of inputs. Default: none
            is called.
        on_progress: Function that receives ``{"bytes": n}`` for each n bytes of input
            read, from several threads. Default: none is called.
        pool: Running workers that are used in place of `workers` new ones, and stay
            open; None: new workers.

    Returns:
        Path of the list, and the audit: documents read, kept, and left out by reason.

    Raises:
        TokenlakeError: The inputs or the configuration cannot be used. Finished units
            are kept, and the same call resumes.

    Example:
        >>> import tokenlake as tl
        >>> config = {
        ...     "name": "books",
        ...     "datasets": [{"name": "books", "data_files": "data/books/*.jsonl"}],
        ...     "default_tokenizer": "openai-community/gpt2",
        ...     "clean": {"exact": "text"},
        ... }
        >>> result = tl.clean_dataset(config, workers=1)
        >>> result.output
        'books-exclude.parquet'
    """
    cleaning = Cleaning(config, on_event)
    # Workers are opened only if a unit has no signatures yet.
    if cleaning.pending:
        if pool is None:
            pool_context = open_pool(None, workers, cleaning.config.ray)
        else:
            pool_context = nullcontext(pool)
        with pool_context as unit_pool:
            cleaning.sign(unit_pool, on_progress=on_progress)
    return cleaning.settle()


def _stored_dataset_notes(config: PipelineConfig) -> list[str]:
    """Return a note for each dataset of the store, which has no texts."""
    notes: list[str] = []
    for dataset in config.datasets:
        if dataset.dataset is not None:
            notes.append(
                f"{dataset.name}: a dataset of the store, which contains no texts; it is skipped"
            )
    return notes


def _without(account: Account, left_out: LeftOut) -> Account:
    """Return the audit of a unit's signatures less the documents that are left out.

    These count as filtered.
    """
    filtered = Counter(account.filtered) + Counter(left_out.reason)
    left_out_count = len(left_out)
    # Signatures have no sizes of texts: `text_bytes` stays that of all documents.
    return replace(
        account,
        filtered=dict(filtered),
        kept=account.kept - left_out_count,
        documents=account.documents - left_out_count,
    )


def _list_rows(unit: CleanUnit, left_out: LeftOut) -> pa.RecordBatch:
    """Return the rows of the list for the documents of a unit that are left out."""
    path_of = {
        file_range.file.file_id: file_range.file.path for file_range in unit.ranges
    }
    columns: dict[str, Any] = left_out.to_columns()
    # The source and the path are for people; the id of the file names the document.
    columns["source"] = [unit.source.name] * len(left_out)
    columns["path"] = [path_of[file_id] for file_id in left_out.file.tolist()]
    return pa.RecordBatch.from_pydict(columns, SCHEMA)
