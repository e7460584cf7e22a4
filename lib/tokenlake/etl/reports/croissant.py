"""``croissant.json``: the metadata of a version in the JSON-LD of Croissant 1.0.

It lists the data files, their hashes and their columns. Licence and languages are those
of section `card`. Creator and date are left out, because no configuration names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

CROISSANT: Final = "croissant.json"
"""Name of the file."""

_CONFORMS_TO: Final = "http://mlcommons.org/croissant/1.0"
# Terms of the vocabulary of Croissant, for which its prefix `cr:` is declared.
_TERMS: Final = (
    "citeAs column conformsTo extract field fileObject fileProperty fileSet format includes isLiveDataset jsonPath key "
    "md5 parentField path recordSet references regex repeated replace separator source subField transform"
)
_CONTEXT: Final[dict[str, Any]] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS.split()},
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
}
# Key of section `card` -> property of schema.org.
_CARD_PROPERTIES: Final = {"license": "license", "language": "inLanguage"}

# Format of data files -> media type.
_MEDIA_TYPES: Final = {
    "parquet": "application/x-parquet",
    "arrow": "application/vnd.apache.arrow.file",
    "jsonl": "application/jsonlines",
}

# The type of a list as Arrow writes it: `list<element: int32 not null>`,
# `fixed_size_list<element: int32>[2048]`. Group 1 is the type of an element.
_LIST: Final = re.compile(
    r"(?:large_|fixed_size_)?list<[^:]*: ([^<>]*?)(?: not null)?>(?:\[\d+\])?"
)

# Arrow type -> data type of Croissant.
_SCALARS: Final = (
    (re.compile(r"u?int\d+"), "sc:Integer"),
    (re.compile(r"halffloat|float|double|decimal.*"), "sc:Float"),
    (re.compile(r"bool"), "sc:Boolean"),
    (re.compile(r"(large_)?string(_view)?"), "sc:Text"),
    (re.compile(r"date\d+\[.*"), "sc:Date"),
    (re.compile(r"timestamp\[.*"), "sc:DateTime"),
)


class DataFile(Protocol):
    """A data file: its path, split, size in bytes, and SHA-256 (hexadecimal)."""

    @property
    def path(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


@final
@dataclass(frozen=True, slots=True)
class RowFiles:
    """Files with the same columns.

    Attributes:
        prefix: Prefix of all paths and ids: "", or a folder that ends in ``/``.
        format: ``parquet``, ``arrow`` or ``jsonl``.
        columns: Column name -> Arrow type, as Arrow writes it; empty if unknown.
        files: Data files.
    """

    prefix: str
    format: str
    columns: Mapping[str, str]
    files: Sequence[DataFile]

    @property
    def splits(self) -> list[str]:
        """Splits of the files, each once, in the order of the files."""
        return list(dict.fromkeys(file.split for file in self.files))


def metadata(
    name: str,
    description: str,
    groups: Sequence[RowFiles],
    *,
    url: str = "",
    version: int | None = None,
    card: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of ``croissant.json``.

    It has a FileObject for each file, a FileSet for each split, and a RecordSet for the
    columns of each split. Columns of structs are left to the schema of the files.

    Args:
        name: Name of the dataset.
        description: Description of the dataset.
        groups: Data files, in groups of equal columns.
        url: URL of the dataset. Default: "", for none.
        version: Number of the version, which is written as ``3.0.0``. Default: None,
            for no version.
        card: Section `card` of the manifest's configuration. Default: None.
    """
    content: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _CONFORMS_TO,
        "name": name,
        "description": description,
    }
    # Unknown facts have no key: an empty value would be a statement.
    if url:
        content["url"] = url
    if version is not None:
        content["version"] = f"{version}.0.0"
    if card:
        for key, card_property in _CARD_PROPERTIES.items():
            if key in card:
                content[card_property] = card[key]

    distribution: list[dict[str, Any]] = []
    record_sets: list[dict[str, Any]] = []
    for group in groups:
        distribution += _distribution(group)
        # A record set needs columns; files of unknown columns are only listed.
        if not group.columns:
            continue
        for split in group.splits:
            record_set = _named("RecordSet", f"{group.prefix}{split}")
            record_set["field"] = list(_fields(group, split))
            record_sets.append(record_set)
    content["distribution"] = distribution
    content["recordSet"] = record_sets
    return content


def _named(class_name: str, name: str) -> dict[str, Any]:
    """Return an object of a class of Croissant, whose name is its id."""
    return {"@type": f"cr:{class_name}", "@id": name, "name": name}


def _distribution(group: RowFiles) -> Iterator[dict[str, Any]]:
    """Yield a FileObject for each file, and a FileSet for each split."""
    media_type = _MEDIA_TYPES[group.format]
    paths_by_split: dict[str, list[str]] = {}
    for file in group.files:
        path = f"{group.prefix}{file.path}"
        paths_by_split.setdefault(file.split, []).append(path)
        yield {
            **_named("FileObject", path),
            "contentUrl": path,
            "contentSize": f"{file.bytes} B",
            "encodingFormat": media_type,
            "sha256": file.sha256,
        }
    for split, paths in paths_by_split.items():
        yield {
            **_named("FileSet", _file_set_id(group, split)),
            "encodingFormat": media_type,
            "includes": paths,
        }


def _file_set_id(group: RowFiles, split: str) -> str:
    """Return the id of the files of a split, by which fields refer to them."""
    return f"{group.prefix}files of {split}"


def _fields(group: RowFiles, split: str) -> Iterator[dict[str, Any]]:
    """Yield the columns whose type Croissant has; a list is a repeated element."""
    for column, arrow_type in group.columns.items():
        list_match = _LIST.fullmatch(arrow_type)
        scalar_type = arrow_type
        if list_match is not None:
            scalar_type = list_match[1]
        data_type = _data_type(scalar_type)
        if data_type is None:
            continue
        # JSON Lines has no columns: a path in each record names the value.
        extract = {"column": column}
        if group.format == "jsonl":
            extract = {"jsonPath": f"$[{json.dumps(column)}]"}
        record_field: dict[str, Any] = {
            "@type": "cr:Field",
            "@id": f"{group.prefix}{split}/{column}",
            "name": column,
            "dataType": data_type,
        }
        if list_match is not None:
            record_field["repeated"] = True
        record_field["source"] = {
            "fileSet": {"@id": _file_set_id(group, split)},
            "extract": extract,
        }
        yield record_field


def _data_type(arrow_type: str) -> str | None:
    """Return the data type of Croissant for an Arrow type; None if there is none."""
    for pattern, data_type in _SCALARS:
        if pattern.fullmatch(arrow_type):
            return data_type
    return None
