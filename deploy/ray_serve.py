"""Service on a Ray cluster: `serve run deploy.ray_serve:app` in a clone, see docs/service.md.

Each replica is the whole application, with the settings (`MIEN_*`) of the machine's environment. Ray's proxy spreads
requests over the replicas, replaces those that die, and does not repeat requests that were in flight on them.
"""

from ray import serve

from mien.app.service.app import create_app


@serve.deployment(num_replicas=2, max_ongoing_requests=32, health_check_period_s=2)
@serve.ingress(create_app)
class Mien:
    """One replica."""


app = Mien.bind()
