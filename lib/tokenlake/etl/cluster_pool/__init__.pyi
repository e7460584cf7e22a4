"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.cluster_pool.dask_nodes import DaskNodes as DaskNodes
from tokenlake.etl.cluster_pool.pool import ClusterPool as ClusterPool
from tokenlake.etl.cluster_pool.ray_nodes import RayNodes as RayNodes
from tokenlake.etl.cluster_pool.slots import Nodes as Nodes
from tokenlake.etl.cluster_pool.slots import Slot as Slot
from tokenlake.etl.cluster_pool.slots import SlotLostError as SlotLostError
