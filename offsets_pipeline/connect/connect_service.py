"""The REST interface of Kafka Connect for the connectors of an owned log: routes, status codes, errors (R32)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.connect.offset_management import OffsetManagement
from offsets_pipeline.connect.request_bodies import connector_of, offsets_of, settings_of
from offsets_pipeline.connect.target_states import PAUSED, RUNNING, STOPPED
from offsets_pipeline.errors import (
    BadConnectRequest,
    ConnectorExists,
    CoordinatorNotAvailable,
    NoSuchConnector,
    OffsetsError,
)
from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.service.rest.guard import CLOSE

if TYPE_CHECKING:
    from starlette.requests import Request

    from offsets_pipeline.connect.connect_log import ConnectLog

_LOG = logging.getLogger(__name__)

#: As long as a worker waits.
_TIMEOUT_MS = 90_000
_BODY_SECONDS = 30.0
#: Version of the worker whose interface this is: clients choose their requests by it.
_VERSION = "4.2.0"
_STATUS_CODES: Mapping[type[OffsetsError], int] = {
    NoSuchConnector: 404,
    ConnectorExists: 409,
    BadConnectRequest: 400,
    CorruptRecord: 400,
    CoordinatorNotAvailable: 503,
}
#: Requests to plugins, tasks and loggers, which only a worker has.
_OF_A_WORKER: Mapping[str, list[str]] = {
    "/health": ["GET"],
    "/connector-plugins": ["GET"],
    "/connector-plugins/{plugin}/config": ["GET"],
    "/connector-plugins/{plugin}/config/validate": ["PUT"],
    "/connectors/{name}/restart": ["POST"],
    "/connectors/{name}/tasks": ["GET"],
    "/connectors/{name}/tasks/{task}/status": ["GET"],
    "/connectors/{name}/tasks/{task}/restart": ["POST"],
    "/connectors/{name}/topics": ["GET"],
    "/connectors/{name}/topics/reset": ["PUT"],
    "/admin/loggers": ["GET"],
    "/admin/loggers/{logger}": ["GET", "PUT"],
}


def error_response(status_code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the form of Connect."""
    return JSONResponse({"error_code": status_code, "message": message}, status_code, headers)


class ConnectService:
    """Answers requests about the connectors of an open log. ``app`` is an ASGI application.

    ``worker_id`` is the address of the service; statuses show it. Requests to the log run in threads.
    """

    def __init__(self, log: ConnectLog, worker_id: str, max_request_bytes: int) -> None:
        self._management = OffsetManagement(log, _TIMEOUT_MS)
        self._cluster_id = log.store.properties.cluster_id
        self._worker_id = worker_id
        self._max_request_bytes = max_request_bytes
        states = {"stop": (STOPPED, 204), "pause": (PAUSED, 202), "resume": (RUNNING, 202)}
        self.app = Starlette(
            routes=[
                Route("/", self._server_info, methods=["GET"]),
                Route("/connectors", self._connectors, methods=["GET", "POST"]),
                Route("/connectors/{name}", self._connector, methods=["GET", "DELETE"]),
                Route("/connectors/{name}/config", self._config, methods=["GET", "PUT"]),
                Route("/connectors/{name}/offsets", self._offsets, methods=["GET", "PATCH", "DELETE"]),
                Route("/connectors/{name}/status", self._status, methods=["GET"]),
                *(
                    Route(f"/connectors/{{name}}/{name}", self._change(state, code), methods=["PUT"])
                    for name, (state, code) in states.items()
                ),
                *(Route(path, _needs_a_worker, methods=methods) for path, methods in _OF_A_WORKER.items()),
            ],
            exception_handlers={
                HTTPException: _http_error,
                OffsetsError: _refused,
                ClientDisconnect: _disconnected,
                Exception: _failed,
            },
        )
        self.app.router.redirect_slashes = False

    async def _server_info(self, _: Request) -> Response:
        info = {"version": _VERSION, "commit": "unknown", "kafka_cluster_id": self._cluster_id}
        return JSONResponse(info)

    async def _connectors(self, request: Request) -> Response:
        if request.method == "POST":
            name, settings, state = connector_of(await self._body(request), "the request")
            put = partial(self._management.put_config, name, settings, state, allow_replace=False)
            return _created((await run_in_threadpool(put))[1])
        expansions: dict[str, Callable[[str], object]] = {
            "info": self._management.info,
            "status": lambda connector: self._management.status(connector, self._worker_id),
        }
        wanted = [name for name in request.query_params.getlist("expand") if name in expansions]

        def found() -> object:
            names = list(self._management.target_states())
            if "expand" not in request.query_params:
                return names
            expanded = {}
            for name in names:
                with suppress(NoSuchConnector):  # deleted since
                    expanded[name] = {each: expansions[each](name) for each in wanted}
            return expanded

        return JSONResponse(await run_in_threadpool(found))

    async def _connector(self, request: Request) -> Response:
        if request.method == "DELETE":
            await run_in_threadpool(self._management.delete, _name(request))
            return Response(status_code=204)
        return JSONResponse(await run_in_threadpool(self._management.info, _name(request)))

    async def _config(self, request: Request) -> Response:
        name = _name(request)
        if request.method != "PUT":
            info = await run_in_threadpool(self._management.info, name)
            return JSONResponse(info["config"])
        settings = settings_of(await self._body(request), "the request")
        created, info = await run_in_threadpool(self._management.put_config, name, settings)
        return _created(info) if created else JSONResponse(info)

    async def _offsets(self, request: Request) -> Response:
        name = _name(request)
        if request.method == "PATCH":
            offsets = offsets_of(await self._body(request), "the request")
            return JSONResponse({"message": await run_in_threadpool(self._management.alter, name, offsets)})
        if request.method == "DELETE":
            return JSONResponse({"message": await run_in_threadpool(self._management.reset, name)})
        return JSONResponse(await run_in_threadpool(self._management.offsets, name))

    async def _status(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._management.status, _name(request), self._worker_id))

    def _change(self, state: str, status_code: int) -> Callable[[Request], Any]:
        async def change(request: Request) -> Response:
            await run_in_threadpool(self._management.set_target_state, _name(request), state)
            return Response(status_code=status_code)

        return change

    async def _body(self, request: Request) -> str:
        """The body of a request. Raises HTTPException 415 if it is not JSON, 413 if it is too long, 408 if too slow."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "HTTP 415 Unsupported Media Type", CLOSE)
        read = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    read += part
                    if len(read) > self._max_request_bytes:
                        raise HTTPException(413, f"the request is longer than {self._max_request_bytes} bytes", CLOSE)
        except TimeoutError:
            raise HTTPException(408, f"the request took longer than {_BODY_SECONDS:.0f} seconds", CLOSE) from None
        try:
            return read.decode()
        except UnicodeDecodeError as error:
            raise BadConnectRequest(f"the request is not UTF-8 at position {error.start}") from None


def _name(request: Request) -> str:
    """The name of the connector in the path, whose segments the guard has left encoded and found valid."""
    return unquote_to_bytes(request.path_params["name"]).decode()


def _created(info: Mapping[str, Any]) -> Response:
    """The answer to a request that has created a connector."""
    return JSONResponse(info, 201, {"Location": f"/connectors/{quote(info['name'], safe='')}"})


async def _needs_a_worker(request: Request) -> Response:
    message = f"{request.method} {request.url.path} needs a worker of Kafka Connect; this service runs no connectors"
    return error_response(501, message)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - see the handlers of the application
    reason = error.detail if error.status_code not in (404, 405) else f"HTTP {error.status_code} {error.detail}"
    return error_response(error.status_code, reason, error.headers)


async def _refused(_: Request, error: Exception) -> Response:
    code = next((code for kind, code in _STATUS_CODES.items() if isinstance(error, kind)), 500)
    if code >= 500:
        _LOG.warning("cannot answer a request: %s", in_one_line(error))
    return error_response(code, str(error))


async def _disconnected(_: Request, __: Exception) -> Response:
    return error_response(400, "the client has closed the connection")


async def _failed(_: Request, error: Exception) -> Response:
    _LOG.error("cannot answer a request", exc_info=error)
    return error_response(500, "the request failed because of a defect; the log of the service has it")
