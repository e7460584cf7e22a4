"""What a run leaves in ``runs/``: never part of identity.

``runs/<run id>.json`` has clocks, hosts and timings. ``runs/<run id>-asked.json``, written when the run begins, is its
configuration, so that what it built can be built again: a manifest says what a version was made from in a form without
paths of the machine, but to build a unit again, say because its shard is damaged, the inputs must be found. So the
configuration is kept as it was given, and the folder that relative paths in it refer to. Secrets are kept as references
or not at all.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, cast, final

import msgspec

from tokenlake.base.secrets import hide, scrub
from tokenlake.base.section import literal_secrets
from tokenlake.base.typed_json import decoder
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import first_steps, resolve
from tokenlake.config.texts import is_callable_name
from tokenlake.errors import ConfigError, IntegrityError, StoreError, TokenlakeError
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.job import produced_by
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import ReadStore, Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import RUNS, Layout
from tokenlake.runtime.store.runs import CANCELLED, FAILED

SUFFIX: Final = "-asked"  # ends the name of the file, before ``.json``


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
        found = config.model_dump(mode="json")
        if secrets := literal_secrets(config):
            left_out = f"it holds secrets themselves: {', '.join(secrets)}"
        elif signed := _signed(found):
            left_out = f"it holds URLs with passwords or signatures: {', '.join(signed)}"
        else:
            return cls(fingerprint, directory, found)
        return cls(fingerprint, directory, None, left_out)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return json.dumps(msgspec.to_builtins(self), indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Read :meth:`to_bytes`' form; IntegrityError for anything else."""
        try:
            return decoder(cls).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise IntegrityError(f"{where}: does not say how a run was asked: {error}", file=where) from error


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


def asked_before(config: PipelineConfig) -> bool:
    """Say whether a configuration's dataset has a newest version that was asked for in these words.

    Of one that needs several, the first. It is hardly any work: who is told no need not plan to know that there is
    something to do.

    Raises:
        TokenlakeError: the configuration is wrong, or there is no version yet.
    """
    first = next(iter(first_steps(config).values()), config)
    build = resolve(first)
    catalog = Catalog(open_store(address_of_build(build)))
    version = catalog.latest(build.name)
    claim = catalog.read_claim(build.name, version)
    if claim is None:
        return False
    asked = newest_asked(catalog.store, Layout(build.name, version), claim.fingerprint)
    return asked == Asked.of(first, claim.fingerprint)


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


_STEPS: Final = ("transforms", "format_callback")
_REFERENCES: Final = (["env"], ["block"])
_HUB: Final = ("hf", "huggingface")


def recorded(store: ReadStore, layout: Layout, fingerprint: str, remedy: str) -> dict[str, Any]:
    """Return the configuration of the newest run of a version, with its relative paths made absolute.

    Args:
        remedy: what to do without it, for messages.

    Raises:
        ConfigError: none is kept, or it asks for what only the user may ask for.
    """
    where = f"{layout.dataset}@v{layout.version}"
    asked = newest_asked(store, layout, fingerprint)
    if asked is None or asked.config is None:
        why = "no run of it kept one" if asked is None else "its run did not keep it"
        reason = f" ({asked.left_out})" if asked is not None and asked.left_out else ""
        raise ConfigError(
            f"{where}: its configuration is needed to build anything again, and {why}{reason}; {remedy}"
        )
    check_record(asked.config, where, remedy)
    return rooted(asked.config, asked.directory)


def check_record(config: Mapping[str, Any], where: str, remedy: str) -> None:
    """Raise ConfigError where a recorded configuration asks for what only the user may ask for.

    Args:
        config: as JSON, as it lies in ``runs/``.
        where: the version, for the message.
        remedy: what to do instead.
    """
    # The options of the store that it has are not used: those are, that the user opened it with.
    delicate = [what for key, value in config.items() if key != "save" for what in _delicate(value, key, "")]
    if delicate:
        shown = "; ".join(list(dict.fromkeys(delicate))[:5])
        raise ConfigError(
            f"{where}: the configuration that the store keeps of its run is not used to build anything again, for it "
            f"would use {shown}. Look at it, and {remedy}"
        )


def _delicate(value: Any, key: str, path: str, steps: bool = False) -> Iterator[str]:
    path, steps = f"{path}.{key}".lstrip("."), steps or key in _STEPS
    if key == "trust_remote_code" and value:
        yield f"remote code ({path})"
    elif steps and is_callable_name(value):
        yield f"the function {value} ({path})"
    elif isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if list(fields) in _REFERENCES:
            kind, name = next(iter(fields.items()))
            yield f"the secret {{{kind}: {name}}} ({path})"
        for name, each in fields.items():
            yield from _delicate(each, name, path, steps)
    elif isinstance(value, list):
        for index, each in enumerate(cast("list[Any]", value)):
            yield from _delicate(each, str(index), path, steps)


def rooted(config: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return a configuration whose relative paths, which refer to a folder, are absolute.

    In that folder it stays as it is. What may be a path or an id of the Hub is a path if it is there.
    """
    found = dict(config)
    if not directory or Path(directory) == Path.cwd():
        return found
    root = Path(directory)
    found["datasets"] = [_rooted_dataset(entry, root) for entry in config.get("datasets") or ()]
    found["default_tokenizer"] = _tokenizer(config.get("default_tokenizer"), root)
    if tokenize := config.get("tokenize"):
        named = _tokenizer(tokenize.get("default_tokenizer"), root)
        found["tokenize"] = {**tokenize, "default_tokenizer": named}
    return found


def _rooted_dataset(entry: Mapping[str, Any], root: Path) -> dict[str, Any]:
    found = {**entry, "tokenizer": _tokenizer(entry.get("tokenizer"), root)}
    files = entry.get("data_files")
    if files is not None and entry.get("type") not in _HUB:
        found["data_files"] = _absolute_files(files, root)
    if entry.get("exclude"):
        found["exclude"] = _absolute(entry["exclude"], root)
    chat = entry.get("chat")
    if chat and chat.get("template") and "{" not in chat["template"]:
        found["chat"] = {**chat, "template": _if_there(chat["template"], root)}
    return found


def _absolute_files(files: Any, root: Path) -> Any:
    """Return entries of `data_files` as absolute ones: a text, a list, or a mapping of split to these."""
    if isinstance(files, str):
        return _absolute(files, root)
    if isinstance(files, Mapping):
        return {split: _absolute_files(entries, root) for split, entries in files.items()}
    return [_absolute(entry, root) for entry in files]


def _tokenizer(value: Any, root: Path) -> Any:
    if isinstance(value, str):
        return _if_there(value, root)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {**fields, "name_or_path": _if_there(fields["name_or_path"], root)}
    return value


def _absolute(path: str, root: Path) -> str:
    """Join, and nothing more: a glob is no path, and ``~`` is for whoever opens it."""
    return path if "://" in path or path.startswith(("/", "~")) else f"{root}/{path}"


def _if_there(path: str, root: Path) -> str:
    found = _absolute(path, root)
    return found if found != path and Path(found).exists() else path


@final
class RunLog:
    """Collects what one run did and publishes it when the run ends; thread-safe."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store, self._layout, self._lock = store, layout, threading.Lock()
        self._begin, self._clock = datetime.now(UTC), time.monotonic()
        self._seconds: dict[int, float] = {}
        self._stages: Counter[str] = Counter()
        self.run_id = f"{self._begin:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"

    def asked(self, asked: Asked) -> None:
        """Keep how the run was asked, at once: a run that never ends has built units, too."""
        self._store.put_new(self._layout.run(f"{self.run_id}{SUFFIX}"), asked.to_bytes())

    def resumed(self) -> None:
        """Note, at once, that a claim is worked on again."""
        self._put(f"{self.run_id}-resumed", {"begin": self._begin.isoformat(timespec="seconds")})

    def failed(self, error: Exception) -> None:
        """Note, at once, why the run ends."""
        self._put(f"{self.run_id}{FAILED}", {"error": hide(str(error)), "type": type(error).__name__})

    def cancelled(self) -> None:
        """Note, at once, that the run was cancelled: nobody is to wait for it."""
        self._put(f"{self.run_id}{CANCELLED}", {"cancelled": True})

    def finished(self, unit: int, seconds: float, stages: Mapping[str, float]) -> None:
        """Note the wall time of a unit, and of its stages."""
        with self._lock:
            self._seconds[unit] = round(seconds, 3)
            self._stages.update(stages)

    def condemned(self, engine: str, error: TokenlakeError) -> None:
        """Keep the text on which an engine failed, at once."""
        facts = {"engine": engine, "error": str(error), "details": error.details}
        self._put(f"{self.run_id}-condemned-{engine}", {**facts, "produced_by": produced_by(engine)})

    def finish(
        self,
        how: Mapping[int, str],
        commits: Mapping[str, Mapping[str, str]],
        run: Mapping[str, str],
    ) -> None:
        """Publish the run's facts.

        Args:
            how: unit to what became of it.
            commits: source to dataset of the Hub to the commit that was read.
            run: names of whoever drove it; empty: a program.
        """
        with self._lock:
            seconds = dict(sorted(self._seconds.items()))
        facts = {
            "begin": self._begin.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._clock, 3),
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "produced_by": produced_by(),
            "units": dict(sorted(Counter(how.values()).items())),
            "unit_seconds": seconds,
            "stage_seconds": {stage: round(spent, 3) for stage, spent in sorted(self._stages.items())},
            "hub_commits": commits,
            **({"flow_run": run} if run else {}),
        }
        self._put(self.run_id, facts)

    def _put(self, name: str, facts: dict[str, Any]) -> None:
        self._store.put_new(self._layout.run(name), json.dumps(facts, indent=2, default=str).encode() + b"\n")
