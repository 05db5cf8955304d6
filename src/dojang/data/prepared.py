"""Problems that `dojang data prepare` has written, or that others have in the same layout (rows.py)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from dojang.data.rows import from_row
from dojang.errors import DataError
from dojang.settings import Section
from dojang.types import Problem

__all__ = ["PreparedConfig"]

_COLUMNS = ("data_source", "prompt", "reward_model", "extra_info")


class PreparedConfig(Section):
    """Parquet rows of problems."""

    stop: ClassVar[tuple[str, ...]] = ()
    name: Literal["prepared"] = "prepared"
    path: Path
    """The directory that holds train and test, each a directory of Parquet files or one file, such as train.parquet."""
    tiers: tuple[str, ...] = ()
    """Which parts of the dataset, such as easy; all if none is named."""

    def load(self, split: str) -> list[Problem]:
        """The problems of a split, in the order of the files."""
        problems = [problem for problem in self.all(split) if not self.tiers or problem.tier in self.tiers]
        if not problems:
            wanted = f" of the tiers {', '.join(self.tiers)}" if self.tiers else ""
            raise DataError(f"the {split} split in {self.path} holds no problems{wanted}")
        return problems

    def all(self, split: str) -> Iterator[Problem]:
        """Of all tiers, in the order of the files."""
        import pyarrow as pa  # not before there is something to read: a configuration is checked without it
        import pyarrow.parquet as pq

        for file in self.files(split):
            try:
                parquet = pq.ParquetFile(file)
                columns = [name for name in _COLUMNS if name in parquet.schema_arrow.names]
                batches = parquet.iter_batches(64, columns=columns)
                rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{file} cannot be read: {error}") from error
            for number, row in enumerate(rows):
                yield from_row(row, f"{file.name}/{number}")

    def grader(self, split: str) -> str:
        """The task that grades a split, by what its first row says is asked for."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.files(split)[0]
        try:
            parquet = pq.ParquetFile(file)
            if not parquet.metadata.num_rows or "ability" not in parquet.schema_arrow.names:
                lacking = "column ability" if parquet.metadata.num_rows else "rows"
                raise DataError(f"{file} does not say what is asked for: it has no {lacking}")
            ability = str(next(parquet.iter_batches(1, columns=["ability"])).column("ability")[0])
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file} cannot be read: {error}") from error
        for word, task in (("cod", "code"), ("math", "maths")):
            if ability.startswith(word):
                return task
        raise DataError(f"{file}: nobody here grades the ability {ability!r}")

    def files(self, split: str) -> list[Path]:
        """What a split is read from."""
        if not self.path.is_dir():
            raise DataError(f"data.path={self.path} is not a directory; `dojang data prepare` makes one")
        if (self.path / "progress.json").exists():
            raise DataError(f"{self.path} is not prepared to the end; run the same `dojang data prepare` once more")
        found = sorted((self.path / split).glob("*.parquet")) or sorted(self.path.glob(f"{split}*.parquet"))
        if not found:
            raise DataError(f"{self.path} has neither {split}/*.parquet nor {split}.parquet")
        return found
