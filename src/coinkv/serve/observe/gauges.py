"""What is read off the server when somebody scrapes: its load, its store, its indexing jobs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import coinkv
from coinkv.errors import CoinKVError, NotReadyError

if TYPE_CHECKING:
    from coinkv.serve.scheduler.limits import Load
    from coinkv.serve.service import Service

JOB_STATES = ("waiting", "running", "done", "failed")

_log = logging.getLogger(__name__)


class ServiceState(Collector):
    """The state of a service; every scrape asks it anew.

    Args:
        service: the service.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The families as things are now, without those that cannot be known now."""
        service = self._service
        yield GaugeMetricFamily(
            "coinkv_ready", "1 while the server takes requests on", value=float(service.ready)
        )
        try:
            about = {"version": coinkv.__version__, "model": service.models.backbone_name}
            yield InfoMetricFamily("coinkv", "Version and backbone", value=about)
            yield from _of_load(service.scheduler.load())
            yield from _of_store(service.models.store("default"))
            yield _of_jobs(job.state for job in service.library.jobs())
        except NotReadyError:
            return
        except CoinKVError as error:
            _log.warning("some figures cannot be read: %s", error)


def _of_load(load: Load) -> Iterator[Metric]:
    requests = GaugeMetricFamily(
        "coinkv_scheduler_requests", "Requests by what becomes of them now", labels=["state"]
    )
    requests.add_metric(["queued"], load.queued)
    requests.add_metric(["prefilling"], load.prefilling)
    requests.add_metric(["decoding"], load.decoding)
    yield requests
    yield GaugeMetricFamily(
        "coinkv_scheduler_slots", "Requests that may be computed at a time", value=load.slots
    )
    yield GaugeMetricFamily(
        "coinkv_scheduler_live_tokens",
        "Tokens of the prompts and answers computed now",
        value=load.live_tokens,
    )
    yield GaugeMetricFamily(
        "coinkv_scheduler_waiting_clients",
        "Clients that have requests in the queue",
        value=load.waiting_clients,
    )


def _of_store(kept: Mapping[str, Any]) -> Iterator[Metric]:
    tiers = _with_misses(kept)
    gauges = {
        "bytes": "Bytes of reusable KV in a tier",
        "budget_bytes": "The most bytes a tier may hold; left out where there is no bound",
        "blocks": "Blocks of reusable KV in a tier",
    }
    yield from _by_tier(tiers, GaugeMetricFamily, gauges)
    counters = {
        "hits": "Lookups of reusable KV that a tier answered",
        "misses": "Lookups of reusable KV that a tier could not answer and passed on",
        "evictions": "Blocks of reusable KV that left a tier for others",
    }
    yield from _by_tier(tiers, CounterMetricFamily, counters)
    yield CounterMetricFamily(
        "coinkv_store_damaged",
        "Damaged blocks of reusable KV that were found and dropped",
        value=kept["damaged"],
    )


def _with_misses(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tiers, fastest first, each with the lookups that went on to the next one."""
    tiers: list[dict[str, Any]] = []
    passed_on = kept["misses"]
    for tier in reversed(kept["tiers"]):
        tiers.insert(0, {**tier, "misses": passed_on})
        passed_on += tier["hits"]
    return tiers


def _by_tier(
    tiers: Sequence[Mapping[str, Any]],
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    meanings: Mapping[str, str],
) -> Iterator[Metric]:
    for key, meaning in meanings.items():
        family = kind(f"coinkv_store_{key}", meaning, labels=["tier"])
        for tier in tiers:
            if tier[key] is not None:
                family.add_metric([tier["name"]], tier[key])
        yield family


def _of_jobs(states: Iterable[str]) -> Metric:
    counts = Counter(states)
    family = GaugeMetricFamily("coinkv_indexing_jobs", "Indexing jobs by state", labels=["state"])
    for state in JOB_STATES:
        family.add_metric([state], counts[state])
    return family
