"""A broker that answers what a test tells it, in Kafka's protocol on a socket."""

from __future__ import annotations

import io
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from ssl import SSLContext

TOPIC = "__consumer_offsets"
#: Lowest and highest version of each request that the broker supports.
VERSIONS = {FetchRequest.API_KEY: (4, 12), MetadataRequest.API_KEY: (0, 9), ApiVersionsRequest.API_KEY: (0, 3)}

Answer = Any  # a response of kafka-python, or bytes to send as they are


class FakeBroker:
    """`answers` has a function for each API key, from the number of the request so far (from 0) to the answer."""

    def __init__(self, tls: SSLContext | None = None) -> None:
        self.answers: dict[int, Callable[[int], Answer]] = {
            ApiVersionsRequest.API_KEY: lambda _: self.api_versions(),
            MetadataRequest.API_KEY: lambda _: self.metadata(),
        }
        self.requests: list[tuple[int, int, float]] = []  # API key, version, time
        self.encoded: dict[int, list[bytes]] = {}  # requests by API key, with their headers
        self.versions = VERSIONS
        self._counting = threading.Lock()
        self.answered: list[float] = []
        self._tls = tls
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = int(self._server.getsockname()[1])
        self._closing = False
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, api_key: int) -> int:
        return sum(key == api_key for key, _, _ in self.requests)

    def request(self, kind: Any, number: int) -> Any:  # noqa: ANN401 - kafka-python has no types
        """The request of this kind with this number."""
        request = self.encoded[kind.API_KEY][number]
        (version,) = struct.unpack_from(">h", request, 2)
        return kind.decode(request, version=version, header=True)

    def disconnect(self) -> None:
        """Break all connections."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends an accept that waits
        # Before the socket is closed: else the thread may accept at its number, which the next broker's socket gets.
        self._serving.join()
        self._server.close()
        self.disconnect()

    def api_versions(self, versions: dict[int, tuple[int, int]] | None = None) -> ApiVersionsResponse:
        known = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in (versions or self.versions).items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=known, throttle_time_ms=0)

    def metadata(self, leader: int = 1, error_code: int = 0) -> MetadataResponse:
        of_topic = MetadataResponse.MetadataResponseTopic
        partition = of_topic.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=leader, leader_epoch=3, replica_nodes=[1], isr_nodes=[1]
        )
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port, rack=None)],
            cluster_id="c",
            controller_id=1,
            topics=[of_topic(error_code=error_code, name=TOPIC, is_internal=True, partitions=[partition])],
        )

    def coordinate_all(self) -> None:
        """Answer that this broker coordinates every group, in versions with one group a request."""
        self.versions = self.versions | {FindCoordinatorRequest.API_KEY: (0, 3)}
        self.answers[FindCoordinatorRequest.API_KEY] = lambda _: FindCoordinatorResponse(
            throttle_time_ms=0, error_code=0, error_message=None, node_id=1, host="127.0.0.1", port=self.port
        )

    def _serve(self) -> None:
        while not self._closing:
            with suppress(OSError):
                connection, _ = self._server.accept()
                threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def _answer_all(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            stream = connection.makefile("rb")
            while size := stream.read(4):
                request = stream.read(struct.unpack(">i", size)[0])
                key, version = struct.unpack_from(">hh", request)
                header = RequestHeader.decode(io.BytesIO(request), flexible=False)
                with self._counting:
                    number = self.count(key)
                    self.requests.append((key, version, time.monotonic()))
                    self.encoded.setdefault(key, []).append(request)
                answer = self.answers[key](number)
                if not isinstance(answer, bytes):
                    answer = _framed(answer, version, header.correlation_id)
                self.answered.append(time.monotonic())
                connection.sendall(answer)
        except (OSError, ValueError):
            pass
        finally:
            connection.close()


def _framed(answer: Answer, version: int, correlation_id: int) -> bytes:
    if isinstance(answer, ApiVersionsResponse) and answer.error_code:
        version = 0
    kind = ResponseClassRegistry._response_class_registry[answer.API_KEY]
    assert kind.max_version >= version
    answer.API_VERSION = version
    answer.with_header(correlation_id=correlation_id)
    return bytes(answer.encode(header=True, framed=True))


def fetched(records: bytes | None = b"", error_code: int = 0, throttle_ms: int = 0) -> FetchResponse:
    """An answer to a fetch of partition 0: its log has record offsets 5 to 99, and an open transaction at 90."""
    of_topic = FetchResponse.FetchableTopicResponse
    partition = of_topic.PartitionData(
        partition_index=0,
        error_code=error_code,
        high_watermark=-1 if error_code else 100,
        last_stable_offset=-1 if error_code else 90,
        log_start_offset=-1 if error_code else 5,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=records,
    )
    return FetchResponse(
        throttle_time_ms=throttle_ms,
        error_code=0,
        session_id=0,
        responses=[of_topic(topic=TOPIC, partitions=[partition])],
    )


@contextmanager
def fake_broker(tls: SSLContext | None = None) -> Iterator[FakeBroker]:
    """A broker while the block runs."""
    broker = FakeBroker(tls)
    try:
        yield broker
    finally:
        broker.close()
