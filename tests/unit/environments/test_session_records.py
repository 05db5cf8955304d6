"""The file of recorded sessions: whole lines only, also after a crash and on a full disk."""

import asyncio
import errno
import fcntl
import json
import resource
from contextlib import closing
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.environments.policy_server.records import Recorder
from dojang.environments.policy_server.requests import PolicyRequest, RequestRefused
from dojang.environments.policy_server.session import Session, SessionRules
from dojang.environments.policy_server.sessions import ServedSessions
from policy_clients import RandomEngine, policy_of


@pytest.fixture
def session(tokenizer: PreTrainedTokenizerBase) -> Session:
    """A session with one reply."""
    made = Session(policy_of(RandomEngine(tokenizer), tokenizer), SessionRules(9))
    asyncio.run(made.ask([PolicyRequest(prompt=(1, 2, 3))]))
    return made


def names(folder: Path) -> list[str]:
    with closing(Recorder(folder)) as recorder:
        return list(recorder.names())


@pytest.mark.parametrize(
    "cut", ["{", '{"ses', '{"session": "', '{"session": "b', '{"session": "b"', '{"session": "b", "']
)
def test_a_last_line_that_was_cut_is_removed(tmp_path: Path, session: Session, cut: str) -> None:
    with closing(Recorder(tmp_path)) as recorder:
        recorder.add("a", session)
    with (tmp_path / "sessions.jsonl").open("a") as file:
        file.write(cut)
    with closing(Recorder(tmp_path)) as recorder:
        assert list(recorder.names()) == ["a"]
        recorder.add("b", session)
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("text", ["something else", '{"other": 1}', '{"ses\n', '{"session": "b\n', '\n{"session": "b"'])
def test_another_file_is_refused_and_stays_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "sessions.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"line 1 of .* is no session"):
        names(tmp_path)
    assert (tmp_path / "sessions.jsonl").read_text() == text


def test_two_servers_do_not_write_to_one_file(tmp_path: Path, session: Session) -> None:
    with closing(Recorder(tmp_path)) as recorder:
        recorder.add("a", session)
        with pytest.raises(ConfigError, match=r"another server writes to .*sessions\.jsonl; end it, or choose another"):
            Recorder(tmp_path)
        recorder.add("b", session)
    assert names(tmp_path) == ["a", "b"]


def test_a_file_system_without_locks_takes_records(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with closing(Recorder(tmp_path)) as recorder:
        recorder.add("a", session)
    assert names(tmp_path) == ["a"]


def test_a_session_that_does_not_fit_the_disk_is_an_error_and_leaves_no_part(tmp_path: Path, session: Session) -> None:
    """A limit of the file's size stands for the disk: the write takes a part, without an error."""
    path, limits = tmp_path / "sessions.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(Recorder(tmp_path)) as recorder:
        recorder.add("a", session)
        whole = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, limits[1]))
        try:
            with pytest.raises(ConfigError, match=r"--record .*sessions\.jsonl cannot be written: File too large"):
                recorder.add("b", session)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == whole
        recorder.add("c", session)
    assert [json.loads(line)["session"] for line in path.read_text().splitlines()] == ["a", "c"]


def test_a_session_that_could_not_be_recorded_is_recorded_later(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    full, recorded = [True], []

    def finish(name: str, ended: Session) -> None:
        if full[0]:
            raise ConfigError("no space left")
        recorded.append(name)

    sessions = ServedSessions(lambda: session, finish, token=None, timeout_s=0.01)

    async def serve() -> None:
        sweeping = asyncio.create_task(sessions.sweep())
        sessions.find("key:a", None)
        session.end("its reward was given")
        sessions.ended(session)
        await asyncio.sleep(0.1)
        assert recorded == []
        full[0] = False
        while not recorded:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        sweeping.cancel()

    asyncio.run(asyncio.wait_for(serve(), 20))
    assert recorded == ["a"]
    assert [each.getMessage() for each in caplog.records] == ["the session a is not recorded yet: no space left"]
    with pytest.raises(RequestRefused, match="has ended"):
        sessions.find("key:a", None)


def test_what_could_not_be_recorded_at_the_end_is_named(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    def finish(name: str, ended: Session) -> None:
        raise ConfigError("no space left")

    sessions = ServedSessions(lambda: session, finish, token=None, timeout_s=60)
    for name in ("a", "b"):
        sessions.find(f"key:{name}", None)
    sessions.close("the server was stopped")
    assert caplog.records[-1].getMessage() == "sessions that are not recorded: a, b"
