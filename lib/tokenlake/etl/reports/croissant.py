"""``croissant.json``: the metadata of a version in the JSON-LD of Croissant 1.0, from
its manifest.

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
_CONFORMS: Final = "http://mlcommons.org/croissant/1.0"
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
_WORDS: Final = {"license": "license", "language": "inLanguage"}
_MEDIA: Final = {
    "parquet": "application/x-parquet",
    "arrow": "application/vnd.apache.arrow.file",
    "jsonl": "application/jsonlines",
}
_LIST: Final = re.compile(
    r"(?:large_|fixed_size_)?list<[^:]*: ([^<>]*?)(?: not null)?>(?:\[\d+\])?"
)
_SCALARS: Final = (
    (re.compile(r"u?int\d+"), "sc:Integer"),
    (re.compile(r"halffloat|float|double|decimal.*"), "sc:Float"),
    (re.compile(r"bool"), "sc:Boolean"),
    (re.compile(r"(large_)?string(_view)?"), "sc:Text"),
    (re.compile(r"date\d+\[.*"), "sc:Date"),
    (re.compile(r"timestamp\[.*"), "sc:DateTime"),
)


class DataFile(Protocol):
    """What is known of a file: its path, split, size, and sha256 (hex)."""

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
    """Files of the same columns.

    Attributes:
        prefix: of their paths and of what is named here: "", or a folder that ends in
            ``/``.
        format: ``parquet``, ``arrow`` or ``jsonl``.
        columns: name to Arrow type, as Arrow writes it; empty where none are known.
    """

    prefix: str
    format: str
    columns: Mapping[str, str]
    files: Sequence[DataFile]

    @property
    def splits(self) -> list[str]:
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
    """Return what the file says: a FileObject for each file, a FileSet for each split,
    and a RecordSet for its columns.

    Columns of structs are left to the schema of the files.

    Args:
        url: of the dataset; "" where it has none.
        version: its number, written as ``3.0.0``.
        card: what a manifest's configuration holds of section `card`.
    """
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _CONFORMS,
        "name": name,
        "description": description,
        **({"url": url} if url else {}),
        **({"version": f"{version}.0.0"} if version is not None else {}),
        **{key: card[name] for name, key in _WORDS.items() if card and name in card},
        "distribution": [each for group in groups for each in _distribution(group)],
        "recordSet": [
            {
                **_named("RecordSet", f"{group.prefix}{split}"),
                "field": list(_fields(group, split)),
            }
            for group in groups
            if group.columns
            for split in group.splits
        ],
    }


def _named(kind: str, name: str) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": name, "name": name}


def _distribution(group: RowFiles) -> Iterator[dict[str, Any]]:
    for file in group.files:
        path, size = f"{group.prefix}{file.path}", f"{file.bytes} B"
        found = _named("FileObject", path) | {"contentUrl": path, "contentSize": size}
        yield found | {"encodingFormat": _MEDIA[group.format], "sha256": file.sha256}
    for split in group.splits:
        paths = [
            f"{group.prefix}{file.path}" for file in group.files if file.split == split
        ]
        found = _named("FileSet", f"{group.prefix}files of {split}")
        yield found | {"encodingFormat": _MEDIA[group.format], "includes": paths}


def _fields(group: RowFiles, split: str) -> Iterator[dict[str, Any]]:
    """Yield the columns whose type has a word here; a list is of what it holds,
    repeated.
    """
    for column, told in group.columns.items():
        inner = _LIST.fullmatch(told)
        scalar = told if inner is None else inner[1]
        word = next(
            (word for pattern, word in _SCALARS if pattern.fullmatch(scalar)), None
        )
        if word is None:
            continue
        extract = (
            {"jsonPath": f"$[{json.dumps(column)}]"}
            if group.format == "jsonl"
            else {"column": column}
        )
        yield {
            "@type": "cr:Field",
            "@id": f"{group.prefix}{split}/{column}",
            "name": column,
            "dataType": word,
            **({} if inner is None else {"repeated": True}),
            "source": {
                "fileSet": {"@id": f"{group.prefix}files of {split}"},
                "extract": extract,
            },
        }
