"""The configuration of a run, kept in ``runs/`` so that what it built can be built again.

A manifest says what a version was made from, in a form without paths of the machine. To build a unit again, say
because its shard is damaged, the inputs must be found again: so each run keeps the configuration as it was given, and
the folder that relative paths in it refer to. Secrets are kept as references or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast, final

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.references import scrub
from tokenlake.config.secret import literal_secrets
from tokenlake.errors import IntegrityError, StoreError
from tokenlake.store.base import ReadStore
from tokenlake.store.layout import RUNS, Layout

SUFFIX: Final = "-asked"
"""Ends the name of the file, before ``.json``."""


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked for.

    Attributes:
        fingerprint: of what it builds.
        directory: that relative paths refer to.
        config: as JSON, to be loaded again; None where it holds a secret itself, and not a reference to one.
        left_out: why there is none.
    """

    fingerprint: str
    directory: str
    config: Mapping[str, Any] | None
    left_out: str = ""

    @classmethod
    def of(cls, config: PipelineConfig, fingerprint: str) -> Self:
        """Return what is kept of a run of this process."""
        directory = str(Path.cwd())
        # A push needs its token, a build does not; and who repairs a store has opened it.
        options = config.save.storage_options
        own = {"hub_token": None, "storage_options": None if literal_secrets(options) else options}
        config = config.model_copy(update={"save": config.save.model_copy(update=own)})
        if secrets := literal_secrets(config):
            return cls(fingerprint, directory, None, f"it holds secrets themselves: {', '.join(secrets)}")
        found = config.model_dump(mode="json")
        if signed := _signed(found):
            return cls(
                fingerprint,
                directory,
                None,
                f"it holds URLs with passwords or signatures: {', '.join(signed)}",
            )
        return cls(fingerprint, directory, found)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        facts = {
            "fingerprint": self.fingerprint,
            "directory": self.directory,
            "config": self.config,
            "left_out": self.left_out,
        }
        return json.dumps(facts, indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Read :meth:`to_bytes`' form; IntegrityError for anything else."""
        try:
            facts = json.loads(data)
            config, left_out = facts["config"], facts["left_out"]
            texts = (facts["fingerprint"], facts["directory"], left_out)
            if not all(isinstance(text, str) for text in texts) or not isinstance(config, dict | None):
                raise TypeError("expected texts and an object")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise IntegrityError(f"{where}: does not say how a run was asked: {error}", file=where) from error
        return cls(texts[0], texts[1], cast("dict[str, Any] | None", config), left_out)


def newest_asked(store: ReadStore, layout: Layout, fingerprint: str) -> Asked | None:
    """Return how the newest run that built this fingerprint was asked; None where no run says so."""
    ending = f"{SUFFIX}.json"
    keys = [info.key for info in store.list(layout.key(RUNS)) if info.key.endswith(ending)]
    for key in sorted(keys, reverse=True):
        try:
            found = Asked.from_bytes(store.read(key), key)
        except (IntegrityError, StoreError):
            continue  # runs/ is nobody's proof: a record that cannot be read is passed over
        if found.fingerprint == fingerprint:
            return found
    return None


def _signed(value: Any, path: str = "") -> list[str]:
    """Return the dotted keys of texts that a message would not show whole."""
    if isinstance(value, str):
        return [path] if scrub(value) != value else []
    items: Any = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    return [found for key, item in items for found in _signed(item, f"{path}.{key}".lstrip("."))]
