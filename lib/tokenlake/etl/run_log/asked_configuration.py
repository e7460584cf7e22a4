"""The configuration of a run, as ``runs/<run id>-asked.json`` keeps it."""

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
    """The configuration of a run.

    Attributes:
        fingerprint: Identity of the version that it builds.
        directory: Folder that relative paths refer to.
        config: Configuration as JSON, to be loaded again; None where it holds a secret
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
        directory = str(Path.cwd())
        # A push needs its token, but a build does not. A user who repairs a store has
        # opened it with its options.
        storage_options = config.save.storage_options
        if literal_secrets(storage_options):
            storage_options = None
        save = config.save.model_copy(
            update={"hub_token": None, "storage_options": storage_options}
        )
        config = config.model_copy(update={"save": save})

        fields = config.model_dump(mode="json")
        secrets = literal_secrets(config)
        if secrets:
            left_out = f"it contains secrets: {', '.join(secrets)}"
            return cls(fingerprint, directory, None, left_out)
        signed = _keys_of_signed_texts(fields)
        if signed:
            left_out = (
                f"it contains URLs with passwords or signatures: {', '.join(signed)}"
            )
            return cls(fingerprint, directory, None, left_out)
        return cls(fingerprint, directory, fields)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return json.dumps(msgspec.to_builtins(self), indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Return the record of a file that :meth:`to_bytes` wrote; raise IntegrityError
        for any other bytes.

        Args:
            data: Content of the file.
            where: Name of the file, for messages.
        """
        try:
            return decoder(cls).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise IntegrityError(
                f"{where}: is not a record of a run's configuration: {error}",
                file=where,
            ) from error


def newest_asked(store: ReadStore, layout: Layout, fingerprint: str) -> Asked | None:
    """Return the record of the newest run that built a version; None where no run has
    one.

    Args:
        store: Store of the version.
        layout: Layout of the version.
        fingerprint: Identity of the version.
    """
    infos = store.list(layout.key(RUNS))
    keys = [info.key for info in infos if info.key.endswith(f"{SUFFIX}.json")]
    for key in sorted(keys, reverse=True):
        try:
            asked = Asked.from_bytes(store.read(key), key)
        except (IntegrityError, StoreError):
            # Nothing relies on runs/: a record that cannot be read is passed over.
            continue
        if asked.fingerprint == fingerprint:
            return asked
    return None


def asked_before(config: PipelineConfig) -> bool:
    """Return whether the newest version of a configuration's dataset was built by the
    same configuration.

    Of a configuration of several builds, the first one counts. This takes hardly any
    work: where the answer is no, no plan is needed to know that something is left to
    do.

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
    asked = newest_asked(catalog.store, Layout(build.name, version), claim.fingerprint)
    return asked == Asked.of(first_build, claim.fingerprint)


def _keys_of_signed_texts(value: Any, path: str = "") -> list[str]:
    """Return the dotted keys of texts of which a message would hide a part:
    passwords and signatures in URLs.
    """
    if isinstance(value, str):
        if scrub(value) != value:
            return [path]
        return []
    items: Any = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    keys: list[str] = []
    for key, item in items:
        keys.extend(_keys_of_signed_texts(item, f"{path}.{key}".lstrip(".")))
    return keys
