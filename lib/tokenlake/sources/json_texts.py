"""The texts of JSON records, one by one, where :mod:`tokenlake.sources.fastjson` is not sure."""

from __future__ import annotations

from collections.abc import Iterator

from tokenlake.sources.arrays import text_of_strings
from tokenlake.sources.jsonspans import Spans
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.strict import Fault, parse_line, too_long


def read_texts_of(spans: Spans, field: str, max_record_bytes: int) -> Iterator[Parsed]:
    """Read records strictly, one by one, for their texts alone."""

    def judge(index: int, line: bytes) -> str | Fault:
        if len(line) > max_record_bytes:
            return too_long(len(line), max_record_bytes)
        return parse_line(line, field)

    for piece in spans.pieces():
        texts, good, bad = piece.judged(judge)
        yield piece.parsed(good, bad, text=text_of_strings(texts))
