"""One JVM in which brokers run, for all tests that ask for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.brokers import KafkaJvm, fetch_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaJvm]:
    """Starts a broker on the segments that a test gives it: `with kafka.broker(segments, 5) as broker`."""
    fetch_kafka()
    jvm = KafkaJvm(tmp_path_factory.mktemp("kafka"))
    yield jvm
    jvm.close()
