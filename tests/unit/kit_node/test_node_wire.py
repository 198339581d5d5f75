"""node_wire: both ends show that they know the token, and lines of JSON arrive whole or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import node_wire
import pytest

TOKEN = b"t" * 32


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection over loopback: client and server."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    for one in (client, server):
        one.settimeout(20)
    yield client, server
    client.close()
    server.close()


def shake(client: socket.socket, server: socket.socket, theirs: bytes = TOKEN) -> tuple[Future[bytes], Future[bytes]]:
    with ThreadPoolExecutor(2) as pool:
        both = (
            pool.submit(node_wire.greet, client, TOKEN, 20.0),
            pool.submit(node_wire.admit, server, theirs, 20.0),
        )
        # An end that turns the other one away closes the connection, as all callers do.
        for future, link in zip(both, (client, server)):  # noqa: B905 - runs on Python 3.8, too
            future.add_done_callback(lambda done, link=link: link.close() if done.exception() else None)  # type: ignore[misc]
    return both


def test_both_ends_have_the_same_key_which_is_another_one_each_time(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = shake(*ends)
    first = client.result()
    assert first == server.result()
    again, _ = shake(*ends)
    assert again.result() != first
    assert TOKEN not in first


def test_a_server_with_another_token_is_a_stranger_and_so_is_the_client(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, server = shake(*ends, theirs=b"u" * 32)
    assert isinstance(server.exception(), node_wire.StrangerError)
    assert isinstance(client.exception(), (node_wire.StrangerError, ConnectionError))


def test_an_end_cannot_show_the_other_ones_answer_as_its_own(ends: tuple[socket.socket, socket.socket]) -> None:
    """A client without the token sends back what the server says: the number, and whatever it can make of it."""
    client, server = ends
    with ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(node_wire.admit, server, TOKEN, 20.0)
        number = node_wire.read_exactly(client, node_wire.NUMBER_BYTES)
        client.sendall(number + node_wire.proof(TOKEN, "server", number, number))
        assert isinstance(admitted.exception(), node_wire.StrangerError)


def test_a_client_that_says_nothing_is_a_stranger(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(node_wire.StrangerError):
        node_wire.admit(ends[1], TOKEN, 0.05)


def test_messages_arrive_in_order_until_the_other_end_closes(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    long = "x" * 300_000

    def send() -> None:
        node_wire.say(client, a=1)
        node_wire.say(client, b=long)
        client.close()

    sender = threading.Thread(target=send)
    sender.start()
    assert list(node_wire.messages(server)) == [{"a": 1}, {"b": long}]
    sender.join()


@pytest.mark.parametrize("line", [b'{"a": 1', b"[1]\n", b"\xff\n", b"", b"nul\n"])
def test_a_line_that_is_no_message_ends_the_connection(line: bytes) -> None:
    with pytest.raises(ConnectionError, match="in a line"):
        node_wire.decode(line)


def test_a_message_is_the_same_after_a_line() -> None:
    message = {"list": "kit-blocks-1 a\nb\n", "port": 5, "done": True, "source": None}
    assert node_wire.decode(node_wire.encode(message)) == message
    assert node_wire.encode(message).count(b"\n") == 1


def test_bytes_that_end_early_are_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    client.sendall(b"1234")
    assert node_wire.read_exactly(server, 3) == b"123"
    client.close()
    with pytest.raises(ConnectionError):
        node_wire.read_exactly(server, 3)


def test_a_node_is_told_its_address_on_the_way_to_another_one() -> None:
    assert node_wire.own_address("127.0.0.1") == "127.0.0.1"
