"""Programs on a terminal whose other end belongs to a test."""
import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time


class Terminal:
    """A process whose standard input, output and error are a terminal; use it in a with statement. `descriptors` lists
    those of 0, 1 and 2 that are the terminal; the others are /dev/null. With `controls` its Ctrl-C is a signal."""

    def __init__(self, command, columns, environment, descriptors=(0, 1, 2), cwd=None, rows=50,
                 controls=False):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        streams = [theirs if number in descriptors else subprocess.DEVNULL for number in range(3)]
        self.process = subprocess.Popen(command, stdin=streams[0], stdout=streams[1], stderr=streams[2],
                                        env=environment, cwd=cwd, start_new_session=True,
                                        preexec_fn=(lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0)) if controls else None)
        os.close(theirs)
        self.seen = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read can end inside a character

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def type(self, text):
        os.write(self.ours, text.encode())

    def _read(self, seconds):
        """The output within that time; None when the other end is closed."""
        if not select.select([self.ours], [], [], seconds)[0]:
            return ""
        try:
            data = os.read(self.ours, 65536)
        except OSError:  # Linux reports a closed other end
            return None
        return self.decoder.decode(data) if data else None

    def wait_for(self, text, seconds=120):
        """The output up to and including `text`, since the last call."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            more = self._read(end - time.monotonic())
            if more is None or time.monotonic() > end:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            self.seen += more
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def rest(self, seconds=120):
        """The remaining output until the process ends, and its exit code."""
        end = time.monotonic() + seconds
        while (more := self._read(max(0, end - time.monotonic()))) is not None:
            if time.monotonic() > end:
                raise AssertionError(f"still running: {self.seen!r}")
            self.seen += more
        return self.seen, self.process.wait()
