"""The command `serve`: the training service in this process."""

from importlib.util import find_spec
from typing import Annotated

import typer

from hogwild.cli.arguments import StateDir
from hogwild.cli.output import print_message, print_result
from hogwild.errors import UsageError

SERVICE_PORT = 8470


def serve(
    state_dir: StateDir = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")] = SERVICE_PORT,
) -> int:
    """Run the training service: a queue of jobs, a page, an API. Ctrl-C ends it; jobs go on."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"hogwild serve needs {' and '.join(missing)}: pip install 'hogwild[service]'", code="usage/missing-extra"
        )
    from hogwild.service.app import run
    from hogwild.service.folders import StateFolder, state_folder

    state = StateFolder(state_folder(state_dir))

    def tell(link: str, port: int) -> None:
        print_result(f"serving {state.path} on port {port}; open:\n  {link}")
        print_message(
            "Submit with `hogwild submit JOB.yaml`. Ctrl-C ends the service; running jobs go on, and the next service "
            f"finds them.\nFrom another machine: ssh -L {port}:127.0.0.1:{port} HOST, then open the same link."
        )

    run(state, port, tell)
    return 0
