"""Keeps Ray Serve's replicas off the network where Ray itself runs on loopback.

Call `stay_on_loopback()` in each deployment's `__init__`: a replica binds after it.

Why: every replica starts a gRPC server for calls between deployments, and binds it to all interfaces, whatever the
node's address is (Ray 2.60, `ray/serve/_private/replica.py`). Whoever reaches it can call the deployment.
What it does: binds it to 127.0.0.1 where that is the node's address. On a cluster it changes nothing.
"""

from typing import Any

import ray.util
from ray.serve._private import replica

_bind = replica.add_port_to_grpc_server


def _bind_to_loopback(server: Any, address: str, *rest: Any, **named: Any) -> int:
    if ray.util.get_node_ip_address() == "127.0.0.1":
        address = address.replace("[::]", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")
    return _bind(server, address, *rest, **named)


def stay_on_loopback() -> None:
    """From now on, in this process."""
    replica.add_port_to_grpc_server = _bind_to_loopback
