"""What others may import from this package, and where each name is defined."""

from tokenlake.etl.step_clock.clock import CLOCK as CLOCK
from tokenlake.etl.step_clock.clock import StepClock as StepClock
from tokenlake.etl.step_clock.reported_steps import STEPS as STEPS
from tokenlake.etl.step_clock.reported_steps import StepName as StepName
from tokenlake.etl.step_clock.reported_steps import StepTime as StepTime
from tokenlake.etl.step_clock.reported_steps import countable as countable
from tokenlake.etl.step_clock.reported_steps import step_of_mark as step_of_mark
from tokenlake.etl.step_clock.reported_steps import step_times as step_times
