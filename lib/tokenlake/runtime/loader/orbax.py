"""State of a loader in an Orbax checkpoint, together with the model.

::

    manager = ocp.CheckpointManager(folder)
    manager.save(
        step, args=ocp.args.Composite(model=ocp.args.StandardSave(params), data=tl.LoaderSave(loader))
    )
    manager.restore(
        step, args=ocp.args.Composite(model=ocp.args.StandardRestore(params), data=tl.LoaderRestore(loader))
    )

The state is taken when :class:`LoaderSave` is created, however long the checkpoint
takes to be written. All processes must have the same state, which is checked; one of
them writes it, as JSON.

``ocp.args.JsonSave(loader.get_state())`` writes the same file without this check, and
``ocp.args.JsonRestore()`` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np

from tokenlake.errors import ConfigError, MissingExtraError, NotFoundError
from tokenlake.runtime.loader.state import BatchLoader

try:
    import jax
    import orbax.checkpoint as ocp
except ImportError as error:
    raise MissingExtraError(
        "checkpoints need orbax-checkpoint: pip install 'tokenlake[orbax]'"
    ) from error

State: TypeAlias = dict[str, Any]


@final
class LoaderHandler(ocp.AsyncCheckpointHandler):
    """Writes and reads the state of a loader.

    Orbax finds it by :class:`LoaderSave` and :class:`LoaderRestore`.

    Args:
        multiprocessing_options: Processes that take part, and the one that writes;
            None: all, and the first.
    """

    def __init__(
        self,
        *,
        multiprocessing_options: ocp.options.MultiprocessingOptions | None = None,
    ) -> None:
        options = multiprocessing_options or ocp.options.MultiprocessingOptions()
        self._processes = sorted(options.active_processes or range(jax.process_count()))
        self._json = ocp.JsonCheckpointHandler(multiprocessing_options=options)

    async def async_save(self, directory: Any, *, args: LoaderSave) -> Any:
        """Begin to write the state of the arguments.

        Raises:
            ConfigError: The processes have different states.
        """
        _check_same_state(args.state, self._processes)
        return await self._json.async_save(
            directory, args=ocp.args.JsonSave(args.state)
        )

    def save(self, directory: Any, *, args: LoaderSave) -> None:
        """Write the state of the arguments.

        Raises:
            ConfigError: The processes have different states.
        """
        _check_same_state(args.state, self._processes)
        self._json.save(directory, args=ocp.args.JsonSave(args.state))

    def restore(
        self, directory: Any, *, args: LoaderRestore | None = None
    ) -> BatchLoader | State:
        """Return the loader of the arguments, set to the saved state.

        Without a loader, the state is returned.

        Raises:
            NotFoundError: The folder holds no state.
            ConfigError: The state is of other data or of another order, with a list of
                the differences.
        """
        try:
            state = dict(self._json.restore(directory))
        except FileNotFoundError as error:
            raise NotFoundError(
                f"there is no state of a loader in {directory}; expected the result of LoaderSave(loader)"
            ) from error
        if args is None or args.loader is None:
            return state
        args.loader.set_state(state)
        return args.loader

    def close(self) -> None:
        """Close the handler that writes the file."""
        self._json.close()


@final
@ocp.args.register_with_handler(LoaderHandler, for_save=True)
@dataclass
class LoaderSave(ocp.args.CheckpointArgs):
    """Argument that saves the current state of a loader.

    Attributes:
        loader: Loader whose state is saved.
        state: State that is written, taken when this object is created.

    Example:
        >>> from pathlib import Path
        >>> import orbax.checkpoint as ocp
        >>> import tokenlake as tl
        >>> loader = tl.DataLoader(tl.open("artifacts/books"), batch_size=8)
        >>> batch = next(iter(loader))
        >>> with ocp.CheckpointManager(Path("checkpoints").absolute()) as manager:
        ...     saved = manager.save(1, args=ocp.args.Composite(data=tl.LoaderSave(loader)))
        >>> saved
        True
    """

    loader: BatchLoader
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.loader.get_state()


@final
@ocp.args.register_with_handler(LoaderHandler, for_restore=True)
@dataclass
class LoaderRestore(ocp.args.CheckpointArgs):
    """Argument that restores a loader of the same data and order.

    The number of hosts may differ.

    Attributes:
        loader: Loader that is set to the saved state; None: the state is returned, and
            nothing else happens.

    Example:
        >>> from pathlib import Path
        >>> import orbax.checkpoint as ocp
        >>> import tokenlake as tl
        >>> loader = tl.DataLoader(tl.open("artifacts/books"), batch_size=8)
        >>> batch = next(iter(loader))
        >>> resumed = tl.DataLoader(tl.open("artifacts/books"), batch_size=8)
        >>> with ocp.CheckpointManager(Path("checkpoints").absolute()) as manager:
        ...     saved = manager.save(1, args=ocp.args.Composite(data=tl.LoaderSave(loader)))
        ...     state = manager.restore(1, args=ocp.args.Composite(data=tl.LoaderRestore(resumed)))
        >>> resumed.step
        1
    """

    loader: BatchLoader | None = None


def _check_same_state(state: State, processes: Sequence[int]) -> None:
    """Raise ConfigError unless all processes have the same state.

    Each process contributes the hash of its state, and its step for the message. JAX
    gathers the bytes of all.
    """
    if len(processes) == 1:
        return
    # 40 bytes for each process are enough: equal hashes are equal states.
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).digest()
    step = int(state.get("step", state["rows"]))
    own_bytes = digest + step.to_bytes(8, "big")
    # A mesh of one device of each process.
    first_devices = {device.process_index: device for device in reversed(jax.devices())}
    devices = np.array([first_devices[process] for process in processes])
    mesh = jax.sharding.Mesh(devices, ("process",))
    by_process = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    own_row = np.frombuffer(own_bytes, np.uint8)[None]
    shape = (len(processes), len(own_bytes))
    array = jax.make_array_from_callback(shape, by_process, lambda _: own_row)
    gathered: Any = jax.jit(lambda rows: rows, out_shardings=everywhere)(array)
    bytes_of_process = {
        process: row.tobytes()
        for process, row in zip(processes, np.asarray(gathered), strict=True)
    }
    if len(set(bytes_of_process.values())) > 1:
        steps = {
            process: int.from_bytes(row[-8:], "big")
            for process, row in bytes_of_process.items()
        }
        raise ConfigError(
            f"the processes have different states of the loader, at these steps: {steps}; expected the same one: "
            "make loaders with the same arguments, and save after the same batch"
        )
