"""How many examples a test with Spark has, and where they come from."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

randoms = st.randoms(use_true_random=True)
"""A seed: drawing thousands of choices one by one would cost more than Spark does."""
few = settings(
    derandomize=True,
    # Each example is a batch of Spark, or many; what shrinks is not worth a minute for each step.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
