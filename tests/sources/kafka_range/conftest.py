"""A schema registry for the tests of the source `kafka_range`."""

from collections.abc import Iterator

import pytest

from tests.servers.schema_registry import SchemaRegistry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as there:
        yield there
