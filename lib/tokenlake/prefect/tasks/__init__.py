"""Tasks: retries, progress and one library call each. Only the modules with ``@task`` import Prefect."""
