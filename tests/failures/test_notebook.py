"""Tracebacks as notebooks show them."""

import pytest

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.text import as_python_writes, evidence_of_text

RULE = "-" * 75
JUPYTER = f"""\
{RULE}
ConnectionRefusedError                    Traceback (most recent call last)
Cell In[3], line 9
      7 def half(n):
      8     return look_up(n) / 2
----> 9 half(4)

Cell In[3], line 5, in look_up(key)
      3 def look_up(key):
      4     address = ("127.0.0.1", 1)
----> 5     return socket.create_connection(address)

File /usr/lib/python3.11/socket.py:851, in create_connection(address, timeout, source_address, all_errors)
    849 if not all_errors:
--> 851     raise exceptions[0]
    852 raise ExceptionGroup("create_connection failed", exceptions)

ConnectionRefusedError: [Errno 111] Connection refused
"""
DATABRICKS = f"""\
{RULE}
KeyError                                  Traceback (most recent call last)
File <command-4711>, line 4, in price(row)
      3 def price(row):
----> 4     return RATES[row.currency]

KeyError: 'EUR'

The above exception was the direct cause of the following exception:

RateError                                 Traceback (most recent call last)
File <command-4711>, line 12
     10 for row in rows:
---> 12     total += price(row)

RateError: no rate
"""
PLAIN = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: Cell In[3], line 9\n'


@pytest.mark.parametrize(
    ("text", "type", "kinds", "places"),
    [
        (JUPYTER, "NETWORK", ["ConnectionRefusedError"], ["<cell 3>, line 5, in look_up"]),
        (
            DATABRICKS, "USER_CODE", ["RateError", "KeyError"],
            ["<command-4711>, line 4, in price", "<command-4711>, line 12, in <module>"],
        ),
    ],
)  # fmt: skip
def test_the_cell_and_its_line_are_named(text: str, type: str, kinds: list[str], places: list[str]) -> None:
    evidence = evidence_of_text(f"cell output\n{text}")
    assert evidence is not None
    found = Classifier().judge(evidence)
    assert [raised.name for raised in evidence.chain] == kinds
    assert (found.type.value, list(found.places)) == (type, places)


@pytest.mark.parametrize("text", ["", "no traceback", PLAIN, "x  Traceback (most recent call last): y"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert as_python_writes(text) == text
