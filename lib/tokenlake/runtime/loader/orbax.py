"""The loader's state inside of an Orbax checkpoint, beside the model.

::

    manager = ocp.CheckpointManager(folder)
    manager.save(
        step, args=ocp.args.Composite(model=ocp.args.StandardSave(params), data=tl.LoaderSave(loader))
    )
    manager.restore(
        step, args=ocp.args.Composite(model=ocp.args.StandardRestore(params), data=tl.LoaderRestore(loader))
    )

The state is what the loader says when :class:`LoaderSave` is made, however long the checkpoint takes to be written. It
is the same in all processes, which is checked; one of them writes it, as JSON.

``ocp.args.JsonSave(loader.get_state())`` writes the same file, unchecked, and ``ocp.args.JsonRestore()`` reads it.
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
    raise MissingExtraError("checkpoints need orbax-checkpoint: pip install 'tokenlake[orbax]'") from error

State: TypeAlias = dict[str, Any]


@final
class LoaderHandler(ocp.AsyncCheckpointHandler):
    """Writes and reads the state of a loader; Orbax finds it by :class:`LoaderSave` and :class:`LoaderRestore`.

    Args:
        multiprocessing_options: which processes take part, and which of them writes.
    """

    def __init__(self, *, multiprocessing_options: ocp.options.MultiprocessingOptions | None = None) -> None:
        options = multiprocessing_options or ocp.options.MultiprocessingOptions()
        self._active = sorted(options.active_processes or range(jax.process_count()))
        self._json = ocp.JsonCheckpointHandler(multiprocessing_options=options)

    async def async_save(self, directory: Any, *, args: LoaderSave) -> Any:
        """Begin to write; the state is that of the arguments.

        Raises:
            ConfigError: the processes have different states.
        """
        _check_alike(args.state, self._active)
        return await self._json.async_save(directory, args=ocp.args.JsonSave(args.state))

    def save(self, directory: Any, *, args: LoaderSave) -> None:
        """Write; as :meth:`async_save`."""
        _check_alike(args.state, self._active)
        self._json.save(directory, args=ocp.args.JsonSave(args.state))

    def restore(self, directory: Any, *, args: LoaderRestore | None = None) -> BatchLoader | State:
        """Return the loader of the arguments, with the state that was saved; without one the state.

        Raises:
            NotFoundError: there is no state.
            ConfigError: it is of other data or of another order; says what differs.
        """
        try:
            state = dict(self._json.restore(directory))
        except FileNotFoundError as error:
            raise NotFoundError(
                f"there is no state of a loader in {directory}; expected what LoaderSave(loader) saved"
            ) from error
        if args is None or args.loader is None:
            return state
        args.loader.set_state(state)
        return args.loader

    def close(self) -> None:
        self._json.close()


@final
@ocp.args.register_with_handler(LoaderHandler, for_save=True)
@dataclass
class LoaderSave(ocp.args.CheckpointArgs):
    """Saves the state that a loader has now.

    Attributes:
        loader: whose state.
        state: what will be written.
    """

    loader: BatchLoader
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.loader.get_state()


@final
@ocp.args.register_with_handler(LoaderHandler, for_restore=True)
@dataclass
class LoaderRestore(ocp.args.CheckpointArgs):
    """Restores a loader of the same data and order, on any number of hosts.

    Attributes:
        loader: that goes on there; None: the state is returned, and nothing else done.
    """

    loader: BatchLoader | None = None


def _check_alike(state: State, processes: Sequence[int]) -> None:
    """Raise ConfigError unless all processes have this state."""
    if len(processes) == 1:
        return
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).digest()
    said = digest + int(state.get("step", state["rows"])).to_bytes(8, "big")
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = jax.sharding.Mesh(np.array([firsts[index] for index in processes]), ("process",))
    apart = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
    together = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    mine = np.frombuffer(said, np.uint8)[None]
    array = jax.make_array_from_callback((len(processes), len(said)), apart, lambda _: mine)
    whole: Any = jax.jit(lambda values: values, out_shardings=together)(array)
    told = [row.tobytes() for row in np.asarray(whole)]
    if len(set(told)) > 1:
        steps = {at: int.from_bytes(each[-8:], "big") for at, each in zip(processes, told, strict=True)}
        raise ConfigError(
            f"the processes have different states of the loader, at these steps: {steps}; expected the same one: "
            "make loaders with the same arguments, and save after the same batch"
        )
