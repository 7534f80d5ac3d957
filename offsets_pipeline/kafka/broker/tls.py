"""Kafka's TLS options as a context of Python's ssl."""

from __future__ import annotations

import ssl
import tempfile
from typing import TYPE_CHECKING

from offsets_pipeline.common.input_text import shown
from offsets_pipeline.errors import ConfigError
from offsets_pipeline.kafka.broker.key_stores import KeyMaterial, read_key_store

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def tls_context(given: Mapping[str, str]) -> ssl.SSLContext:
    """A context with the trusted certificates and the client's own certificate that Kafka's options name.

    Without a trust store it trusts the certificates of the operating system. Raises ConfigError and NoSuchPath.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit_versions(context, given)
    identification = given.get("ssl.endpoint.identification.algorithm", "https").strip()
    if identification.lower() not in ("https", ""):
        raise ConfigError(
            f"the Kafka option ssl.endpoint.identification.algorithm is {shown(identification)}: it takes https, or "
            "nothing to accept a certificate of any host"
        )
    context.check_hostname = bool(identification)
    # Java trusts each certificate of a trust store, also one that another authority issued
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted = _trusted(given)
    if trusted is None:
        context.load_default_certs()
    else:
        if not trusted.certificates:
            raise ConfigError("the trust store of the Kafka options ssl.truststore.* has no certificates")
        try:
            context.load_verify_locations(cadata=trusted.certificates)
        except (ssl.SSLError, TypeError) as error:  # TypeError: text that is not ASCII
            raise ConfigError(
                f"the certificates of the Kafka options ssl.truststore.* cannot be read ({_reason(error)}): "
                "give them as PEM"
            ) from None
    own = _own(given)
    if own is not None:
        _load_own(context, own, given.get("ssl.key.password"))
    return context


def _limit_versions(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    enabled = [each.strip() for each in given.get("ssl.enabled.protocols", ",".join(_VERSIONS)).split(",")]
    if not set(enabled) <= _VERSIONS.keys():
        raise ConfigError(f"the Kafka option ssl.enabled.protocols takes {', '.join(_VERSIONS)}")
    context.minimum_version = min(_VERSIONS[each] for each in enabled)
    context.maximum_version = max(_VERSIONS[each] for each in enabled)


def _trusted(given: Mapping[str, str]) -> KeyMaterial | None:
    if given.get("ssl.truststore.location"):
        return read_key_store("ssl.truststore", given, with_key=False)
    certificates = given.get("ssl.truststore.certificates")
    return None if certificates is None else KeyMaterial(certificates, None)


def _own(given: Mapping[str, str]) -> KeyMaterial | None:
    if given.get("ssl.keystore.location"):
        return read_key_store("ssl.keystore", given, with_key=True)
    certificates, key = given.get("ssl.keystore.certificate.chain"), given.get("ssl.keystore.key")
    return None if certificates is None and key is None else KeyMaterial(certificates or "", key)


def _load_own(context: ssl.SSLContext, own: KeyMaterial, password: str | None) -> None:
    if own.key is None or not own.certificates:
        raise ConfigError("the key store of the Kafka options ssl.keystore.* needs a private key and its certificate")
    # ssl reads the client's own key only from a file
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pem") as file:
        file.write(f"{own.key}\n{own.certificates}\n")
        file.flush()
        try:
            context.load_cert_chain(file.name, password=password or "")
        except (OSError, ValueError) as error:  # ValueError: a password of more than 1024 bytes
            raise ConfigError(
                f"the private key of the Kafka options ssl.keystore.* cannot be read ({_reason(error)}): check "
                "ssl.key.password"
            ) from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or "not PEM"
