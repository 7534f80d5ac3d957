"""SASL logins: Kafka's options sasl.* and JAAS entries as mechanisms of kafka-python, and tokens for OAUTHBEARER.

A JAAS entry is one text: a login module, a flag, and options, such as

    org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider

from offsets_pipeline.common.input_text import shown
from offsets_pipeline.errors import AuthenticationFailed, BrokerUnreachable, ConfigError, DependencyMissing

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
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_CLIENT = "sasl.oauthbearer.client.credentials.client."
_EXTENSION = "extension_"
_TIMEOUT_SECONDS = 10
_USE_FOR = 0.8  # share of a token's lifetime after which a new one is fetched, as in Kafka's clients


class SaslLogin:
    """The SASL mechanism that Kafka's options describe, and what it needs to log in; the repr shows no secrets."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Raises ConfigError for a missing or wrong option, DependencyMissing for a package that is not installed."""
        self.mechanism = mechanism = given.get("sasl.mechanism", _KERBEROS).upper()
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
        self.settings: dict[str, Any] = {
            "sasl_mechanism": mechanism,
            "security_protocol": given["security.protocol"].upper(),
        }
        if mechanism in _WITH_PASSWORD:
            self.settings["sasl_plain_username"] = _needed(jaas, "username", mechanism)
            self.settings["sasl_plain_password"] = _needed(jaas, "password", mechanism)
        elif mechanism == _OAUTH:
            self.settings["sasl_oauth_token_provider"] = ClientCredentials(given, jaas)
        elif mechanism == _KERBEROS:
            service = given.get("sasl.kerberos.service.name") or jaas.get("serviceName")
            if not service:
                raise ConfigError("SASL GSSAPI needs the Kafka option sasl.kerberos.service.name, often kafka")
            self.settings["sasl_kerberos_service_name"] = service

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


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Fetches tokens by the client credentials grant of OAuth 2 (RFC 6749, section 4.4) that Kafka's options describe.

    Keeps each token for most of its lifetime. Threads may share it.
    """

    def __init__(self, given: Mapping[str, str], jaas: Mapping[str, str]) -> None:
        """Raises ConfigError if an option is missing."""
        super().__init__()
        self._endpoint = given.get(_ENDPOINT, "")
        if urllib.parse.urlsplit(self._endpoint).scheme not in ("http", "https"):
            raise ConfigError(
                f"SASL OAUTHBEARER needs the Kafka option {_ENDPOINT}, an address that starts with https://"
            )
        client_id = given.get(f"{_CLIENT}id") or jaas.get("clientId")
        secret = given.get(f"{_CLIENT}secret") or jaas.get("clientSecret")
        if not client_id or not secret:
            raise ConfigError("SASL OAUTHBEARER needs clientId and clientSecret in the Kafka option sasl.jaas.config")
        self._login = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        self._scope = given.get("sasl.oauthbearer.scope") or jaas.get("scope")
        self._extensions = {
            name.removeprefix(_EXTENSION): text for name, text in jaas.items() if name.startswith(_EXTENSION)
        }
        self._lock = threading.Lock()
        self._token = ""
        self._use_until = 0.0

    def token(self) -> str:
        """An unexpired access token. Raises BrokerUnreachable and AuthenticationFailed, for the token endpoint."""
        with self._lock:
            if time.monotonic() >= self._use_until:
                self._token, lifetime_seconds = self._fetch()
                self._use_until = time.monotonic() + lifetime_seconds * _USE_FOR
            return self._token

    def extensions(self) -> dict[str, str]:
        """The SASL extensions to send along."""
        return self._extensions

    def _fetch(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        request = urllib.request.Request(  # noqa: S310 - `__init__` allows http and https only
            self._endpoint,
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {self._login}", "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
                granted = json.load(answer)
            return str(granted["access_token"]), float(granted.get("expires_in", 0))
        except urllib.error.HTTPError as error:
            error.close()
            raise AuthenticationFailed(
                f"the token endpoint {self._endpoint} refused the client's credentials ({error.code}): "
                "check clientId, clientSecret and scope"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", None) or "its answer has no access_token"
            raise BrokerUnreachable(f"the token endpoint {self._endpoint} did not grant a token ({reason})") from None
