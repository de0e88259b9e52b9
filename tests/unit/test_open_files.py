"""The soft limit of open files is raised, and never lowered."""

import subprocess
import sys

import pytest

LOOK = (
    "import resource, sys; from coordinator.open_files import allow_many;"
    "resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])));"
    "allow_many(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [((256, 4096), (4096, 4096)), ((256, 20000), (10240, 20000)), ((15000, 20000), (15000, 20000))],
)
def test_it_is_raised_as_far_as_is_wanted_and_allowed(before: tuple[int, int], after: tuple[int, int]) -> None:
    told = [sys.executable, "-c", LOOK, *map(str, before)]
    said = subprocess.run(told, check=True, capture_output=True, text=True)
    assert tuple(map(int, said.stdout.split())) == after
