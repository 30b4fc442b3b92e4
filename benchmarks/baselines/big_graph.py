"""PyTorch-BigGraph (Lerer et al., MLSys 2019; torchbiggraph 1.0.0), the peer of the knowledge graphs: Hogwild processes
over shared torch tensors, batches of 1,000 triples, autograd.

Fair because it is set up as its authors' own example for FB15k is (`torchbiggraph/examples/configs/fb15k_config.py`):
ComplEx as `complex_diagonal` with a vector of each relation for either direction, softmax loss, Adagrad at 0.1, 1,000
negatives drawn and 50 from the batch, no triples held back. (With the program's own default of 50 and 50 it is four
times faster, and its MRR on CoDEx-M a third lower.) Timed is training alone, by its own word: `Processed N edges in T
s`.

Ranks are computed by `hogwild.models.ComplEx` from the embeddings in its checkpoint, so both programs have one filter
and one rule for ties. Nothing is written as text for it: its storage classes are given the numbers.

It imports pkg_resources, which setuptools 82 no longer has: it needs setuptools<81 beside it."""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.metrics.built_in import mrr
from hogwild.models.knowledge_graph import ComplEx

SIDES = ("lhs", "rhs")  # of its operators: applied to heads, to find tails, and to tails


@dataclass(frozen=True, slots=True)
class Settings:
    """`drawn` and `shared`: its num_uniform_negs and num_batch_negs; `rate` its lr."""

    epochs: int
    dim: int = 200
    drawn: int = 1000
    shared: int = 50
    rate: float = 0.1
    procs: int = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """`mrr`: of the triples to be ranked, filtered, both directions."""

    triples_per_s: float  # of all epochs but the first, in which only one process works for two seconds
    mrr: float
    seconds: float  # of training, all epochs


def train(triples: np.ndarray, others: np.ndarray, ranked: np.ndarray, sizes: tuple[int, int], by: Settings) -> Outcome:
    """Trains on `triples` (N, 3) of head, relation, tail, and ranks `ranked` (M, 3). `others` are true, too, and
    filtered from the ranks. `sizes`: entities, relations. In a temporary folder; call it where spawned processes can
    import __main__."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _store(folder, triples, *sizes)
        with _Timed() as timed:
            _train(folder, by)
        model = _read(folder / "model", sizes, by)
    model.on_data({"triple": np.concatenate([triples, others, ranked])})
    later = timed.seconds[1:] or timed.seconds
    return Outcome(len(triples) * len(later) / sum(later), _mrr(model, ranked), sum(timed.seconds))


class _Timed(logging.Handler):
    """Return the program's words about the time of each epoch."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seconds: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """`… Processed 185584 edges in 12.30 s ( …`"""
        words = record.getMessage()
        if "Processed" in words and " edges in " in words:
            self.seconds.append(float(words.split(" edges in ")[1].split()[0]))

    def __enter__(self) -> "_Timed":
        logger = logging.getLogger("torchbiggraph")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("torchbiggraph").removeHandler(self)


def _store(folder: Path, triples: np.ndarray, entities: int, relations: int) -> None:
    import torch
    from torchbiggraph.edgelist import EdgeList
    from torchbiggraph.entitylist import EntityList
    from torchbiggraph.graph_storages import EDGE_STORAGES, ENTITY_STORAGES, RELATION_TYPE_STORAGES

    counts, kinds = (storages.make_instance(str(folder)) for storages in (ENTITY_STORAGES, RELATION_TYPE_STORAGES))
    counts.prepare()
    counts.save_count("all", 0, entities)
    kinds.prepare()
    kinds.save_count(relations)
    edges = EDGE_STORAGES.make_instance(str(folder / "edges"))
    edges.prepare()
    head, relation, tail = (torch.from_numpy(triples[:, k].astype(np.int64)) for k in range(3))
    with edges.save_edges_by_appending(0, 0) as appender:
        appender.append_edges(EdgeList(EntityList.from_tensor(head), EntityList.from_tensor(tail), relation))


def _train(folder: Path, by: Settings) -> None:
    from torchbiggraph.config import ConfigSchema
    from torchbiggraph.train import train as train_big_graph

    settings: dict[str, Any] = {
        "entity_path": str(folder),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "model"),
        "entities": {"all": {"num_partitions": 1}},
        "relations": [{"name": "every", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
        "dynamic_relations": True,
        "dimension": by.dim,
        "global_emb": False,
        "comparator": "dot",
        "loss_fn": "softmax",
        "num_epochs": by.epochs,
        "lr": by.rate,
        "num_uniform_negs": by.drawn,
        "num_batch_negs": by.shared,
        "eval_fraction": 0.0,
        "workers": by.procs,
    }
    train_big_graph(ConfigSchema.from_dict(settings))


def _read(folder: Path, sizes: tuple[int, int], by: Settings) -> ComplEx:
    """The newest checkpoint as a model of ours: its operator `lhs` is applied to heads, to find tails."""
    import h5py
    import torch

    model = ComplEx(*sizes, dim=by.dim)
    with h5py.File(folder / f"embeddings_all_0.v{by.epochs}.h5") as file:
        entities = file["embeddings"][...]
    with h5py.File(folder / f"model.v{by.epochs}.h5") as file:
        parts = [
            [file[f"model/relations/0/operator/{side}/{half}"][...] for half in ("real", "imag")] for side in SIDES
        ]
    with torch.no_grad():
        model.entities.weight.copy_(torch.from_numpy(entities))
        model.relations.weight.copy_(torch.from_numpy(np.concatenate([np.concatenate(pair, 1) for pair in parts])))
    return model


def _mrr(model: ComplEx, ranked: np.ndarray) -> float:
    import torch

    ranks = model.eval()(torch.from_numpy(ranked))
    return mrr(ranks, ranks)
