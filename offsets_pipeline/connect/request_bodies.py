"""Bodies of Connect's REST requests, also in files of the command line."""

from __future__ import annotations

from typing import Any

from offsets_pipeline.common.input_text import is_deeper, parse_json
from offsets_pipeline.connect.connector_config import BLANKS
from offsets_pipeline.connect.target_states import PAUSED, RUNNING, STOPPED
from offsets_pipeline.errors import BadConnectRequest

#: Levels of arrays and objects in a body.
_MAX_DEPTH = 100


def offsets_of(text: str, what: str) -> list[dict[str, Any]]:
    """The pairs of ``partition`` and ``offset`` of an alteration; an offset of None deletes one.

    ``what`` names the text in errors. Raises BadConnectRequest.
    """
    document = _parsed(text, what)
    offsets = None
    if isinstance(document, dict) and document.keys() <= {"offsets"}:
        offsets = [] if document.get("offsets") is None else document["offsets"]
    if not isinstance(offsets, list) or not all(map(_is_offset, offsets)):
        raise BadConnectRequest(
            f'{what} does not hold offsets: write {{"offsets": [{{"partition": {{...}}, "offset": {{...}}}}]}}'
        )
    return [{"partition": each.get("partition"), "offset": each.get("offset")} for each in offsets]


def settings_of(text: str, what: str) -> dict[str, str | None]:
    """The settings of a connector: a JSON object of texts. As in Connect, numbers and booleans become texts.

    ``what`` names the text in errors. Raises BadConnectRequest.
    """
    return _settings(_parsed(text, what, numbers_as_text=True), what)


def connector_of(text: str, what: str) -> tuple[str, dict[str, str | None], str | None]:
    """Name, settings and target state of a new connector; None: no target state is given. The name is trimmed.

    ``what`` names the text in errors. Raises BadConnectRequest.
    """
    document = _parsed(text, what, numbers_as_text=True)
    given = document if isinstance(document, dict) else {}
    name, initial = given.get("name"), given.get("initial_state")
    state = None if initial is None else str(initial).upper()
    if (
        not given.keys() <= {"name", "config", "initial_state"}
        or not isinstance(name, str | None)
        or state not in {None, RUNNING, PAUSED, STOPPED}
    ):
        raise BadConnectRequest(
            f'{what} does not hold a connector: write {{"name": "...", "config": {{...}}, "initial_state": "STOPPED"}}'
        )
    return (name or "").strip(BLANKS), _settings(given.get("config"), f"config of {what}"), state


def _settings(document: object, what: str) -> dict[str, str | None]:
    if not isinstance(document, dict) or not all(isinstance(value, str | bool | None) for value in document.values()):
        raise BadConnectRequest(f'{what} does not hold settings: write {{"connector.class": "...", "name": "value"}}')
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in document.items()}


def _is_offset(each: object) -> bool:
    if not isinstance(each, dict) or not each.keys() <= {"partition", "offset"}:
        return False
    partition, offset = each.get("partition"), each.get("offset")
    # a null partition can be in the log, and be deleted
    return isinstance(offset, dict | None) and (isinstance(partition, dict) or partition is offset is None)


def _parsed(text: str, what: str, *, numbers_as_text: bool = False) -> object:
    try:
        # a worker accepts a byte order mark, too
        document = parse_json(text.removeprefix("\ufeff"), numbers_as_text=numbers_as_text)
    except ValueError as error:
        raise BadConnectRequest(f"{what} is not JSON: {error}") from None
    if is_deeper(document, _MAX_DEPTH):
        raise BadConnectRequest(f"{what} has more than {_MAX_DEPTH} levels of arrays and objects")
    return document
