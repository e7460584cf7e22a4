"""Groups of files that hold the same kind of records: which are looked into, and what that says of all of them."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, Final, final

from tokenlake.config.formats import FORMATS, Format
from tokenlake.etl.introspection.inspection import Feature, Kind, Remark, TextStatistics, kind_of, mapped
from tokenlake.etl.introspection.mapping import ColumnMapper, ColumnMapping
from tokenlake.etl.introspection.sample import FileSample
from tokenlake.etl.introspection.shapes import Shape, merged_columns
from tokenlake.etl.sources.formats import COMPRESSION_ENDINGS
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.patterns import expand
from tokenlake.etl.sources.rows import value_at

_NAME_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LARGE_TEXT: Final = 1 << 20  # bytes of a text file on average, above which lines may be documents
_BLANK: Final = 0.01  # share of blank lines, above which lines are not
_HUGE_TEXT: Final = 256 << 20  # default of max_record_bytes: no document


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files that hold the same kind of records.

    Attributes:
        files: all of them.
        looks: into some of them.
        mapping, kind: of their common columns.
        columns: name to type, merged over the looks that found any.
    """

    files: tuple[InputFile, ...]
    looks: tuple[FileSample, ...]
    columns: Mapping[str, Shape]
    mapping: ColumnMapping
    kind: Kind

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same in files that can be one entry of a configuration."""
        return self.kind, self.content_field, self.retyped, self.delimiter, self.text_mode

    @property
    def good(self) -> tuple[FileSample, ...]:
        """The looks that found the file readable."""
        return tuple(look for look in self.looks if look.damage is None)

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The records of the sample, in turn one of every file."""
        turns = zip_longest(*(look.rows for look in self.looks))
        return tuple(row for turn in turns for row in turn if row is not None)

    @property
    def content_field(self) -> str | None:
        """Where the text is."""
        return self.mapping.columns.get("text")

    @property
    def format(self) -> Format:
        """What the files hold, judged by their bytes."""
        return self.looks[0].file.format

    @property
    def retyped(self) -> Format | None:
        """The same, where the files' names say another one."""
        return self.format if self.format != self.files[0].format else None

    @property
    def delimiter(self) -> str | None:
        """Between the cells of CSV, where it is not what the extension says."""
        return next((look.delimiter for look in self.looks if look.delimiter is not None), None)

    @property
    def text_mode(self) -> str | None:
        """``lines`` where the lines of text files look like documents, else None.

        That is where no file of this size is a document, or where the files have 1 MiB and more on average
        and no blank lines to speak of, as a book has and a list of documents has not.
        """
        if self.format != "text" or not self.files:
            return None
        if self.files[0].text_mode == "lines":
            return "lines"
        lines, blank = (sum(look.lines[index] for look in self.good) for index in (0, 1))
        mean = sum(file.size for file in self.files) / len(self.files)
        listed = mean >= _LARGE_TEXT and lines > 8 and blank <= _BLANK * lines
        return "lines" if listed or max(file.size for file in self.files) > _HUGE_TEXT else None

    def formats(self) -> dict[str, int]:
        """Count files by what they hold and how they are compressed: ``jsonl.gz``."""
        ends = {**COMPRESSION_ENDINGS, None: ""}
        return dict(sorted(Counter(f"{file.format}{ends[file.compression]}" for file in self.files).items()))

    def features(self) -> tuple[Feature, ...]:
        """Return the columns and what they are taken for."""
        roles = {column: role for role, column in self.mapping.columns.items()}
        return tuple(
            Feature(name=name, type=str(shape), nullable=shape.nullable, role=roles.get(name))
            for name, shape in self.columns.items()
        )

    def row_count(self) -> tuple[int | None, bool]:
        """Return how many records there are, and whether that is counted or estimated."""
        good = self.good
        if not good:
            return None, False
        if self.format == "text" and self.text_mode is None:
            return len(self.files), True
        known = {look.file.path: look.total for look in good if look.total is not None}
        bad = {look.file.path for look in self.looks if look.damage is not None}
        if all(file.path in known or file.path in bad for file in self.files):
            return sum(known[file.path] for file in self.files if file.path in known), True
        seen = sum(look.total if look.total is not None else look.seen for look in good)
        stored = sum(look.file.size if look.total is not None else look.stored for look in good)
        if not seen or not stored:
            return None, False
        return round(seen / stored * sum(file.size for file in self.files)), False

    def statistics(self) -> TextStatistics | None:
        """Measure the texts of the sample."""
        column = self.content_field
        values = [] if column is None else [value_at(row, column) for row in self.rows]
        texts = [text for text in values if isinstance(text, str)]
        if column is None or not texts:
            return None
        whole = [look.lengths for look in self.looks if look.lengths is not None]
        sizes = whole or [float(len(text)) for text in texts]
        ascii_ = sum(len(text) if text.isascii() else sum(c < "\x80" for c in text) for text in texts)
        return TextStatistics(
            column=column,
            records=len(texts),
            mean_characters=round(sum(sizes) / len(sizes), 1),
            ascii_share=round(ascii_ / max(1, sum(map(len, texts))), 4),
        )

    def findings(self) -> Iterator[Remark]:
        """Yield what is wrong with the files that were looked into, and with their texts; not that they are empty."""
        for look in self.looks:
            path = look.file.path
            if not look.file.size:
                continue
            if look.damage is not None:
                yield Remark(file=path, what=look.damage, fatal=True)
            elif look.remark is not None:
                yield Remark(file=path, what=look.remark)
            else:
                yield from self._in_records(look)

    def _in_records(self, look: FileSample) -> Iterator[Remark]:
        field, reasons = self.content_field, Counter(look.bad)
        values = [] if field is None else [(row, value_at(row, field)) for row in look.rows]
        for row, value in values:  # some have no text where the others have one
            if value is None:
                reasons["null_text" if field in row else "missing_field"] += 1
            elif not isinstance(value, str):
                reasons["not_a_string"] += 1
        if reasons:
            told = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
            what = f"{reasons.total():,} of {max(look.seen, 1):,} records looked at are bad: {told}"
            yield Remark(file=look.file.path, what=what)
        if field is not None and look.columns and FORMATS[self.format].schema:
            top = field if field in self.columns else field.split(".")[0]
            if top not in look.columns:
                yield Remark(file=look.file.path, what=f"it has no column {top!r}", fatal=True)


def merged_groups(
    looked: Iterable[tuple[Sequence[InputFile], Sequence[FileSample]]],
    mapper: ColumnMapper,
    explicit: Mapping[str, str],
) -> list[FileGroup]:
    """Judge files by the looks into some, and join those that can be one entry of a configuration; most bytes first."""
    parts = [_group_of(files, looks, mapper, explicit) for files, looks in looked]
    found: dict[tuple[object, ...], list[FileGroup]] = {}
    for part in parts:
        if part.kind != "empty":
            found.setdefault(part.key, []).append(part)
    first = next(iter(found.values())) if found else found.setdefault((), [])
    first += [part for part in parts if part.kind == "empty"]  # empty files fit in anywhere
    whole: list[FileGroup] = []
    for same in found.values():
        files = sorted((file for part in same for file in part.files), key=lambda file: file.path)
        looks = [look for part in same for look in part.looks]
        whole.append(same[0] if len(same) == 1 else _group_of(files, looks, mapper, explicit))
    return sorted(whole, key=lambda part: (-sum(file.size for file in part.files), part.files[0].path))


def _group_of(
    files: Sequence[InputFile], looks: Sequence[FileSample], mapper: ColumnMapper, explicit: Mapping[str, str]
) -> FileGroup:
    columns = merged_columns(look.columns for look in looks if look.columns)
    mapping = mapped(mapper, columns, [row for look in looks for row in look.rows], explicit)
    if columns:
        kind = kind_of(mapping)
    elif any(look.damage is None and look.remark is not None for look in looks):
        kind = "unknown"
    else:
        kind = "damaged" if any(look.damage is not None and look.file.size for look in looks) else "empty"
    return FileGroup(files=tuple(files), looks=tuple(looks), columns=columns, mapping=mapping, kind=kind)


def name_of(files: Iterable[InputFile]) -> str:
    """Return a name that fits a source of a configuration, from what the files' names have in common."""
    names = (re.sub(r"-\d+-of-\d+", "", PurePosixPath(file.path).name) for file in files)
    stems = [name.partition(".")[0] for name in names]
    common = os.path.commonprefix(stems)  # noqa: RUF071 - characters are meant
    plain = common if common in stems else re.sub(r"[\d._-]*$", "", common)
    return source_name(plain) or "data"


def source_name(text: str) -> str:
    """Return `text` with what a source's name may not hold left out; "" if nothing is left."""
    return _NAME_CHARACTERS.sub("-", text).strip("._-")[:64].rstrip("._-")


LOOKED_INTO: Final = 8
"""Files that are looked into, of however many."""

_NUMBERS: Final = re.compile(r"\d+")
_MANY: Final = 1000  # more files are never named one by one


def families(files: Sequence[InputFile]) -> list[list[InputFile]]:
    """Group files that probably hold the same, at most eight groups, in the order of the listing.

    Those are files of one format, compression and folder whose names differ in digits alone; where that gives
    more groups than can be looked into, files of one folder at the top, and at last of one format.
    """
    keys: tuple[Callable[[InputFile], tuple[str | None, ...]], ...] = (
        lambda file: (file.format, file.compression, _NUMBERS.sub("#", file.path)),
        lambda file: (file.format, file.compression, PurePosixPath(file.path).parts[0] * ("/" in file.path)),
        lambda file: (file.format,),
    )
    groups: dict[tuple[str | None, ...], list[InputFile]] = {}
    for key in keys:
        groups = {}
        for file in files:
            groups.setdefault(key(file), []).append(file)
        if len(groups) <= LOOKED_INTO:
            break
    return list(groups.values())


def chosen(groups: list[list[InputFile]]) -> list[list[InputFile]]:
    """Return which files of every group to look into: about eight in all, spread evenly over each group.

    A file with bytes in it is preferred to an empty one.
    """
    share, more = divmod(LOOKED_INTO, len(groups)) if groups else (0, 0)
    picked: list[list[InputFile]] = []
    for number, group in enumerate(groups):
        count = max(share + (number < more), 1)
        some = [file for file in group if file.size] or group
        places = (index * (len(some) - 1) // max(count - 1, 1) for index in range(count))
        picked.append(some if count >= len(some) else [some[place] for place in places])
    return picked


def data_files(
    wanted: Sequence[InputFile], listing: Sequence[InputFile], given: tuple[str, ...]
) -> str | list[str]:
    """Return entries of a configuration that list exactly `wanted`, or `given` if they would be too many.

    Args:
        wanted: some files of the listing, or all.
        listing: what the entries in `given` list.
    """
    whole = given[0] if len(given) == 1 else list(given)
    if len(wanted) == len(listing):
        return whole
    # Paths that were given as relative ones stay relative.
    relative = not any(
        Path(entry).is_absolute() or "://" in entry or entry.startswith("~") for entry in given
    )
    names = [os.path.relpath(file.url) if relative and file.is_local else file.url for file in wanted]
    if len(names) == 1:
        return names[0]
    if wanted[0].is_local:
        pattern = _pattern(names)
        if set(expand(pattern, None)[1]) == {file.url for file in wanted}:
            return pattern
    return names if len(names) <= _MANY else whole


def _pattern(names: Sequence[str]) -> str:
    """A glob that may stand for the names: they differ in digits alone, or have one extension."""
    paths = [Path(name) for name in names]
    folder = glob.escape(os.path.commonpath([path.parent for path in paths]))
    open_numbers = {_NUMBERS.sub("*", path.name) for path in paths}
    if len({path.parent for path in paths}) == 1:
        end = open_numbers.pop() if len(open_numbers) == 1 else f"*.{paths[0].name.partition('.')[2]}"
    else:
        end = f"**/*.{paths[0].name.partition('.')[2]}"
    return f"{folder}/{end}" if folder else end
