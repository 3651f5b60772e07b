from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ext.ledger import Ledger, LedgerWriter
from spark_ext.ledger.incarnation import forget
from tests.support.ledgers import started


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LedgerWriter]:
    ledger = Ledger(str(tmp_path / "state"))
    incarnation = started(ledger, "j")
    yield LedgerWriter(ledger, incarnation)
    forget(ledger.uri, incarnation.number)
