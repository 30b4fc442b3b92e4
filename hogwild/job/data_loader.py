"""A `torch.utils.data.DataLoader`, taken apart: its data set, and what it does with it as settings of a job.

    batch_size, drop_last, collate_fn, num_workers   fields of `data`
    no sampler, shuffle=True                         data.shuffle: none, auto
    any other sampler or batch_sampler               data.sampler
    generator, its own or its sampler's              seed

The loader itself is never run."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from hogwild.errors import UsageError
from hogwild.job.sampling import Sampling, generators_of

MOST_LOADERS = 256
# Arguments without a meaning here, and the values that nobody has set.
UNUSED: dict[str, tuple[Any, ...]] = {
    "persistent_workers": (False,),
    "timeout": (0,),
    "worker_init_fn": (None,),
    "prefetch_factor": (None, 2),
    "pin_memory": (False,),
    "multiprocessing_context": (None,),
}


@dataclass(frozen=True, slots=True)
class LoaderParts:
    """The parts of a loader. `settings`: fields of the section `data`, and the seed; `sampled`: the sampler, if it is
    not one of the two usual orders; `note`: a line about what is not used, or ""."""

    YIELDING: ClassVar = ("loaders", "seed")  # a keyword of this name counts instead

    dataset: Any
    settings: dict[str, Any]
    sampled: dict[str, Any]
    note: str

    @classmethod
    def of(cls, loader: DataLoader, what: str) -> "LoaderParts":
        """Raises UsageError for a loader that cannot be taken apart."""
        kind = type(loader)
        if kind.__iter__ is not DataLoader.__iter__ and not kind.__module__.startswith("torchdata."):
            raise _refused(what, f"{kind.__name__} has an __iter__ of its own, which no job would call")
        if loader.batch_size is None and loader.batch_sampler is None:
            raise _refused(what, "has batch_size=None, so the data set itself makes the batches; here it gives samples")
        dataset: Any = loader.dataset
        is_iterable = isinstance(dataset, IterableDataset)
        settings: dict[str, Any] = {}
        sampled: dict[str, Any] = {}
        sampler: Any = loader.sampler
        size, drop_last = loader.batch_size, loader.drop_last
        if size is None and type(loader.batch_sampler) is BatchSampler:  # it cuts as we do
            made: Any = loader.batch_sampler
            sampler, size, drop_last = made.sampler, made.batch_size, made.drop_last
        elif size is None:
            sampler = loader.batch_sampler
        if size is not None:
            settings |= {"batch_size": size} | ({"drop_last": True} if drop_last else {})
        if not is_iterable and (order := _usual_order(sampler, len(dataset))) is not None:
            settings |= {"shuffle": order} if order == "none" else {}
        elif not is_iterable:
            sampled["sampler"] = sampler
        if loader.collate_fn is not default_collate:
            settings["collate"] = loader.collate_fn
        if loader.num_workers:
            settings["loaders"] = min(MOST_LOADERS, loader.num_workers)
        generators = [loader.generator] if loader.generator is not None else generators_of(sampler)
        if generators:
            settings["seed"] = generators[0].initial_seed() & (2**63 - 1)
        return cls(loader.dataset, settings, sampled, _note(loader, what))

    def held_out(self, seed: int) -> Any:
        """Return what a loader of validation data evaluates: its data set, or the entries that its sampler draws once.
        Raises DataError."""
        if not self.sampled:
            return self.dataset
        sampling = Sampling(self.sampled["sampler"], len(self.dataset), seed, 1, what="the sampler of val")
        sampling.begin(self.dataset)
        return Subset(self.dataset, sampling.first.rows.tolist())

    def in_order(self, what: str) -> Any:
        """Return the data set, for answers in its order. Raises UsageError for a loader with another order."""
        if self.sampled or not ("shuffle" in self.settings or isinstance(self.dataset, IterableDataset)):
            raise _refused(what, "reads the samples in an order of its own, and answers are in that of the data set")
        return self.dataset


def _usual_order(sampler: Any, samples: int) -> str | None:
    """Return `data.shuffle` for torch's samplers of all samples, each once; None for any other."""
    if type(sampler) is SequentialSampler and len(sampler) == samples:
        return "none"
    is_plain = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == samples
    return "auto" if is_plain and len(sampler.data_source) == samples else None


def _note(loader: DataLoader, what: str) -> str:
    unused = [name for name, unset in UNUSED.items() if getattr(loader, name, unset[0]) not in unset]
    unused += ["drop_last"] if what == "val" and loader.drop_last else []
    if not unused:
        return ""
    of_val = "; an evaluation uses every sample" if "drop_last" in unused else ""
    return (
        f"{what}: without effect here: {', '.join(unused)} of the DataLoader; loaders live as long as the job, seed "
        f"every batch themselves, and are replaced when they are silent{of_val}"
    )


def _refused(what: str, why: str) -> UsageError:
    return UsageError(f"{what}: the DataLoader {why}; give the data set, with the rest as keywords", code="data/loader")
