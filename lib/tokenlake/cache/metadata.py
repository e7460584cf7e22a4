"""What is known of an entry of a cache beside its value."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, final

from tokenlake.errors import ConfigError


@final
@dataclass(frozen=True, kw_only=True)
class CacheMetadata:
    """What an entry was made of, for those who decide whether it still holds.

    Attributes:
        version: of whatever wrote it.
        created_at: when, in seconds since 1970.
        source_hash, tokenizer_hash, transform_hash, config_hash: of what its value was made of.
        num_examples: rows in it.
        extra: anything else that JSON has.
    """

    version: str = "1.0"
    created_at: float = field(default_factory=time.time)
    source_hash: str = ""
    tokenizer_hash: str | None = None
    transform_hash: str | None = None
    num_examples: int = 0
    config_hash: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def is_valid_for(self, config_hash: str, source_hash: str | None = None) -> bool:
        """Say whether the entry was made with this configuration, and of this source where one is named."""
        return self.config_hash == config_hash and source_hash in (None, self.source_hash)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name, as JSON has them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CacheMetadata:
        """Return the metadata of :meth:`to_dict`; what is missing has its default.

        Raises:
            ConfigError: there is another name.
        """
        known = [each.name for each in fields(cls)]
        if unknown := sorted(set(data) - set(known)):
            raise ConfigError(
                f"metadata of a cache entry: got {', '.join(unknown)}; expected {', '.join(known)}"
            )
        return cls(**data)


class Entry(NamedTuple):
    """A value with what is known of it; `expires` is in seconds since 1970, None for never."""

    value: Any
    metadata: CacheMetadata | None = None
    expires: float | None = None
