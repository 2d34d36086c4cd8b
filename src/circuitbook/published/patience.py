"""A hub that is busy, slow or away: what is asked again and how late, and what is said in the end.

Some failures are not the hub's, and asking again would not help: a refusal, a full disk, a setting
of this machine that keeps the client from asking. Each is said at once, in one line.
"""

from __future__ import annotations

import errno
import os
import random
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from circuitbook.published import disk
from circuitbook.published.disk import PublishedError

T = TypeVar("T")
TRIES = 5
FIRST_WAIT = 0.5  # seconds; doubled at every try, and up to half of it more by chance
LONGEST_WAIT = 300.0
AGAIN = "Run `make published` again"
REFUSED = {
    401: "asks who you are: it shows a missing repository and a private one alike. Check the "
    "name; remove a saved token that has run out (HF_TOKEN, or `hf auth logout`)",
    403: "refuses access. Open the repository's page once and accept its terms, or use another "
    "token",
    404: "does not have it. It was moved or withdrawn; see whether this course has a newer version",
    407: "is behind a proxy that wants a name and a password. Write them into the proxy's address "
    "(HTTPS_PROXY)",
}

FULL = {errno.ENOSPC, errno.EDQUOT}
FAULTS = (TypeError, AttributeError, NameError, MemoryError)  # of a program: not to be hidden
# What the client raises before it has asked anybody; its libraries have no error in common.
SETTINGS = ("UnsupportedProtocol", "InvalidURL", "InvalidSchema", "MissingSchema",
            "OfflineModeIsEnabled", "LocalTokenNotFoundError")  # fmt: skip


class HubAway(PublishedError):
    """The hub cannot or must not be asked: no other file can be had either."""


class Busy(Exception):
    """The hub wants a longer wait than the client should sleep through."""

    def __init__(self, response: Any) -> None:
        super().__init__("it wants to be left alone for a while")
        self.response = response


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes; the client hides a first failure behind a general one."""
    one, seen = error, set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__


def _answer(error: BaseException) -> Any:
    """The hub's response that an error is about, or None when there was none."""
    found = (getattr(one, "response", None) for one in _chain(error))
    return next((r for r in found if hasattr(r, "status_code")), None)


def _status(error: BaseException) -> int | None:
    """The status of the answer that an error is about; a proxy's own refusal comes as words."""
    if (response := _answer(error)) is not None:
        return response.status_code
    proxy = (str(one) for one in _chain(error) if type(one).__name__ == "ProxyError")
    return 407 if any(re.match(r"407\b", words) for words in proxy) else None


def _words(error: BaseException) -> str:
    """The root cause in one short line."""
    root = list(_chain(error))[-1]
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return f"{type(root).__name__}: {lines[0]}"[:200] if lines else type(root).__name__


def _asked_to_wait(response: Any) -> float:
    """Seconds that the hub asks to wait, 0 where it says nothing: Retry-After, or RateLimit's t."""
    if response is None:
        return 0.0
    told = response.headers.get("Retry-After") or ""
    plain = re.fullmatch(r"\s*(\d+)\s*", told)
    left = re.search(r"\br=0;\s*t=(\d+)", response.headers.get("RateLimit") or "")
    return max([_until(told), *(float(found.group(1)) for found in (plain, left) if found)])


def _until(date: str) -> float:
    """Seconds from now until a date of the web's form; 0 for a past one, and for other words."""
    try:
        then = parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return 0.0
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max((then - datetime.now(UTC)).total_seconds(), 0.0)


def _no_long_sleep(response: Any, *_: Any) -> None:
    """A hook of the client's session: its own patience has no end, that of `tried` has one."""
    if response.status_code >= 400 and _asked_to_wait(response) > LONGEST_WAIT:
        raise Busy(response)


def _session(what: str) -> Any:
    """The session that the client uses now. It reads the proxies and the certificates' file."""
    from huggingface_hub.utils import get_session

    try:
        return get_session()
    except Exception as error:
        raise _setting(what, error) from error


@contextmanager
def _watched(session: Any) -> Iterator[None]:
    """The hook in the client's session while we ask; other code of this process may use it, too."""
    hooks = getattr(session, "event_hooks", None)  # a client of before 1.0 does not sleep
    if hooks is None:
        yield
        return
    session.event_hooks = {**hooks, "response": [*hooks.get("response", []), _no_long_sleep]}
    try:
        yield
    finally:
        session.event_hooks = hooks


def _of_a_setting(error: BaseException) -> bool:
    """True where the client could not ask: no other try will do better."""
    return any(
        isinstance(one, UnicodeEncodeError | ImportError | ssl.SSLCertVerificationError)
        or type(one).__name__ in SETTINGS
        for one in _chain(error)
    )


def _setting(what: str, error: BaseException) -> HubAway:
    return HubAway(
        f"{what}: a setting of this machine keeps the client from asking the hub "
        f"({_words(error)}). See HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, the proxies (HTTPS_PROXY, "
        "ALL_PROXY) and the certificates (SSL_CERT_FILE); a notebook must be started again."
    )


def _of_this_disk(error: BaseException) -> OSError | None:
    """The error of this machine's own disk that is behind a failure, or None.

    An error of a file names it; a firewall says the same words of a connection, without a name.
    """
    for one in _chain(error):
        if isinstance(one, OSError) and (one.errno in FULL or one.filename is not None):
            return one
    return None


def unwritable(what: str, error: OSError) -> PublishedError:
    """One line about a file of this machine that cannot be used, or a disk that is full."""
    mend = "Free some space" if error.errno in FULL else "See whose it is and who may write there"
    place = error.filename or disk.hub_cache()
    return PublishedError(
        f"{what}: {place} cannot be used ({_words(error)}). {mend}, or name a folder on another "
        f"disk in HF_HUB_CACHE. {AGAIN} then; finished files are kept."
    )


def tried(call: Callable[[], T], what: str, endpoint: str) -> T:
    """What `call` returns; a hub that is busy or broken is asked again, later each time.

    Raises PublishedError: refused, or still nothing after the last try, or this disk is at fault.
    """
    for number in range(1, TRIES + 1):
        session = _session(what)
        try:
            with _watched(session):
                return call()
        except FAULTS:
            raise
        except Exception as error:  # requests and httpx, under the client, have no error in common
            if local := _of_this_disk(error):
                raise unwritable(what, local) from error
            if _of_a_setting(error):
                raise _setting(what, error) from error
            said, status = _words(error), _status(error)
            if status in REFUSED:
                asked = f" The hub is the one that HF_ENDPOINT names, {endpoint}: is it right?"
                raise PublishedError(
                    f"{what}: the hub {REFUSED[status]} ({status})."
                    + asked * bool(os.environ.get("HF_ENDPOINT"))
                ) from error
            wait = FIRST_WAIT * 2 ** (number - 1) * (1 + random.random() / 2)
            wait = max(wait, _asked_to_wait(_answer(error)))
            if number == TRIES or wait > LONGEST_WAIT:
                kind = HubAway if status is None else PublishedError
                raise kind(_gone(what, endpoint, status, said, wait)) from error
            say(f"  {what}: {said}; again in {wait:.0f} s (try {number + 1} of {TRIES})")
            time.sleep(wait)
    raise AssertionError("unreachable")


def _gone(what: str, endpoint: str, status: int | None, said: str, wait: float) -> str:
    """One line: what failed and what to do."""
    later = f"in {wait / 60:.0f} minutes" if wait > LONGEST_WAIT else "later"
    if status == 429:
        return f"{what}: the hub has had too many requests (429). {AGAIN} {later}."
    if status is not None:
        return f"{what}: the hub answers {status} ({said}). {AGAIN} {later}; whole files are kept."
    return (
        f"The hub ({endpoint}) cannot be reached or breaks off ({said}). {AGAIN} with a network; "
        "finished files are kept. Without one: copy a hub cache from a machine that has it and "
        "name it in HF_HUB_CACHE."
    )
