"""The public names of the package."""

import subprocess
import sys

import pytest

import dojang


def test_every_public_name_exists_and_none_is_a_package() -> None:
    for name in dojang.__all__:
        assert getattr(dojang, name) is not None
        assert not hasattr(getattr(dojang, name), "__path__"), name
    assert sorted(dojang.__all__) == dir(dojang)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'dojang' has no attribute 'trian'"):
        dojang.trian  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, dojang; dojang.train; print([m for m in ('torch', 'transformers', 'pyarrow') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
