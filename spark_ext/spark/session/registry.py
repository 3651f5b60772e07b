"""The session registry: how a source's planner finds its job.

A planner process knows only the options of `load()`, which was called before the job existed. So `register` puts the
path of a local directory into the environment of all Python workers, and the start of a job writes a file per uid into
it. It is private to the user (0700), with a name that cannot be guessed, and nothing is concluded from its absence.

The workers of a server of Spark Connect may be on other machines, and their environment is the server's. So there the
directory is a part of the job's state, and a job adds the environment to the options of its sources and sinks when it
starts a query: the client's plan is data.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from spark_ext.errors import ConfigurationError, EnvironmentProblem, FencedError
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.storage import LocalFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.model.identity import Identity

VARIABLE = "SPARK_EXT_REGISTRY"  # environment variable of driver and workers: the directory, which need not exist
PARALLELISM = "SPARK_EXT_PARALLELISM"  # of Python workers: the session's default parallelism when it was registered
NOTES_ENDS = "SPARK_EXT_NOTES_ENDS"  # of Python workers: the start for which sources note that they have read all
# Of a job's sources and sinks, without an environment of their own: all of these, as JSON. Spark hides the values of
# options with such names wherever it prints a plan: the environment has the keys of stores.
OPTION = "spark_ext.workers_secret"
FOLDER = "registry"  # the directory in a job's state
ABANDONED_AFTER = 86_400  # s; an older directory is of a driver that was killed: one in use is renewed all the time
_NAME = re.compile(r"spark-ext-[0-9a-f]{32}")
_LOCK = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW

_changing = threading.Lock()  # two jobs of a session may write at the same time


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Change registrations while nobody else does: a thread, or over Spark Connect another client."""
    with _changing, ExitStack() as stack:
        if not _NAME.fullmatch(place.name):  # else the directory is this process's own
            with suppress(OSError):  # a file system without locks, or nothing was published yet
                lock = stack.enter_context(open(os.open(f"{place}.lock", _LOCK, 0o600), "wb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Registration:
    """What workers need to know about one operator of a running job."""

    uid: str
    role: str  # `source`, `sink` or `end_of_input`
    job: str
    job_id: str  # generated once, at the job's first start; distinguishes two jobs of the same name
    query: str
    state: str  # path or URI of the job's state directory
    checkpoint: str  # path or URI of Spark's checkpoint directory of the query
    incarnation: int
    lineage: int
    start: int = 0  # random number of the job's start
    interval_ms: int = 0  # minimum time between the starts of two data epochs, ms; 0: as fast as possible
    target_ms: int = 0  # duration that an epoch is to take, ms; 0: as its read limits have it
    hold: bool = False  # whether no further epoch is to be planned: the start only completes those interrupted
    first_checkpoint: int = 1  # least number of a checkpoint of this start: nobody waits for an earlier one's barrier
    drain: bool = False  # whether a drain that was requested before this start is in force
    begun: int = 0  # the start in which its query began: events obeyed once and accepted before do not concern it
    passed: int = 0  # the newest control event when its query was started: it is not restarted for that or older ones
    rebuild: Sequence[str] = ()  # keys of the user's configuration on which the query's plan depends; see `is_read`
    until_now: bool = False  # whether this run ends with what is there when it begins
    available_now: bool = False  # whether its query ends with what is there, as this run does or by its own trigger
    samples: bool = False  # whether processes that work for it can be asked for their stacks
    lag_ms: int = 0  # age of a source's lag at which it is asked again, ms; 0: it is asked with each epoch alone
    # Exchanges that its query writes: kind, path, options of the kind, and uid, checkpoint and query of each source for
    # which it waits.
    writes: Sequence[Any] = ()
    passes: bool = False  # whether a watermark above it takes over that of the query which has written what it reads
    # While the target is not claimed, see `late_claim`: the newest planned epoch when the query was started.
    claims_after: int | None = None
    closed: bool = False  # whether a source had finished before its query was started, and nothing is asked of it


def new_folder() -> Path:
    """A name for a registry's directory that nobody can guess; it is made when the first job starts."""
    return Path(tempfile.gettempdir()) / f"spark-ext-{secrets.token_hex(16)}"


def folder() -> Path | None:
    """The registry's directory; None if nothing was registered in this session."""
    place = os.environ.get(VARIABLE)
    return Path(place) if place else None


def folder_of(spark: SparkSession, state: str) -> Path:
    """The registry's directory of a session, for a job with this state directory."""
    backend = backend_of(spark)
    place = backend.environment(spark).get(VARIABLE)
    if place is None:
        raise ConfigurationError(
            "spark-ext's sources and sinks are not registered in this session",
            operator=f"Spark application '{backend.application_name(spark)}'",
            kept="nothing was started",
            do="call spark_ext.register(spark) once, right after the session is created",
        )
    return Path(place) if backend.own_workers else Path(state) / FOLDER


def options_for(spark: SparkSession, place: Path, start: int) -> dict[str, str]:
    """What a job adds to the options of its sources and sinks in a session without `own_workers`."""
    added = {VARIABLE: str(place), NOTES_ENDS: str(start)}
    return {OPTION: json.dumps({**backend_of(spark).environment(spark), **added})}


_replaced: dict[str, str | None] = {}  # the environment that `enter` has replaced in this process


def enter(options: Mapping[str, str]) -> None:
    """In a Python worker: let its environment be what a job has added to an operator's options, if it has."""
    # Spark reuses a worker for tasks of other jobs, and other clients.
    for name, before in _replaced.items():
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
    _replaced.clear()
    for name, value in json.loads(options.get(OPTION) or "{}").items():
        _replaced[name] = os.environ.get(name)
        os.environ[name] = value


def lookup(uid: str, place: Path | None = None) -> Registration | None:
    """The registration of a uid; None outside a job."""
    place = place or folder()
    if place is None:
        return None
    try:
        with (place / f"{uid}.json").open() as file:
            _require_mine(os.fstat(file.fileno()), place)
            text = file.read()
    except FileNotFoundError:
        return None
    raw = json.loads(text)
    return Registration(**{**raw, **{name: tuple(raw.get(name, ())) for name in ("writes", "rebuild")}})


def is_published(mine: Registration | Identity, uid: str) -> bool:
    """Whether the registration of a uid is still that of the start which an operator works for."""
    there = lookup(uid)
    return there is not None and (there.job_id, there.start) == (mine.job_id, mine.start)


_NAMED: Final = 5  # channels that are named; the others are counted

Note: TypeAlias = Literal["lag", "hold", "now", "claim", "end", "changed", "plan"]


def note(uid: str, what: Note) -> str:
    """Name of a file beside a registration.

    The lag, what holds it back, this run's end, a planner's wish for a claim, the input's end, input that has changed,
    how far a plan has come.
    """
    return f"{uid}.{what}"


def read_note(place: Path, uid: str, what: Note) -> dict[str, Any] | None:
    """A note that is a JSON object; None without one, or if it cannot be read or is another user's."""
    try:
        with (place / note(uid, what)).open() as file:
            found = json.load(file) if os.fstat(file.fileno()).st_uid == os.geteuid() else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def note_exhausted(uid: str, at: dict[str, Any], start: int) -> None:
    """Note that a source has nothing more to read in a start, for a Spark that does not end a query by itself.

    The query of an earlier start may live on in a server: what it has read says nothing of this one.
    """
    place, there = folder(), lookup(uid)
    if place is not None and there is not None and there.start == start:
        write_private(place / note(uid, "end"), {"start": start, "at": at})


def forget_exhausted(uid: str, place: Path) -> None:
    """Remove what a source has noted in an earlier start of its query."""
    (place / note(uid, "end")).unlink(missing_ok=True)


def noted_exhausted(uid: str, place: Path, start: int) -> dict[str, Any] | None:
    """Where a source had nothing more to read in a start; None: it has not noted it."""
    found = read_note(place, uid, "end")
    return found.get("at") if found is not None and found.get("start") == start else None


def note_changed(place: Path, uid: str, start: int, channels: Sequence[str]) -> None:
    """Note the channels of a source that have changed since they were read, in a start of the job."""
    with suppress(OSError):  # the next start notes it again
        if (place / f"{uid}.json").exists():
            found = {"start": start, "count": len(channels), "channels": list(channels[:_NAMED])}
            write_private(place / note(uid, "changed"), found)


def note_plan(place: Path, uid: str, start: int, what: str) -> None:
    """Note how far a plan has come that takes long, in a start of the job."""
    with suppress(OSError):  # it is noted again in a second
        if (place / f"{uid}.json").exists():
            write_private(place / note(uid, "plan"), {"start": start, "what": what})


def noted_plan(place: Path, uids: Iterable[str], start: int) -> str:
    """What the sources of a query plan, as they have noted it last; "" if no plan has taken long."""
    found = [read_note(place, uid, "plan") for uid in uids]
    return ", ".join(str(one["what"]) for one in found if one is not None and one.get("start") == start)


def noted_changed(place: Path, uid: str, start: int) -> tuple[int, list[str]]:
    """How many channels of a source have changed since they were read, and the first of them by name."""
    found = read_note(place, uid, "changed")
    if found is not None and found.get("start") == start:
        with suppress(KeyError, TypeError, ValueError):
            return int(found["count"]), [str(name) for name in found["channels"]]
    return 0, []


def _require_mine(found: os.stat_result, place: Path) -> None:
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise EnvironmentProblem(
            "the session registry's folder was made, or can be changed, by another user of this machine",
            operator=f"the session registry {place}",
            kept="nothing was read from it; nothing was started",
            do="set TMPDIR to a folder that only you can write to, and start a new session",
        )


def write_private(target: Path, value: Any) -> None:
    """Write a file of a registry as JSON, atomically, for this user alone."""
    LocalFolder(target.parent, make=False).write(target.name, json.dumps(value), private=True)


def publish(entries: Iterable[Registration], place: Path) -> None:
    """Write registrations, each atomically."""
    with _alone(place):
        _publish(tuple(entries), place)


def _publish(entries: tuple[Registration, ...], place: Path) -> None:
    for entry in entries:
        other = lookup(entry.uid, place)
        if other is None:
            continue
        if other.job_id == entry.job_id and other.incarnation < entry.incarnation:
            continue  # an earlier start has left it, in which the operator may have been in another query
        if other.job_id != entry.job_id and place == Path(entry.state) / FOLDER:
            continue  # of a ledger that was deleted: the state directory has one job
        if other.job_id == entry.job_id and other.incarnation > entry.incarnation:
            raise FencedError(
                f"incarnation {other.incarnation} of the job has been started in this session; this is "
                f"{entry.incarnation}",
                operator=f"job '{entry.job}', query '{entry.query}'",
                kept="all committed epochs; the newer incarnation continues from them",
                do="no action is needed: let the newer incarnation run",
            )
        if (other.job, other.job_id, other.query) != (entry.job, entry.job_id, entry.query):
            raise ConfigurationError(
                f"uid '{entry.uid}' is in use by query '{other.query}' of job '{other.job}' in this session",
                operator=f"job '{entry.job}', query '{entry.query}'",
                kept="nothing was started",
                do="give each operator its own uid, or stop the other job first",
            )
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
        _remove_abandoned(place.parent)
    _require_mine(place.lstat(), place)
    for entry in entries:
        write_private(place / f"{entry.uid}.json", asdict(entry))


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories of drivers that were killed. One of a driver that was only frozen is written again."""
    before = time.time() - ABANDONED_AFTER
    for place in parent.iterdir():
        if _NAME.fullmatch(place.name):  # anything else there is somebody else's
            with suppress(OSError):
                found = place.lstat()
                if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode) and found.st_mtime < before:
                    shutil.rmtree(place)


def keep(entries: Iterable[Registration], place: Path) -> None:
    """Write registrations again that are gone, and renew the times of those that are there."""
    with _alone(place):
        gone = []
        for entry in entries:
            try:
                os.utime(place / f"{entry.uid}.json")
            except FileNotFoundError:
                gone.append(entry)
        if gone:
            _publish(tuple(gone), place)
        with suppress(FileNotFoundError):
            os.utime(place)


def withdraw_older(job_id: str, incarnation: int, kept: Iterable[str], place: Path) -> None:
    """Remove what earlier starts of a job have left, but for the uids that its new start will publish."""
    found = [lookup(file.stem, place) for file in place.glob("*.json")]
    for there in found:
        if there is not None and there.job_id == job_id and there.incarnation < incarnation and there.uid not in kept:
            withdraw([there.uid], place, (job_id, there.incarnation))


def withdraw(uids: Iterable[str], place: Path, owner: tuple[str, int] | None = None) -> None:
    """Remove registrations of an owner, by job id and incarnation, or of all; and the directory after the last one."""
    with _alone(place):
        for uid in uids:
            there = lookup(uid, place)
            if there is not None and owner in (None, (there.job_id, there.incarnation)):
                (place / f"{uid}.json").unlink()
                for what in get_args(Note):
                    (place / note(uid, what)).unlink(missing_ok=True)
        with suppress(OSError):  # it holds other registrations, or does not exist
            place.rmdir()
