"""Nothing inside reaches a network, a socket of the host, or another kind of address."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve.environments.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONNECT = """
import socket
with socket.socket(socket.{family}, socket.{kind}) as made:
    made.settimeout(2)
    made.connect({address!r})
    made.send(b"escaped")
"""
OUTSIDE = {
    "tcp over ipv4": ("AF_INET", "SOCK_STREAM", ("1.1.1.1", 80)),
    "udp over ipv4": ("AF_INET", "SOCK_DGRAM", ("1.1.1.1", 53)),
    "tcp over ipv6": ("AF_INET6", "SOCK_STREAM", ("2606:4700:4700::1111", 80)),
    "udp over ipv6": ("AF_INET6", "SOCK_DGRAM", ("2606:4700:4700::1111", 53)),
    "a private network": ("AF_INET", "SOCK_STREAM", ("10.0.0.1", 80)),
    "link-local metadata": ("AF_INET", "SOCK_STREAM", ("169.254.169.254", 80)),
}


@pytest.mark.parametrize("name", OUTSIDE)
async def test_no_address_outside_is_reached(box: Sandbox, name: str) -> None:
    family, kind, address = OUTSIDE[name]
    result = await box.python(CONNECT.format(family=family, kind=kind, address=address), keep=False, timeout_s=5)
    assert result.error_type == "OSError"
    assert "unreachable" in result.error


async def test_no_name_is_resolved(box: Sandbox) -> None:
    code = "import socket; socket.getaddrinfo('example.com', 80)"
    assert (await box.python(code, keep=False, timeout_s=10)).error_type == "gaierror"


@contextmanager
def listening(address: tuple | str, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> Iterator[tuple]:
    """A server on the host; what it received, and its address."""
    received: list[bytes] = []
    with socket.socket(family, kind) as server:
        server.bind(address)
        if kind == socket.SOCK_STREAM:
            server.listen()

        def serve() -> None:
            while True:
                try:
                    received.append(server.accept()[0].recv(100) if kind == socket.SOCK_STREAM else server.recv(100))
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield received, server.getsockname()
        server.shutdown(socket.SHUT_RDWR) if kind == socket.SOCK_STREAM else None


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("family, address", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_servers_on_the_hosts_loopback_receive_nothing(
    box: Sandbox, kind: int, family: int, address: str
) -> None:
    with listening((address, 0), family, kind) as (received, there):
        code = CONNECT.format(family=family.name, kind=kind.name, address=there[:2])
        result = await box.python(code, keep=False, timeout_s=5)
        if kind == socket.SOCK_STREAM:
            assert result.error_type == "ConnectionRefusedError"
            said = await box.shell(f"exec 3<>/dev/tcp/{address}/{there[1]}", timeout_s=5)
            assert said.exit_code != 0
        await asyncio.sleep(0.05)
        assert received == []


async def test_unix_socket_of_the_host_by_path_is_not_there(box: Sandbox, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with listening(path, socket.AF_UNIX) as (received, _):
        code = CONNECT.format(family="AF_UNIX", kind="SOCK_STREAM", address=path)
        assert (await box.python(code, keep=False, timeout_s=5)).error_type == "FileNotFoundError"
        assert received == []


async def test_abstract_unix_socket_of_the_host_is_not_there(box: Sandbox) -> None:
    name = f"\0clawrl-test-{id(box)}"
    with listening(name, socket.AF_UNIX) as (received, _):
        code = CONNECT.format(family="AF_UNIX", kind="SOCK_STREAM", address=name)
        assert (await box.python(code, keep=False, timeout_s=5)).error_type == "ConnectionRefusedError"
        assert received == []


async def test_only_loopback_is_there(box: Sandbox) -> None:
    result = await box.python("import socket; [name for _, name in socket.if_nameindex()]", keep=False, timeout_s=5)
    assert result.value == "['lo']"
    routes = await box.shell(
        "cat /proc/net/route /proc/net/tcp /proc/net/unix | grep -v -i '[a-z]' | wc -l", timeout_s=5
    )
    assert routes.stdout.strip() == "0"


REFUSED = {
    "vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "packet": "socket.socket(17, socket.SOCK_RAW)",
    "bluetooth": "socket.socket(31, socket.SOCK_STREAM)",
    "the kernel's cryptography": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "tipc": "socket.socket(30, socket.SOCK_STREAM)",
    "a family unknown": "socket.socket(63, socket.SOCK_STREAM)",
    "a pair of tipc": "socket.socketpair(30, socket.SOCK_STREAM)",
    "raw ipv4": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "raw ipv6": "socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)",
    "ping": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)",
    "an interface of its own": "fcntl.ioctl(open('/dev/net/tun', 'r+b', 0), 0x400454ca, b'tun0' + bytes(36))",
    "another address for lo": "fcntl.ioctl(socket.socket(), 0x8916, b'lo'.ljust(16, bytes(1)) + bytes(24))",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_other_kinds_of_sockets_are_refused(box: Sandbox, name: str) -> None:
    result = await box.python(f"import fcntl, socket\n{REFUSED[name]}", keep=False, timeout_s=5)
    assert result.error_type in ("PermissionError", "FileNotFoundError", "OSError"), result


async def test_two_sandboxes_share_no_network(box: Sandbox, own_box: Sandbox) -> None:
    serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); a = socket.socket(socket.AF_UNIX)"
    await box.python(f"{serve}; a.bind(chr(0) + 'x'); a.listen(); port = s.getsockname()[1]", keep=True, timeout_s=5)
    port = (await box.python("port", keep=True, timeout_s=5)).value
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"
    assert (await own_box.python(code, keep=False, timeout_s=5)).error_type == "ConnectionRefusedError"
    code = "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + 'x')"
    assert (await own_box.python(code, keep=False, timeout_s=5)).error_type == "ConnectionRefusedError"
