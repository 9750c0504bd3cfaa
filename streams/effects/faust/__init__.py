"""For teams whose services are Faust apps: codecs for our records, a driver that reads them right, effects, views."""

try:
    import aiohttp  # noqa: F401 - an extra
    import aiokafka  # noqa: F401 - the same
    import faust  # noqa: F401 - the same
except ImportError as missing:
    raise ImportError(
        f"streams.effects.faust needs Faust ({missing}): pip install 'streams-engine[faust]'", name=missing.name
    ) from missing

from streams.effects.faust.agent import EffectAgent, effect_agent
from streams.effects.faust.codecs import CODECS, register_codecs
from streams.effects.faust.live import LiveView, make_view
from streams.effects.faust.service import make_app, run_app

__all__ = ["CODECS", "EffectAgent", "LiveView", "effect_agent", "make_app", "make_view", "register_codecs", "run_app"]
