"""What of a URI may be shown: users, passwords and the values of its options may be secrets."""

from __future__ import annotations

_LEAST = 3  # shortest part of a URI, in characters, that is looked for in other texts


def shown(path: str) -> str:
    """A path or URI for a message, with `***` for what may be secret."""
    scheme, found, rest = path.partition("://")
    if not found:
        return path
    place, question, options = rest.partition("?")
    host = place.partition("/")[0]
    # A password with a slash in it is not valid in a URI, but it is a password.
    if "@" in place and ("@" in host or ":" in host):
        place = "***@" + place.rpartition("@")[2]
    names = "&".join(option.partition("=")[0] + "=***" for option in options.split("&"))
    return f"{scheme}://{place}{question}{names if question else ''}"


def without_secrets(text: str, path: str) -> str:
    """A message of a library about a URI, with `***` for what may be secret."""
    text = text.replace(path, shown(path))
    for secret in sorted(_secrets(path), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(path: str) -> list[str]:
    place, _, options = path.partition("://")[2].partition("?")
    parts = [option.partition("=")[2] for option in options.split("&")]
    if shown(path).partition("://")[2].startswith("***"):
        user = place.rpartition("@")[0]
        parts += [user, *user.split(":")]
    return [part for part in parts if len(part) >= _LEAST]
