"""How long a hub is waited for, which failures are said at once, and what a download leaves."""

import ssl
import threading
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
import test_published_hub as toy
from huggingface_hub import constants
from huggingface_hub.utils import get_session
from test_published_hub import FILES, FIRST, OPEN, PIN, SECOND, contents

from circuitbook.published import fetch, patience
from circuitbook.published.fetch import HubAway, PublishedError

hub, place = toy.hub, toy.place  # the fixtures


@pytest.fixture
def waits(monkeypatch):
    """The seconds that were waited for, by us and by the client; nobody really waits."""
    found = []
    monkeypatch.setattr(patience.time, "sleep", found.append)
    return found


@pytest.fixture
def new_session():
    """The client makes a new session here and afterwards: it reads the proxies at its start."""
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


def fetch_or_be_refused(hub, status):
    """A whole fetch of the toy (status 0), or one that ends at the first answer."""
    if not status:
        return fetch.folder(PIN)
    hub.fault("config.json", "HEAD", status=status)
    with pytest.raises(PublishedError):
        fetch.folder(PIN)


class Answer:
    """What is read of a response."""

    status_code = 429

    def __init__(self, **headers):
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.mark.parametrize("answer, seconds", [
    (None, 0), (Answer(), 0), (Answer(Retry_After="7"), 7), (Answer(Retry_After=" 12 "), 12),
    (Answer(Retry_After="7 Oct"), 0), (Answer(Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), 0),
    (Answer(Retry_After=format_datetime(datetime(2999, 1, 1))), pytest.approx(3e10, rel=0.1)),
    (Answer(RateLimit='"api";r=0;t=9'), 9), (Answer(RateLimit='"api";r=5;t=9'), 0),
    (Answer(Retry_After="7", RateLimit='"api";r=0;t=9'), 9),
    (Answer(Retry_After="11", RateLimit='"api";r=0;t=9'), 11),
])  # fmt: skip
def test_how_long_a_hub_asks_to_wait(answer, seconds):
    assert patience._asked_to_wait(answer) == seconds


def test_five_minutes_are_waited_and_no_more(hub, place, waits):
    hub.fault("config.json", "HEAD", status=429, headers={"Retry-After": "300"})
    hub.fault("config.json", "HEAD", status=429, headers={"Retry-After": "301"})
    with pytest.raises(PublishedError, match="again in 5 minutes"):
        fetch.folder(PIN)
    assert waits == [300]


def test_a_hub_that_asks_for_less_than_we_would_wait_gets_more_time(hub, place, monkeypatch, waits):
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.5)
    hub.fault("config.json", "HEAD", times=4, status=429, headers={"Retry-After": "1"})
    fetch.folder(PIN)
    assert waits[0] >= 1 and 2 <= waits[2] <= 3 and 4 <= waits[3] <= 6


@pytest.mark.parametrize("part, method", [("store/them/Toy", "GET"), ("resolve/", "HEAD")])
def test_the_client_does_not_sleep_for_an_hour_by_itself(hub, place, waits, part, method):
    if method == "HEAD":  # the limit comes when our own questions have been answered
        real, asked = hub.note, []

        def note(*request):
            asked.append(request[0])
            if len(asked) == 3:
                hub.fault(part, method, status=429, headers={"Retry-After": "3600"})
            return real(*request)

        hub.note = note
    else:
        hub.fault(part, method, status=429, headers={"Retry-After": "3600"})
    with pytest.raises(PublishedError, match="429.*again in 60 minutes") as error:
        fetch.folder(PIN)
    assert waits == [] and not isinstance(error.value, HubAway)
    assert contents(fetch.folder(PIN)) == FILES  # the next run goes on


def test_a_long_wait_of_any_kind_is_said_in_minutes(hub, place, waits):
    hub.fault("store/them/Toy", "GET", status=503, headers={"Retry-After": "3600"})
    with pytest.raises(PublishedError, match="answers 503 .Busy: it wants.*again in 60 minutes"):
        fetch.folder(PIN)
    assert waits == []


@pytest.mark.parametrize("status", [0, 404])
def test_the_session_is_left_as_it_was(hub, place, status):
    """Other code of a notebook uses the same one, and may wait as long as it likes."""
    before = {name: list(hooks) for name, hooks in get_session().event_hooks.items()}
    fetch_or_be_refused(hub, status)
    after = {name: list(hooks) for name, hooks in get_session().event_hooks.items()}
    assert after == before


def test_a_fault_of_a_program_is_not_called_one_of_the_network(waits):
    def wrong():
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        patience.tried(wrong, "x", "y")
    assert waits == []


def test_causes_that_go_in_a_circle_end():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert list(patience._chain(one)) == [one, two]


# ---- what asking again would not mend ------------------------------------------------------------


@pytest.mark.parametrize("name, value, words", [
    ("HF_ENDPOINT", "", "HF_ENDPOINT is '', .*https://, or unset it"),
    ("HF_ENDPOINT", "mirror.example", "HF_ENDPOINT is 'mirror.example'.*https://, or unset it"),
    ("HF_TOKEN", "hf_ü", "setting of this machine.*HF_TOKEN"),
    ("ALL_PROXY", "socks5://127.0.0.1:9", "setting of this machine.*ALL_PROXY"),
    ("ALL_PROXY", "socks://127.0.0.1:9", "setting of this machine.*ALL_PROXY"),
    ("SSL_CERT_FILE", "/nowhere/ca.pem", "setting of this machine.*SSL_CERT_FILE"),
])  # fmt: skip
def test_a_setting_that_keeps_the_client_from_asking(
    hub, place, new_session, monkeypatch, waits, name, value, words
):
    monkeypatch.setenv(name, value)
    with pytest.raises(HubAway, match=words) as error:
        fetch.folder(PIN)
    assert len(str(error.value).splitlines()) == 1
    assert waits == [] and hub.requests == []


def test_a_client_that_began_offline(hub, place, new_session, monkeypatch, waits):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # though the variable is unset by now
    with pytest.raises(HubAway, match="HF_HUB_OFFLINE.*a notebook must be started again"):
        fetch.folder(PIN)
    assert waits == [] and hub.requests == []


def test_a_certificate_that_nobody_signed(place, waits):
    def refused():
        raise RuntimeError from ssl.SSLCertVerificationError("self-signed certificate in chain")

    with pytest.raises(HubAway, match="setting.*self-signed.*SSL_CERT_FILE"):
        patience.tried(refused, "x", "y")
    assert waits == []


def test_a_mirror_with_another_commit_is_refused_before_the_download(hub, place, waits):
    hub.fault("config.json", "HEAD", status=200, headers={"ETag": '"a"', "X-Repo-Commit": SECOND})
    with pytest.raises(HubAway, match="222222222222 of them/Toy where 111111111111.*HF_ENDPOINT"):
        fetch.folder(PIN)
    assert waits == [] and len(hub.requests) == 1


class Gone(Exception):
    """An error about an answer 404."""

    response = Answer()
    response.status_code = 404


@pytest.mark.parametrize("told", [True, False])
def test_a_missing_file_at_a_hub_of_ones_own_makes_one_ask_for_the_hub(place, monkeypatch, told):
    def gone():
        raise Gone

    if not told:
        monkeypatch.delenv("HF_ENDPOINT")
    with pytest.raises(PublishedError, match="x: .*withdrawn.*404") as error:
        patience.tried(gone, "x", "https://hub.example")
    hint = "HF_ENDPOINT names, https://hub.example: is it right?"
    assert (hint in str(error.value)) == told == ("HF_ENDPOINT" in str(error.value))


def test_a_proxy_that_wants_a_password(hub, place, waits):
    hub.fault("config.json", "HEAD", status=407)
    with pytest.raises(PublishedError, match=r"name and a password.*HTTPS_PROXY\) \(407\)"):
        fetch.folder(PIN)
    assert waits == [] and len(hub.requests) == 1


class Gate(BaseHTTPRequestHandler):
    """A proxy that lets nobody through without a password."""

    def do_CONNECT(self):
        self.send_response(407)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_proxy_that_wants_a_password_before_it_connects(place, new_session, monkeypatch, waits):
    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as gate:
        threading.Thread(target=gate.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{gate.server_port}")
        monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")  # no name is looked up
        with pytest.raises(PublishedError, match=r"name and a password.*HTTPS_PROXY\) \(407\)"):
            fetch.folder(PIN)
        gate.shutdown()
    assert waits == []


@pytest.mark.parametrize("headers", [{}, {"ETag": '"a"'}, {"X-Repo-Commit": FIRST}])
def test_a_login_page_is_no_hub(hub, place, waits, capsys, headers):
    hub.fault("config.json", "HEAD", status=200, headers=headers)
    with pytest.raises(HubAway, match="answers, but not as a hub.*login page.*browser"):
        fetch.folder(PIN)
    assert waits == [] and len(hub.requests) == 1
    assert "Fetching" not in capsys.readouterr().err


# ---- what the download does and leaves -----------------------------------------------------------


def test_a_repository_that_moves_between_two_questions(hub, place):
    """The commit that the first file names is the one that all others are asked of."""
    real = hub.note

    def note(method, path, wanted):
        found = real(method, path, wanted)
        if method == "HEAD" and "resolve-cache" in path:  # the first file has been asked about
            commits = hub.repositories["model", "them/Open"]
            newest = {SECOND: commits[SECOND], FIRST: commits[FIRST]}
            hub.repositories["model", "them/Open"] = newest
        return found

    hub.note = note
    assert contents(fetch.folder(OPEN)) == FILES and fetch.commit(OPEN) == FIRST
    heads = [path for method, path, _ in hub.requests if method == "HEAD"]
    large = [path for path in heads if path.endswith("model_final.pth")]
    assert large[0] == f"/them/Open/resolve/{FIRST}/model_final.pth"


@pytest.mark.parametrize("missing, taken", [(63, False), (65, True)])
def test_a_little_room_is_left_on_the_disk(hub, place, monkeypatch, missing, taken):
    class Disk:
        free = sum(map(len, FILES.values())) + (missing << 20)

    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: Disk)
    if taken:
        assert contents(fetch.folder(PIN)) == FILES
    else:
        with pytest.raises(PublishedError, match="needs 1 MB"):
            fetch.folder(PIN)


def test_only_what_is_still_to_come_is_announced(hub, place, monkeypatch, capsys):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    huggingface_hub.hf_hub_download(
        "them/Open", "model_final.pth", cache_dir=place, endpoint=hub.url
    )
    fetch.folder(OPEN)
    assert "Fetching open: 0.0 MB from" in capsys.readouterr().err


def test_a_file_that_vanishes_after_it_came(hub, place, monkeypatch):
    real = fetch._download

    def download(*given):
        there, compared = real(*given)
        (there / "config.json").unlink()
        return there, compared

    monkeypatch.setattr(fetch, "_download", download)
    with pytest.raises(PublishedError, match="config.json of them/Toy.* although it was fetched"):
        fetch.folder(PIN)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("status", [0, 404])
def test_the_clients_own_switch_is_put_back(hub, place, monkeypatch, before, status):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", before)
    fetch_or_be_refused(hub, status)
    assert constants.HF_HUB_DISABLE_XET is before
