"""Puts metrics, request ids, access lines and traces around an app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from coinkv.serve.observe.gauges import ServiceState
from coinkv.serve.observe.metrics import Metrics
from coinkv.serve.observe.middleware import ObservedRequests
from coinkv.serve.observe.traces import Traces

if TYPE_CHECKING:
    from coinkv.serve.service import Service


def install(app: FastAPI, service: Service) -> Metrics:
    """Observe an app; call it last, so that what other middleware refuses is observed, too.

    Log lines go where `observe.logs.configure_logs` sends them, which is for the process to call.

    Args:
        app: gets the middleware, and `app.state.metrics`.
        service: what the app serves; its scheduler reports to the metrics from here on.

    Returns:
        The figures that `/metrics` exposes.

    Raises:
        InputError: traces are asked for, but not to a URL, or without the extra `otel`.
    """
    endpoint = service.settings.otlp_endpoint
    traces = None if endpoint is None else Traces.to_endpoint(endpoint)
    metrics = service.metrics
    metrics.registry.register(ServiceState(service))
    app.add_middleware(ObservedRequests, metrics=metrics, traces=traces)
    app.state.metrics = metrics
    return metrics
