"""``metadata.json`` beside files that do not describe themselves.

It holds the fields of a dataclass as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tokenlake.errors import DamagedFileError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

METADATA: Final = "metadata.json"

T = TypeVar("T", bound="DataclassInstance")


def metadata_bytes(metadata: DataclassInstance) -> bytes:
    """Return the bytes of the file.

    No clock is in it, so that equal fields make equal bytes.
    """
    return json.dumps(asdict(metadata), indent=1, sort_keys=True).encode() + b"\n"


def read_metadata(kind: type[T], data: bytes, path: str) -> T:
    """Read the bytes of the file.

    Args:
        kind: Dataclass of the fields. Lists become tuples, as its fields have them.
        data: Bytes of the file.
        path: Path of the file, for messages.

    Raises:
        DamagedFileError: The bytes are no JSON, or have other fields.
    """
    # Anything but an object of these fields raises one of the errors below.
    try:
        fields: dict[str, Any] = {}
        for field_name, value in json.loads(data).items():
            if isinstance(value, list):
                fields[field_name] = tuple(value)
            else:
                fields[field_name] = value
        return kind(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        expected_fields = ", ".join(kind.__dataclass_fields__)
        raise DamagedFileError(
            f"{path}: {error}; expected the fields {expected_fields}", path=path
        ) from error
