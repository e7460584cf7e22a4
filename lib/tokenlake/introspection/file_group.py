"""Groups of files that hold the same kind of records: which are looked into, and what that says of all of them."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, Final, final

from tokenlake.config.formats import FORMATS, Format
from tokenlake.introspection.inspection import Feature, Kind, Remark, TextStatistics, kind_of, mapped
from tokenlake.introspection.mapping import ColumnMapper, ColumnMapping
from tokenlake.introspection.sample import FileSample, Shape, merged_columns
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.listing import expand
from tokenlake.sources.rows import value_at

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
        looked = self.looks[0]
        retyped = looked.file.format if looked.file.format != self.files[0].format else None
        return self.kind, self.mapping.columns.get("text"), retyped, self.delimiter, self.text_mode

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


def group_of(
    files: Iterable[InputFile], looks: Iterable[FileSample], mapper: ColumnMapper, explicit: Mapping[str, str]
) -> FileGroup:
    """Judge files by the looks into some of them."""
    looks = tuple(looks)
    columns = merged_columns(look.columns for look in looks if look.columns)
    mapping = mapped(mapper, columns, [row for look in looks for row in look.rows], explicit)
    return FileGroup(
        files=tuple(files),
        looks=looks,
        columns=columns,
        mapping=mapping,
        kind=kind_of(mapping) if columns else _without_columns(looks),
    )


def _without_columns(looks: tuple[FileSample, ...]) -> Kind:
    if any(look.damage is None and look.remark is not None for look in looks):
        return "unknown"
    return "damaged" if any(look.damage is not None and look.file.size for look in looks) else "empty"


def merged_groups(
    parts: Iterable[FileGroup], mapper: ColumnMapper, explicit: Mapping[str, str]
) -> list[FileGroup]:
    """Join files that can be one entry of a configuration; the most bytes first."""
    found: dict[tuple[object, ...], list[FileGroup]] = {}
    parts = list(parts)
    for part in parts:
        if part.kind != "empty":
            found.setdefault(part.key, []).append(part)
    first = next(iter(found.values())) if found else found.setdefault((), [])
    first += [part for part in parts if part.kind == "empty"]  # empty files fit in anywhere
    whole = [_join(same, mapper, explicit) for same in found.values()]
    return sorted(whole, key=lambda part: (-sum(file.size for file in part.files), part.files[0].path))


def _join(parts: list[FileGroup], mapper: ColumnMapper, explicit: Mapping[str, str]) -> FileGroup:
    if len(parts) == 1:
        return parts[0]
    files = sorted((file for part in parts for file in part.files), key=lambda file: file.path)
    return group_of(files, (look for part in parts for look in part.looks), mapper, explicit)


def features(part: FileGroup) -> tuple[Feature, ...]:
    """The columns and what they are taken for."""
    roles = {column: role for role, column in part.mapping.columns.items()}
    return tuple(
        Feature(name=name, type=str(shape), nullable=shape.nullable, role=roles.get(name))
        for name, shape in part.columns.items()
    )


def row_count(part: FileGroup) -> tuple[int | None, bool]:
    """Return how many records there are, and whether that is counted or estimated."""
    if not part.good:
        return None, False
    if part.format == "text" and part.text_mode is None:
        return len(part.files), True
    known = {look.file.path: look.total for look in part.good if look.total is not None}
    bad = {look.file.path for look in part.looks if look.damage is not None}
    if all(file.path in known or file.path in bad for file in part.files):
        return sum(known[file.path] for file in part.files if file.path in known), True
    seen = sum(look.total if look.total is not None else look.seen for look in part.good)
    stored = sum(look.file.size if look.total is not None else look.stored for look in part.good)
    if not seen or not stored:
        return None, False
    return round(seen / stored * sum(file.size for file in part.files)), False


def statistics(part: FileGroup) -> TextStatistics | None:
    """Measure the texts of the sample."""
    column = part.content_field
    if column is None:
        return None
    texts = [text for row in part.rows if isinstance(text := value_at(row, column), str)]
    if not texts:
        return None
    whole = [look.lengths for look in part.looks if look.lengths is not None]
    sizes = whole or [float(len(text)) for text in texts]
    ascii_ = sum(len(text) if text.isascii() else sum(c < "\x80" for c in text) for text in texts)
    return TextStatistics(
        column=column,
        records=len(texts),
        mean_characters=round(sum(sizes) / len(sizes), 1),
        ascii_share=round(ascii_ / max(1, sum(map(len, texts))), 4),
    )


def formats(files: Iterable[InputFile]) -> dict[str, int]:
    """Count files by what they hold and how they are compressed: ``jsonl.gz``."""
    ends = {"gzip": ".gz", "zstd": ".zst", "lz4": ".lz4", None: ""}
    return dict(sorted(Counter(f"{file.format}{ends[file.compression]}" for file in files).items()))


def name_of(files: Iterable[InputFile]) -> str:
    """Return a name that fits a source of a configuration, from what the files' names have in common."""
    stems = [_stem(file.path) for file in files]
    common = os.path.commonprefix(stems)  # noqa: RUF071 - characters are meant
    plain = common if common in stems else re.sub(r"[\d._-]*$", "", common)
    return source_name(plain) or "data"


def source_name(text: str) -> str:
    """Return `text` with what a source's name may not hold left out; "" if nothing is left."""
    return _NAME_CHARACTERS.sub("-", text).strip("._-")[:64].rstrip("._-")


def _stem(path: str) -> str:
    name = re.sub(r"-\d+-of-\d+", "", PurePosixPath(path).name)
    return name.partition(".")[0]


def findings(part: FileGroup) -> list[Remark]:
    """What is wrong with the files that were looked into, and with their texts; empty ones left out."""
    found: list[Remark] = []
    for look in part.looks:
        path = look.file.path
        if not look.file.size:
            continue
        if look.damage is not None:
            found.append(Remark(file=path, what=look.damage, fatal=True))
        elif look.remark is not None:
            found.append(Remark(file=path, what=look.remark))
        else:
            found += _in_records(part, look)
    return found


def _in_records(part: FileGroup, look: FileSample) -> Iterable[Remark]:
    reasons = Counter(look.bad) + Counter(_without_text(part, look))
    if reasons:
        told = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
        seen = max(look.seen, 1)
        yield Remark(
            file=look.file.path,
            what=f"{sum(reasons.values()):,} of {seen:,} records looked at are bad: {told}",
        )
    if part.content_field is not None and look.columns and FORMATS[part.format].schema:
        top = part.content_field if part.content_field in part.columns else part.content_field.split(".")[0]
        if top not in look.columns:
            yield Remark(file=look.file.path, what=f"it has no column {top!r}", fatal=True)


def _without_text(part: FileGroup, look: FileSample) -> dict[str, int]:
    """Count records of the sample that have no text where the others have one."""
    if part.content_field is None:
        return {}
    found: Counter[str] = Counter()
    for row in look.rows:
        value = value_at(row, part.content_field)
        if value is None:
            found["null_text" if part.content_field in row else "missing_field"] += 1
        elif not isinstance(value, str):
            found["not_a_string"] += 1
    return dict(found)


LOOKED_INTO: Final = 8
"""Files that are looked into, of however many."""

_NUMBERS: Final = re.compile(r"\d+")
_MANY: Final = 1000  # more files are never named one by one


def families(files: Sequence[InputFile]) -> list[list[InputFile]]:
    """Group files that probably hold the same, at most eight groups, in the order of the listing.

    Those are files of one format, compression and folder whose names differ in digits alone; where that gives
    more groups than can be looked into, files of one folder at the top, and at last of one format.
    """
    found: list[list[InputFile]] = []
    for key in (_by_name, _by_top_folder, lambda file: file.format):
        groups: dict[Hashable, list[InputFile]] = {}
        for file in files:
            groups.setdefault(key(file), []).append(file)
        found = list(groups.values())
        if len(found) <= LOOKED_INTO:
            break
    return found


def chosen(groups: list[list[InputFile]]) -> list[list[InputFile]]:
    """Return which files of every group to look into: about eight in all, spread evenly over each group.

    A file with bytes in it is preferred to an empty one.
    """
    share, more = divmod(LOOKED_INTO, len(groups)) if groups else (0, 0)
    return [_spread(group, share + (index < more)) for index, group in enumerate(groups)]


def _spread(group: list[InputFile], count: int) -> list[InputFile]:
    some = [file for file in group if file.size] or group
    if count >= len(some):
        return some
    return [some[index * (len(some) - 1) // max(count - 1, 1)] for index in range(max(count, 1))]


def _by_name(file: InputFile) -> Hashable:
    return file.format, file.compression, _NUMBERS.sub("#", file.path)


def _by_top_folder(file: InputFile) -> Hashable:
    return file.format, file.compression, PurePosixPath(file.path).parts[0] if "/" in file.path else ""


def data_files(
    wanted: Sequence[InputFile], listing: Sequence[InputFile], given: tuple[str, ...]
) -> str | list[str] | None:
    """Return entries of a configuration that list exactly `wanted`, None if they would be too many.

    Args:
        wanted: some files of the listing, or all.
        listing: what the entries in `given` list.
    """
    if len(wanted) == len(listing):
        return given[0] if len(given) == 1 else list(given)
    names = _shown(wanted, given)
    if len(names) == 1:
        return names[0]
    if wanted[0].is_local:
        pattern = _pattern(names)
        if set(expand(pattern, None)[1]) == {file.url for file in wanted}:
            return pattern
    return names if len(names) <= _MANY else None


def _shown(files: Sequence[InputFile], given: Iterable[str]) -> list[str]:
    """Paths as they were given: relative ones stay relative."""
    relative = not any(
        Path(entry).is_absolute() or "://" in entry or entry.startswith("~") for entry in given
    )
    return [os.path.relpath(file.url) if relative and file.is_local else file.url for file in files]


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
