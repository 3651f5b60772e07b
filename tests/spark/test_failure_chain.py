"""What is known of a failure whose JVM has gone."""

import socket

from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject
from py4j.protocol import Py4JJavaError

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Owner
from spark_ext.failures.labels import FailureType
from spark_ext.spark.backend.failures import evidence_of


def test_of_a_jvm_that_has_gone_there_is_what_python_has() -> None:
    with socket.socket() as free:  # a port that nobody listens at
        free.bind(("127.0.0.1", 0))
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free.getsockname()[1]))
        try:
            raise Py4JJavaError("An error occurred while calling o1.save.\n", JavaObject("o1", gateway._gateway_client))
        except Py4JJavaError as failure:
            evidence = evidence_of(failure)
    (raised,) = evidence.chain
    assert raised.kind == "py4j.protocol.Py4JJavaError"
    assert raised.message == evidence.text == "<no message: Py4JNetworkError>"
    assert raised.frames[0].owner is Owner.USER
    assert Classifier().judge(evidence).type is FailureType.SYSTEM
