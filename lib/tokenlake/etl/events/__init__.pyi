"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.events.of_builds import BuildPlanned as BuildPlanned
from tokenlake.etl.events.of_builds import BuildRequested as BuildRequested
from tokenlake.etl.events.of_builds import BuildStep as BuildStep
from tokenlake.etl.events.of_builds import Committed as Committed
from tokenlake.etl.events.of_builds import BackendChosen as BackendChosen
from tokenlake.etl.events.of_builds import BackendDiscarded as BackendDiscarded
from tokenlake.etl.events.of_builds import Listed as Listed
from tokenlake.etl.events.of_builds import Phase as Phase
from tokenlake.etl.events.of_builds import Planning as Planning
from tokenlake.etl.events.of_units import Done as Done
from tokenlake.etl.events.of_units import UnitFailed as UnitFailed
from tokenlake.etl.events.of_units import UnitFinished as UnitFinished
from tokenlake.etl.events.of_units import UnitProgress as UnitProgress
from tokenlake.etl.events.of_units import UnitRetried as UnitRetried
from tokenlake.etl.events.of_units import UnitStarted as UnitStarted
from tokenlake.etl.events.watcher import Event as Event
from tokenlake.etl.events.watcher import Watcher as Watcher
from tokenlake.etl.events.watcher import ignore as ignore
