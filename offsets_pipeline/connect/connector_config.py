"""Configurations of connectors in an owned log: their validation, and secrets by reference only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from offsets_pipeline.connect.connector_offsets import connector_type
from offsets_pipeline.errors import BadConnectRequest

if TYPE_CHECKING:
    from offsets_pipeline.connect.connect_log import ConnectLog
    from offsets_pipeline.coordinator.owned_log import Record

SOURCE = "source"
_INT_MAX = 2**31 - 1
#: The characters that Java trims.
BLANKS = "".join(map(chr, range(33)))
_NULL = "Null value can not be supplied as the configuration value."

#: `${provider:path:key}` or `${provider:key}`, which a worker's ConfigProvider resolves.
_REFERENCE = re.compile(r"\$\{[^{}:]+:[^{}]*\}")
_SECRET_NAME = re.compile(
    r"passw|passphrase|passcode|pwd|secret|credential|token(?!i[sz])|user[._-]?info"
    r"|(?:private|access|api|account|encryption|signing|shared|auth|sas)[._-]?key"
    # of the type PASSWORD in Kafka's and Confluent's definitions, with other names
    r"|ssl\.(?:keystore\.certificate\.chain|truststore\.certificates)$|confluent\.license$",
    re.IGNORECASE,
)
#: Words of a name: `dbPass` and `DB_PASS` have the words db and pass.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_PASS = re.compile(r"(?!bypass$|compass$|encompass$)\w*pass|pw")
_KEY = re.compile(r"(\w*?)keys?")
#: Words before a last word `key` that is no secret, such as `partition.key`.
_OPEN_KEYS = re.compile(
    r"business|cache|column|composite|delete|document|event|field|foreign|group|hash|index|join|kafka|message|natural"
    r"|null|object|order|partition|primary|range|record|row|routing|shard|sort|surrogate|table|topic|unique"
)
#: Last words of names that say something about a secret, such as `token.endpoint.url`.
_ABOUT_A_SECRET = re.compile(
    r"(?:class|provider|type|enabled?|name|path|file|location|ur[li]|endpoint|ms|seconds|interval|timeout|max|min"
    r"|count|size|length|limit|source|scope|algorithm|format|mode|version|columns?|fields?)",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"", "true", "false"})
_SECRET_VALUE = re.compile(
    # a URL with a password
    r"://[^/\s:@]*:[^/\s@]+@"
    # name=value and "name": "value"
    r"|(?:passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:access|api|account|private)[._-]?key)\w{0,40}"
    r"""(?:["']?\s*=\s*|["']\s*:\s*)["']?[^\s"';,&}]"""
    # an authorization, a private key, tokens of known forms
    r"|\b(?:Bearer|Basic)\s+[\w+/=.-]{8}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{10}|\bgh[pousr]_\w{30}|\bxox[abprs]-",
    re.IGNORECASE,
)


def validated_config(connector: str, settings: Mapping[str, str | None]) -> dict[str, str]:
    """The configuration to store for a connector: ``settings`` with the connector's name.

    Raises BadConnectRequest, with Connect's message where Connect has one. No message has a value that may be secret.
    """
    name = settings.get("name")
    if name not in (None, connector):
        raise BadConnectRequest(
            f"Connector name configuration ({name}) doesn't match connector name in the URL ({connector})"
        )
    config = {name: value for name, value in settings.items() if value is not None} | {"name": connector}
    if not config.get("connector.class"):
        raise BadConnectRequest(f"Connector config of {connector} contains no connector type; name connector.class")
    nulls = [_NULL for name, value in settings.items() if value is None and name != "name"]
    wrong = [*nulls, *_wrong_name(connector), *_wrong_tasks_max(config), *_wrong_type(config), *_secrets(config)]
    if wrong:
        raise BadConnectRequest(
            "\n".join([f"Connector configuration is invalid and contains the following {len(wrong)} error(s):", *wrong])
        )
    return config


def looks_like_secret(name: str, value: str) -> bool:
    """Whether a setting looks like a secret in clear text, by its name or its value. References hide secrets."""
    shown = _REFERENCE.sub("", value)
    if _SECRET_VALUE.search(shown):
        return True
    return _names_secret(name) and shown.strip().lower() not in _NO_SECRETS


def _names_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)] or [""]
    if _ABOUT_A_SECRET.fullmatch(words[-1]):
        return False
    if _SECRET_NAME.search(name) or any(map(_PASS.fullmatch, words)):
        return True
    key = _KEY.fullmatch(words[-1])
    return key is not None and _OPEN_KEYS.fullmatch(key[1] or words[-2:][0]) is None


def config_of(log: ConnectLog, connector: str) -> dict[str, str] | None:
    """The configuration of a connector by the records that ``log`` has read; None without one."""
    record = log.record(connector, _key(connector))
    value: dict[str, Any] = {} if record is None or record.value is None else json.loads(record.value)
    return value.get("properties")


def is_deleted(log: ConnectLog, connector: str) -> bool:
    """Whether a connector was deleted, and has no configuration since, by the records that ``log`` has read."""
    record = log.record(connector, _key(connector))
    return record is not None and record.value is None


def config_record(log: ConnectLog, connector: str, config: Mapping[str, str] | None) -> Record:
    """The record that gives a connector this configuration, in the form of `config.storage.topic`; None deletes it."""
    value = {"properties": config}
    text = None if config is None else json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return log.new_record(connector, _key(connector), text)


def _key(connector: str) -> bytes:
    return f"connector-{connector}".encode()


def _wrong_name(connector: str) -> Iterator[str]:
    name = connector.strip(BLANKS)
    if not name:
        yield "Invalid value  for configuration name: String may not be empty"
    controls = [str(ord(each)) for each in name if ord(each) < 32 or 127 <= ord(each) < 160]
    if controls:
        yield (
            f"Invalid value {name} for configuration name: String may not contain control sequences but had the "
            f"following ASCII chars: {', '.join(controls)}"
        )


def _wrong_tasks_max(config: Mapping[str, str]) -> Iterator[str]:
    text = config.get("tasks.max", "1").strip(BLANKS)
    if re.fullmatch(r"[+-]?\d{1,10}", text, re.ASCII) is None or not -_INT_MAX - 1 <= int(text) <= _INT_MAX:
        yield f"Invalid value {text} for configuration tasks.max: Not a number of type INT"
        yield "Invalid value null for configuration tasks.max: Value must be non-null"
    elif int(text) < 1:
        yield f"Invalid value {int(text)} for configuration tasks.max: Value must be at least 1"


def _wrong_type(config: Mapping[str, str]) -> Iterator[str]:
    if connector_type(config) != SOURCE:
        yield (
            f"Invalid value {config['connector.class']} for configuration connector.class: a sink connector keeps its "
            "offsets in a consumer group; commit these to an owned store for groups"
        )


def _secrets(config: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(config.items()):
        if looks_like_secret(name, value):
            yield (
                f"Invalid value [hidden] for configuration {name}: it looks like a secret; give a reference such as "
                "${file:/run/secrets/db:password}"
            )
