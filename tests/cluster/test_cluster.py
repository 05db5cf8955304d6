"""Ray clusters over several hosts: what a job sees when all goes well, and when it does not.

Few clusters, and much asked of each: Ray takes its time to start.
"""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from network_hosts import NEEDS_HOSTS, Lab, no_leftovers, until

pytestmark = [*NEEDS_HOSTS]

MUCH = 300.0  # for Ray to start on three hosts that share two cores
JOB = Path(__file__).with_name("job.py")
COMMON = ("--timeout", str(MUCH), "--no-dashboard")


def test_a_job_outlives_cut_links_and_lost_hosts(make_lab: Callable[[int], Lab], tmp_path: Path) -> None:
    lab = make_lab(3)
    lab.describe({"everybody": [1, 2, 3]})
    orders, scrape = tmp_path / "orders", tmp_path / "prometheus.yml"
    orders.mkdir()
    head, second, third = lab.hosts
    lab.start(
        *(
            *COMMON,
            "--reconnect",
            "30",
            "--prometheus",
            str(scrape),
            "--",
            sys.executable,
            str(JOB),
            "outlive",
            str(orders),
        ),
        RAY_AUTH_TOKEN="correct-horse-battery-staple",
    )
    head.says("on 3 nodes: algo-1 algo-2 algo-3", MUCH)
    assert "auth token, interface eth0" in head.said()
    assert "algo-1 is the head of 3 (SageMaker); waiting for algo-2, algo-3" in head.said()
    assert "algo-2 is a worker of algo-1" in second.said()
    jobs = yaml.safe_load(scrape.read_text())["scrape_configs"][0]["static_configs"]
    assert {job["labels"]["host"]: job["targets"] for job in jobs} == {h.name: [f"{h.address}:8080"] for h in lab.hosts}

    lab.link(3, "down")  # for a while: longer than a connection may be silent
    head.says("algo-3 does not answer; waiting 30 s", 40)
    lab.link(3, "up")
    head.says("algo-3 reconnected", 30)
    (orders / "count").touch()
    head.says("still 3 nodes", 60)

    second.signal(signal.SIGKILL)  # the bootstrap process alone: Ray has to go by itself
    until(lambda: not second.processes(), 15, lambda: f"{len(second.processes())} processes of algo-2 gone")
    assert second.ends(5) == -signal.SIGKILL
    lab.link(3, "down")  # for good
    assert third.ends(90) == 9
    assert "the head algo-1 could not be reached on port 6378 for 30 s" in third.failure.read_text()
    head.says("algo-2 is lost; continuing with", 60)
    head.says("algo-3 is lost; continuing with 1 of 3 hosts", 60)
    (orders / "work").touch()
    head.says("all work done on algo-1", 180)
    assert head.ends(60) == 0
    assert not head.failure.exists()
    no_leftovers(lab)
    assert not any("correct-horse-battery-staple" in host.said() for host in lab.hosts)


@pytest.mark.parametrize(("patience", "said"), [("120000", "answered"), ("20000", "lost: Actor")])
def test_a_request_over_a_cut_link_is_answered_or_fails_in_time(
    make_lab: Callable[[int], Lab], patience: str, said: str
) -> None:
    """The answer is sent while the link is cut. The system tries for Ray's own 20 s to deliver it, then forgets the
    connection; without another question whoever asked would not know for minutes. The two minutes that hosts get from
    us outlast the cut."""
    lab = make_lab(2)
    head, _ = lab.hosts
    lab.start(
        *(*COMMON, "--hosts", "algo-1,algo-2", "--", sys.executable, str(JOB), "ask", "8"),
        **({} if patience == "120000" else {"RAY_grpc_keepalive_timeout_ms": patience}),
    )
    head.says("asked", MUCH)
    time.sleep(3)
    lab.link(2, "down")
    time.sleep(45)  # shorter than Ray takes to give the host up
    lab.link(2, "up")
    head.says(f" s {said}", 100)
    assert [host.ends(60) for host in lab.hosts] == [0, 0]


def test_a_failure_reaches_every_host(make_lab: Callable[[int], Lab]) -> None:
    lab = make_lab(3)
    lab.describe({"workers": [1, 2], "boss": [3]})
    lab.start(*COMMON, "--head-group", "boss", "--coordinator", "--", sys.executable, str(JOB), "fail")
    codes = [host.ends(MUCH) for host in lab.hosts]
    assert codes == [3, 3, 3]
    assert "RAN on algo-3, work on algo-1 algo-2" in lab.hosts[2].said()
    for host in lab.hosts:
        assert host.failure.read_text().strip() == "the rewards were all equal"
    assert not any("RAN" in host.said() for host in lab.hosts[:2])
    no_leftovers(lab)


def test_told_to_stop_the_command_saves_and_all_hosts_leave(make_lab: Callable[[int], Lab], tmp_path: Path) -> None:
    """With a coordinator and a single worker: neither may think that it is alone."""
    lab = make_lab(2)
    saved = tmp_path / "saved"
    lab.start(
        *(*COMMON, "--hosts", "algo-1,algo-2", "--coordinator", "--grace", "60"),
        *("--", sys.executable, str(JOB), "save", str(saved)),
    )
    head, worker = lab.hosts
    head.says("computing on algo-2", MUCH)
    began = time.monotonic()
    for host in lab.hosts:  # as SageMaker does
        host.signal(signal.SIGTERM)
    assert head.ends(60) == 130
    assert worker.ends(60) == 130
    assert time.monotonic() - began < 60
    assert saved.read_text() == "with help of algo-2"  # Ray was still there
    assert "SIGTERM: forwarded to the command" in head.said()
    assert "told to stop" in worker.said()
    no_leftovers(lab)


def test_a_host_that_does_not_come_is_named(make_lab: Callable[[int], Lab]) -> None:
    lab = make_lab(3)
    began = time.monotonic()
    lab.start(*("--timeout", "60", "--no-dashboard", "--hosts", "algo-1,algo-2,algo-3", "--", "true"), hosts=[1, 2])
    codes = [host.ends(100) for host in lab.hosts[:2]]
    assert codes == [9, 9]
    assert time.monotonic() - began < 100
    for host in lab.hosts[:2]:
        assert "hosts are missing: " in host.failure.read_text()
        assert "algo-3 has not connected to the head" in host.failure.read_text()
    no_leftovers(lab)
