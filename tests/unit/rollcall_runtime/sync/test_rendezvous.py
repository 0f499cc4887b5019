"""Members of a session find each other through its table; no other process can."""

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync import rendezvous_server
from rollcall_runtime.sync.engine import encode_descriptor
from rollcall_runtime.sync.errors import AbortedError, JoinFailedError
from rollcall_runtime.sync.rendezvous import SessionRendezvous, address_descriptor, address_of
from rollcall_runtime.sync.rendezvous_connection import RendezvousAddress, encode_frame
from rollcall_runtime.sync.rendezvous_server import RendezvousServer

HOST = "127.0.2.1"


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    made = RendezvousServer(HOST)
    yield made
    made.close()


def seats_at(address: RendezvousAddress, size: int) -> list[Seat]:
    descriptor = encode_descriptor(json.dumps(address_descriptor(address)).encode())
    return [Seat(MemberId(f"pod-{rank}", "b"), HOST, descriptor) for rank in range(size)]


def enter(
    address: RendezvousAddress, *, session: str = "job/1.1.0", size: int = 2, seconds: float = 2.0
) -> SessionRendezvous:
    return SessionRendezvous(
        session=session,
        seats=seats_at(address, size),
        deadline=time.monotonic() + seconds,
        sleep=time.sleep,
    )


def test_it_listens_on_its_address_alone(server: RendezvousServer) -> None:
    socket.create_connection((HOST, server.address.port), timeout=1).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.address.port), timeout=1)


def test_members_meet_and_exchange_values(server: RendezvousServer) -> None:
    def member(rank: int) -> bytes:
        rendezvous = enter(server.address, size=3)
        rendezvous.wait_for_all_seats(rank)
        rendezvous.put(str(rank), bytes([rank, 255]))
        received = rendezvous.get(str((rank + 1) % 3))
        rendezvous.close()
        return received

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(member, range(3))) == [b"\x01\xff", b"\x02\xff", b"\x00\xff"]


def test_members_meet_at_an_ipv6_address() -> None:
    server = RendezvousServer("::1")
    rendezvous = enter(server.address, size=1)
    rendezvous.wait_for_all_seats(0)
    rendezvous.put("key", b"value")
    assert rendezvous.get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.address.port), timeout=1)
    rendezvous.close()
    server.close()


def test_a_key_that_no_member_stores_is_named_with_the_time_waited() -> None:
    server = RendezvousServer(HOST)
    rendezvous = enter(server.address, size=1, seconds=0.05)
    with pytest.raises(JoinFailedError, match=r"timed out after 0\.0\d+ s waiting for 'key'"):
        rendezvous.get("key")
    rendezvous.close()
    server.close()


def test_an_empty_room_is_forgotten(server: RendezvousServer) -> None:
    rendezvous = enter(server.address, size=1)
    rendezvous.wait_for_all_seats(0)
    assert server.sessions == 1
    rendezvous.close()
    deadline = time.monotonic() + 2
    while server.sessions and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.sessions == 0


@pytest.mark.alone
def test_an_empty_seat_is_named_at_the_deadline(server: RendezvousServer) -> None:
    rendezvous = enter(server.address, size=2, seconds=0.1)
    began = time.monotonic()
    with pytest.raises(JoinFailedError, match="1 of 2 seats") as caught:
        rendezvous.wait_for_all_seats(0)
    assert caught.value.peer == MemberId("pod-1", "b")
    assert time.monotonic() - began < 0.4
    rendezvous.close()


def test_rooms_do_not_mix(server: RendezvousServer) -> None:
    old = enter(server.address, session="job/1.1.0", seconds=0.1)
    new = enter(server.address, session="job/1.1.1", seconds=0.1)
    for rank, rendezvous in enumerate((old, new)):
        with pytest.raises(JoinFailedError):
            rendezvous.wait_for_all_seats(rank)
        rendezvous.close()


def test_a_client_without_the_secret_is_refused(server: RendezvousServer) -> None:
    outsider = enter(RendezvousAddress(HOST, server.address.port, "guess"))
    with pytest.raises(JoinFailedError, match=r"closed the connection|reset"):
        outsider.wait_for_all_seats(0)
    outsider.close()
    assert server.sessions == 0


@pytest.mark.parametrize(
    "nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x01{", b"\x00"]
)
def test_nonsense_is_turned_away(server: RendezvousServer, nonsense: bytes) -> None:
    connection = socket.create_connection((HOST, server.address.port), timeout=5)
    with connection, contextlib.suppress(OSError):  # reset: turned away already
        connection.sendall(nonsense)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    rendezvous = enter(server.address, size=1)
    rendezvous.wait_for_all_seats(0)
    rendezvous.close()


def test_a_wait_ends_when_the_session_is_given_up(server: RendezvousServer) -> None:
    given_up = threading.Event()

    def sleep(seconds: float) -> None:
        if given_up.wait(seconds):
            raise AbortedError("given up")

    seats = seats_at(server.address, 2)
    rendezvous = SessionRendezvous(
        session="r", seats=seats, deadline=time.monotonic() + 10, sleep=sleep
    )
    timer = threading.Timer(0.05, given_up.set)
    timer.start()
    with pytest.raises(AbortedError):
        rendezvous.wait_for_all_seats(0)
    rendezvous.close()
    timer.join()


def test_a_dead_sender_is_named() -> None:
    closed = RendezvousServer(HOST)
    inside = enter(closed.address)
    closed.close()
    with pytest.raises(JoinFailedError) as caught:
        inside.wait_for_all_seats(1)
    assert caught.value.peer == MemberId("pod-0", "b")
    inside.close()
    with pytest.raises(JoinFailedError) as caught:
        enter(closed.address, seconds=0.1)
    assert caught.value.peer == MemberId("pod-0", "b")


@pytest.mark.parametrize("descriptor", ["", "?", "e30=", "W10="])
def test_a_descriptor_that_is_not_a_senders_is_refused(descriptor: str) -> None:
    seat = Seat(MemberId("pod-0", "b"), HOST, descriptor)
    with pytest.raises(JoinFailedError, match="descriptor") as caught:
        address_of(seat)
    assert caught.value.peer == seat.member


def test_members_meet_while_outsiders_hold_all_the_connections_that_they_can(
    server: RendezvousServer,
) -> None:
    with contextlib.ExitStack() as open_ones:
        for _ in range(200):
            place = (HOST, server.address.port)
            open_ones.enter_context(socket.create_connection(place, timeout=5))
        member = enter(server.address, size=1)
        member.wait_for_all_seats(0)
        member.close()
        assert len(server._unauthenticated) <= 128


def test_what_is_refused_is_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_server, "_HELLO_SECONDS", 0.2)
    refused: queue.Queue[str] = queue.Queue()
    server = RendezvousServer(HOST, refused=refused.put)
    for sent, kind in (
        (b"\x00\x00\x00\x02[]", "malformed"),
        (b"\xff\xff\xff\xff", "malformed"),
        (encode_frame({"secret": "guess", "session": "s"}), "wrong_secret"),
        (encode_frame({"secret": ["guess"], "session": "s"}), "malformed"),
        (b"\x00", "slow_hello"),
    ):
        with socket.create_connection((HOST, server.address.port), timeout=10) as outsider:
            outsider.sendall(sent)
            assert refused.get(timeout=10) == kind
    server.close()


def test_a_hello_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_server, "_HELLO_SECONDS", 0.3)
    refused: queue.Queue[str] = queue.Queue()
    server = RendezvousServer(HOST, refused=refused.put)
    with socket.create_connection((HOST, server.address.port), timeout=10) as outsider:
        outsider.sendall(b"\x00\x00\x0f\xff")
        deadline = time.monotonic() + 10
        while refused.empty() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # closed meanwhile
                outsider.sendall(b" ")
            time.sleep(0.05)
    assert refused.get_nowait() == "slow_hello"
    server.close()


def test_members_meet_after_a_time_in_which_no_thread_was_to_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, start = RendezvousServer(HOST), threading.Thread.start
    failed = threading.Event()

    def fails_once(thread: threading.Thread) -> None:
        if failed.is_set():
            return start(thread)
        failed.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    socket.create_connection((HOST, server.address.port), timeout=5).close()
    assert failed.wait(10)
    member = enter(server.address, size=1)
    member.wait_for_all_seats(0)
    member.close()
    server.close()
