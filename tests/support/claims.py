"""Drivers that have claimed their target."""

from typing import Protocol, TypeVar


class Claimant(Protocol):
    def claim(self) -> object: ...


C = TypeVar("C", bound=Claimant)


def claimed(driver: C) -> C:
    driver.claim()
    return driver
