"""Certificates for TLS between a test and a broker, and Java's key stores with them."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import struct
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path

    from py4j.java_gateway import JavaGateway, JavaObject  # type: ignore[import-untyped]

_LIFETIME = dt.timedelta(days=1)
_PEM, _DER = serialization.Encoding.PEM, serialization.Encoding.DER


@dataclass(frozen=True)
class Identity:
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(_PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


class Authority:
    """A certificate authority of a test."""

    def __init__(self, name: str) -> None:
        self._identity = self._issue(name, None, is_authority=True)

    @property
    def certificate_pem(self) -> str:
        return self._identity.certificate_pem

    @property
    def certificate(self) -> x509.Certificate:
        return self._identity.certificate

    def issue(self, name: str, address: str | None = None) -> Identity:
        """A new identity; of a server at an IP address, if one is given."""
        return self._issue(name, address, is_authority=False)

    def _issue(self, name: str, address: str | None, *, is_authority: bool) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if is_authority else self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LIFETIME)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            builder = builder.add_extension(names, critical=False)
        return Identity(key, builder.sign(key if is_authority else self._identity.key, hashes.SHA256()))


def jks_file(own: Identity, password: str, trusted: x509.Certificate) -> bytes:
    """A key store in Java's own format: a trusted certificate, and an encrypted key with its certificate."""
    plain = own.key.private_bytes(_DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    secret, stream = password.encode("utf-16-be"), [bytes(20)]  # the first one is the salt
    while 20 * len(stream) < len(plain) + 20:
        stream.append(hashlib.sha1(secret + stream[-1]).digest())
    hidden = bytes(a ^ b for a, b in zip(plain, b"".join(stream[1:]), strict=False))
    octets = stream[0] + hidden + hashlib.sha1(secret + plain).digest()
    key = b"\x30\x82\0\0\x30\0\x04\x82" + struct.pack(">H", len(octets)) + octets

    def sized(data: bytes, layout: str = ">I") -> bytes:
        return struct.pack(layout, len(data)) + data

    certificate = partial(sized, b"X.509", ">H")
    entries = b"".join(
        (
            struct.pack(">I", 2) + sized(b"ca", ">H") + bytes(8) + certificate() + sized(trusted.public_bytes(_DER)),
            struct.pack(">I", 1) + sized(b"own", ">H") + bytes(8) + sized(key) + struct.pack(">I", 1) + certificate(),
            sized(own.certificate.public_bytes(_DER)),
        )
    )
    data = b"\xfe\xed\xfe\xed" + struct.pack(">II", 2, 2) + entries
    return data + jks_digest(password, data)


def jks_digest(password: str, data: bytes) -> bytes:
    """The end of a key store in Java's own format."""
    return hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + data).digest()


def write_java_store(
    gateway: JavaGateway,
    path: Path,
    kind: str,
    password: str,
    *,
    trusted: x509.Certificate | None = None,
    own: Identity | None = None,
    key_password: str | None = None,
) -> None:
    """Write a key store as Java writes it. `kind`: JKS or PKCS12."""
    jvm = gateway.jvm
    factory = jvm.java.security.cert.CertificateFactory.getInstance("X.509")

    def in_java(certificate: x509.Certificate) -> JavaObject:
        return factory.generateCertificate(jvm.java.io.ByteArrayInputStream(certificate.public_bytes(_DER)))

    def characters(text: str) -> JavaObject:
        array = gateway.new_array(jvm.char, len(text))
        for index, character in enumerate(text):
            array[index] = character
        return array

    store = jvm.java.security.KeyStore.getInstance(kind)
    store.load(None, characters(password))
    if trusted is not None:
        store.setCertificateEntry("ca", in_java(trusted))
    if own is not None:
        der = own.key.private_bytes(_DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        specification = jvm.java.security.spec.PKCS8EncodedKeySpec(der)
        key = jvm.java.security.KeyFactory.getInstance("EC").generatePrivate(specification)
        chain = gateway.new_array(jvm.java.security.cert.Certificate, 1)
        chain[0] = in_java(own.certificate)
        store.setKeyEntry("own", key, characters(key_password or password), chain)
    stream = jvm.java.io.FileOutputStream(str(path))
    store.store(stream, characters(password))
    stream.close()
