"""What Kafka's clients are told: the address, and whatever the user's settings say, with secrets kept apart.

A secret stands in an environment variable or a file, and the settings name that. It is looked up here and given to
Kafka's clients, in the driver's JVM and through Spark's source. No message that leaves this package holds it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from offsets_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PREFIX = "kafka."
_ENVIRONMENT, _FILE = "env:", "file:"
_HIDDEN = "***"
_SECRET_NAMES = ("password", "secret", "jaas", "token", "key", "certificate")
# The source asks where a partition ends right behind a fetch. A broker answers one after the other, and holds a fetch
# that finds nothing back for so long, by default half a second: for each partition of each batch.
_OF_SOURCE = {"fetch.max.wait.ms": "10"}
_NO_SECRETS = (".location", ".type", ".url")
# of a JAAS entry, which is one text: user name="me" password=x; the value may stand in quotes
_JAAS = "jaas"
_SECRET_OF_JAAS = re.compile(
    r"""(?:password|passwd|pwd|passphrase|secret)\w*\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""",
    re.IGNORECASE,
)
# Spark's own option, for its consumers ask a group coordinator about the group that they never join
_GROUP_PREFIX, _DEFAULT_GROUP_PREFIX = "groupIdPrefix", "spark-kafka-source"
# what a reading of the topic rests on, or that an option of its own says
_OURS = {
    "bootstrap.servers": "say it with --bootstrap-server",
    "isolation.level": "the log takes what is committed",
    "group.id": "who joins a group writes into the topic that is read here",
    "group.instance.id": "who joins a group writes into the topic that is read here",
    "enable.auto.commit": "who commits writes into the topic that is read here",
    "auto.offset.reset": "the log says where reading goes on",
    "key.deserializer": "the log takes raw bytes",
    "value.deserializer": "the log takes raw bytes",
}


class KafkaOptions:
    """Options of Kafka's clients; shown, it shows no value."""

    def __init__(self, bootstrap_server: str, options: Mapping[str, str]) -> None:
        self.bootstrap_server = bootstrap_server
        self._values: dict[str, str] = {}
        self._secrets: set[str] = set()
        for given, value in options.items():
            name = given.removeprefix(_PREFIX)
            if name in _OURS:
                raise ConfigError(f"the Kafka option {name} is not yours to set: {_OURS[name]}")
            self._values[name] = self._resolved(name, value)
        self.group_prefix = self._values.pop(_GROUP_PREFIX, _DEFAULT_GROUP_PREFIX)

    def _resolved(self, name: str, value: str) -> str:
        if value.startswith(_ENVIRONMENT):
            variable = value.removeprefix(_ENVIRONMENT)
            found = os.environ.get(variable)
            if found is None:
                raise ConfigError(f"the Kafka option {name} names the environment variable {variable}: it is not set")
        elif value.startswith(_FILE):
            path = value.removeprefix(_FILE)
            try:
                found = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no text"
                raise ConfigError(f"the Kafka option {name} names the file {path}: {reason}") from None
        else:
            if value and any(part in name for part in _SECRET_NAMES) and not name.endswith(_NO_SECRETS):
                self._secrets |= _parts(name, value)
            return value
        self._secrets |= _parts(name, found)
        return found

    def for_clients(self) -> dict[str, str]:
        """The properties of a client of Kafka's own."""
        return {**self._values, "bootstrap.servers": self.bootstrap_server}

    def for_spark(self) -> dict[str, str]:
        """The options of Spark's Kafka source."""
        of_clients = {_PREFIX + name: value for name, value in (_OF_SOURCE | self.for_clients()).items()}
        return {**of_clients, _GROUP_PREFIX: self.group_prefix}

    def has(self, name: str) -> bool:
        """Whether the user said something of this option."""
        return name in self._values

    def without_secrets(self, text: str) -> str:
        """The text with each secret in it replaced, also where it goes over several lines."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    def __repr__(self) -> str:
        return f"KafkaOptions({self.bootstrap_server!r}, {sorted(self._values)})"


def _parts(name: str, secret: str) -> set[str]:
    """In what parts a secret may be shown: its lines, or of a JAAS entry its passwords, as written and as meant."""
    if _JAAS not in name:
        parts = {secret, *secret.splitlines()}
    else:
        written = {next(filter(None, found), "") for found in _SECRET_OF_JAAS.findall(secret)}
        parts = {secret, *written, *(re.sub(r"\\(.)", r"\1", each) for each in written)}
    return {part for part in parts if len(part) > 1}


def parse_options(given: Iterable[str]) -> dict[str, str]:
    """Options of the command line, as NAME=VALUE. Raises ConfigError; what stands behind the name is not repeated."""
    options = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise ConfigError("an --option is written NAME=VALUE, as security.protocol=SASL_SSL: this one has no =")
        options[name.strip()] = value
    return options
