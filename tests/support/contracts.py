"""The parts of the contract kits that a further mode of a connector runs; its main mode, in the core, runs all."""

from collections.abc import Callable
from typing import Final, TypeVar

Kit = TypeVar("Kit")

SAME_IN_ALL_MODES: Final = (
    "_i4_", "_i5_", "_are_retried_with_back_off_", "_an_empty_", "_the_same_uid_", "_an_option_",
    "_bad_rows_give_way_", "_bad_rows_many_", "_bad_rows_more_", "_bad_rows_of_a_committed_",
    "_bad_rows_of_an_older_", "_bad_rows_outside_", "_bad_rows_without_", "_of_which_all_rows_are_bad",
)  # fmt: skip
"""Parts of the names of tests of sinks whose outcome the claim and the base class decide, in one way for all modes."""


def without(*parts: str) -> Callable[[type[Kit]], type[Kit]]:
    """Leave out the tests of a kit whose names have one of these parts."""

    def leave_out(kit: type[Kit]) -> type[Kit]:
        for name in dir(kit):
            if name.startswith("test_") and any(part in name for part in parts):
                setattr(kit, name, None)
        return kit

    return leave_out
