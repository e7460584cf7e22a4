"""Workers of a build on the nodes of a Ray or Dask cluster.

Each is a slot, which is a :class:`~tokenlake.etl.WorkerPool` of one process on any
node. A job goes to it as a line of JSON, and the answer comes as one. With the job goes
a check of the machine (a preflight), which each slot does once. So the cluster moves a
few short texts for each unit, and knows nothing of units. A slot whose node died is
replaced. Its job fails like that of a dead worker, and the caller tries it again.

``RAY_ADDRESS``, and ``DASK_SCHEDULER_ADDRESS`` or Dask's own configuration, name the
cluster. Without them a cluster is started on this machine, and ends with the build.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
