"""Flower as a carrier of bytes, and as nothing else.

Flower's SuperLink brings what is tedious to build and easy to get wrong: TLS, registered node keys, sites that only
ever call out, a queue that survives a restart. Its way of running code, its sampling, its aggregation and its privacy
code stay unused: a site never fetches or runs what a server sends, and a coordinator is an ordinary process.

- :mod:`.flwr_calls`, :mod:`.flwr_node`, :mod:`.flwr_coordinator` and :mod:`.flwr_server` are the ones that know
  Flower's insides: a call and how it fails, the two ends, the server's process; one pinned version, one contract test;
- :mod:`.parcel` cuts content into the objects that a SuperLink keeps;
- :mod:`.gate` stands between the world and a SuperLink, :mod:`.replies` says what it takes from a site;
- :mod:`.superlink` starts and ends a SuperLink and holds its register of keys;
- :mod:`.coordinator` is the coordinator's end, a :class:`quietsum.federation.remote.transport.Transport`;
- :mod:`.node` is a site's end: the process of a site *is* the node.

Nothing that needs Flower is imported before a command asks for Flower, so quietsum runs without it.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # both are read when Flower is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
