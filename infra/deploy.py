"""Put the deployments and actors on a running Ray, or drain them. Run by `up` and `down` in a process of its own.

python -m infra.deploy HOME [--drain]
"""

import sys
from pathlib import Path

import ray

from infra.admin import store_settings
from infra.config import load
from infra.home import Home
from infra.settings import Settings, gateway_settings, live_settings, policy_settings, trainer_place
from infra.up import DEPLOYS


def connect(home: Home) -> None:
    """Join the system's Ray as a driver."""
    state = home.state()
    assert state is not None, "deploy runs after up has written its state"
    ray.init(
        address=f"127.0.0.1:{state.ports['ray']}", namespace="clawrl", log_to_driver=False, logging_level="WARNING"
    )


def deploy(home: Home) -> None:
    """Trainer first (it commits the base weights as version 0), then policy, judge, gateway, learner."""
    from ray import serve

    from serve import actors, app, judging

    settings, state = load(Settings, home.config), home.state()
    assert state is not None
    store = store_settings(home, state)
    options = {"lifetime": "detached", "namespace": actors.NAMESPACE, "get_if_exists": True}
    trainer = actors.TrainerActor.options(name=actors.TRAINER, **options).remote(
        settings.trainer(), trainer_place(settings, home, store), home.logs
    )
    _say("policy and gateway, while the engine loads the model")
    app.deploy(gateway_settings(settings, home, state), policy_settings(settings, home, state, store))
    _say("judge")
    serve.run(judging.build_app(settings.judge), name="judge", route_prefix=None)
    _say("trainer, which loads the model as well")
    ray.get(trainer.status.remote())
    _say("learner, which reads the journal")
    learner = actors.LearnerActor.options(name=actors.LEARNER, **options).remote(
        live_settings(settings, home, state, store), home.logs
    )
    ray.get(learner.status.remote())


def _say(what: str) -> None:
    print(DEPLOYS + what, flush=True)


def drain() -> None:
    """Let the gateway finish its answers, the learner its journal, and the trainer its step and its save."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    from serve import actors, app

    try:
        serve.delete(app.GATEWAY)
    except (ValueError, TimeoutError, ray.exceptions.RayError, RayServeException) as fault:
        print(f"drain: gateway: {fault}", flush=True)  # boundary: as below
    for name, method in ((actors.LEARNER, "stop"), (actors.TRAINER, "close")):
        try:
            ray.get(getattr(ray.get_actor(name, actors.NAMESPACE), method).remote(), timeout=80)
        except (ValueError, ray.exceptions.RayError) as fault:  # boundary: one that is gone needs no draining
            print(f"drain: {name}: {fault}", flush=True)


if __name__ == "__main__":
    place = Home(Path(sys.argv[1]))
    connect(place)
    if "--drain" in sys.argv:
        drain()
    else:
        deploy(place)
