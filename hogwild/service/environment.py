"""The part of a submission's environment that its job gets: no passwords by accident. Applied by the client, so that
the rest does not leave the user's process, and again by the service."""

from collections.abc import Mapping

MARK = "HOGWILD_JOB"  # in the environment of every process of a job
STATE = "HOGWILD_STATE"
NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
        *("CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "http_proxy", "https_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "MALLOC_ARENA_MAX"),
    )
)
PREFIXES = (
    *("LC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "NUMBA_", "TORCH", "PYTORCH_", "CUDA_"),
    *("NVIDIA_", "HF_", "HOGWILD_", "XDG_", "MPL"),
)
OURS = frozenset((MARK, STATE, "HOGWILD_FAILPOINT"))


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job is given of the environment of its submission."""
    return {
        name: value
        for name, value in environment.items()
        if name not in OURS and (name in NAMES or name.startswith(PREFIXES)) and is_possible(name, value)
    }


def is_possible(name: str, value: str) -> bool:
    """Return whether the system takes it: no NUL, no `=` in a name, nothing that is no text."""
    try:
        return "=" not in name and b"\0" not in (name + value).encode()
    except UnicodeEncodeError:  # a surrogate, from bytes that are no UTF-8
        return False
