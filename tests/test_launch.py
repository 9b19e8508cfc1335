import socket

from runtime.launch.ports import choose_ports


def test_ports_are_free_and_all_different():
    ports = choose_ports(50)
    assert len(set(ports)) == 50
    assert all(10000 <= port < 32768 for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass
