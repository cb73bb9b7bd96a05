from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install fedskew[flower]")
