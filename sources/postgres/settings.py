"""The settings of a transaction that plans or reads: values have one text form, whatever server and role prefer.

Keys and positions are exchanged as text, and rows are compared by hashes of their text. Settings of the server, the
database, the role or libpq's environment would otherwise give the planner and an executor different texts.
"""

from __future__ import annotations

_FORMS = {
    # Only how dates are shown: whether 01/02 in a user's query is in January or February is left to the server.
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "quote_all_identifiers": "off",
}

_ENDLESS = ("idle_in_transaction_session_timeout", "transaction_timeout")
"""Settings that would end a held snapshot. Servers before 17 do not have all of them."""


def settings_of(lock_timeout: int, statement_timeout: int | None = None) -> str:
    """The statement with which a transaction begins.

    Args:
        lock_timeout: how long to wait for a lock, ms.
        statement_timeout: how long a statement may take, ms; 0: without a limit; None: as the server has it.
    """
    limits = {"lock_timeout": lock_timeout}
    if statement_timeout is not None:
        limits["statement_timeout"] = statement_timeout
    forms = ", ".join(f"('{name}', '{value}')" for name, value in {**_FORMS, **limits}.items())
    endless = ", ".join(f"'{name}'" for name in _ENDLESS)
    return (
        f"SELECT set_config(name, value, true) FROM (VALUES {forms}) f(name, value) "
        f"UNION ALL SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ({endless})"
    )
