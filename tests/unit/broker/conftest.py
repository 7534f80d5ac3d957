"""The fixture of all tests of Kafka's client."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_failed_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses that failed are asked last, and a broker of another test may have had a port of this one."""
    monkeypatch.setattr("offsets_pipeline.kafka.broker.cluster._failed_at", {})
