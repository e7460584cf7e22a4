# docker build --tag tokenlake .                     the command: docker run --rm tokenlake --help
# docker build --tag tokenlake-worker --target worker .     a Prefect worker, and the server of compose.yaml
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=etl,s3,gcs,metrics
WORKDIR /src
# What changes rarely comes first: the packages stay in their layer while the library changes.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY lib/tokenlake/_version.py lib/tokenlake/_version.py
COPY deployments deployments
RUN python -m venv /opt/tokenlake \
 && /opt/tokenlake/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"
COPY lib lib
COPY flows flows
COPY tasks tasks
RUN /opt/tokenlake/bin/pip install --no-cache-dir --no-deps --force-reinstall .

FROM python:${PYTHON}-slim AS base
# A user without rights, whose home takes the cache and Prefect's settings; data comes in volumes or from buckets.
RUN useradd --uid 1000 --create-home tokenlake && install --directory --owner 1000 --group 1000 /app /data
COPY --from=build /opt/tokenlake /opt/tokenlake
ENV PATH=/opt/tokenlake/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TOKENLAKE_CACHE=/home/tokenlake/.cache/tokenlake \
    PREFECT_SERVER_ANALYTICS_ENABLED=false
USER 1000
WORKDIR /data

FROM base AS worker
WORKDIR /app
# The flows are installed; these name them and their configurations.
COPY --chown=1000:1000 deployments deployments
COPY --chown=1000:1000 prefect.yaml ./
CMD ["prefect", "worker", "start", "--pool", "tokenlake", "--limit", "1"]

FROM base
ENTRYPOINT ["tokenlake"]
CMD ["--help"]
