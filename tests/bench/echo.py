"""A grpc.aio server that gives back what it gets, over the lab's mTLS: the ceiling of a unary call.

`python -m tests.bench.echo HOME` prints its port when it serves, and ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

METHOD: Final = "/bench.Echo/Echo"


async def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _serve(home: Path) -> None:
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),))
    credentials = grpc.ssl_server_credentials(
        [((home / "ledger/server.key").read_bytes(), (home / "ledger/server.crt").read_bytes())],
        root_certificates=(home / "ca.crt").read_bytes(),
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    print(port, flush=True)
    await asked.wait()
    await server.stop(None)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(Path(sys.argv[1])))
    else:
        uvloop.run(_serve(Path(sys.argv[1])))
