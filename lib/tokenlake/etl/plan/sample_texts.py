"""Parts of the documents of a batch, for an estimate that cannot afford all of them.

A plan must not look at the beginnings of files alone: source files begin with licences
and imports, articles with a title, and both have other tokens per byte than the rest.
The parts are spread evenly over the bytes of a batch:

1. Divide the bytes of the batch's texts into equal stretches, one for each part.
2. A part begins in the middle of its stretch: in the document that holds this byte.
3. Inside a long document the part begins at that very byte. Otherwise it begins with
   the document.
4. It ends after `most / parts` bytes, at a document's end or inside a long document.

Example: texts of 10, 10 and 80 bytes, 2 parts, 20 bytes in all. The stretches begin at
0 and 50, their middles are the bytes 25 and 75. Both lie in the third text, so that its
bytes 5 to 15 and 55 to 65 are taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import string_buffers
from tokenlake.etl.unit.text_documents import TextDocuments, taken

PART_BYTES: Final = 16 << 10
"""Bytes of one part: a few times the window in which neighbouring words repeat, so
that it compresses like the rest.
"""


def sample_of(
    documents: TextDocuments, most: int, part_bytes: int = PART_BYTES
) -> TextDocuments:
    """Return documents of about `most` bytes of text, evenly from a batch.

    A batch of no more bytes is returned as it is.

    Plain texts are cut. Documents of ids, and those whose parts count differently, such
    as conversations, stay whole.

    Args:
        documents: Documents of a batch.
        most: Bytes of text.
        part_bytes: Bytes of one part of plain texts.
    """
    text_bytes = int(documents.sizes.sum())
    if text_bytes <= most or not len(documents):
        return documents
    has_structure = documents.spans is not None or documents.ids is not None
    is_plain = not has_structure and documents.parts == 1
    if not is_plain:
        return _whole_documents(documents, -(-text_bytes // most))
    return _parts_of_texts(documents, most, part_bytes)


def _whole_documents(documents: TextDocuments, step: int) -> TextDocuments:
    """Return one of each `step` documents of a batch, at least one."""
    # Each step gives the document in its middle.
    is_chosen = np.zeros(len(documents), np.bool_)
    is_chosen[(step // 2) % len(documents) :: step] = True
    return documents.select(is_chosen)


def _parts_of_texts(
    documents: TextDocuments, most: int, usual_bytes: int
) -> TextDocuments:
    """Return parts of plain texts, each as a document; see the top of the module."""
    offsets, text_bytes = string_buffers(documents.text)
    first_byte = int(offsets[0])
    part_count = max(1, most // usual_bytes)
    part_bytes = most // part_count
    stretch_bytes = documents.text_bytes / part_count

    # The text of each part, and the index of its document. The part before may have
    # gone beyond the middle of this stretch, so the index only grows.
    texts: list[str] = []
    origins: list[int] = []
    document = 0
    for part in range(part_count):
        part_begin = first_byte + int((part + 0.5) * stretch_bytes)
        document = max(
            document, int(np.searchsorted(offsets, part_begin, side="right")) - 1
        )
        document_begin = int(offsets[document])
        is_long = int(offsets[document + 1]) - document_begin > part_bytes
        if is_long:
            part_begin = max(part_begin, document_begin)
        else:
            part_begin = document_begin
        # Whole documents, until the part is long enough.
        end_of_part = part_begin + part_bytes
        while document < len(documents) and part_begin < end_of_part:
            piece_end = min(int(offsets[document + 1]), end_of_part)
            # A character that the part begins or ends in is left out.
            texts.append(
                text_bytes[part_begin:piece_end]
                .tobytes()
                .decode("utf-8", errors="ignore")
            )
            origins.append(document)
            if piece_end < int(offsets[document + 1]):
                break
            document += 1
            part_begin = piece_end
        if document == len(documents):
            break
    document_rows = np.array(origins, np.int64)
    extra = documents.extra
    if extra is not None:
        extra = extra[document_rows]
    label = documents.label
    if label is not None:
        label = label[document_rows]
    return replace(
        documents,
        text=pa.array(texts, pa.large_string()),
        file=documents.file[document_rows],
        position=documents.position[document_rows],
        extra=extra,
        label=label,
        kept=taken(documents.kept, document_rows),
    )
