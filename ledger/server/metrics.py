"""What the ledger counts, for Prometheus (`metrics` in the configuration).

Rules kept here:

- No label grows with what clients do: outcomes, reason codes and names of RPCs are this program's own words.
  No principal, stream, resource or update is one.
- A number that nobody measured is absent, never 0 (law 9). A count that stands at 0 is measured: it starts
  with the process.
- What grows is counted by whoever does it; what stands somewhere is read when somebody asks. Whoever is read
  knows nothing of it, so what is read is a number that one thread writes.
- Numbers only: no key, no name, nothing of an event. The listener asks for no certificate, so it belongs on
  loopback or a network of the operator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledger.errors import AssayError, FatalError, InputError, OverloadedError

__all__ = ["Listener", "Metrics"]

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_BYTES: Final = tuple(float(2**power) for power in range(8, 24))  # 256 bytes to 8 MiB, the largest commit
_STREAMS: Final = ("AppendStream", "Read", "Follow", "FollowUpdate")


def _outcome(error: BaseException) -> tuple[str, str]:
    """Outcome and reason of an append that was not placed."""
    reason = error.reason if isinstance(error, AssayError) else type(error).__name__
    if isinstance(error, InputError):
        return "refused", reason
    return ("overloaded" if isinstance(error, OverloadedError) else "failed"), reason


class Metrics:
    """The numbers of one ledger, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._appends = Counter(
            "assay_appends",
            "Batches that were answered: acknowledged, refused (the author's fault), overloaded (the same "
            "again later) or failed (the ledger's fault), by reason code.",
            ("outcome", "reason"),
            registry=registry,
        )
        self._acknowledged = self._appends.labels("acknowledged", "")
        self.resends = Counter(
            "assay_resends",
            "Batches that were placed before and got their first position.",
            registry=registry,
        )
        self._batches = Counter("assay_batches", "Batches placed.", registry=registry)
        self._entries = Counter("assay_entries", "Entries placed.", registry=registry)
        self._commit_bytes = Histogram(
            "assay_commit_bytes", "Bytes of entries in a commit.", buckets=_BYTES, registry=registry
        )
        self._commit_seconds = Histogram(
            "assay_commit_seconds",
            "Time from handing a commit to the store until it is durable and released.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.store_errors = Counter(
            "assay_store_errors",
            "Commits that the store did not take, by reason code.",
            ("reason",),
            registry=registry,
        )
        self._blob_refusals = Counter(
            "assay_blob_refusals",
            "Calls for content that were refused, for the caller's fault or until later, by reason code.",
            ("reason",),
            registry=registry,
        )
        self._streams = Gauge("assay_streams_open", "Open streams, by RPC.", ("rpc",), registry=registry)
        for rpc in _STREAMS:
            self._streams.labels(rpc)
        self._readings = _Readings()
        registry.register(self._readings)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def acknowledged(self) -> None:
        """A batch was acknowledged."""
        self._acknowledged.inc()

    def not_placed(self, error: BaseException) -> None:
        """A batch was answered by an error."""
        self._appends.labels(*_outcome(error)).inc()

    @contextmanager
    def about_blobs(self) -> Iterator[None]:
        """Counts a call for content if it is refused."""
        try:
            yield
        except (InputError, OverloadedError) as error:
            self._blob_refusals.labels(error.reason).inc()
            raise

    def committed(self, seconds: float, size: int, batches: int, entries: int) -> None:
        """A commit of `size` bytes of entries is durable and released."""
        self._commit_seconds.observe(seconds)
        self._commit_bytes.observe(size)
        self._batches.inc(batches)
        self._entries.inc(entries)

    def streaming(self, rpc: str) -> AbstractContextManager[None]:
        """Counts an open stream while it lasts."""
        return self._streams.labels(rpc).track_inprogress()

    def read(self, name: str, text: str, read: Callable[[], float | None]) -> None:
        """Shows what `read` gives whenever somebody asks, in the listener's thread; None shows nothing."""
        self._readings.gauges.append((name, text, read))

    def listen(self, address: str) -> Listener:
        """Serves the numbers on host:port over HTTP. Raises FatalError NOT_LISTENING."""
        host, _, port = address.rpartition(":")
        try:
            server, thread = start_http_server(int(port), host.strip("[]"), registry=self.registry)
        except (OSError, ValueError, OverflowError) as error:
            raise FatalError(
                "NOT_LISTENING", f"expected to listen on {address} for metrics (host:port), got {error}"
            ) from error
        return Listener(server, thread)


class Listener:
    """The HTTP listener, in threads of its own."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        self.port = server.server_port

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Readings(Collector):
    """Gauges that are read when asked for."""

    def __init__(self) -> None:
        self.gauges: list[tuple[str, str, Callable[[], float | None]]] = []

    def collect(self) -> Iterable[Metric]:
        for name, text, read in self.gauges:
            if (value := read()) is not None:
                yield GaugeMetricFamily(name, text, value=value)
