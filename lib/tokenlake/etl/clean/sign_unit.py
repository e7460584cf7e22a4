"""The job of a worker that makes the signatures of one unit's documents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.clean.signatures import (
    EvaluationNgrams,
    SignatureWriter,
    Signer,
    evaluation_key,
)
from tokenlake.etl.job import Progress, SignJob, begin
from tokenlake.etl.tokenizers.files import NO_TOKENIZER
from tokenlake.etl.unit.documents import Recipe, TextDocuments
from tokenlake.etl.unit.tally import UnitTally
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.ledger import Account


def run_sign_job(
    job: SignJob, store: Store, signers: dict[Any, Any], progress: Progress
) -> dict[str, Any]:
    """Make the signatures of one unit and publish them; return their account.

    Args:
        job: Unit to sign.
        store: Open store of the job.
        signers: Signers of earlier jobs of this process. A signer holds the n-grams of
            evaluation sets.
        progress: Function that is told how many bytes are read.
    """
    signing = job.signing
    signer = signers.get(signing)
    if signer is None:
        # The n-grams are read once in each process; their hash is their name.
        ngrams = None
        if signing.contamination is not None:
            key = evaluation_key(signing.evaluation)
            folder, _, file_name = key.rpartition("/")
            contents = read_files(store, folder, {file_name: signing.evaluation})
            ngrams = EvaluationNgrams.from_bytes(contents[file_name])
        signer = Signer(signing, ngrams)
        signers[signing] = signer
    return sign_unit(job, store, signer, progress).to_json()


_BATCH_DOCUMENTS: Final = 1 << 14
"""Largest number of documents that are signed together; meanwhile their texts are
Python strings.
"""


def sign_unit(
    job: SignJob, store: Store, signer: Signer, progress: Progress
) -> Account:
    """Make the signatures of one unit, and publish them.

    Its records are read, prepared and accounted as for a build.

    Args:
        job: Unit to sign.
        store: Open store of the job.
        signer: Signer with the options of the job.
        progress: Function that is told how many bytes are read.

    Returns:
        Audit of the unit's records, in which all documents are kept.

    Raises:
        AccountError: The audit does not balance, which would be a bug.
    """
    recipe = Recipe(job.source, NO_TOKENIZER)
    tally = UnitTally(packed=False)
    writer = SignatureWriter(store, signer.schema)
    try:
        for file_ranges in recipe.groups(job.ranges):
            begin("reading", file_ranges[0].file)
            for prepared in recipe.read_all(file_ranges):
                tally.read(prepared)
                # 1. Bad records, which the list of a build leaves out as well.
                bad_reasons = [record.reason for record in prepared.bad]
                tally.by["quarantined"].update(bad_reasons)
                # 2. Signatures of all rows.
                for documents, row_starts in _batches_of_rows(prepared.documents):
                    texts = _texts_of_rows(documents, row_starts)
                    file_ids = documents.file[row_starts]
                    positions = documents.position[row_starts]
                    writer.write(signer.sign(texts, file_ids, positions))
                    row_count = len(row_starts)
                    tally.numbers.update(
                        kept=row_count,
                        documents=row_count,
                        text_bytes=documents.text_bytes,
                    )
                progress({"bytes": prepared.bytes_read})
        # 3. The audit. It is published with the signatures, so that a later run that
        #    finds them need not read the input again.
        account = tally.account(())
        account.check(where=f"signatures of {job.source.name}")
        writer.publish(job.fingerprint, account)
    except BaseException:
        writer.discard()
        raise
    return account


def _texts_of_rows(documents: TextDocuments, row_starts: Int64) -> list[str]:
    """Return one text for each row.

    A row that became several documents is left out whole, or not at all.

    Args:
        documents: Documents of whole rows.
        row_starts: Index of the first document of each row, int64[rows].
    """
    texts = cast("list[str]", documents.text.to_pylist())
    if len(row_starts) == len(texts):
        return texts
    row_texts: list[str] = []
    for first_document, end_document in pairwise([*row_starts.tolist(), len(texts)]):
        row_texts.append("\n".join(texts[first_document:end_document]))
    return row_texts


def _batches_of_rows(documents: TextDocuments) -> Iterator[tuple[TextDocuments, Int64]]:
    """Yield batches of whole rows.

    Yields:
        Documents of the rows, and the index of each row's first document, int64[n].
    """
    # A document that is extra belongs to the row of the one before it.
    if documents.extra is None:
        row_starts = np.arange(len(documents))
    else:
        row_starts = np.flatnonzero(~documents.extra)
    for batch_start in range(0, len(row_starts), _BATCH_DOCUMENTS):
        batch_starts = row_starts[batch_start : batch_start + _BATCH_DOCUMENTS]
        # A batch ends before the next batch's first row, with all parts of its last one.
        first_document = int(batch_starts[0])
        end_document = len(documents)
        if batch_start + _BATCH_DOCUMENTS < len(row_starts):
            end_document = int(row_starts[batch_start + _BATCH_DOCUMENTS])
        batch = documents.slice(first_document, end_document)
        yield batch, batch_starts - first_document
