"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.loader.columns import RowSegments as RowSegments
from tokenlake.runtime.loader.columns import labels as labels
from tokenlake.runtime.loader.columns import targets as targets
from tokenlake.runtime.loader.dataset import open as open
from tokenlake.runtime.loader.explain import Document as Document
from tokenlake.runtime.loader.explain import ExplainedRow as ExplainedRow
from tokenlake.runtime.loader.explain import explain_step as explain_step
from tokenlake.runtime.loader.explain import files_of as files_of
from tokenlake.runtime.loader.explain import steps_of_document as steps_of_document
from tokenlake.runtime.loader.jax import Placement as Placement
from tokenlake.runtime.loader.options import LoaderOptions as LoaderOptions
from tokenlake.runtime.loader.orbax import LoaderHandler as LoaderHandler
from tokenlake.runtime.loader.plan import BatchPlan as BatchPlan
from tokenlake.runtime.loader.read_ahead import DecodedAhead as DecodedAhead
from tokenlake.runtime.loader.state import restored as restored
