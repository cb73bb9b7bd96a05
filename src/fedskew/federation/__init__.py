"""Train across organizations with Flower: coordinator, sites, transport, and security.

For a Flower project of your own, use `federation.site.client_app.client_app` and
`federation.coordinator.server_app.federate`. The name `app` in the same modules is a complete app.
"""

import os

# These must be set before Flower is imported: Flower then reports no usage and looks for no updates.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
