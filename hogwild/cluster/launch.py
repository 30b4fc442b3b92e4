"""The place of a node as torchrun tells it: its number, how many there are, and the address of the store.

torchrun sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RUN_ID for every process it starts; one
supervisor per node, so the rank is the node's number. TORCHELASTIC_RESTART_COUNT may differ between nodes and is not
read. TORCHELASTIC_USE_AGENT_STORE is False where torchrun leaves the store to the first node."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hogwild.errors import UsageError
from hogwild.storage.run_directory import RESOLVED, part_of

RUN_ID = "TORCHELASTIC_RUN_ID"
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  # torchrun, mpirun, srun
COMMAND = (
    "torchrun --nnodes N --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m hogwild train JOB.yaml "
    "--run-dir RUN"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One node as torchrun has started it."""

    rank: int
    world: int
    run_id: str
    address: str  # of the store
    port: int
    store_of_agent: bool = True  # else the first node's process has it

    @classmethod
    def of(cls, engine: str, environment: Mapping[str, str]) -> "Launch | None":
        """Return the node's place in the cluster; None for a job on one machine. `engine`: `cluster.engine` of the job.
        Raises UsageError if it does not fit to what has started us."""
        is_started, is_wanted = RUN_ID in environment, engine == "torchrun"
        copies = {name: int(environment[name]) for name in SIZES if environment.get(name, "").isdecimal()}
        if is_wanted and not is_started:
            raise UsageError(
                "cluster.engine is torchrun, but torchrun did not start this process: start it on every node with\n"
                f"  {COMMAND}\nor try it on this machine with --nodes 2, or set cluster.engine=none",
                code="cluster/not-started",
            )
        if not is_wanted:
            for name, count in copies.items():
                if count > 1:
                    raise UsageError(
                        f"{name}={count}: a launcher has started {count} of these processes, and each would train the "
                        "whole job by itself. Start one, without torchrun, mpirun or srun: it starts its workers "
                        "itself (train.procs). On several machines set cluster.engine=torchrun. A program of which "
                        f'only one process trains removes the variable there: os.environ.pop("{name}")',
                        code="cluster/not-wanted",
                    )
            return None
        if int(environment.get("LOCAL_WORLD_SIZE", "1")) != 1:
            raise UsageError(
                "a node has one supervisor, which starts its workers itself (train.procs): use --nproc-per-node 1, got "
                f"{environment['LOCAL_WORLD_SIZE']}",
                code="cluster/per-node",
            )
        return cls(
            rank=int(environment["RANK"]),
            world=copies["WORLD_SIZE"],
            run_id=environment[RUN_ID],
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            store_of_agent=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "False",
        )

    def run_of(self, run_dir: Path | None, resume: Path | None) -> tuple[Path | None, Path | None]:
        """Return this node's new run directory, or the run that it goes on with. A run that is there is gone on with
        in any case: torchrun starts every node again with the same command. Raises UsageError without a name."""
        wanted = resume or run_dir
        if wanted is None:
            raise UsageError("a cluster needs --run-dir: the nodes cannot agree on a name", code="cluster/run-dir")
        folder = self.folder(wanted)
        return (None, folder) if (folder / RESOLVED).is_file() else (folder, None)

    def folder(self, run: Path) -> Path:
        """Return this node's run directory, the same where nodes share no disk. `run`: of all, or this node's own."""
        return run if run.name == f"node-{self.rank}" else part_of(run, self.rank)


def own_run(run: Path, environment: Mapping[str, str]) -> Path:
    """Return the run whose job file a node resumes: where nodes share no disk, only its own part is here."""
    own = part_of(run, int(environment.get("RANK", "0")) if RUN_ID in environment else 0)
    return own if not (run / RESOLVED).is_file() and (own / RESOLVED).is_file() else run
