"""The options of `http_2pc`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from spark_ext.options import Bytes, Milliseconds, Names, Pairs
from spark_ext.sinks.contract import SinkOptions
from spark_ext.sinks.http_2pc import addresses
from spark_ext.sinks.http_2pc.credentials import check_value, checked
from spark_ext.sinks.http_2pc.tls import Tls


class HttpOptions(SinkOptions):
    """Options of `http_2pc`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"headers", "storage_options"})

    identity_fields: ClassVar[frozenset[str]] = frozenset({"outbox", "url", "url_column"})

    moving_fields: ClassVar[frozenset[str]] = frozenset({"url", "url_column"})

    url: str  # `http(s)://`, without credentials; `{column}` in its path or parameters is a value of the row
    # The address of each row, not sent; at the host of `url`, or `allowed_hosts`.
    url_column: str | None = Field(default=None, min_length=1)
    allowed_hosts: Names = ()  # Further hosts of `url_column`: `host`, or `host:port`. They get the credentials
    outbox: str = Field(min_length=1)  # A durable folder that driver and executors share; sinks may share it
    commit_patience: Milliseconds = 600_000  # Higher than other sinks': a receiver that throttles asks for longer waits
    body: Literal["lines", "array", "object"] = "lines"  # JSON: rows as lines, as an array, or a request per row
    batch_rows: int = Field(default=1_000, gt=0)  # Maximum number of rows per request
    batch_bytes: Bytes = Field(default=1024**2, gt=0)  # Size of the rows of a request; a larger row is one of its own
    # Attempts included; None: no limit.
    max_requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    key_header: str = Field(default="Idempotency-Key", pattern=r"^[A-Za-z0-9-]+$")  # Header with the idempotency key
    conflict: Literal["retry", "done", "refuse"] = "retry"  # What status 409 means
    token: str | None = Field(default=None, repr=False)  # `Authorization: Bearer`; never shown or stored
    token_env: str | None = None  # Name of the driver's environment variable that contains the token
    oauth2_token_url: str | None = None  # Token endpoint: tokens are fetched by client credentials, and renewed
    oauth2_client_id: str | None = Field(default=None, min_length=1)  # Who the sink is to that endpoint
    oauth2_client_secret: str | None = Field(default=None, min_length=1, repr=False)  # Never shown or stored
    oauth2_client_secret_env: str | None = None  # Name of the driver's environment variable that contains the secret
    oauth2_scope: str | None = Field(default=None, min_length=1)  # Scopes that are asked for, separated by blanks
    oauth2_audience: str | None = Field(default=None, min_length=1)  # Where the endpoint wants one
    oauth2_auth: Literal["basic", "body"] = "basic"  # Where the secret is sent: header `Authorization`, or body
    headers: Pairs = Field(default_factory=dict, repr=False)  # Further headers as a JSON object. Never shown or stored
    headers_env: str | None = None  # The driver's environment variable with further headers, as a JSON object
    request_timeout: Milliseconds = Field(default=30_000, gt=0)  # Of connecting, sending, and the whole answer, ms
    patience: Milliseconds = 600_000  # How long `Retry-After` may delay one request in total before the query fails, ms
    compression: Literal["none", "gzip"] = "none"
    ca_file: str | None = None  # PEM: the authority of the receiver's certificate; default: the system's
    tls_client_cert: str | None = Field(default=None, min_length=1)  # PEM: the sink's own, its chain after it
    tls_client_key: str | None = Field(default=None, min_length=1)  # PEM file; default: `tls_client_cert`
    tls_client_key_password: str | None = Field(default=None, min_length=1, repr=False)  # Never shown
    tls_client_key_password_env: str | None = None  # Name of the driver's environment variable with the password
    redact: bool = False  # Whether errors omit the receiver's answer, which may repeat rows
    storage_options: Pairs = Field(default_factory=dict, repr=False)  # As a JSON object; never shown

    @classmethod
    def is_secret(cls, name: str) -> bool:
        """The name of an environment variable is none, although the name of its option looks like one."""
        return super().is_secret(name) and not name.endswith("_env")

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        addresses.checked(value)
        addresses.columns_of(value)
        return value

    @field_validator("oauth2_token_url")
    @classmethod
    def _token_address(cls, value: str | None) -> str | None:
        if value is not None:
            addresses.checked(value)
        return value

    @model_validator(mode="after")
    def _addresses_together(self) -> HttpOptions:
        if self.url_column is not None and addresses.columns_of(self.url):
            raise ValueError("url has columns in braces, and url_column has the whole address: use one of them")
        if self.allowed_hosts and self.url_column is None:
            raise ValueError("allowed_hosts needs url_column: all requests go to the host of url")
        self.allowed()
        if self.body == "object" and self.batch_rows not in (1, type(self).model_fields["batch_rows"].default):
            raise ValueError("body=object sends one row per request, so batch_rows cannot be another number")
        return self

    @model_validator(mode="after")
    def _one_of_each(self) -> HttpOptions:
        for name in ("token", "oauth2_client_secret", "tls_client_key_password"):
            if getattr(self, name) is not None and getattr(self, f"{name}_env") is not None:
                raise ValueError(f"{name} and {name}_env exclude each other")
        if self.oauth2_token_url is not None:
            for name in ("token", "token_env"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} and oauth2_token_url exclude each other")
            if self.oauth2_client_id is None:
                raise ValueError("oauth2_token_url needs oauth2_client_id")
            if self.oauth2_client_secret is None and self.oauth2_client_secret_env is None:
                raise ValueError("oauth2_token_url needs oauth2_client_secret or oauth2_client_secret_env")
        else:
            for name, field in type(self).model_fields.items():
                if name.startswith("oauth2_") and getattr(self, name) != field.default:
                    raise ValueError(f"{name} needs oauth2_token_url")
        if self.token is not None:
            check_value("token", self.token)
        self.all_headers(self.headers, self.sends_token)
        return self

    @model_validator(mode="after")
    def _certificates_together(self) -> HttpOptions:
        for name in ("tls_client_key", "tls_client_key_password", "tls_client_key_password_env"):
            if getattr(self, name) is not None and self.tls_client_cert is None:
                raise ValueError(f"{name} needs tls_client_cert")
        if self.tls_client_cert is not None and urlsplit(self.url).scheme != "https":
            raise ValueError("tls_client_cert needs an url that is https: a certificate is not used without TLS")
        return self

    @property
    def sends_token(self) -> bool:
        """Whether the sink sets `Authorization` itself."""
        return any(one is not None for one in (self.token, self.token_env, self.oauth2_token_url))

    def allowed(self) -> addresses.Allowed:
        """To where requests may go."""
        home = urlsplit(self.url)
        return addresses.Allowed(home, addresses.hosts(self.allowed_hosts, home.scheme))

    def tls(self, password: str | None) -> Tls:
        """The certificates."""
        return Tls(self.ca_file, self.tls_client_cert, self.tls_client_key, password)

    def all_headers(self, given: Mapping[str, str], with_token: bool) -> dict[str, str]:
        """The user's headers."""
        return checked(given, self.key_header, with_token=with_token)
