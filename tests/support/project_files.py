"""The project's own files, for tests that read all of them."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Builds and installations, which are not entered: tests that run meanwhile remove folders there.
OTHERS = {"build", ".venv", ".cache", ".git"}


def files_ending(suffix):
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in OTHERS]
    return sorted([*ROOT.glob("*" + suffix), *(path for folder in folders for path in folder.rglob("*" + suffix))])
