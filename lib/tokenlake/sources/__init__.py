"""Raw input, from a pattern in a configuration to columns of text.

Like a mail room: :func:`list_inputs` lists and seals what has arrived (path, size, sha256),
:func:`split_file` cuts big parcels into pieces anyone may open independently, and
:func:`read_range` opens one piece and hands over its texts in Arrow batches, each with the place
it came from, setting damaged letters aside with the reason written on them.
"""

from tokenlake.sources.batch import BadRecord, RowBatch, TextBatch
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.local.hashcache import HashCache
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.records import read_range, read_rows
from tokenlake.sources.split import split_file, splittable

__all__ = [
    "BadRecord",
    "FileRange",
    "HashCache",
    "InputFile",
    "RowBatch",
    "TextBatch",
    "list_inputs",
    "read_range",
    "read_rows",
    "split_file",
    "splittable",
]
