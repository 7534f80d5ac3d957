"""Kafka's TLS options as a context of Python's ssl, and key stores of Java as PEM texts, which Python's ssl takes.

keytool has written PKCS12 files since Java 9, also under names that end in .jks, and Java reads either kind as JKS.
So the content decides what a file is, not the option ssl.*.type.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from offsets_pipeline.common.input_text import shown
from offsets_pipeline.errors import ConfigError, NoSuchPath
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.wire import INT32, INT64, UINT16, Reader, Serde

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JKS_MAGIC, _JKS_SALT = b"\xfe\xed\xfe\xed", b"Mighty Aphrodite"
_JKS_KEY, _JKS_CERTIFICATE = 1, 2
_SHA1_BYTES = 20
_KINDS = ("PEM", "PKCS12", "JKS")
_PEM_START = "-----BEGIN "
_PEM_KEY = "PRIVATE KEY-----"


@dataclass(frozen=True)
class KeyMaterial:
    """Certificates as PEM, and a private key as PEM or None. A key from a PEM file may still be encrypted."""

    certificates: str
    key: str | None


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


def read_key_store(prefix: str, given: Mapping[str, str], *, with_key: bool) -> KeyMaterial:
    """Read the file of ssl.keystore.location or ssl.truststore.location.

    Args:
        prefix: ssl.keystore or ssl.truststore.
        given: Kafka's options.
        with_key: whether to read a private key too.

    Raises NoSuchPath, and ConfigError for a wrong password and for a file of another kind.
    """
    path, kind = Path(given[f"{prefix}.location"]), given.get(f"{prefix}.type", "JKS")
    password = given.get(f"{prefix}.password")
    if kind.upper() not in _KINDS:
        raise ConfigError(f"the Kafka option {prefix}.type is {shown(kind)}: it takes {', '.join(_KINDS)}")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NoSuchPath(f"the Kafka option {prefix}.location names {path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"the Kafka option {prefix}.location names {path}: {reason}") from None
    try:
        if _PEM_START.encode() in data:
            return _read_pem(data.decode("ascii"))
        if data[:4] == _JKS_MAGIC:
            return _read_jks(data, password, given.get("ssl.key.password") or password or "", with_key=with_key)
        return _read_pkcs12(data, password, with_key=with_key)
    except (ValueError, UnsupportedAlgorithm, CorruptRecord, IndexError) as error:
        reason = "it is cut short" if isinstance(error, CorruptRecord) else error
        raise ConfigError(
            f"the Kafka option {prefix}.location names {path}, which cannot be read as a PEM, PKCS12 or JKS store: "
            f"check the file and {prefix}.password ({reason})"
        ) from None


def _read_pem(text: str) -> KeyMaterial:
    blocks = re.split(rf"\n(?={_PEM_START})", "\n".join(["", *text.splitlines()]))[1:]
    keys = [block for block in blocks if block.partition("\n")[0].endswith(_PEM_KEY)]
    return KeyMaterial("\n".join(block for block in blocks if block not in keys), keys[0] if keys else None)


def _read_pkcs12(data: bytes, password: str | None, *, with_key: bool) -> KeyMaterial:
    with warnings.catch_warnings(action="ignore"):  # of bytes after the store, on stderr
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    found = [each.certificate for each in (*filter(None, [store.cert]), *store.additional_certs)]
    pem = serialization.Encoding.PEM
    certificates = "".join(each.public_bytes(pem).decode() for each in found)
    return KeyMaterial(certificates, _key_as_pem(store.key) if with_key and store.key is not None else None)


def _key_as_pem(key: PrivateKeyTypes) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _read_jks(data: bytes, password: str | None, key_password: str, *, with_key: bool) -> KeyMaterial:
    """Read Java's own format: entries, and a SHA-1 over the password, a fixed text and the entries."""
    if password is not None and not hmac.compare_digest(
        _jks_digest(password, data[:-_SHA1_BYTES]), data[-_SHA1_BYTES:]
    ):
        raise ValueError("the password is wrong")
    reader = Reader(data, len(_JKS_MAGIC))
    version, count = INT32.read(reader, "version"), INT32.read(reader, "entries")
    chains: list[bytes] = []
    key: str | None = None
    for _ in range(count):
        tag = INT32.read(reader, "tag")
        _sized(reader, UINT16)  # alias
        INT64.read(reader, "time of creation")
        if tag == _JKS_CERTIFICATE:
            chains.append(_jks_certificate(reader, version))
        elif tag == _JKS_KEY:
            encrypted = _sized(reader, INT32)
            chain = [_jks_certificate(reader, version) for _ in range(INT32.read(reader, "certificates"))]
            if key is None and with_key:
                key = _decrypted(encrypted, key_password)
            chains = chain + chains
        else:
            raise ValueError(f"entry of type {tag}")
    return KeyMaterial("".join(map(ssl.DER_cert_to_PEM_cert, chains)), key)


def _sized(reader: Reader, length: Serde) -> bytes:
    """Bytes after their length."""
    return reader.raw(length.read(reader, "length"), "bytes")


def _jks_certificate(reader: Reader, version: int) -> bytes:
    """A certificate as DER."""
    if version > 1:
        _sized(reader, UINT16)  # its type: X.509
    return _sized(reader, INT32)


def _jks_digest(password: str, data: bytes) -> bytes:
    return hashlib.sha1(password.encode("utf-16-be") + _JKS_SALT + data, usedforsecurity=False).digest()


def _decrypted(encrypted: bytes, password: str) -> str:
    """Decrypt a key of a JKS store: XOR with a chain of SHA-1 digests that starts at a salt."""
    # DER: SEQUENCE { SEQUENCE { algorithm }, OCTET STRING }; the algorithm has only one value
    content = _octets(encrypted)
    salt, body, check = content[:_SHA1_BYTES], content[_SHA1_BYTES:-_SHA1_BYTES], content[-_SHA1_BYTES:]
    secret = password.encode("utf-16-be")
    stream, digest = b"", salt
    while len(stream) < len(body):
        digest = hashlib.sha1(secret + digest, usedforsecurity=False).digest()
        stream += digest
    plain = bytes(a ^ b for a, b in zip(body, stream, strict=False))
    if hashlib.sha1(secret + plain, usedforsecurity=False).digest() != check:
        raise ValueError("the password of the private key is wrong")
    return _key_as_pem(serialization.load_der_private_key(plain, None))


def _octets(der: bytes) -> bytes:
    """The octet string of an EncryptedPrivateKeyInfo."""
    _, start, _ = _der(der, 0)
    _, _, after = _der(der, start)
    _, begin, end = _der(der, after)
    return der[begin:end]


def _der(data: bytes, position: int) -> tuple[int, int, int]:
    """Tag, start and end of the content of the DER value at a position."""
    tag, length, start = data[position], data[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(data[start : start + count], "big"), start + count
    return tag, start, start + length
