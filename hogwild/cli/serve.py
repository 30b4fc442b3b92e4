"""The command `serve`: the training service in this process."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from hogwild.cli.arguments import StateDir
from hogwild.cli.init import job_text, list_tasks, needed_files, tasks
from hogwild.cli.output import print_message, print_result
from hogwild.errors import UsageError

if TYPE_CHECKING:
    from hogwild.service.routes_machine import Template

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
    from hogwild.workers.processes.job_server import JobServer

    state = StateFolder(state_folder(state_dir))

    def tell(link: str, port: int) -> None:
        print_result(f"serving {state.path} on port {port}; open:\n  {link}")
        print_message(
            f"Submit with `hogwild submit JOB.yaml{state.option}`. Ctrl-C ends the service; running jobs go on, and "
            "the next service finds them.\n"
            f"From another machine: ssh -L {port}:127.0.0.1:{port} HOST, then open the same link."
        )

    run(state, port, tell, _templates, JobServer())
    return 0


def _templates() -> "list[Template]":
    """Return the job files of `hogwild init`, for the page."""
    from hogwild.service.routes_machine import Template

    found = []
    for name, description in list_tasks().items():
        files = needed_files(tasks()[name])
        texts = {path: text for path, content in files.items() if (text := _text_of(content)) is not None}
        needs = [path for path in files if path not in texts]
        found.append(
            Template(
                name=name,
                description=description,
                text=job_text(name),
                files=texts,
                needs=needs,
            )
        )
    return found


def _text_of(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
