"""Requests in Kafka's protocol, of any version: ones that its clients would not send, with raw answers."""

from __future__ import annotations

import json
import socket
import struct
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView  # type: ignore[import-untyped]

NONE = "NONE"
_SIZE = struct.Struct(">i")
_ANSWER_SECONDS = 60

Message = dict[str, Any]


class Connection:
    """A connection to a broker on loopback. Kafka's own classes turn requests, written as JSON, into bytes."""

    def __init__(self, jvm: JVMView, port: int) -> None:
        self._jvm = jvm
        self._kafka = jvm.org.apache.kafka.common
        self._json = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        self._socket = socket.create_connection(("127.0.0.1", port), _ANSWER_SECONDS)
        self._answers = self._socket.makefile("rb")
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()

    def ask(self, api: str, version: int, request: Message) -> Message:
        """The answer to a request; ``api`` as `ApiKeys` names it, fields as the message's definition does."""
        self._asked += 1
        name = "".join(word.capitalize() for word in api.split("_"))
        key = getattr(self._kafka.protocol.ApiKeys, api)
        header = self._kafka.requests.RequestHeader(key, version, "a test", self._asked)
        reader = getattr(self._kafka.message, f"{name}RequestDataJsonConverter")
        body = reader.read(self._json.readTree(json.dumps(request)), version)
        buffer = self._kafka.requests.RequestUtils.serialize(header.data(), header.headerVersion(), body, version)
        sent = bytes(buffer.array())[: buffer.limit()]
        self._socket.sendall(_SIZE.pack(len(sent)) + sent)
        answer = self._jvm.java.nio.ByteBuffer.wrap(self._read(_SIZE.unpack(self._read(_SIZE.size))[0]))
        parsed = self._kafka.requests.AbstractResponse.parseResponse(answer, header)
        writer = getattr(self._kafka.message, f"{name}ResponseDataJsonConverter")
        answered: Message = json.loads(writer.write(parsed.data(), version).toString())
        return answered

    def name_of(self, error_code: int) -> str:
        """Kafka's name for an error."""
        return str(self._kafka.protocol.Errors.forCode(error_code).name())

    def _read(self, size: int) -> bytes:
        read = self._answers.read(size)
        assert len(read) == size, "the broker closed the connection"
        return read
