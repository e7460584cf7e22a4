"""Checkpoints of a run: model, optimizer, loader and what callbacks remember, under one step, all of it or nothing.

Orbax writes a step under another name and renames it when it is complete, in the background; a process that is killed
meanwhile leaves nothing that a later one would take for a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import jax
import orbax.checkpoint as ocp

from tokenlake.errors import ConfigError
from tokenlake.loader.orbax import LoaderRestore, LoaderSave
from tokenlake.loader.state import BatchLoader
from tokenlake.trainer.step import TrainState


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

    @property
    def latest(self) -> int | None:
        """The newest complete step."""
        return self._manager.latest_step()

    def save(self, state: TrainState, loader: BatchLoader, facts: dict[str, Any]) -> None:
        """Begin to write what is true now; writing goes on while training does.

        Args:
            state: of the model.
            loader: that stands behind the last batch that `state` has seen.
            facts: JSON-able, for :meth:`restore`.
        """
        step = int(state.step)
        if step == self.latest:
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state._asdict()),
                data=LoaderSave(loader),
                facts=ocp.args.JsonSave(facts),
            ),
        )

    def facts(self) -> dict[str, Any]:
        """Return the facts of the newest checkpoint."""
        restored = self._manager.restore(self.latest, args=ocp.args.Composite(facts=ocp.args.JsonRestore()))
        return dict(restored["facts"])

    def restore(self, like: TrainState, loader: BatchLoader) -> TrainState:
        """Return the state of the newest checkpoint, and set the loader to where it stood then.

        Args:
            like: has the shapes and the shardings that are wanted, of whatever number of devices.
            loader: of the same data and order.

        Raises:
            ConfigError: the model or the optimizer are others, or the loader's data or order.
        """
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), like._asdict()
        )
        try:
            restored = self._manager.restore(
                self.latest,
                args=ocp.args.Composite(state=ocp.args.StandardRestore(shapes), data=LoaderRestore(loader)),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.folder}: step {self.latest} is of another model or optimizer: {error}; "
                "expected the same ones, or another folder"
            ) from error
        return TrainState(**restored["state"])

    def wait(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: or what else went wrong in the background.
        """
        self._manager.wait_until_finished()
