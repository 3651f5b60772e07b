"""Options of the shipped incident listeners: refused by name when the job is created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_ext.errors import refused
from spark_ext.options import Options

O = TypeVar("O", bound="ListenerOptions")  # noqa: E741


class ListenerOptions(BaseModel):
    """Base of the options of a listener."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def of(cls: type[O], listener: str, given: Mapping[str, Any]) -> O:
        """The options from what is configured. Secrets among them are masked from now on.

        Args:
            listener: its name, for messages.
            given: by name.

        Raises:
            ConfigurationError: one is unknown, missing or invalid; no value of it is shown.
        """
        Options.keep_secret(given)
        try:
            return cls.model_validate(dict(given))
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise refused(
                f"listener '{listener}', option '{name}': {first['msg']}"
                if name
                else f"listener '{listener}': {first['msg']}",
                f"listener '{listener}'",
                f"correct it; the options are: {', '.join(sorted(cls.model_fields))}",
                kept="nothing was started",
            ) from None
