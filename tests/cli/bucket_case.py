"""The common base of tests of s3:// and https://."""
import contextlib
import re

import object_server
from cli_common import CliTest, tree
from object_server import Store, serving
from tools import filled

# The messages about far inputs and no others.
TRAFFIC = re.compile(r"^.*(requests? to the (object store|web server), |the run would take about ).*\n", re.MULTILINE)
SECONDS = re.compile(r"\b[0-9.]+ s\b(, [0-9.]+ [KMGT]?B/s)?")
STAND_INS = "dsckpt-bucket"


def masked(text):
    """The messages, without times and lines about far places only."""
    return SECONDS.sub("N s", TRAFFIC.sub("", text))


class BucketCase(CliTest):

    def outcome(self, command, source):
        """Status, what was said with IN for the source, and what was written."""
        place = self.new_path("place")
        place.mkdir()
        tool, *words = filled(command, source, place / "out")
        done = self.tool(tool, *words)
        said = [masked(text).replace(str(source), "IN").replace(str(place), "PLACE")
                for text in (done.stdout, done.stderr)]
        self.assertNotIn(STAND_INS, "".join(said))
        return done.returncode, said, tree(place)

    @contextlib.contextmanager
    def serve(self, root, **options):
        """A store of the buckets in `root`, which is what tools are told of."""
        store = Store(root, **options)
        with serving(store) as endpoint:
            kept, self.environment = self.environment, {**self.environment, **object_server.environment(endpoint)}
            try:
                yield store
            finally:
                self.environment = kept
