"""Configuration of a run, as ``runs/<run id>-asked.json`` holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast, final

import msgspec

from tokenlake.base.secrets import scrub
from tokenlake.base.section import literal_secrets
from tokenlake.base.typed_json import decoder
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import first_steps, resolve
from tokenlake.errors import IntegrityError, StoreError
from tokenlake.etl.build_store import address_of_build
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import RUNS, Layout

SUFFIX: Final = "-asked"
"""End of the name of the file, before ``.json``."""


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """Configuration of a run.

    Attributes:
        fingerprint: Identity of the version that it builds.
        directory: Folder that relative paths refer to.
        config: Configuration as JSON, to be loaded again; None if it holds a secret
            itself, and not a reference.
        left_out: Reason why there is no configuration.
    """

    fingerprint: str
    directory: str
    config: Mapping[str, Any] | None
    left_out: str = ""

    @classmethod
    def of(cls, config: PipelineConfig, fingerprint: str) -> Self:
        """Return the record of a run of this process.

        Args:
            config: Configuration of the run.
            fingerprint: Identity of the version that it builds.
        """
        # 1. Leave out the secrets that a rebuild does not need. A push needs its token,
        #    but a build does not. A user who repairs a store has opened it with its
        #    options.
        directory = str(Path.cwd())
        storage_options = config.save.storage_options
        if literal_secrets(storage_options):
            storage_options = None
        save = config.save.model_copy(
            update={"hub_token": None, "storage_options": storage_options}
        )
        config = config.model_copy(update={"save": save})

        # 2. Record no configuration that holds others.
        fields = config.model_dump(mode="json")
        secrets = literal_secrets(config)
        if secrets:
            left_out = f"it contains secrets: {', '.join(secrets)}"
            return cls(fingerprint, directory, None, left_out)
        signed_keys = _keys_of_signed_texts(fields)
        if signed_keys:
            left_out = f"it contains URLs with passwords or signatures: {', '.join(signed_keys)}"
            return cls(fingerprint, directory, None, left_out)
        return cls(fingerprint, directory, fields)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return json.dumps(msgspec.to_builtins(self), indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Return the record of a file that :meth:`to_bytes` wrote.

        Args:
            data: Content of the file.
            where: Name of the file, for messages.

        Raises:
            IntegrityError: The file has other bytes.
        """
        try:
            return decoder(cls).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise IntegrityError(
                f"{where}: is not a record of a run's configuration: {error}",
                file=where,
            ) from error


def newest_asked(store: ReadStore, layout: Layout, fingerprint: str) -> Asked | None:
    """Return the record of the newest run of a version, None if no run has one.

    Args:
        store: Store of the version.
        layout: Layout of the version.
        fingerprint: Identity of the version.
    """
    infos = store.list(layout.key(RUNS))
    record_keys = [info.key for info in infos if info.key.endswith(f"{SUFFIX}.json")]
    # The names of runs begin with their time.
    for record_key in sorted(record_keys, reverse=True):
        try:
            record = Asked.from_bytes(store.read(record_key), record_key)
        except (IntegrityError, StoreError):
            # Nothing relies on runs/: a record that cannot be read is passed over.
            continue
        if record.fingerprint == fingerprint:
            return record
    return None


def asked_before(config: PipelineConfig) -> bool:
    """Whether an equal configuration built the newest version of its dataset.

    Of a configuration of several builds, the first one counts. This takes hardly any
    work: if the answer is no, no plan is needed to know that something is left to do.

    Raises:
        TokenlakeError: The configuration is wrong, or the dataset has no version yet.
    """
    first_build = next(iter(first_steps(config).values()), config)
    build = resolve(first_build)
    catalog = Catalog(open_store(address_of_build(build)))
    version = catalog.latest(build.name)
    claim = catalog.read_claim(build.name, version)
    if claim is None:
        return False
    record = newest_asked(catalog.store, Layout(build.name, version), claim.fingerprint)
    return record == Asked.of(first_build, claim.fingerprint)


def _keys_of_signed_texts(setting: Any, path: str = "") -> list[str]:
    """Return the dotted keys of texts of which a message would hide a part.

    They are passwords and signatures in URLs.
    """
    if isinstance(setting, str):
        if scrub(setting) != setting:
            return [path]
        return []
    # An entry of a list has its index as key.
    items: Any = ()
    if isinstance(setting, dict):
        items = cast("dict[str, Any]", setting).items()
    elif isinstance(setting, list):
        items = enumerate(cast("list[Any]", setting))
    signed_keys: list[str] = []
    for item_key, item in items:
        signed_keys.extend(
            _keys_of_signed_texts(item, f"{path}.{item_key}".lstrip("."))
        )
    return signed_keys
