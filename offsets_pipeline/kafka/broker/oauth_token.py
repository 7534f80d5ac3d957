"""Tokens for SASL OAUTHBEARER: the client credentials grant of OAuth 2 (RFC 6749, section 4.4)."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING

from kafka.net.sasl.oauth import AbstractTokenProvider

from offsets_pipeline.errors import AuthenticationFailed, BrokerUnreachable, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_CLIENT = "sasl.oauthbearer.client.credentials.client."
_EXTENSION = "extension_"
_TIMEOUT_SECONDS = 10
_USE_FOR = 0.8  # share of a token's lifetime after which a new one is fetched, as in Kafka's clients


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Fetches tokens from a token endpoint, and keeps each for most of its lifetime. Threads may share it."""

    def __init__(
        self, endpoint: str, client_id: str, secret: str, scope: str | None, extensions: dict[str, str]
    ) -> None:
        super().__init__()
        self._endpoint, self._client_id, self._secret, self._scope = endpoint, client_id, secret, scope
        self._extensions = extensions
        self._lock = threading.Lock()
        self._token = ""
        self._use_until = 0.0

    @classmethod
    def of(cls, given: Mapping[str, str], jaas: Mapping[str, str]) -> ClientCredentials:
        """The provider that Kafka's options describe. Raises ConfigError if one is missing."""
        endpoint = given.get(_ENDPOINT, "")
        if urllib.parse.urlsplit(endpoint).scheme not in ("http", "https"):
            raise ConfigError(
                f"SASL OAUTHBEARER needs the Kafka option {_ENDPOINT}, an address that starts with https://"
            )
        client_id = given.get(f"{_CLIENT}id") or jaas.get("clientId")
        secret = given.get(f"{_CLIENT}secret") or jaas.get("clientSecret")
        if not client_id or not secret:
            raise ConfigError("SASL OAUTHBEARER needs clientId and clientSecret in the Kafka option sasl.jaas.config")
        extensions = {name.removeprefix(_EXTENSION): text for name, text in jaas.items() if name.startswith(_EXTENSION)}
        return cls(endpoint, client_id, secret, given.get("sasl.oauthbearer.scope") or jaas.get("scope"), extensions)

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
        login = base64.b64encode(f"{self._client_id}:{self._secret}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - `of` allows http and https only
            self._endpoint,
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {login}", "Accept": "application/json"},
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
