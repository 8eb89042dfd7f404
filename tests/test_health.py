"""The check for django-health-check."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import path
from health_check.exceptions import ServiceUnavailable, ServiceWarning
from health_check.views import HealthCheckView
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, Header, NewMessage, WorkerInfo
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.health import Delayq
from django_delayq.monitor import kept
from django_delayq.testing import VirtualTimeBroker

MEMORY = "django_delayq.testing.VirtualTimeBroker"
HOUR_MS = 3_600_000
urlpatterns = [path("health/", HealthCheckView.as_view(checks=["django_delayq.health.Delayq"]))]


@pytest.fixture
def broker(settings: Settings) -> VirtualTimeBroker:
    """A broker without a store, whose clock a test moves."""
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": None}}
    broker = get_backend()
    assert isinstance(broker, VirtualTimeBroker)
    return broker


def serve(broker: Backend) -> None:
    broker.presence.heartbeat(WorkerInfo("w", ["default"], ["k"], 0, 0))


def test_a_live_worker_is_health(broker: Backend) -> None:
    with pytest.raises(ServiceUnavailable, match="No worker is alive"):
        Delayq().run()
    Delayq(needs_worker=False).run()
    serve(broker)
    kept.forget()
    Delayq().run()


def test_what_is_too_late_is_none(broker: VirtualTimeBroker) -> None:
    broker.queue.enqueue([NewMessage("a", Header("default", "k"), b"1", at_ms=broker.queue.counts().now_ms)])
    broker.age(HOUR_MS)
    serve(broker)
    Delayq().run()
    Delayq(max_lag=timedelta(hours=2)).run()
    with pytest.raises(ServiceUnavailable, match="late"):
        Delayq(max_lag=timedelta(minutes=59)).run()


def test_a_broker_that_is_away_is_none(
    broker: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        raise BrokerUnavailable("nobody there")

    monkeypatch.setattr(broker.queue, "counts", away)
    with pytest.raises(ServiceUnavailable, match=r"The figures are not available\.$"):
        Delayq().run()
    assert "Health of 'default': The figures are not available. nobody there" in caplog.text


@pytest.mark.django_db
def test_the_broker_of_a_store_may_be_away_for_a_while(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise BrokerUnavailable("nobody there")

    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}}}
    monkeypatch.setattr(get_backend().store.broker.presence, "workers", away)  # type: ignore[union-attr]
    with pytest.raises(ServiceWarning, match="go on from the tables"):
        Delayq().run()


def test_the_page_of_the_site_shows_it(broker: Backend, settings: Settings) -> None:
    settings.ROOT_URLCONF = __name__
    response = Client().get("/health/?format=json")
    assert response.status_code == 500
    assert response.json() == {"Delayq()": "Unavailable: No worker is alive."}  # no names for strangers
    kept.forget()
    serve(broker)
    response = Client().get("/health/?format=json")
    assert response.status_code == 200
    assert "Delayq" in response.content.decode()
