"""Stand-ins for the runs, models, datasets and files that a page names, made when a command or a program asks for them.

A reader has a run at runs/quickstart-1, a model at my-model, rows in my.jsonl; here small ones come under those names.
"""

import json
import re
import shutil
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import torch

__all__ = ["ABSOLUTE", "PLACEHOLDERS", "SOURCES", "StandIns"]

ABSOLUTE = re.compile(r"(?<![\w.:/])/(?=(?:mnt|shared|opt/ml|models|tmp)/)")
"""The root of paths of other machines, which become paths in the reader's folder."""

PLACEHOLDERS = {
    "RECIPE": "quickstart",
    "RUN_DIR": "runs/quickstart-1",
    "RUN_DIR_OR_CHECKPOINT": "runs/quickstart-1",
    "MODEL": "my-model",
    "OUTPUT_DIR": "output",
    "OUTPUT": "output",
    "OUT_DIR": "output",
    "HOST": "127.0.0.1",
    "BUCKET": "bucket",
    "JOB": "dojang-job-1",
    "SEED": "1",
    "MODE": "stream",
    "NAME": "quickstart",
    "FILE": "my.jsonl",
    "COMMAND": "true",
    "P.json": "sum.json",
}
"""Words in capitals that a reader replaces. DIR depends on the dataset: see `StandIns.folder_of`."""

SOURCES = {
    "code-contests": "deepmind/code_contests",
    "deepcoder": "agentica-org/DeepCoder-Preview-Dataset",
    "codeforces": "agentica-org/DeepCoder-Preview-Dataset",
    "livecodebench": "inclusionAI/AReaL-boba-2-RL-Code",
    "humaneval": "openai/openai_humaneval",
    "mbpp": "google-research-datasets/mbpp",
    "deepmath": "trl-lib/DeepMath-103K",
    "gsm8k": "openai/gsm8k",
}
"""Datasets of `dojang data prepare`, and where they are published; published_rows.py has a few rows of each."""
_DATA = {
    "contests": "code-contests",
    "code_contests": "code-contests",
    "code_contests_easy": "code-contests",
    "eval": "humaneval",
    "math500": "deepmath",
    "taco": "deepcoder",
}
"""Folders of data/ of other names than in the library."""
_SUMS = [{"question": f"What is {a} + {a}?", "prompt": f"What is {a} + {a}?", "answer": str(2 * a)} for a in range(20)]
_FILES = {
    "my.jsonl": [{"task": f"{a} + {a}", "result": str(2 * a)} for a in range(20)],
    "rows.jsonl": [{**row, "result": row["answer"], "completion": f"#### {row['answer']}"} for row in _SUMS],
    "questions.jsonl": _SUMS,
    "corpus/passages.jsonl": [{"title": "Sums", "text": "One and one is two."}],
    "shots.jsonl": [{"question": row["question"], "answer": f"Twice.\n#### {row['answer']}"} for row in _SUMS],
    "sum.json": {"tests": [{"input": "2 3\n", "output": "5\n"}]},
}
_TRACKER = """
class Weave:
    def __init__(self, project):
        self.lines = []

    def metrics(self, step, values):
        self.lines.append((step, values))
"""
_TEXTS = {
    "mypackage/trackers.py": _TRACKER,
    "sum.cpp": "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }\n",
    "mine.py": "def brevity(problem, text):\n    return 1.0\n\npoliteness = brevity\n",
}
_SHORT = {
    "runs": "runs/quickstart-1",
    "corpus": "corpus/passages.jsonl",
    "mine": "mine.py",
    "mypackage.trackers": "mypackage/trackers.py",
}
"""Names for folders and modules, and the file or folder that has to be there."""
_RECIPES = {"my.yaml": "quickstart", "my-recipe.yaml": "quickstart"}


class StandIns:
    """Makes what a page names, in the reader's folder; `finished` and `library` are the fixtures of conftest.py."""

    def __init__(self, folder: Path, finished: Path, library: Path) -> None:
        self.folder, self.finished, self.library = folder, finished, library
        self.made: set[Path] = set()

    def supply(self, texts: Iterable[str]) -> None:
        """Makes every path that is named in these texts (arguments, lines of a program) and is not there."""
        for text in texts:
            for name in re.findall(r"[\w][\w./-]*", text):
                self._supply_one(name.rstrip("."))

    def supply_published(self, name: str, where: str) -> None:
        """Puts the published files of a dataset into a folder."""
        if not (self.folder / where).exists():
            self._copy(self.library / SOURCES[name], self.folder / where)

    def remove(self, path: Path) -> None:
        """Removes a stand-in, for a command that makes the real one."""
        if path in self.made:
            shutil.rmtree(path)
            self.made.discard(path)

    def folder_of(self, dataset: str) -> str:
        """Folder for the placeholder DIR: the data of a recipe or of `dojang data prepare`."""
        name = dataset if (self.library / "data" / dataset).exists() else _DATA.get(dataset, "code-contests")
        self.supply([f"data/{name}"])
        return f"data/{name}"

    def _supply_one(self, name: str) -> None:
        name = _SHORT.get(name.rstrip("/"), name)
        path = self.folder / name
        top, _, rest = name.partition("/")
        if path.exists() or (path.is_symlink() and not rest):
            return
        if name in _FILES or name in _TEXTS or name in _RECIPES:
            path.parent.mkdir(exist_ok=True)
            path.write_text(_content(name))
        elif name.endswith(".gguf"):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_gguf(path)
        elif top == "data" and rest:
            self._supply_data(rest.partition("/")[0])
        else:
            self._supply_folder(top, rest)

    def _supply_folder(self, top: str, rest: str) -> None:
        if top == "runs" and rest and not rest.startswith("eval-"):
            self._copy(self.finished / "run", self.folder / "runs" / rest.partition("/")[0])
        elif top == "my-model":
            self._copy(self.finished / "model", self.folder / top)
        elif top == "my-tasks":
            for name in ("one", "two"):
                (self.folder / top / name / "tests").mkdir(parents=True)
                (self.folder / top / name / "instruction.md").write_text("Write 42 to answer.txt.")
                (self.folder / top / name / "tests" / "test.sh").write_text("echo 0 > /logs/verifier/reward.txt")
        elif rest and (self.library / top).is_dir():
            self._copy(self.library / top, self.folder / top)

    def _supply_data(self, name: str) -> None:
        if name == "HumanEval.jsonl.gz":
            found = self.library / "openai/openai_humaneval" / name
            (self.folder / "data").mkdir(exist_ok=True)
            shutil.copy(found, self.folder / "data" / name)
        else:
            found = self.library / "data" / _DATA.get(name, name)
            if found.is_dir():
                self._copy(found, self.folder / "data" / name)

    def _copy(self, source: Path, target: Path) -> None:
        if not target.exists():
            shutil.copytree(source, target, symlinks=True)
            self.made.add(target)


def _content(name: str) -> str:
    if name in _TEXTS:
        return _TEXTS[name]
    if name in _RECIPES:
        return (resources.files("dojang") / "recipes" / f"{_RECIPES[name]}.yaml").read_text()
    content = _FILES[name]
    return json.dumps(content) if isinstance(content, dict) else "\n".join(map(json.dumps, content))


def _write_gguf(path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from gguf_models import write_model
    from tiny_models import SIZES

    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {**SIZES, "max_position_embeddings": 4096}
        write_model(path, LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)))
