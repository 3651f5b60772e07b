"""A folder of objects that are created whole and only once: the compare-and-swap of an object store.

A conditional write (`If-None-Match: *`) creates an object unless one of its name is there, whoever else tries. Neither
Arrow nor delta-rs offers it for plain files, so this needs the library obstore, which is delta-rs's own client.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from spark_ext.errors import EnvironmentProblem
from spark_ext.stores.options import StoreOptions, is_s3

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class Objects:
    """The objects directly in a folder of a store, under names without slashes.

    The options of the store come from the environment.

    Args:
        uri: of the folder.
        who: for messages.

    Raises:
        EnvironmentProblem: the library is not installed.
    """

    def __init__(self, uri: str, who: str) -> None:
        try:
            import obstore
        except ImportError:
            raise EnvironmentProblem(
                "the library obstore is missing: it writes an object on the condition that it is not there yet",
                operator=who,
                kept="nothing was started",
                do="pip install 'spark-ext[object-stores]'",
            ) from None
        self._api: Any = obstore
        self._store = _opened(uri)

    def put(self, name: str, text: str) -> bool:
        """Create an object with its whole content, unless it exists; returns whether this call has created it.

        After a lost answer the object may exist by this call, though it returns False.

        Raises:
            OSError: it cannot be written.
        """
        from obstore.exceptions import AlreadyExistsError

        try:
            self._done(lambda: self._api.put(self._store, name, text.encode(), mode="create"))
        except AlreadyExistsError:
            return False
        return True

    def read(self, name: str) -> str:
        """An object's content.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """
        return bytes(self._done(lambda: self._api.get(self._store, name).bytes())).decode()

    def has(self, name: str) -> bool:
        """Whether there is such an object.

        Raises:
            OSError: the store does not answer.
        """
        try:
            self._done(lambda: self._api.head(self._store, name))
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of all objects in the folder.

        Raises:
            OSError: it cannot be listed.
        """
        found = self._done(lambda: self._api.list_with_delimiter(self._store)["objects"])
        return [str(item["path"]) for item in found]

    def folders(self) -> list[str]:
        """The names of the folders in this one.

        Raises:
            OSError: it cannot be listed.
        """
        found = self._done(lambda: self._api.list_with_delimiter(self._store)["common_prefixes"])
        return [str(prefix).rstrip("/").rpartition("/")[2] for prefix in found]

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is ignored.

        Raises:
            OSError: it cannot be removed.
        """
        try:
            self._done(lambda: self._api.delete(self._store, name))
        except FileNotFoundError:
            return

    @staticmethod
    def _done(action: Any) -> Any:
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            return action()
        except (AlreadyExistsError, OSError):
            raise
        except BaseError as problem:
            raise OSError(str(problem)) from problem


def _opened(uri: str) -> ObjectStore:
    from obstore.store import from_url

    if is_s3(uri):
        place = uri.partition("://")[2]
        options = StoreOptions.of_environment(os.environ).values
        plain = options.get("aws_allow_http", "").lower() == "true"
        return from_url(f"s3://{place}", client_options={"allow_http": plain})
    return from_url(uri)
