"""Comparison with a real broker, of all groups or of a sample: equal is so called, and each difference is found."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.cli import main, section_state
from offsets_pipeline.kafka.broker.kafka_options import KafkaOptions
from offsets_pipeline.questions.broker_comparison import MirrorSample
from offsets_pipeline.questions.query.describe import describe_groups
from offsets_pipeline.questions.query.state_reader import StateReader
from offsets_pipeline.semantics.coordinator_semantics import MODERN, CoordinatorSemantics
from tests.kafka.live import LiveBroker, live_broker
from tests.unit.lag.stores import folded_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from tests.kafka.brokers import KafkaJvm

#: Offsets by group: without members, of a transaction, and of consumers of both protocols, which have not committed.
#: The broker of 3.9 lists the group whose only commit was aborted until it loads the log, and its store does not (R14).
COMMITTED = {
    "simple": {("t", 0): 5, ("t", 1): 7},
    "transactional": {("t", 0): 3},
    "classic": {},
    "consumer": {},
    "aborted": {},
}


@pytest.fixture(scope="module", params=["4.2", "3.9"])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def broker(
    release: str, kafka: KafkaJvm, classic_kafka: KafkaJvm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveBroker]:
    server = classic_kafka if release == "3.9" else None
    with live_broker(kafka, tmp_path_factory.mktemp("against") / "broker", server=server) as broker:
        broker.create_topic("t", 2)
        for partition in range(2):
            broker.produce("t", partition, 10)
        broker.commit("simple", COMMITTED["simple"], "größe")
        transaction = broker.transaction("x")
        transaction.begin("transactional", COMMITTED["transactional"])
        transaction.commit()
        transaction.begin("aborted", {("t", 0): 4})
        transaction.abort()
        for protocol in ("classic", "consumer"):
            member = broker.consumer(protocol, ["t"], group_protocol="classic" if release == "3.9" else protocol)
            member.join(2)
        broker.wait_for_markers()
        yield broker


@pytest.fixture
def folded(release: str, broker: LiveBroker, tmp_path: Path, settings: Settings) -> Callable[[], Path]:
    """Make a store of the broker's log."""
    semantics = CoordinatorSemantics.CLASSIC if release == "3.9" else MODERN
    return lambda: folded_segments(broker.folder, tmp_path / "store", 5, settings, semantics)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section_state, "_PATIENCE_SECONDS", 0.0)


def test_a_store_that_answers_as_its_broker_is_equal(
    broker: LiveBroker, folded: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--store", str(folded()), "--against", broker.address]) == 0
    offsets = sum(map(len, COMMITTED.values()))
    assert capsys.readouterr().out == f"equal: {offsets} offsets and 5 groups match what {broker.address} answers\n"


@pytest.mark.parametrize("group", ["simple", "transactional", "new"])
def test_a_commit_that_the_store_lacks_is_found(
    broker: LiveBroker, folded: Callable[[], Path], capsys: pytest.CaptureFixture[str], group: str
) -> None:
    store = folded()
    broker.commit(group, {("t", 0): 9})
    assert main(["verify", "--store", str(store), "--against", broker.address]) == 1
    if group == "new":
        broker.delete_group(group)
    out, err = capsys.readouterr()
    said = "the store does not list it" if group == "new" else "offsets: the brokers say {"
    assert out == ""
    assert f"{store} differs from what {broker.address} answers, in 1 of " in err
    assert f"(first: '{group}': {said}" in err


def test_a_group_that_the_broker_lacks_is_found(
    broker: LiveBroker, folded: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    broker.commit("deleted", {("t", 0): 1})
    store = folded()
    broker.delete_group("deleted")
    assert main(["verify", "--store", str(store), "--against", broker.address]) == 1
    assert "(first: 'deleted': the brokers do not list it)" in capsys.readouterr().err


def test_a_sample_finds_what_the_store_lacks(broker: LiveBroker, folded: Callable[[], Path]) -> None:
    store, warnings = StateReader(str(folded())), list[str]()
    sample = MirrorSample(KafkaOptions(broker.address, {}), lambda: describe_groups(store), 3, warnings.append)
    with closing(sample):
        for _ in range(4):
            sample.sample()
        assert sample.values() == {"offsets_mirror_compared_groups_total": 12, "offsets_mirror_differing_groups": 0}
        broker.commit("simple", {("t", 1): 8})
        for _ in range(4):
            sample.sample()
        assert sample.values()["offsets_mirror_differing_groups"] == 1
    assert [each.partition(": ")[0] for each in warnings] == ["group 'simple' is not as its coordinator answers"]
