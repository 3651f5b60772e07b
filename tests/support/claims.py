"""Drivers that have claimed their target."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Claimant(Protocol):
    def claim(self) -> object: ...


C = TypeVar("C", bound=Claimant)


def claimed(driver: C) -> C:
    driver.claim()
    return driver
