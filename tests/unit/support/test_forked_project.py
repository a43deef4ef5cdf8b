"""A fork runs the code of the copy that it is in, whether it takes over the modules that were imported once, or not."""

from __future__ import annotations

import json

import pytest

from tests.support.project import Project, copy_project

OWN = """\
from trainer.objectives.sequence_classification import SequenceClassification


class Own(SequenceClassification):
    pass
"""
LOOK = """\
import json, sys
taken_over = "tasks.commands" in sys.modules
from trainer import identity
from trainer.objectives import objective_names
print(json.dumps([taken_over, identity.__file__, str(identity._PROJECT), hasattr(identity, "EDITED"), objective_names()[-1]]))
"""


@pytest.mark.parametrize(
    ("edited", "added"),
    [
        (None, None),
        ("trainer/identity.py", "EDITED = 1\n"),
        ("tasks/report/page.css", "/* */"),
        ("trainer/objectives/zz_own.py", OWN),
    ],
)
def test_a_fork_runs_the_code_of_its_copy(tmp_path, edited, added) -> None:
    copy_project(tmp_path)
    if edited:
        with (tmp_path / edited).open("a") as file:
            file.write(added)
    taken_over, file, folder, has_edit, last = json.loads(Project(tmp_path, tmp_path).run("python", "-c", LOOK))
    assert taken_over is (edited is None)
    assert (file, folder) == (str(tmp_path / "trainer/identity.py"), str(tmp_path))
    assert has_edit is (edited == "trainer/identity.py")
    assert (last == "zz_own") is (edited == "trainer/objectives/zz_own.py")
