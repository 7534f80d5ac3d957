"""Configurations of connectors that Connect refuses, with its messages."""

from __future__ import annotations

import pytest

from offsets_pipeline.connect.connector_config import validated_config
from offsets_pipeline.connect.request_bodies import connector_of, settings_of
from offsets_pipeline.errors import BadConnectRequest

SOURCE = {"connector.class": "FileStreamSource"}
NAME, TASKS = (
    "Invalid value {} for configuration name: String may not ",
    "Invalid value {} for configuration tasks.max: ",
)


def refusal(connector: str, **settings: str | None) -> list[str]:
    """The lines of the refusal, without the first one; none if the configuration is taken."""
    given = SOURCE | {name.replace("_", "."): value for name, value in settings.items()}
    try:
        assert validated_config(connector, given) == given | {"name": connector}
    except BadConnectRequest as error:
        first, *lines = str(error).split("\n")
        assert first == f"Connector configuration is invalid and contains the following {len(lines)} error(s):"
        return lines
    return []


def test_numbers_and_booleans_are_texts() -> None:
    document = '{"a": 1, "b": 2.5, "c": true, "d": null, "e": "x", "f": 12345678901234567890}'
    settings = {"a": "1", "b": "2.5", "c": "true", "d": None, "e": "x", "f": "12345678901234567890"}
    assert settings_of(document, "it") == settings
    for state, read in (("", None), (', "initial_state": "paused"', "PAUSED")):
        assert connector_of(f'{{"name": " n ", "config": {document}{state}}}', "it") == ("n", settings, read)


@pytest.mark.parametrize("name", ["a", "a b", "a~", "a\xa0b", "\x01a\x1f"])
def test_names_that_connect_takes(name: str) -> None:
    assert refusal(name) == []


@pytest.mark.parametrize(
    ("name", "codes"), [("a\x1fb", "31"), ("a\x7fb", "127"), ("a\x9f", "159"), ("a\x01\tb", "1, 9")]
)
def test_a_name_with_control_characters_is_refused(name: str, codes: str) -> None:
    (line,) = refusal(name) or [""]
    said = f"contain control sequences but had the following ASCII chars: {codes}"
    assert line == NAME.format(name) + said


@pytest.mark.parametrize("name", ["", " ", "\x00\t"])
def test_a_name_of_blanks_is_refused(name: str) -> None:
    assert refusal(name) == [NAME.format("") + "be empty"]


def test_number_of_tasks_is_a_positive_int() -> None:
    assert [refusal("a", tasks_max=text) for text in ("1", " 3 ", "+7", "2147483647")] == [[]] * 4
    assert refusal("a", tasks_max="0") == [TASKS.format(0) + "Value must be at least 1"]
    assert refusal("a", tasks_max="-2147483648") == [TASKS.format(-2147483648) + "Value must be at least 1"]
    for text in ("2147483648", "-2147483649", "x", "1.0", ""):
        none = TASKS.format("null") + "Value must be non-null"
        assert refusal("a", tasks_max=text) == [TASKS.format(text) + "Not a number of type INT", none]


def test_every_error_is_listed() -> None:
    lines = refusal("", tasks_max="0", db_password="open-sesame", topic=None)
    assert [line.partition(" for ")[0] for line in lines] == [
        "Null value can not be supplied as the configuration value.",
        "Invalid value ",
        "Invalid value 0",
        "Invalid value [hidden]",
    ]
