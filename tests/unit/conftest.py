"""How hypothesis tests here: what is tested is the answer, not how long a busy machine takes for it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("answers", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("answers")
