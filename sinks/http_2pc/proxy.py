"""The proxy that the standard environment variables name: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from spark_ext import masking
from spark_ext.errors import refused


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy."""

    url: str
    """`http://` or `https://`, without credentials."""
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
