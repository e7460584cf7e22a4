"""Figures of a running build or loader, for Prometheus and OpenTelemetry.

A thing that has figures gives them as :class:`Metric` whenever it is asked.
:class:`MetricsExport` asks it: every few seconds for a text file, as the textfile
collector of Prometheus' node exporter reads them, and whenever OpenTelemetry collects.
Formats and transport are those packages' own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Self, final

from tokenlake.base.threads import start_thread
from tokenlake.errors import ConfigError, MissingExtraError

_NO_PACKAGE: Final = "metrics need the package {}, which is not installed: pip install 'tokenlake[metrics]'"


@final
@dataclass(frozen=True, slots=True)
class Metric:
    """One measured figure, in Prometheus' form.

    Attributes:
        name: Name in Prometheus' form, with its unit and without ``_total``.
        kind: ``counter`` for a figure that only grows, otherwise ``gauge``.
        help: Description in a sentence.
        value: Present value.
        labels: Labels that tell one figure of the name from another.

    Example:
        >>> import tokenlake as tl
        >>> tl.Metric("rows", "counter", "Rows that were delivered.", 8.0).labels
        {}
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


Read = Callable[[], Iterable[Metric]]
"""Function that returns the current figures; other threads call it."""


@final
class MetricsExport:
    """Export of figures inside its ``with`` block.

    Figures go to a file in Prometheus' format, to OpenTelemetry, or to both.

    Args:
        read: Function that returns the figures, such as ``loader.metrics``.
        file: Path of a text file in Prometheus' format, which is replaced as a whole;
            None: no file.
        opentelemetry: True to give the figures to OpenTelemetry's global meter
            provider, by its meter ``tokenlake``.
        interval: Seconds between two versions of the file; the last one is written at
            the end of the block.
        labels: Further labels of each figure, which distinguish this export from
            others; None: none.

    Raises:
        ConfigError: Neither `file` nor `opentelemetry` is given, or the interval is not
            above 0.
        MissingExtraError: The package prometheus-client or opentelemetry-api is not
            installed.

    Example:
        >>> import tokenlake as tl
        >>> loader = tl.DataLoader(tl.open("artifacts/books"), batch_size=8)
        >>> with tl.MetricsExport(loader.metrics, file="loader.prom", labels={"run": "a"}) as export:
        ...     batch = next(iter(loader))
        >>> figure = next(iter(export))
        >>> figure.name, figure.value, figure.labels
        ('tokenlake_loader_batches', 1, {'run': 'a'})
    """

    def __init__(
        self,
        read: Read,
        *,
        file: str | os.PathLike[str] | None = None,
        opentelemetry: bool = False,
        interval: float = 15.0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Check the arguments; nothing is exported yet."""
        if file is None and not opentelemetry:
            raise ConfigError(
                "MetricsExport: got neither file nor opentelemetry, expected at least one of them"
            )
        if not interval > 0:
            raise ConfigError(
                f"MetricsExport: interval: got {interval!r}, expected a number of seconds above 0"
            )
        # Packages are imported only where they are used, so that a missing one is an
        # error of the export that needs it.
        self._read = read
        self._labels = dict(labels or {})
        self._file = None if file is None else os.fspath(file)
        self._interval = interval
        self._registry: Any = None
        if file is not None:
            self._registry = _prometheus().CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        self._meter: Any = None
        if opentelemetry:
            self._meter = _opentelemetry().get_meter("tokenlake")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Metric]:
        """Yield the figures as they are now, with the labels of this export."""
        for metric in self._read():
            labels = {**metric.labels, **self._labels}
            yield Metric(metric.name, metric.kind, metric.help, metric.value, labels)

    def collect(self) -> Iterator[Any]:
        """Yield the figures as families of prometheus_client.

        Its registries call this.
        """
        families_module = _prometheus().metrics_core
        # All figures of a name belong to one family; their labels differ.
        families: dict[str, Any] = {}
        for metric in self:
            if metric.kind == "counter":
                family_class = families_module.CounterMetricFamily
            else:
                family_class = families_module.GaugeMetricFamily
            new_family = family_class(
                metric.name, metric.help, labels=list(metric.labels)
            )
            family = families.setdefault(metric.name, new_family)
            family.add_metric(list(metric.labels.values()), metric.value)
        yield from families.values()

    def write(self) -> None:
        """Write the file now. Raises OSError if that fails."""
        if self._file is not None:
            _prometheus().write_to_textfile(self._file, self._registry)

    def __enter__(self) -> Self:
        if self._meter is not None:
            _Instruments.show(self, self._meter)
        if self._file is not None:
            self.write()  # a wrong path is an error here, not in the thread
            self._thread = start_thread(
                self._run, end=self._ended.set, name="tokenlake-metrics"
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        _Instruments.hide(self)
        if self._thread is not None:
            self._thread.join()
            self.write()

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            self.write()


class _Instruments:
    """Instruments of OpenTelemetry, which live as long as their provider.

    Each is made once, and asks all open exports.
    """

    _lock: ClassVar = threading.Lock()
    _exports: ClassVar = list[MetricsExport]()
    """Open exports."""

    _created: ClassVar = set[tuple[int, str]]()
    """Meter's id and name of each instrument."""

    @classmethod
    def show(cls, export: MetricsExport, meter: Any) -> None:
        """Add an export, and create instruments for its figures that have none."""
        with cls._lock:
            cls._exports.append(export)
            for metric in export:
                instrument = (id(meter), metric.name)
                if instrument not in cls._created:
                    cls._created.add(instrument)
                    create = getattr(meter, f"create_observable_{metric.kind}")
                    create(
                        metric.name,
                        callbacks=[cls._observer(metric.name)],
                        description=metric.help,
                    )

    @classmethod
    def hide(cls, export: MetricsExport) -> None:
        """Remove an export."""
        with cls._lock:
            cls._exports[:] = [item for item in cls._exports if item is not export]

    @classmethod
    def _observer(cls, name: str) -> Callable[[Any], list[Any]]:
        """Return the callback of an instrument, which reads a figure of all open exports."""
        observation = _opentelemetry().Observation

        def observe(options: Any) -> list[Any]:
            observations: list[Any] = []
            # An export may end while OpenTelemetry collects.
            with cls._lock:
                for export in cls._exports:
                    for metric in export:
                        if metric.name == name:
                            labels = dict(metric.labels)
                            observations.append(observation(metric.value, labels))
            return observations

        return observe


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        raise MissingExtraError(_NO_PACKAGE.format("prometheus-client")) from error
    return prometheus_client


def _opentelemetry() -> Any:
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise MissingExtraError(_NO_PACKAGE.format("opentelemetry-api")) from error
    return metrics
