"""Lets every Python that a test starts say which lines it runs; does nothing unless MUTATION_DATA names a file.

Found by Python itself, where this folder is on PYTHONPATH.
"""

import os

if "MUTATION_DATA" in os.environ and "MUTATION_TEST" in os.environ:
    import coverage

    _recorder = coverage.Coverage(
        data_file=os.environ["MUTATION_DATA"],
        data_suffix=True,
        source=[os.environ["MUTATION_SOURCE"]],
        context=os.environ["MUTATION_TEST"],
        config_file=False,
        messages=False,
    )
    _recorder.start()

    import atexit

    def _save() -> None:
        _recorder.stop()
        _recorder.save()

    atexit.register(_save)
