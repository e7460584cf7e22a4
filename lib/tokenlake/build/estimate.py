"""What a build will probably give, from a small sample of each source."""

from __future__ import annotations

from itertools import islice
from typing import Final

from tokenlake.build.plan import Plan
from tokenlake.build.units import WorkUnit
from tokenlake.sources.records import read_range
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.tokenizers.reference import Reference

#: Characters of a source that are encoded, and of one document at most.
_SAMPLE: Final = 1 << 18
_SAMPLE_DOCUMENT: Final = 1 << 14

#: Bytes on disk per token of packed ids: 5 to 6 bits on real text, and provenance.
_BYTES_PER_TOKEN: Final = 0.75


def estimate(plan: Plan) -> dict[str, int]:
    """Return ``input_bytes``, and estimates of ``tokens``, ``sequences``, ``output_bytes`` and ``files``.

    The first documents of each source are encoded with the reference (about 0.1 s a source).
    """
    rates = {source.name: _tokens_per_byte(plan, source.name) for source in plan.build.sources}
    pack = plan.build.pack
    tokens = sequences = files = 0
    for unit in plan.units:
        mine = int(unit.bytes * rates[unit.source])
        tokens += mine
        sequences += -(-mine // pack.seq_length) if pack else 0
        splits = len(plan.source(unit.source).splits)
        files += splits - 1 + max(1, -(-int(mine * _BYTES_PER_TOKEN) // plan.build.max_shard_size))
    return {
        "input_bytes": plan.input_bytes,
        "tokens": tokens,
        "sequences": sequences,
        "output_bytes": int(tokens * _BYTES_PER_TOKEN),
        "files": files,
    }


def _tokens_per_byte(plan: Plan, source: str) -> float:
    """Tokens per input byte in a source's first documents."""
    unit = next((unit for unit in plan.units if unit.source == source and unit.bytes), None)
    return 0.0 if unit is None else _rate(plan, unit, plan.tokenizers[source].files)


def _rate(plan: Plan, unit: WorkUnit, files: TokenizerFiles) -> float:
    for batch in islice(read_range(unit.ranges[0], plan.source(unit.source)), 1):
        sample: list[str] = []
        for value in batch.text:
            sample.append(str(value.as_py())[:_SAMPLE_DOCUMENT])
            if sum(map(len, sample)) >= _SAMPLE:
                break
        encoded = sum(len(text.encode()) for text in sample)
        if not encoded or not batch.bytes_read:
            return 0.0
        tokens = sum(len(ids) for ids in Reference(files).encode(sample))
        return tokens / encoded * batch.text.nbytes / batch.bytes_read
    return 0.0
