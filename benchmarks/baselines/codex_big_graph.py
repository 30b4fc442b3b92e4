"""PyTorch-BigGraph (`big_graph.py`) on the data of configs/codex.yaml: the same triples, numbers of entities and
filter as our job, ranked by the same code."""

import time
from typing import Any

from benchmarks.sparse_peers import Found, answer


def measure(*, threads: int, procs: int, epochs: int, dim: int = 200, drawn: int = 1000, share: float = 1.0) -> Found:
    """`procs`: of its trainers, each of which has `threads`; `drawn`: its negatives, beside those of the batch;
    `share`: of the triples that are trained on, to try it out. The quality is the filtered MRR of the validation
    data."""
    began = time.perf_counter()
    import torch

    from benchmarks.baselines import big_graph

    torch.set_num_threads(threads)
    imported = time.perf_counter()
    train, ranked, sizes = _triples()
    loaded = time.perf_counter()
    count = int(share * len(train))
    settings = big_graph.Settings(epochs, dim=dim, drawn=drawn, procs=procs)
    found = big_graph.train(train[:count], train[count:], ranked, (sizes["entities"], sizes["relations"]), settings)
    note = f"PyTorch-BigGraph 1.0.0, {procs} processes, {epochs} epochs, {drawn} negatives drawn"
    return Found(found.triples_per_s, [(found.seconds, found.mrr)], "1.0.0", imported - began, loaded - imported, note)


def _triples() -> tuple[Any, Any, dict[str, int]]:
    """The triples to train on and to rank, (N, 3) each; how many entities and relations there are. Ranks are filtered
    by both, as our job's are."""
    from benchmarks.commands import ROOT
    from benchmarks.sparse_data import data_folder
    from hogwild.config.load import load_job
    from hogwild.data.locate import set_data_dir
    from hogwild.feeds.row_reader import InTurn
    from hogwild.job.data import pack

    set_data_dir(data_folder())
    job = load_job(ROOT / "configs" / "codex.yaml")
    data = pack(job, InTurn(job.seed))
    assert data.train is not None and data.val is not None
    return data.train.arrays()["triple"], data.val.arrays()["triple"], dict(data.train.spec.sizes)


if __name__ == "__main__":
    answer(measure)
