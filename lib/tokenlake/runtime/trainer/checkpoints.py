"""The checkpoints of a training run: written whole or not at all, and checked when they are read again.

A checkpoint holds model, optimizer, loader and the state of callbacks under one step. Orbax writes a step under another
name and renames it when it is complete, in the background; a process that is killed meanwhile leaves nothing that a
later one would take for a checkpoint.

Its parts are::

    state   the arrays of TrainState, but for the steps that were not finite: such a state is never saved
    data    the state of the loader, JSON
    facts   JSON: which run it is of, what callbacks remember, the last metrics; of each array its shape, type and
            fingerprint; the SHA-256 of `data`; the SHA-256 of all of that

What does not match is damaged. A run then resumes from the newest checkpoint that does match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import jax
import orbax.checkpoint as ocp

from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.loader.orbax import LoaderRestore, LoaderSave
from tokenlake.runtime.loader.state import BatchLoader
from tokenlake.runtime.trainer.fingerprint import ArrayFacts, array_facts, path_name
from tokenlake.runtime.trainer.step import TrainState

_ARRAYS: Final = "arrays"
_LOADER: Final = "loader_sha256"
_DIGEST: Final = "sha256"
_SHOWN: Final = 3
"""Arrays that an error names at most."""
_REASON: Final = 300
"""Characters of a reason at most; what Orbax says of an array fills pages."""
_NO_DAMAGE: Final = (PermissionError, TimeoutError, ConnectionError, MemoryError, jax.errors.JaxRuntimeError)
"""Errors of reading that say nothing about the bytes; the last one is of the devices, such as too little memory."""


@final
@dataclass(frozen=True, slots=True)
class Restored:
    """What was read of a checkpoint.

    Attributes:
        step: of the checkpoint.
        state: its arrays, in the places of those that they replace.
        facts: as they were given to :meth:`Checkpoints.save`.
        damaged: newer steps that could not be used, newest first, each with the reason.
    """

    step: int
    state: TrainState
    facts: Mapping[str, Any]
    damaged: Mapping[int, str]


@final
class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: local, or a URL that Orbax knows (``gs://``, ``s3://``); it is made when it is first written to.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: str, keep: int) -> None:
        self.folder = folder if "://" in folder else str(Path(folder).absolute())
        self._manager: Any = ocp.CheckpointManager(
            self.folder, options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        )
        self._damaged: frozenset[int] = frozenset()

    @property
    def latest(self) -> int | None:
        """The newest complete step that was not found damaged; None: there is none."""
        return max((step for step in self._manager.all_steps() if step not in self._damaged), default=None)

    def holds(self, step: int) -> bool:
        """Whether there is a checkpoint of a step that was not found damaged."""
        return step in self._manager.all_steps() and step not in self._damaged

    def save(
        self,
        state: TrainState,
        loader: BatchLoader,
        facts: Mapping[str, Any],
        arrays: Mapping[str, ArrayFacts],
    ) -> None:
        """Begin to write a checkpoint; writing goes on in the background while training does.

        Checkpoints that were found damaged are deleted first: a new one could not take the name of the same step, and a
        newer one would stay the newest.

        Args:
            state: of the model.
            loader: that stands behind the last batch that `state` has seen.
            facts: JSON-able, for :attr:`Restored.facts`.
            arrays: of :func:`saved_arrays`.
        """
        step = int(state.step)
        for damaged in sorted(self._damaged):
            self._manager.delete(damaged)
        self._damaged = frozenset()
        data = LoaderSave(loader)
        written: dict[str, Any] = {**facts, _ARRAYS: _to_json(arrays), _LOADER: _digest(data.state)}
        written[_DIGEST] = _digest(written)
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(saved_part(state)),
                data=data,
                facts=ocp.args.JsonSave(written),
            ),
        )

    def restore(
        self, like: TrainState, loader: BatchLoader, check: Callable[[int, Mapping[str, Any]], None]
    ) -> Restored:
        """Read the newest checkpoint that is not damaged, and set the loader to where it stood then.

        Args:
            like: has the shapes and the shardings that are wanted, of whatever number of devices.
            loader: of the same data and order.
            check: raises ConfigError where the facts of a step are those of another run.

        Raises:
            ConfigError: the checkpoint is of another run, model, optimizer, data or order.
            IntegrityError: there are checkpoints, and all are damaged.
        """
        damaged: dict[int, str] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                facts = self._read_facts(step)
                check(step, facts)
                state = self._read_state(step, facts, like)
                data = self._read_loader(step, facts)
            except IntegrityError as error:
                damaged[step] = str(error)
                continue
            loader.set_state(data)
            self._damaged = frozenset(damaged)
            return Restored(step, state, facts, damaged)
        reasons = "; ".join(damaged.values())
        raise IntegrityError(
            f"{self.folder}: every checkpoint is damaged: {reasons}; expected one that can be read: restore the folder "
            "from a copy, or name another folder, in which the run begins anew",
            folder=self.folder,
            steps=list(damaged),
        )

    def wait(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: or what else went wrong in the background.
        """
        self._manager.wait_until_finished()

    # -- reading

    def _read_facts(self, step: int) -> dict[str, Any]:
        facts = dict(self._read(step, "facts", ocp.args.JsonRestore()))
        recorded = facts.pop(_DIGEST, None)
        if recorded is None and _ARRAYS in facts:
            raise _damaged(step, "facts", "its SHA-256 is missing")
        # Checkpoints of earlier releases have neither.
        if recorded is not None and recorded != _digest(facts):
            raise _damaged(step, "facts", "its SHA-256 is not the recorded one")
        return facts

    def _read_state(self, step: int, facts: Mapping[str, Any], like: TrainState) -> TrainState:
        wanted = saved_part(like)
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), wanted
        )
        recorded: Mapping[str, Sequence[Any]] | None = facts.get(_ARRAYS)
        if recorded is None:
            return self._read_unchecked_state(step, like, shapes)
        self._check_structure(step, recorded, wanted)
        arrays = self._read(step, "state", ocp.args.StandardRestore(shapes))
        different = [
            name for name, facts in array_facts(arrays).items() if facts.fingerprint != recorded[name][2]
        ]
        if different:
            raise _damaged(step, "state", f"the fingerprint of {_listed(different)} is not the recorded one")
        if int(arrays["step"]) != step:
            raise _damaged(step, "state", f"it is the state of step {int(arrays['step'])}")
        return like._replace(**arrays)

    def _read_unchecked_state(self, step: int, like: TrainState, shapes: Any) -> TrainState:
        """Read a checkpoint of an earlier release, which records no fingerprints."""
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(shapes))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.folder}: step {step} is of another model or optimizer: {error}; "
                "expected the same ones, or another folder"
            ) from error
        return like._replace(**restored["state"])

    def _check_structure(self, step: int, recorded: Mapping[str, Sequence[Any]], wanted: Any) -> None:
        """Raise ConfigError unless the checkpoint has these arrays."""
        there = {name: _described(facts[0], facts[1]) for name, facts in recorded.items()}
        here = {
            path_name(path): _described(leaf.shape, leaf.dtype)
            for path, leaf in jax.tree_util.tree_leaves_with_path(wanted)
        }
        names = [name for name in sorted(there | here) if there.get(name) != here.get(name)]
        names.sort(key=lambda name: not name.startswith("params/"))  # moments only follow their parameters
        if not names:
            return
        differences = [
            f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
            for name in names[:_SHOWN]
        ]
        more = f"; {len(names) - _SHOWN} more differ" if len(names) > _SHOWN else ""
        raise ConfigError(
            f"{self.folder}: step {step} is of another model or optimizer: {'; '.join(differences)}{more}; "
            "expected the same ones, or another folder",
            differs=names,
        )

    def _read_loader(self, step: int, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        state = self._read(step, "data", LoaderRestore())
        recorded = facts.get(_LOADER)
        if recorded is not None and recorded != _digest(state):
            raise _damaged(step, "data", "its SHA-256 is not the recorded one")
        return state

    def _read(self, step: int, part: str, arguments: Any) -> Any:
        """Return one part of a checkpoint; IntegrityError where its bytes cannot be read."""
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**{part: arguments}))[part]
        except _NO_DAMAGE:
            raise
        # Orbax raises many kinds of errors for a file that is missing, cut off or altered, Exception itself among them.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise _damaged(step, part, reason[:_REASON]) from error


def saved_part(state: TrainState) -> dict[str, Any]:
    """Return the arrays that a checkpoint holds."""
    arrays = state._asdict()
    del arrays["bad_steps"]
    return arrays


def saved_arrays(state: TrainState) -> dict[str, ArrayFacts]:
    """Return the facts of the arrays that a checkpoint holds, by their paths; waits for the devices."""
    return array_facts(saved_part(state))


def _to_json(arrays: Mapping[str, ArrayFacts]) -> dict[str, Any]:
    return {name: [list(facts.shape), facts.dtype, facts.fingerprint] for name, facts in arrays.items()}


def _described(shape: Sequence[int], dtype: Any) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _digest(value: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON; equal before it is written and after it is read."""
    plain = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _damaged(step: int, part: str, reason: str) -> IntegrityError:
    return IntegrityError(f"step {step} is damaged: {part}: {reason}", step=step, part=part)
