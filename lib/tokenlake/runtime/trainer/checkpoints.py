"""Checkpoints of a training run: written atomically, and checked when they are read.

A checkpoint holds model, optimizer, loader and the state of callbacks at one step.
Orbax writes it in the background under a temporary name and renames it when it is
complete. If the process is killed meanwhile, no later process takes the remains for a
checkpoint.

The parts of a checkpoint are::

    state   the arrays of TrainState, without `bad_steps`: a state after such a step is never saved
    data    the state of the loader, JSON
    facts   JSON: identity of the run, states of callbacks, the last measurement; shape, type and fingerprint of each
            array; the SHA-256 of `data`; the SHA-256 of all of these facts

A checkpoint whose parts do not match their fingerprints is damaged. A run resumes from
the newest one that is not.
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

# Keys that this module adds to the facts: types and fingerprints of the arrays, and the
# digests of the loader's state and of the facts themselves.
_ARRAYS: Final = "arrays"
_LOADER: Final = "loader_sha256"
_DIGEST: Final = "sha256"
_SHOWN: Final = 3
"""Largest number of arrays that an error names."""
_REASON: Final = 300
"""Largest number of characters of a reason; messages of Orbax about arrays fill
pages.
"""
_NO_DAMAGE: Final = (
    PermissionError,
    TimeoutError,
    ConnectionError,
    MemoryError,
    jax.errors.JaxRuntimeError,
)
"""Errors while reading that are no sign of damage; the last one is of the devices,
such as too little memory.
"""


@final
@dataclass(frozen=True, slots=True)
class Restored:
    """Contents of a checkpoint.

    Attributes:
        step: Step of the checkpoint.
        state: Arrays, with the shardings of those that they replace.
        facts: Facts that :meth:`Checkpoints.save` was given.
        damaged: Step -> reason, of newer checkpoints that are damaged, newest first.
    """

    step: int
    state: TrainState
    facts: Mapping[str, Any]
    damaged: Mapping[int, str]


@final
class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: Local path, or a URL that Orbax knows (``gs://``, ``s3://``); the folder
            is created when it is first written to.
        keep: Number of newest checkpoints that are kept.
    """

    def __init__(self, folder: str, keep: int) -> None:
        # Orbax needs absolute paths; a later change of the working directory must not
        # move the folder.
        self.folder = folder
        if "://" not in folder:
            self.folder = str(Path(folder).absolute())
        self._manager: Any = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
        )
        self._damaged: frozenset[int] = frozenset()

    @property
    def latest(self) -> int | None:
        """Step of the newest checkpoint that is complete; None: there is none.

        Checkpoints that were found damaged do not count.
        """
        # Orbax lists complete checkpoints only.
        steps = set(self._manager.all_steps()) - self._damaged
        return max(steps, default=None)

    def holds(self, step: int) -> bool:
        """Return whether a step has a checkpoint that was not found damaged."""
        return step in self._manager.all_steps() and step not in self._damaged

    def save(
        self,
        state: TrainState,
        loader: BatchLoader,
        facts: Mapping[str, Any],
        arrays: Mapping[str, ArrayFacts],
    ) -> None:
        """Begin to write a checkpoint.

        Training continues while it is written in the background. Checkpoints that were
        found damaged are deleted first. Otherwise a new one could not take the name of
        the same step, and a damaged one of a later step would remain the newest.

        Args:
            state: State to save.
            loader: Loader, positioned after the last batch that `state` has seen.
            facts: JSON values, for :attr:`Restored.facts`.
            arrays: Facts of the arrays, of :func:`saved_arrays`.
        """
        step = int(state.step)
        for damaged_step in sorted(self._damaged):
            self._manager.delete(damaged_step)
        self._damaged = frozenset()
        # The state is copied now: the loader moves on while Orbax writes.
        loader_save = LoaderSave(loader)
        # The facts hold the digests of the other parts, and their own as the last.
        written: dict[str, Any] = {
            **facts,
            _ARRAYS: _to_json(arrays),
            _LOADER: _digest(loader_save.state),
        }
        written[_DIGEST] = _digest(written)
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(saved_part(state)),
                data=loader_save,
                facts=ocp.args.JsonSave(written),
            ),
        )

    def restore(
        self,
        like: TrainState,
        loader: BatchLoader,
        check: Callable[[int, Mapping[str, Any]], None],
    ) -> Restored:
        """Read the newest checkpoint that is not damaged.

        The loader is moved to its position at that step.

        Args:
            like: State with the wanted shapes and shardings; the number of devices may
                differ from that of the checkpoint.
            loader: Loader of the same data and order.
            check: Function of a step and its facts that raises ConfigError if they are
                of another run.

        Raises:
            ConfigError: The checkpoint is of another run, model, optimizer, data or
                order.
            IntegrityError: There are checkpoints, and all are damaged.
        """
        # The newest one that can be read; older ones only stand in for damaged ones.
        damaged: dict[int, str] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                facts = self._read_facts(step)
                # Another run is no damage: its ConfigError ends the search.
                check(step, facts)
                state = self._read_state(step, facts, like)
                loader_state = self._read_loader(step, facts)
            except IntegrityError as error:
                damaged[step] = str(error)
                continue
            # The loader moves only after all parts were read.
            loader.set_state(loader_state)
            self._damaged = frozenset(damaged)
            return Restored(step, state, facts, damaged)
        reasons = "; ".join(damaged.values())
        raise IntegrityError(
            f"{self.folder}: every checkpoint is damaged: {reasons}; expected one that can be read: restore the "
            "folder from a copy, or name another folder, in which a new run begins",
            folder=self.folder,
            steps=list(damaged),
        )

    def wait(self) -> None:
        """Wait until all checkpoints are written.

        Raises:
            OSError: A file could not be written; other errors of the background thread
                are raised too.
        """
        self._manager.wait_until_finished()

    # -- reading

    def _read_facts(self, step: int) -> dict[str, Any]:
        """Return the facts of a checkpoint; IntegrityError if they are damaged."""
        facts = dict(self._read(step, "facts", ocp.args.JsonRestore()))
        recorded = facts.pop(_DIGEST, None)
        if recorded is None and _ARRAYS in facts:
            raise _damage_error(step, "facts", "its SHA-256 is missing")
        # Checkpoints of earlier releases have neither a digest nor facts of arrays.
        if recorded is not None and recorded != _digest(facts):
            raise _damage_error(step, "facts", "its SHA-256 is not the recorded one")
        return facts

    def _read_state(
        self, step: int, facts: Mapping[str, Any], like: TrainState
    ) -> TrainState:
        """Return the state of a checkpoint.

        An array that does not match its fingerprint raises IntegrityError.
        """
        # Orbax reads each array directly into the shards of this process's devices.
        current = saved_part(like)
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=leaf.sharding
            ),
            current,
        )
        recorded: Mapping[str, Sequence[Any]] | None = facts.get(_ARRAYS)
        if recorded is None:
            return self._read_unchecked_state(step, like, shapes)
        # Another model is recognized before its arrays are read: the error of Orbax
        # would look like damage.
        self._check_structure(step, recorded, current)
        arrays = self._read(step, "state", ocp.args.StandardRestore(shapes))

        # Compare the fingerprints of the arrays that were read, on the devices.
        damaged_arrays: list[str] = []
        for array_name, array in array_facts(arrays).items():
            _shape, _dtype, fingerprint = recorded[array_name]
            if array.fingerprint != fingerprint:
                damaged_arrays.append(array_name)
        if damaged_arrays:
            raise _damage_error(
                step,
                "state",
                f"the fingerprint of {_listed(damaged_arrays)} is not the recorded one",
            )
        if int(arrays["step"]) != step:
            raise _damage_error(
                step, "state", f"it is the state of step {int(arrays['step'])}"
            )
        return like._replace(**arrays)

    def _read_unchecked_state(
        self, step: int, like: TrainState, shapes: Any
    ) -> TrainState:
        """Read a checkpoint of an earlier release, which records no fingerprints."""
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(shapes))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.folder}: step {step} belongs to another model or optimizer: {error}; expected the same ones, "
                "or another folder"
            ) from error
        return like._replace(**restored["state"])

    def _check_structure(
        self, step: int, recorded: Mapping[str, Sequence[Any]], current: Any
    ) -> None:
        """Raise ConfigError unless a checkpoint has the current arrays.

        Their names, shapes and types are compared.
        """
        # Type and shape of each array, there and here.
        recorded_types: dict[str, str] = {}
        for array_name, (shape, dtype, _fingerprint) in recorded.items():
            recorded_types[array_name] = _described(shape, dtype)
        current_types: dict[str, str] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(current):
            current_types[path_name(path)] = _described(leaf.shape, leaf.dtype)

        array_names = [
            array_name
            for array_name in sorted(recorded_types | current_types)
            if recorded_types.get(array_name) != current_types.get(array_name)
        ]
        if not array_names:
            return
        # Parameters first: the moments only follow their parameters.
        array_names.sort(key=lambda name: not name.startswith("params/"))
        differences: list[str] = []
        for array_name in array_names[:_SHOWN]:
            recorded_type = recorded_types.get(array_name, "missing")
            current_type = current_types.get(array_name, "missing")
            differences.append(
                f"{array_name} is {recorded_type} there and {current_type} here"
            )
        if len(array_names) > _SHOWN:
            differences.append(f"{len(array_names) - _SHOWN} more differ")
        raise ConfigError(
            f"{self.folder}: step {step} belongs to another model or optimizer: {'; '.join(differences)}; expected "
            "the same ones, or another folder",
            differs=array_names,
        )

    def _read_loader(self, step: int, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state of the loader.

        If it does not match its digest, IntegrityError is raised.
        """
        state = self._read(step, "data", LoaderRestore())
        recorded = facts.get(_LOADER)
        if recorded is not None and recorded != _digest(state):
            raise _damage_error(step, "data", "its SHA-256 is not the recorded one")
        return state

    def _read(self, step: int, part: str, arguments: Any) -> Any:
        """Return one part of a checkpoint.

        If its bytes cannot be read, IntegrityError is raised.
        """
        try:
            return self._manager.restore(
                step, args=ocp.args.Composite(**{part: arguments})
            )[part]
        except _NO_DAMAGE:
            raise
        # Orbax raises many kinds of errors for a file that is missing, cut off or
        # altered, Exception itself among them.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise _damage_error(step, part, reason[:_REASON]) from error


def saved_part(state: TrainState) -> dict[str, Any]:
    """Return the arrays of a state that a checkpoint holds, by field."""
    arrays = state._asdict()
    del arrays["bad_steps"]
    return arrays


def saved_arrays(state: TrainState) -> dict[str, ArrayFacts]:
    """Return the facts of the arrays that a checkpoint holds, by path.

    It waits for the devices.
    """
    return array_facts(saved_part(state))


def _to_json(arrays: Mapping[str, ArrayFacts]) -> dict[str, Any]:
    """Return name -> [shape, dtype, fingerprint] of arrays.

    This is their record in the facts of a checkpoint.
    """
    return {
        array_name: [list(facts.shape), facts.dtype, facts.fingerprint]
        for array_name, facts in arrays.items()
    }


def _described(shape: Sequence[int], dtype: Any) -> str:
    """Return type and shape as text, such as ``float32[3, 4]``."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _listed(names: Sequence[str]) -> str:
    """Return the first names as text, and the number of the others."""
    listed_names = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        listed_names += f" and {len(names) - _SHOWN} more"
    return listed_names


def _digest(value: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON."""
    # Conversion to JSON and back gives the value the form that it has after it is read:
    # keys are texts, tuples lists.
    plain = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _damage_error(step: int, part: str, reason: str) -> IntegrityError:
    return IntegrityError(
        f"step {step} is damaged: {part}: {reason}", step=step, part=part
    )
