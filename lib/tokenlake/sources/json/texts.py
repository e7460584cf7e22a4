"""The texts of JSON records, one by one, where :mod:`tokenlake.sources.json.fast` is not sure."""

from __future__ import annotations

from collections.abc import Iterator

from tokenlake.faults import Fault, too_long
from tokenlake.sources.arrays import text_of_strings
from tokenlake.sources.json.spans import Spans
from tokenlake.sources.json.strict import parse_line
from tokenlake.sources.parsed import Parsed


def read_texts_of(spans: Spans, field: str, max_record_bytes: int) -> Iterator[Parsed]:
    """Read records strictly, one by one, for their texts alone."""

    def judge(index: int, line: bytes) -> str | Fault:
        if len(line) > max_record_bytes:
            return too_long(len(line), max_record_bytes)
        return parse_line(line, field)

    for piece in spans.pieces():
        texts, good, bad = piece.judged(judge)
        yield piece.parsed(good, bad, text=text_of_strings(texts))
