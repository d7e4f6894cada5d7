"""Lets SGLang's modules be imported where its GPU packages are not: what they import and don't use here is made up.

SGLang's host pools import, at their start, kernels for GPUs (triton, tvm_ffi, sgl_kernel, flashinfer) and torchvision. On a
CPU none of their functions is called; a call would return nothing useful and its test would fail.
"""

import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

ABSENT = ("triton", "torchvision", "tvm_ffi", "sgl_kernel", "flashinfer")


class Thing(MagicMock):
    """A function of an absent module; as a decorator it leaves what it decorates alone."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and not named and callable(given[0]) else Thing()


class AbsentModule(types.ModuleType):
    __path__ = []  # noqa: RUF012  # a package without a folder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[:1].isupper() else Thing(name=name)


class Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def install() -> None:
    """To be called before SGLang is imported."""
    import torch
    import transformers.image_utils
    import transformers.modeling_utils  # noqa: F401  # these look for torchvision and must not find this one

    torch.compile = lambda function=None, **_: function if function is not None else (lambda f: f)  # type: ignore[assignment]
    sys.meta_path.insert(0, Finder())
