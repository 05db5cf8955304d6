"""The engine is optional: what there is without vLLM."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.inference.vllm import VllmEngine
from vllm_servers import installed


def test_importing_the_module_does_not_import_vllm() -> None:
    code = "import sys, dojang.inference.vllm, dojang.inference.remote; print([m for m in sys.modules if m == 'vllm'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.skipif(installed(), reason="vLLM is installed")
def test_without_vllm_it_says_how_to_get_it(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pip install dojang\[vllm\]"):
        VllmEngine(tmp_path, tokenizer, None)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("vllm")]
