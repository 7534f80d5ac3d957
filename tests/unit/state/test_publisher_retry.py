"""A publishing beside a stream that fails is tried again, but not at once. Without Spark."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from offsets_pipeline.common.config.sections import FoldSettings
from offsets_pipeline.errors import StorageFailed
from offsets_pipeline.fold.stream import folding as publisher_module
from offsets_pipeline.fold.stream.folding import Publisher
from tests.spark.stores import CLOCK

if TYPE_CHECKING:
    import pytest

    from offsets_pipeline.store.store import Store


class FakeTime(threading.Event):
    """In place of the event that ends the thread: a wait takes no time, and after 60 seconds the thread ends."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        if self.now > 1060:
            self.set()
        return self.is_set()


def test_storage_that_is_out_of_reach_is_asked_as_often_as_after_folds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, warnings, tried = FakeTime(), list[str](), list[float]()

    def fails(*_: object) -> bool:
        tried.append(fake.now)
        raise StorageFailed("out of reach")

    monkeypatch.setattr(publisher_module, "publish", fails)
    monkeypatch.setattr(time, "monotonic", lambda: fake.now)
    publisher = Publisher(store, FoldSettings(publish_within_ms=20_000), CLOCK, warnings.append)
    monkeypatch.setattr(publisher, "_stopped", fake)
    publisher.after_fold(1)
    publisher._run_to_end()
    assert [round(each) for each in tried] == [1010, 1020, 1030, 1040, 1050, 1060]
    assert warnings == [f"cannot publish {store.location}: out of reach; the next run tries again"]
