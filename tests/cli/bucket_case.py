"""What tests of s3:// share."""
import contextlib

import object_server
from cli_common import CliTest
from object_server import Store, serving


class BucketCase(CliTest):

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
