"""SASL logins: Kafka's options sasl.* and JAAS entries as mechanisms of kafka-python.

A JAAS entry is one text: a login module, a flag, and options, such as

    org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka.net.sasl import get_sasl_mechanism

from offsets_pipeline.common.input_text import shown
from offsets_pipeline.errors import ConfigError, DependencyMissing
from offsets_pipeline.kafka.broker.oauth_token import ClientCredentials

if TYPE_CHECKING:
    from collections.abc import Mapping

_WITH_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_OAUTH, _KERBEROS, _MSK = "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"
_LOGIN_MODULES = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    _OAUTH: "OAuthBearerLoginModule",
    _KERBEROS: "Krb5LoginModule",
    _MSK: "IAMLoginModule",
}
#: Python packages that a mechanism needs, beside kafka-python.
_PACKAGES = {_KERBEROS: "gssapi", _MSK: "botocore"}
# Java classes that do what this client does anyway; any other class is Java code that it cannot run
_HANDLERS = {
    "sasl.login.callback.handler.class": ("OAuthBearerLoginCallbackHandler", "IAMClientCallbackHandler"),
    "sasl.client.callback.handler.class": ("IAMClientCallbackHandler",),
}
_JAAS = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*?);?\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(r"""\s*([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.DOTALL)


@dataclass(frozen=True)
class SaslLogin:
    """A SASL mechanism, and what it needs to log in; the repr shows only the mechanism."""

    mechanism: str
    settings: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SaslLogin:
        """The login that Kafka's options describe.

        Raises ConfigError for a missing or wrong option, and DependencyMissing for a package that is not installed.
        """
        mechanism = given.get("sasl.mechanism", _KERBEROS).upper()
        if mechanism not in _LOGIN_MODULES:
            raise ConfigError(
                f"the Kafka option sasl.mechanism is {shown(mechanism)}: it takes {', '.join(_LOGIN_MODULES)}"
            )
        for name, handlers in _HANDLERS.items():
            if not given.get(name, handlers[0]).endswith(handlers):
                raise ConfigError(f"the Kafka option {name} names a Java class that this client cannot run: remove it")
        if mechanism in _PACKAGES:
            _require(mechanism, _PACKAGES[mechanism])
        jaas = _jaas_options(given.get("sasl.jaas.config"), mechanism)
        settings: dict[str, Any] = {
            "sasl_mechanism": mechanism,
            "security_protocol": given["security.protocol"].upper(),
        }
        if mechanism in _WITH_PASSWORD:
            settings["sasl_plain_username"] = _needed(jaas, "username", mechanism)
            settings["sasl_plain_password"] = _needed(jaas, "password", mechanism)
        elif mechanism == _OAUTH:
            settings["sasl_oauth_token_provider"] = ClientCredentials.of(given, jaas)
        elif mechanism == _KERBEROS:
            service = given.get("sasl.kerberos.service.name") or jaas.get("serviceName")
            if not service:
                raise ConfigError("SASL GSSAPI needs the Kafka option sasl.kerberos.service.name, often kafka")
            settings["sasl_kerberos_service_name"] = service
        return cls(mechanism, settings)

    def start(self, host: str) -> Any:  # noqa: ANN401 - kafka-python has no types
        """A new exchange of tokens with the broker on this host."""
        return get_sasl_mechanism(self.mechanism)(host=host, **self.settings)


def _jaas_options(text: str | None, mechanism: str) -> dict[str, str]:
    """Options of a JAAS entry. Raises ConfigError, with a message that does not show the entry: it has secrets."""
    if text is None:
        return {}
    entry = _JAAS.fullmatch(text)
    if entry is None:
        raise ConfigError('the Kafka option sasl.jaas.config is no JAAS entry: write MODULE required NAME="VALUE" ...;')
    if entry["module"].rpartition(".")[2] != _LOGIN_MODULES[mechanism]:
        raise ConfigError(f"the Kafka option sasl.jaas.config names another module than SASL {mechanism} needs: "
                          f"name {_LOGIN_MODULES[mechanism]}")  # fmt: skip
    options: dict[str, str] = {}
    position = 0
    written = entry["options"].rstrip()
    while position < len(written):
        found = _JAAS_OPTION.match(written, position)
        if found is None:
            raise ConfigError('the Kafka option sasl.jaas.config has an option that is not NAME="VALUE"')
        quoted = found[2] if found[2] is not None else found[3]
        options[found[1]] = found[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        position = found.end()
    return options


def _needed(jaas: Mapping[str, str], name: str, mechanism: str) -> str:
    if name not in jaas:
        raise ConfigError(f"SASL {mechanism} needs the option {name} in the Kafka option sasl.jaas.config")
    return jaas[name]


def _require(mechanism: str, package: str) -> None:
    try:
        importlib.import_module(package)
    except (ImportError, OSError):  # OSError: the system's library is missing
        raise DependencyMissing(
            f"SASL {mechanism} needs the package {package}, which is not installed: pip install {package}"
        ) from None
