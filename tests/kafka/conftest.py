"""Fixtures of tests that follow a topic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.config.sections import FoldSettings, TopicSettings

if TYPE_CHECKING:
    from offsets_pipeline.common.config import Settings

_SHORT = TopicSettings(watch_interval_ms=200, note_interval_ms=200, min_records_wait_ms=100)


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Settings of queries that look often."""
    return replace(settings, topic=_SHORT, fold=FoldSettings(trigger_interval_ms=100, max_backoff_ms=500))
