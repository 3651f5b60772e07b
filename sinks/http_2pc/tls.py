"""Certificates: whom the sink trusts, and who it is. Also the proxy that it uses."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from spark_ext import masking
from spark_ext.errors import ConfigurationError, refused

NOTHING_SENT = "nothing was sent"

# OpenSSL's words for a receiver that does not take the client's certificate, or misses one.
_NOT_TAKEN = (
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_UNKNOWN_CA",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
)


def is_refused_client(text: str) -> bool:
    """Whether an error says that the receiver wants another certificate, or any."""
    return any(word in text.upper().replace(" ", "_") for word in _NOT_TAKEN)


@dataclass(frozen=True)
class Tls:
    """The options of certificates."""

    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def stamp(self) -> tuple[tuple[str, int], ...]:
        """Paths and times of the files: renewed files make new connections, without a restart."""
        return tuple((path, _changed(path)) for path in (self.ca_file, self.client_cert, self.client_key) if path)

    def context(self, who: str) -> ssl.SSLContext | None:
        """What connections are made with; None: the certificates of the system, and none of the sink's own."""
        if self.ca_file is None and self.client_cert is None:
            return None
        try:
            found = ssl.create_default_context(cafile=self.ca_file)
        except OSError as problem:  # `ssl.SSLError` is one
            raise refused(
                f"the certificates of 'ca_file' could not be read: {problem}",
                who,
                "use a readable file of PEM certificates",
                kept=NOTHING_SENT,
            ) from problem
        if self.client_cert is not None:
            self._present(found, self.client_cert, who)
        return found

    def _present(self, context: ssl.SSLContext, certificate: str, who: str) -> None:
        for option, path in (("tls_client_cert", certificate), ("tls_client_key", self.client_key)):
            if path is not None and (problem := _unreadable(path)):
                raise self._refusal(f"the file '{path}' of '{option}' could not be read: {problem}", who)
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certificate, self.client_key, password=lambda: self.password or "")
        except ssl.SSLError as problem:
            raise self._refusal(self._why(problem), who) from None

    def _why(self, problem: ssl.SSLError) -> str:
        if "KEY_VALUES_MISMATCH" in str(problem):
            return (
                f"the key in '{self.client_key or self.client_cert}' is not that of the certificate in "
                f"'{self.client_cert}'"
            )
        # OpenSSL says no more than that the file cannot be read.
        if b"ENCRYPTED" in Path(self.client_key or self.client_cert or "").read_bytes():
            how = "is wrong" if self.password else "is missing"
            return f"the key of 'tls_client_cert' is encrypted, and its password {how}"
        return (
            f"'{self.client_cert}'"
            + (f" and '{self.client_key}'" if self.client_key else "")
            + f" are not a certificate and its key in PEM form: {problem.reason or 'they cannot be parsed'}"
        )

    @staticmethod
    def _refusal(what: str, who: str) -> ConfigurationError:
        return refused(
            what,
            who,
            "correct 'tls_client_cert', 'tls_client_key' and 'tls_client_key_password': PEM files on the driver's "
            "machine, the certificate first in its file, its chain after it",
            kept=NOTHING_SENT,
        )


def _unreadable(path: str) -> str | None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as problem:
        return problem.strerror or type(problem).__name__
    return None


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


# -- the proxy that HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY name ---------------------------------------------


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy."""

    url: str  # `http://` or `https://`, without credentials
    credentials: tuple[str, str] | None = field(repr=False)


def proxy_for(url: str, who: str) -> Proxy | None:
    """The proxy for an address; None if the environment names none, or excludes the address."""
    parts = urlsplit(url)
    named = getproxies()
    scheme = parts.scheme if named.get(parts.scheme) else "all"
    text = named.get(scheme)
    if not text or not parts.hostname or proxy_bypass(parts.netloc.rpartition("@")[2]) or proxy_bypass(parts.hostname):
        return None
    found = urlsplit(text if "://" in text else f"http://{text}")
    # Before anything can be said about it.
    masking.remember(unquote(found.password or ""), found.password or "")
    if found.scheme not in ("http", "https") or not found.hostname:
        raise refused(
            f"the environment variable {scheme.upper()}_PROXY names a proxy that is not an HTTP proxy: "
            f"'{found.scheme}://{found.hostname or ''}'",
            who,
            f"name a proxy of the form http://host:port, unset the variable for the driver, or add '{parts.hostname}' "
            "to NO_PROXY",
        )
    host = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
    credentials = (unquote(found.username), unquote(found.password or "")) if found.username else None
    return Proxy(f"{found.scheme}://{host}:{found.port or (443 if found.scheme == 'https' else 80)}", credentials)
