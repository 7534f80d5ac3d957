"""Options of the file source: those of a source task have Connect's names."""

from __future__ import annotations

import pytest

from examples.file_source import FileSourceOptions
from offsets_pipeline.connect.offset_committer import FlushSettings
from offsets_pipeline.errors import ConfigError

NEEDED = {"name": "files", "file": "a.txt", "offset.storage.topic": "owned"}


def test_settings_have_the_names_and_defaults_of_connect() -> None:
    assert FileSourceOptions.of_options(NEEDED) == FileSourceOptions(
        "files", ("a.txt",), "owned", None, FlushSettings(60_000, 5_000, None), "earliest"
    )
    options = {
        **NEEDED,
        "offset.flush.interval.ms": "10",
        "offset.flush.timeout.ms": "20",
        "offset.flush.records": "30",
        "offset.reset": '{"position": 5}',
    }
    assert FileSourceOptions.of_options(options) == FileSourceOptions(
        "files", ("a.txt",), "owned", None, FlushSettings(10, 20, 30), {"position": 5}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name: missing"),
        ({"offset.storage.topic": ""}, r"offset\.storage\.topic: missing"),
        ({"offset.flush.interval.ms": "0"}, r"offset\.flush\.interval\.ms: '0' is not allowed; .* whole number from 1"),
        ({"offset.flush.records": "many"}, r"offset\.flush\.records: 'many' is not allowed"),
        ({"offset.reset": "middle"}, r"offset\.reset: 'middle' is not allowed; it takes earliest or latest or none"),
        ({"offset.reset": "[1]"}, r"offset\.reset: "),
        ({"offset.flush.interval": "1"}, r"offset\.flush\.interval: no such option; there are batch\.size, file"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        FileSourceOptions.of_options(NEEDED | options)
