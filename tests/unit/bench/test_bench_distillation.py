from pathlib import Path

from distillation import make_teacher


def test_the_run_of_a_teacher_is_not_that_of_another_size(tmp_path: Path) -> None:
    """The path is a setting of the run, and a run of other settings is refused."""
    assert make_teacher(tmp_path, 32, 1) != make_teacher(tmp_path, 32, 2)
