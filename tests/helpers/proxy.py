"""A real nginx in front of a service, without the rights of root, on a free port."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.processes import wait_for

WITHOUT = "no nginx is installed: the service behind a reverse proxy is not tried"
CONFIGURATION = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        {location}
    }}
}}
"""


def nginx() -> str | None:
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


@contextlib.contextmanager
def proxying(folder: Path, location: str) -> Iterator[int]:
    """Yield the port of an nginx with this `location` block."""
    program, errors = nginx(), folder / "error.log"
    assert program is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    file = folder / "nginx.conf"
    file.write_text(CONFIGURATION.format(folder=folder, port=port, location=location))
    process = subprocess.Popen(
        [program, "-p", str(folder), "-e", str(errors), "-c", str(file)], stdin=subprocess.DEVNULL
    )

    def answers() -> bool:
        assert process.poll() is None, errors.read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for("nginx", answers)
        yield port
    finally:
        process.kill()
        process.wait()
