"""Outputs of commands: a check that they can be written, and the page that two commands write."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, writing
from .console import note, rank

if TYPE_CHECKING:
    from .. import KernelClassifier, KernelRegressor
    from ..estimators.evaluation import Evaluation


def check_writable(path: Path) -> None:
    """Raise, before anything takes time, where this folder or file could not be written."""
    parent = os.path.abspath(path)
    parent = parent if os.path.isdir(parent) else os.path.dirname(parent)
    with writing(parent):
        os.makedirs(parent, exist_ok=True)
        tempfile.TemporaryFile(dir=parent).close()


def check_places(folder: Path, run: Path | None, resume: bool) -> None:
    """Raise where the folders of a model and of its run could not be written at the end, or where
    something of the user's would be lost."""
    from ..storage.model_folder import refuse_others
    from ..storage.run_folder import contents

    check_writable(folder)
    refuse_others(folder)
    if run is None:
        return
    check_writable(run)
    named = f"--checkpoint {str(run)!r}"
    if run.exists() and not run.is_dir():
        raise InputError(f"{named} is not a folder; choose another one.")
    if run.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise InputError(f"{named} would hold the model too; choose a folder of its own.")
    own, others = contents(run)
    if others:
        what = f"holds {others[0].name!r}, which is not part of a run"
        raise InputError(f"{named} {what}; choose a folder of its own.")
    if own and not resume:
        todo = "resume it with --resume, or delete that folder to start again"
        raise InputError(f"{str(run)!r} holds an unfinished run; {todo}.")
    if resume and not own:
        note(f"there is no run in {run} to resume; a new one begins.")


def write_page(
    path: Path,
    estimator: KernelClassifier | KernelRegressor,
    model: Path,
    found: Evaluation | None,
    where: str,
) -> None:
    """Write the report of a model as one HTML file. Ranks that share the model make the page
    together, and the first one writes it."""
    from ..report import page
    from ..storage.atomic import aside

    written = page(estimator, model.resolve().name, found, where).encode()
    if rank() > 0:
        return
    with aside(path) as beside:
        beside.write_bytes(written)
