"""A server of Spark Connect under the rules of Databricks serverless compute: a proxy that refuses what that refuses.

Of triggers it knows `availableNow` alone, and a session can set six settings. That there are no RDDs and no
`sparkContext` is so for each client.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import grpc
from pyspark.sql.connect import proto

from tests.support.handed_over import SETTABLE


@contextmanager
def serverless(address: str) -> Iterator[str]:
    """The address of a proxy before a server."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address.removeprefix("sc://"), options) as channel:
        proxy = grpc.server(ThreadPoolExecutor(64), options=options)
        proxy.add_generic_rpc_handlers((_Proxy(channel),))
        port = proxy.add_insecure_port("127.0.0.1:0")
        proxy.start()
        try:
            yield f"sc://127.0.0.1:{port}"
        finally:
            proxy.stop(None).wait()


class _Proxy:
    """Passes each call on as bytes; on the wire one message and a stream with one message are the same."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        name = call.method.rpartition("/")[2]
        forward = self._channel.stream_stream(call.method, lambda given: given, lambda given: given)

        def behave(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            def checked() -> Iterator[bytes]:
                for request in requests:
                    refusal = _RULES.get(name, _allowed)(request)
                    if refusal:
                        refused.append(refusal)
                        return
                    yield request

            refused: list[str] = []
            answers = forward(checked(), metadata=context.invocation_metadata())
            context.add_callback(answers.cancel)
            try:
                yield from answers
            except grpc.RpcError as problem:
                answer: Any = problem
                if refused:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, refused[0])
                context.set_trailing_metadata(answer.trailing_metadata())
                context.abort(answer.code(), answer.details())

        return grpc.stream_stream_rpc_method_handler(behave)


def _allowed(request: bytes) -> str:
    return ""


def _trigger(request: bytes) -> str:
    plan = proto.ExecutePlanRequest.FromString(request).plan
    start = plan.command.write_stream_operation_start
    given = start.WhichOneof("trigger")
    if plan.command.HasField("write_stream_operation_start") and given != "available_now":
        return f"[INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED] Trigger type {given} is not supported"
    return ""


def _setting(request: bytes) -> str:
    operation = proto.ConfigRequest.FromString(request).operation
    if operation.set.silent:  # a client asks the server to ignore what it refuses, as for the name of the session
        return ""
    names = {one.key for one in operation.set.pairs} | set(operation.unset.keys)
    refused = sorted(names - set(SETTABLE))
    return f"[CONFIG_NOT_AVAILABLE] Configuration {refused[0]} is not available" if refused else ""


_RULES: Final[dict[str, Callable[[bytes], str]]] = {"Config": _setting, "ExecutePlan": _trigger}
