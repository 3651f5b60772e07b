"""A folder that notes every step which a power failure may separate from the next, and takes it."""

from pathlib import Path

from spark_ext.storage import LocalFolder, writer_of


class Recording(LocalFolder):
    """On a file system. Folders below it note their steps with it."""

    def __init__(self, path: Path, steps: list[str] | None = None, root: Path | None = None) -> None:
        super().__init__(path)
        self._steps: list[str] = [] if steps is None else steps
        self._root = root or path.parent

    def below(self, name: str) -> "Recording":
        return Recording(self.path / name, self._steps, self._root)

    def noted(self) -> list[str]:
        """The steps since the last call, with paths relative to the parent of the first folder."""
        steps = list(self._steps)
        self._steps.clear()
        return steps

    def _note(self, step: str, path: Path) -> None:
        self._steps.append(f"{step} {'draft' if writer_of(path.name) else path.relative_to(self._root)}")

    def _sync(self, path: Path) -> None:
        super()._sync(path)
        self._note("sync", path)

    def _link(self, source: Path, target: Path) -> None:
        super()._link(source, target)
        self._note("link", target)

    def _replace(self, source: Path, target: Path) -> None:
        super()._replace(source, target)
        self._note("replace", target)
