"""No operation lists a whole store: requests that list a bucket list the Delta log of one table."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from offsets_pipeline.cli import main
from offsets_pipeline.coordinator.coordinator import Coordinator
from offsets_pipeline.coordinator.owned_store import OwnedStore
from offsets_pipeline.fold.state.fold import fold_log
from offsets_pipeline.fold.state.publishing import publish
from tests.conftest import S3_LOG
from tests.folded_stores import opened
from tests.places import place_of
from tests.spark.stores import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offsets_pipeline.common.config import Settings

#: A request to list objects, as the server logs it.
_LIST = re.compile(r'"GET /[^/?]+/?\?(\S*)')


@pytest.fixture
def listed(s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Counter[str]]]:
    """The prefixes that requests since the last call listed, with their number."""
    with (tmp_path_factory.getbasetemp() / S3_LOG).open(encoding="utf-8") as log:
        log.seek(0, os.SEEK_END)

        def since_the_last_call() -> Counter[str]:
            queries = [found[1] for line in log if (found := _LIST.search(line))]
            return Counter(parse_qs(query).get("prefix", [""])[0] for query in queries)

        yield since_the_last_call


@pytest.mark.parametrize("commits", [1, 12])
def test_commit_fold_describe_and_verify_list_nothing_but_the_delta_logs_of_tables(
    s3: str, listed: Callable[[], Counter[str]], settings: Settings, commits: int
) -> None:
    name = f"listings-{commits}"
    location = f"{s3}/{name}"
    OwnedStore.create(location, 2)
    assert listed()[f"{name}/"] > 0  # is the place empty? So listings are seen
    with Coordinator.open(location, housekeeping=False) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 0})
        listed()
        for offset in range(commits):
            coordinator.commit_offsets("g", {("t", 0): offset})
        assert listed() == {}

    store = opened(place_of(location))
    acts: tuple[tuple[Callable[[], object], object], ...] = (
        (lambda: fold_log(store, settings, CLOCK), commits + 1),
        (lambda: publish(store, CLOCK), True),
        (lambda: main(["describe", "--store", location, "--all-groups"]), 0),
        (lambda: main(["verify", "--store", location]), 0),
    )
    seen = 0
    for act, expected in acts:
        assert act() == expected
        found = listed()
        seen += found.total()
        assert all(re.fullmatch(rf"{name}/\w+/_delta_log/", prefix) for prefix in found), found
        assert max(found.values(), default=0) <= 2  # however many commits there are
    assert seen
    with Coordinator.open(location, housekeeping=False) as coordinator:
        coordinator.commit_offsets("g", {("t", 0): 100})
    listed()
    assert fold_log(store, settings, CLOCK) == 1
    assert listed() == {}  # it reads on from the versions that it knows
