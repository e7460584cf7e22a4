"""One server, one worker and one set of deployments for all tests of a module."""

from tests.prefect.deployed import data, environment, server, worker

__all__ = ["data", "environment", "server", "worker"]
