"""One server, one worker and one set of deployments for all integration tests of a session."""

from tests.prefect.deployed import data, environment, server, worker

__all__ = ["data", "environment", "server", "worker"]
