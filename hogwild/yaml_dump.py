"""Plain values as YAML that our own reader reads back as the same values. Torch-free.

PyYAML quotes what YAML 1.1 would misread; our reader follows 1.2, so text such as `1e-3` or `010` is quoted
by our rule.
"""

from typing import Any

import yaml

from hogwild.yaml_scalars import Trap, read_scalar


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # a value that occurs twice is written twice: the file is for people


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds a U+0085 between single quotes into a space; between double quotes it escapes it.
    quoted = not text.isprintable() or _misread(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


def _misread(text: str) -> bool:
    try:
        return bool(read_scalar(text) != text)
    except Trap:
        return True


_Dumper.add_representer(str, _text)


def dump(values: dict[str, Any]) -> str:
    """`values` in block style, in their own order."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text
