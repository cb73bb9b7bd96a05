"""Real federations on Flower: our loop, cohort, deadlines and aggregation; Flower carries messages and knows the nodes.

`client_app` and `federate` are for Flower projects of one's own; `fedskew.flower.client:app` and
`fedskew.flower.server:app` are whole apps.
"""

import os

# Before anything of Flower is imported: nobody is told that a hospital trains a model.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
