"""A client of ZooKeeper, by kazoo: many requests at a time, and errors of this package."""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry, RetryFailedError

from offsets_pipeline.common.closing import Closing
from offsets_pipeline.common.secret_values import referred_secret
from offsets_pipeline.coordinator.zookeeper.consumer_nodes import Missing, Node
from offsets_pipeline.errors import ConfigError, ZooKeeperFailed

if TYPE_CHECKING:
    from offsets_pipeline.common.config.sections import ZooKeeperSettings

_Key = TypeVar("_Key")

#: Requests that are sent together. ZooKeeper answers those of one session in order.
_WINDOW = 500
#: kazoo retries these for as long as the setting connection_timeout_ms allows.
_PASSING = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)

# Errors say what failed. Without a handler Python would print kazoo's warnings, too.
logging.getLogger("kazoo").addHandler(logging.NullHandler())


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler with a quicker `select`: its own opens an epoll for each call, half of the time of a request."""

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the sockets that can be read, those that can be written, and none.

        A closed or broken socket is ready. kazoo asks for no socket to be read and written.
        """
        poll = select.poll()
        numbers = []
        for sockets, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            numbers.append({each.fileno(): each for each in sockets})
            for each in sockets:
                poll.register(each, event)
        ready = [number for number, _ in poll.poll(None if timeout is None else timeout * 1000)]
        readable, writable = ([of_kind[each] for each in ready if each in of_kind] for of_kind in numbers)
        return readable, writable, []


class ZooKeeperClient(Closing):
    """A session with ZooKeeper; paths are below the chroot of the address. Threads may share it.

    It connects when it is made, and again if the connection breaks. Close it with `close`, or use it in `with`.

    Raises ConfigError for settings that cannot be used, and ZooKeeperFailed, also in each request.
    """

    def __init__(self, settings: ZooKeeperSettings) -> None:
        if not settings.connect:
            raise ConfigError(
                "no address of ZooKeeper: set connect in the section [zookeeper], such as zookeeper.example.com:2181"
            )
        self.at = settings.connect
        self._seconds = settings.connection_timeout_ms / 1000
        self._retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, deadline=self._seconds, ignore_expire=True)
        self._client = KazooClient(
            hosts=settings.connect,
            handler=_Handler(),
            timeout=settings.session_timeout_ms / 1000,
            auth_data=[("digest", _secret("digest", settings.digest))] if settings.digest else None,
            **_tls(settings),
        )
        try:
            self._connect(settings)
        except BaseException:
            self.close()
            raise

    def _connect(self, settings: ZooKeeperSettings) -> None:
        try:
            self._client.start_async().wait(self._seconds)
            is_there = self._client.connected and (not self._client.chroot or self._client.exists("/"))
        except (KazooException, OSError, ValueError, self._client.handler.timeout_exception) as error:
            raise ZooKeeperFailed(f"cannot connect to ZooKeeper at {self.at}: {_reason(error)}") from None
        if not self._client.connected:
            raise ZooKeeperFailed(
                f"cannot connect to ZooKeeper at {self.at}: no answer in {self._seconds:g} s; check the address"
                + (" and the certificates" if settings.ssl_client_enable else "")
            )
        if not is_there:
            raise ZooKeeperFailed(f"ZooKeeper at {self.at} has no node {self._client.chroot}: check the path")

    def close(self) -> None:
        """End the session. Idempotent."""
        self._client.stop()
        self._client.close()

    def read(self, paths: Iterable[_Key]) -> Iterator[tuple[_Key, Node | Missing]]:
        """Yield each path with its node."""
        for path, found in self._each(paths, self._client.get_async, "read"):
            yield path, found if isinstance(found, Missing) else Node(found[0] or b"", found[1].mtime)

    def children(self, paths: Iterable[_Key]) -> Iterator[tuple[_Key, list[str] | Missing]]:
        """Yield each path with the names of its child nodes, in order."""
        for path, found in self._each(paths, self._client.get_children_async, "list"):
            yield path, found if isinstance(found, Missing) else sorted(found)

    def write(self, nodes: dict[str, bytes]) -> None:
        """Set the data of nodes; creates missing nodes, and the nodes above them."""
        absent = []
        for path, found in self._each(nodes, lambda path: self._client.set_async(path, nodes[path]), "write"):
            if found is Missing.FORBIDDEN:
                raise ZooKeeperFailed(f"ZooKeeper at {self.at} does not allow writing {path}: check its ACL")
            if found is Missing.ABSENT:
                absent.append(path)
        for path in absent:
            self._create(path, nodes[path])

    def _create(self, path: str, data: bytes) -> None:
        try:
            self._retry.copy()(self._client.create, path, data, makepath=True)
        except NodeExistsError:  # another client created it
            self.write({path: data})
        except NoAuthError:
            raise ZooKeeperFailed(f"ZooKeeper at {self.at} does not allow creating {path}: check the ACLs") from None
        except (KazooException, self._client.handler.timeout_exception) as error:
            raise self._failed(f"create {path}", error) from None

    def delete(self, paths: Iterable[str]) -> int:
        """Delete nodes without children; returns the number of deleted nodes. Other nodes stay."""
        deleted = 0
        for path, found in self._each(paths, self._client.delete_async, "delete"):
            if found is Missing.FORBIDDEN:
                raise ZooKeeperFailed(f"ZooKeeper at {self.at} does not allow deleting {path}: check the ACLs")
            deleted += not isinstance(found, Missing)
        return deleted

    def _each(self, keys: Iterable[_Key], ask: Callable[[_Key], Any], action: str) -> Iterator[tuple[_Key, Any]]:
        """Send a request for each key, many at a time, and yield the answers in order."""
        unasked = iter(keys)
        waiting: list[tuple[_Key, Any]] = []
        while waiting or (waiting := [(key, ask(key)) for key in islice(unasked, _WINDOW)]):
            following = [(key, ask(key)) for key in islice(unasked, _WINDOW)]
            waiting[-1][1].wait(self._seconds)  # one wait for all: ZooKeeper answers in order
            for key, asked in waiting:
                yield self._answer(key, asked, ask, action)
            waiting = following

    def _answer(self, key: _Key, asked: Any, ask: Callable[[_Key], Any], action: str) -> tuple[_Key, Any]:  # noqa: ANN401
        try:
            try:
                return key, asked.get(timeout=self._seconds)
            except _PASSING:
                return key, self._retry.copy()(lambda: ask(key).get(timeout=self._seconds))
        except NoNodeError:
            return key, Missing.ABSENT
        except NotEmptyError:
            return key, Missing.NOT_EMPTY
        except NoAuthError:
            return key, Missing.FORBIDDEN
        except (KazooException, self._client.handler.timeout_exception) as error:
            raise self._failed(f"{action} {key}", error) from None

    def _failed(self, action: str, error: Exception) -> ZooKeeperFailed:
        late = isinstance(error, self._client.handler.timeout_exception)
        reason = f"no answer in {self._seconds:g} s" if late else _reason(error)
        return ZooKeeperFailed(f"cannot {action} in ZooKeeper at {self.at}: {reason}")


def _secret(name: str, value: str) -> str:
    found = referred_secret(f"[zookeeper] {name}", value)
    return value if found is None else found


def _tls(settings: ZooKeeperSettings) -> dict[str, Any]:
    if not settings.ssl_client_enable:
        return {}
    keystore = settings.ssl_keystore_location or None
    return {
        "use_ssl": True,
        "check_hostname": True,
        "ca": settings.ssl_truststore_location or None,
        "certfile": keystore,
        "keyfile": keystore,
        "keyfile_password": _secret("ssl_keystore_password", settings.ssl_keystore_password) or None,
    }


def _reason(error: Exception) -> str:
    """The reason of a failure for a message; kazoo's exceptions mostly have no text."""
    if isinstance(error, (ConnectionLoss, SessionExpiredError, RetryFailedError)):
        return "the connection broke"
    if isinstance(error, AuthFailedError):
        return "the authentication failed"
    return str(error) or type(error).__name__.removesuffix("Exception")
