"""The folder of an exchange: its description, for all kinds that keep it there, and segments that are files of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from spark_ext.errors import StateError
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.entries import Segment
from spark_ext.storage import Folder, child, link

ABOUT: Final = "exchange.json"


class DescribedPlace:
    """A folder with the description of an exchange.

    Args:
        folder: it need not exist.
        kind: the only kind of exchange that may be there.
        before: names that the kind may have made in the folder before it was described.
        who: the exchange, for messages.
    """

    def __init__(self, folder: Folder, kind: str, before: Collection[str], who: str) -> None:
        self._folder, self._kind, self._before, self._who = folder, kind, before, who

    def register(self, wanted: Descriptor) -> Descriptor:
        """See `ExchangeMaster.register`."""
        found = self.describe()
        if found is None:
            self._folder.create_once(ABOUT, wanted.to_json(), durable=True)
            found = self.describe()
            assert found is not None
        merged = found.merged(wanted)
        if merged != found:
            self._folder.write(ABOUT, merged.to_json(), durable=True)
        return merged

    def describe(self) -> Descriptor | None:
        """See `ExchangeMaster.describe`."""
        content = self._folder.find(ABOUT)
        if content is None:
            for name in self._folder.names():
                if name not in self._before and not name.startswith("."):
                    raise self._foreign(
                        f"has '{name}' and no {ABOUT}: something else has written it, or the file was deleted",
                        "use an exchange of another name, or restore the folder from a backup",
                    )
            return None
        found = Descriptor.from_json(content.decode("utf-8", "replace"), self._who)
        if found.kind != self._kind:
            raise self._foreign(
                f"has an exchange of the kind '{found.kind}', and no '{self._kind}'",
                "use the kind with which the exchange was made, or an exchange of another name",
            )
        return found

    def _foreign(self, what: str, do: str) -> StateError:
        kept = "the folder is unchanged; nothing was started"
        return StateError(f"its folder {self._folder.uri} {what}", operator=self._who, kept=kept, do=do)


def keep_file(place: str, segment: Segment, folder: str) -> None:
    """`ExchangeMaster.keep` of a kind whose segments are files `data/<name>`: a link, which costs nothing."""
    link(child(place, "data", segment.name), child(folder, "data", segment.name))


def put_file_back(place: str, segment: Segment, folder: str) -> Segment:
    """`ExchangeMaster.put_back` of such a kind."""
    link(child(folder, "data", segment.name), child(place, "data", segment.name), durable=True)
    return segment
