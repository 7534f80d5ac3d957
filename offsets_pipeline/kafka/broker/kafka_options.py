"""Options of Kafka's clients: the address and the user's options; resolves secrets and hides them in messages.

The settings name the environment variable or the file that holds a secret. This module reads it. Messages of this
package show *** in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from offsets_pipeline.common.secret_values import REFERENCES, referred_secret
from offsets_pipeline.errors import ConfigError

_PREFIX = "kafka."
_HIDDEN = "***"
_SECRET_NAMES = ("password", "secret", "jaas", "token", "key", "certificate")
_NO_SECRETS = (".location", ".type", ".url", ".algorithm", ".file")
# A JAAS entry is one text, such as: username="me" password=x. Its values may be quoted.
_JAAS = "jaas"
_SECRET_OF_JAAS = re.compile(
    r"""(?:password|passwd|pwd|passphrase|secret)\w*\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""",
    re.IGNORECASE,
)
# Options that users cannot set, and why.
_OURS = {
    "bootstrap.servers": "use --bootstrap-server",
    "isolation.level": "the log takes all records, and the fold decides which count",
    "group.id": "no group reads the topic",
    "group.instance.id": "no group reads the topic",
    "groupIdPrefix": "no group reads the topic",
    "enable.auto.commit": "no group reads the topic",
    "auto.offset.reset": "reading resumes at the end of the log",
    "key.deserializer": "the log takes raw bytes",
    "value.deserializer": "the log takes raw bytes",
}


#: HOST:PORT, or several separated by commas.
_BOOTSTRAP_SERVERS = re.compile(r"(?:[\w.+-]+://)?[^/,\s]+:\d+(?:\s*,\s*(?:[\w.+-]+://)?[^/,\s]+:\d+)*")


def are_bootstrap_servers(location: object) -> bool:
    """Whether a location names bootstrap servers, HOST:PORT[,HOST:PORT], and not the folder of a store."""
    return isinstance(location, str) and _BOOTSTRAP_SERVERS.fullmatch(location) is not None


class KafkaOptions:
    """Options of Kafka's clients; the repr shows only their names.

    Raises ConfigError for an option that users cannot set, and for a missing environment variable or file.
    """

    def __init__(self, bootstrap_server: str, options: Mapping[str, str]) -> None:
        self.bootstrap_server = bootstrap_server
        self._values: dict[str, str] = {}
        self._secrets: set[str] = set()
        for given, value in options.items():
            name = given.removeprefix(_PREFIX)
            if name in _OURS:
                raise ConfigError(f"cannot set the Kafka option {name}: {_OURS[name]}")
            referred = referred_secret(f"the Kafka option {name}", value)
            self._values[name] = value if referred is None else referred
            if referred is not None or _names_secret(name):
                self._secrets |= _parts(name, self._values[name])

    def for_clients(self) -> dict[str, str]:
        """The options with the names of Kafka's own clients."""
        return {**self._values, "bootstrap.servers": self.bootstrap_server}

    def without_secrets(self, text: str) -> str:
        """The text with *** in place of each secret, and of each line of a secret with several lines."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    def __repr__(self) -> str:
        return f"KafkaOptions({self.bootstrap_server!r}, {sorted(self._values)})"


def _names_secret(name: str) -> bool:
    return any(part in name for part in _SECRET_NAMES) and not name.endswith(_NO_SECRETS)


def literal_secret(option: str) -> str | None:
    """The name of the option in NAME=VALUE if the value is a secret itself and no reference to one; else None."""
    (name, value), *_ = parse_options([option]).items()
    if value.startswith(REFERENCES) or not value or not _names_secret(name) or "certificate" in name:
        return None
    return None if _JAAS in name and _SECRET_OF_JAAS.search(value) is None else name


def _parts(name: str, secret: str) -> set[str]:
    """The texts to hide for a secret: all of it, and each of its lines.

    A JAAS entry has no secret lines, but passwords: hides each as written, and without its escapes.
    """
    if _JAAS not in name:
        parts = {secret, *secret.splitlines()}
    else:
        written = {next(filter(None, found), "") for found in _SECRET_OF_JAAS.findall(secret)}
        parts = {secret, *written, *(re.sub(r"\\(.)", r"\1", each) for each in written)}
    return {part for part in parts if len(part) > 1}


def parse_options(given: Iterable[str]) -> dict[str, str]:
    """Parse command-line options NAME=VALUE. Raises ConfigError, with a message that does not show the option."""
    options = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise ConfigError("an --option has no =: write NAME=VALUE, such as security.protocol=SASL_SSL")
        options[name.strip()] = value
    return options
