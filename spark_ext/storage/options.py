"""Options of object stores: named as delta-rs names them, checked, and translated into what others call them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from spark_ext import masking
from spark_ext.errors import NOTHING_DONE, refused

_S3_SCHEMES: Final = ("s3://", "s3a://")

_ACCESS_KEY: Final = "aws_access_key_id"
_SECRET_KEY: Final = "aws_secret_access_key"
_TOKEN: Final = "aws_session_token"
_ENDPOINT: Final = "aws_endpoint_url"
_REGION: Final = "aws_region"
_ALLOW_HTTP: Final = "aws_allow_http"
_VIRTUAL: Final = "aws_virtual_hosted_style_request"
_UNSIGNED: Final = "aws_skip_signature"

_AWS: Final = frozenset({_ACCESS_KEY, _SECRET_KEY, _TOKEN, _ENDPOINT, _REGION, _ALLOW_HTTP, _VIRTUAL, _UNSIGNED})
_AZURE: Final = frozenset(
    {
        "azure_storage_account_name",
        "azure_storage_account_key",
        "azure_storage_sas_token",
        "azure_storage_endpoint",
        "azure_storage_client_id",
        "azure_storage_client_secret",
        "azure_storage_tenant_id",
        "azure_storage_use_emulator",
    }
)
_GOOGLE: Final = frozenset({"google_application_credentials", "google_service_account", "google_service_account_key"})

KEYS: Final = tuple(sorted(_AWS | _AZURE | _GOOGLE))
_OTHER_NAMES: Final = {"aws_endpoint": _ENDPOINT, "aws_default_region": _REGION}  # Of delta-rs
# Options whose values are no secrets.
_PUBLIC: Final = frozenset(
    {
        _ENDPOINT,
        _REGION,
        _ALLOW_HTTP,
        _VIRTUAL,
        _UNSIGNED,
        "azure_storage_account_name",
        "azure_storage_endpoint",
        "azure_storage_use_emulator",
        "google_application_credentials",
        "google_service_account",
    }
)
# Options that delta-rs has, and a job does not want: why.
_UNSAFE: Final = {
    "aws_s3_allow_unsafe_rename": "two writers could then lose each other's commits; commits are conditional writes, "
    "which need no rename",
    "aws_conditional_put": "commits are always conditional writes (If-None-Match), which the store has to support",
    "aws_s3_locking_provider": "commits are conditional writes, which need no lock in another service",
    "aws_copy_if_not_exists": "commits are conditional writes, which need no copy",
}
_YES: Final = frozenset({"true", "1", "yes", "on", "t", "y"})
_NO: Final = frozenset({"false", "0", "no", "off", "f", "n"})
_FLAGS: Final = frozenset({_ALLOW_HTTP, _VIRTUAL, _UNSIGNED, "azure_storage_use_emulator"})

S3A: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def is_s3(uri: str) -> bool:
    """Whether a URI is in a store with the interface of S3."""
    return uri.lower().startswith(_S3_SCHEMES)


@dataclass(frozen=True)
class StoreOptions:
    """Checked options of object stores."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)  # By lower-case name of delta-rs; secret

    def __bool__(self) -> bool:
        return bool(self.values)

    @classmethod
    def of(cls, given: Mapping[str, object], who: str, *, kept: str = NOTHING_DONE) -> StoreOptions:
        """Check options that a user wrote, by name in any case."""
        values: dict[str, str] = {}
        for raw, value in given.items():
            name = str(raw).lower()
            name = _OTHER_NAMES.get(name, name)
            _check_name(str(raw), name, who, kept)
            text = str(value).lower() if isinstance(value, bool) else value
            if not isinstance(text, str) or not text.strip():
                raise refused(f"the storage option '{raw}' has no value", who, "give it a text", kept=kept)
            if values.get(name, text) != text:
                raise refused(
                    f"the storage option '{name}' is given twice, with two values", who, "keep one of them", kept=kept
                )
            values[name] = _flag(name, text, who, kept) if name in _FLAGS else text.strip()
        masking.remember(*(value for name, value in values.items() if name not in _PUBLIC))
        if (problem := _aws_problem(values)) is not None:
            raise refused(problem[0], who, problem[1], kept)
        return cls(values)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> StoreOptions:
        """The options that are variables of an environment, unchecked. None of their values is remembered as secret."""
        found = {name: environment.get(name.upper(), "") for name in KEYS}
        for other, name in _OTHER_NAMES.items():
            found[name] = found[name] or environment.get(other.upper(), "")
        return cls({name: value for name, value in found.items() if value})

    def over(self, other: StoreOptions) -> StoreOptions:
        """These options, and those of another set that these do not have."""
        return StoreOptions({**other.values, **self.values})

    @property
    def for_s3(self) -> bool:
        """Whether there is an option of a store with the interface of S3."""
        return not _AWS.isdisjoint(self.values)

    def environment(self) -> dict[str, str]:
        """As variables of the environment, in which delta-rs and Arrow look for them."""
        found = {name.upper(): value for name, value in self.values.items()}
        if _REGION in self.values:
            found["AWS_DEFAULT_REGION"] = self.values[_REGION]
        return found

    def enter(self, environment: MutableMapping[str, str]) -> None:
        """Let delta-rs and Arrow find the options, in this process and in those that it starts."""
        environment.update(self.environment())

    def hadoop(self) -> dict[str, str]:
        """As settings of Hadoop's S3A, secrets included. Options of other stores have none."""
        if not self.for_s3:
            return {}
        get = self.values.get
        found = {
            "fs.s3a.access.key": get(_ACCESS_KEY),
            "fs.s3a.secret.key": get(_SECRET_KEY),
            "fs.s3a.session.token": get(_TOKEN),
            "fs.s3a.endpoint": get(_ENDPOINT),
            "fs.s3a.endpoint.region": get(_REGION) or ("us-east-1" if _ENDPOINT in self.values else None),
            # As delta-rs does it, so that all find the same bucket.
            "fs.s3a.path.style.access": "false" if get(_VIRTUAL) == "true" else "true",
        }
        if _ENDPOINT in self.values:
            secure = urlsplit(self.values[_ENDPOINT]).scheme == "https"
            found["fs.s3a.connection.ssl.enabled"] = str(secure).lower()
        if get(_UNSIGNED) == "true":
            found["fs.s3a.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        return {key: value for key, value in found.items() if value is not None}


def _check_name(raw: str, name: str, who: str, kept: str) -> None:
    if name in _UNSAFE:
        raise refused(f"the storage option '{raw}' is refused: {_UNSAFE[name]}", who, "leave it out", kept=kept)
    if name in KEYS:
        return
    near = difflib.get_close_matches(name, KEYS, n=1) or [key for key in KEYS if key.endswith(f"_{name}")][:1]
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise refused(
        f"unknown storage option '{raw}'{hint}",
        who,
        f"use one of: {', '.join(KEYS)}; settings of Hadoop's go into the session's conf: spark.hadoop.fs.s3a...",
        kept=kept,
    )


def _flag(name: str, text: str, who: str, kept: str) -> str:
    word = text.strip().lower()
    if word not in _YES | _NO:
        raise refused(f"the storage option '{name}' is not true or false", who, "write true or false", kept=kept)
    return "true" if word in _YES else "false"


def _aws_problem(values: Mapping[str, str]) -> tuple[str, str] | None:
    """What is wrong with the options of a store with the interface of S3, and what to do."""
    if (_ACCESS_KEY in values) != (_SECRET_KEY in values):
        missing = _SECRET_KEY if _ACCESS_KEY in values else _ACCESS_KEY
        return f"the storage option '{missing}' is missing: a key is an id and a secret", "give both"
    if _TOKEN in values and _ACCESS_KEY not in values:
        what = f"the storage option '{_TOKEN}' belongs to a temporary key, which is missing"
        return what, f"give {_ACCESS_KEY} and {_SECRET_KEY} as well"
    endpoint = values.get(_ENDPOINT)
    if endpoint is None:
        return None
    parsed = urlsplit(endpoint)
    if parsed.scheme not in ("http", "https") or not parsed.netloc or "@" in parsed.netloc:
        do = "write it with its scheme and without a user, such as https://s3.example.org"
        return f"the storage option '{_ENDPOINT}' is not the address of a server", do
    if parsed.scheme == "http" and values.get(_ALLOW_HTTP) != "true":
        return (
            f"the endpoint {endpoint} is not encrypted, and '{_ALLOW_HTTP}' is not set: delta-rs refuses it at the "
            "first request",
            f"use https, or set {_ALLOW_HTTP}=true for a server on this machine or in a network of your own",
        )
    return None
