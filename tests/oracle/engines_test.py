"""The tests that have engines of DeepSpeed load the tools' outputs, and go on, in one process. An import of
torch and DeepSpeed takes as long as several such runs, each of which is forked from it.
"""
import tools
from reshard_resume_test import ReshardResumeTest  # noqa: F401
from resume_test import ResumeTest  # noqa: F401
from strip_resume_test import StripResumeTest  # noqa: F401
from weights_from_test import WeightsFromTest  # noqa: F401

if __name__ == "__main__":
    tools.main()
