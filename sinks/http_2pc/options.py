"""The options of `http_2pc`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from spark_ext.options import Bytes, Milliseconds, Names, Pairs
from spark_ext.sinks.contract import SinkOptions
from spark_ext.sinks.http_2pc import addresses
from spark_ext.sinks.http_2pc.headers import check_value, checked
from spark_ext.sinks.http_2pc.tls import Tls


class HttpOptions(SinkOptions):
    """Options of `http_2pc`."""

    secret_fields: ClassVar[frozenset[str]] = frozenset({"headers", "storage_options"})

    identity_fields: ClassVar[frozenset[str]] = frozenset({"outbox", "url", "url_column"})

    moving_fields: ClassVar[frozenset[str]] = frozenset({"url", "url_column"})

    url: str
    """Address of the receiver: `http://` or `https://`, without credentials. `{column}` in its path or parameters
    stands for a value of the row, percent-encoded."""

    url_column: str | None = Field(default=None, min_length=1)
    """Column with the whole address of each row, which is not sent itself; its host has to be that of `url`, or one of
    `allowed_hosts`."""

    allowed_hosts: Names = ()
    """Further hosts of `url_column`: `host`, with the port of the scheme, or `host:port`. They get the credentials."""

    outbox: str = Field(min_length=1)
    """A durable folder that the driver and the executors share: a local path or a URI; sinks may share it."""

    commit_patience: Milliseconds = 600_000
    """As for every sink, with a higher default: a receiver that throttles requests asks for longer waits."""

    body: Literal["lines", "array", "object"] = "lines"
    """JSON, one row per line (`application/x-ndjson`), or one array (`application/json`), or one row as an object
    (`application/json`), each in a request of its own."""

    batch_rows: int = Field(default=1_000, gt=0)
    """Maximum number of rows per request."""

    batch_bytes: Bytes = Field(default=1024**2, gt=0)
    """Maximum size of the rows of a request, bytes; a larger row is a request of its own."""

    max_requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Maximum rate of this sink's requests, attempts included; None: as fast as the receiver answers."""

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """Method of the requests."""

    key_header: str = Field(default="Idempotency-Key", pattern=r"^[A-Za-z0-9-]+$")
    """Name of the header with the idempotency key."""

    conflict: Literal["retry", "done", "refuse"] = "retry"
    """Meaning of status 409: the same key is being processed; the request was taken before; or it is refused."""

    token: str | None = Field(default=None, repr=False)
    """Sent as `Authorization: Bearer`. Never shown or stored; preferably kept in the environment (`token_env`)."""

    token_env: str | None = None
    """Name of the driver's environment variable that contains the token."""

    oauth2_token_url: str | None = None
    """Address of a token endpoint of OAuth 2: tokens are fetched by client credentials, and renewed."""

    oauth2_client_id: str | None = Field(default=None, min_length=1)
    """Who the sink is to that endpoint."""

    oauth2_client_secret: str | None = Field(default=None, min_length=1, repr=False)
    """Its secret. Never shown or stored; preferably kept in the environment (`oauth2_client_secret_env`)."""

    oauth2_client_secret_env: str | None = None
    """Name of the driver's environment variable that contains the secret."""

    oauth2_scope: str | None = Field(default=None, min_length=1)
    """Scopes that are asked for, separated by blanks."""

    oauth2_audience: str | None = Field(default=None, min_length=1)
    """Audience that is asked for, where the endpoint wants one."""

    oauth2_auth: Literal["basic", "body"] = "basic"
    """How the secret is sent: in the header `Authorization`, or in the body."""

    headers: Pairs = Field(default_factory=dict, repr=False)
    """Further headers as a JSON object of strings. Never shown or stored."""

    headers_env: str | None = None
    """Name of the driver's environment variable that contains further headers as a JSON object."""

    timeout: Milliseconds = Field(default=30_000, gt=0)
    """Maximum duration of a request: connecting, sending, and the whole answer, ms."""

    patience: Milliseconds = 600_000
    """How long `Retry-After` may delay one request in total before the query fails, ms."""

    compression: Literal["none", "gzip"] = "none"
    """Compression of the bodies."""

    ca_file: str | None = None
    """PEM certificates of the authority that signed the receiver's certificate; default: those of the system, as
    OpenSSL finds them (`SSL_CERT_FILE`, `SSL_CERT_DIR`)."""

    tls_client_cert: str | None = Field(default=None, min_length=1)
    """PEM file of the certificate by which the receiver knows the sink, its chain after it."""

    tls_client_key: str | None = Field(default=None, min_length=1)
    """PEM file of its key; default: the key is in `tls_client_cert` too."""

    tls_client_key_password: str | None = Field(default=None, min_length=1, repr=False)
    """Password of the key. Never shown or stored; preferably kept in the environment
    (`tls_client_key_password_env`)."""

    tls_client_key_password_env: str | None = None
    """Name of the driver's environment variable that contains the password."""

    redact: bool = False
    """Whether errors omit the receiver's answer, which may repeat rows."""

    storage_options: Pairs = Field(default_factory=dict, repr=False)
    """Options of the outbox's object store with `deltalake`'s names, as a JSON object. Never shown or stored."""

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
