"""A pool without worker processes, for tests and profiles."""

from __future__ import annotations

from typing import Any, cast, final

from tokenlake.etl.job.activity import Progress
from tokenlake.etl.job.lines import WorkerAnswer, answer_of, job_of, to_line
from tokenlake.etl.job.messages import Job
from tokenlake.etl.workbench import Workbench


@final
class InProcessPool:
    """A pool that runs each job in this process, after a trip through JSON.

    Args:
        workbench: Workbench that several pools use; None for a new one.
    """

    workers = 1

    def __init__(self, workbench: Workbench | None = None) -> None:
        self._workbench = workbench or Workbench()

    def run(self, job: Job, on_progress: Progress = lambda fields: None) -> Any:
        """Run a job and return its result; errors are raised as they are."""
        # A job or an answer that JSON does not carry would fail in a worker only.
        received_job = cast("Job", job_of(to_line(job)))
        result = self._workbench.run(received_job, on_progress)
        return answer_of(to_line(WorkerAnswer(result=result, rss=1))).result

    def expect(self, number: int, coming: object = None) -> None:
        """Do nothing: one process runs all jobs, one after the other."""

    def cancel(self) -> None:
        """Do nothing: nothing runs beside the caller."""
