"""Who says that a client is simulated: whoever starts it, and never what a server sends."""

import sys
from types import SimpleNamespace

import pytest

from isoproto.engines.host import REAL_DEVICE, Host, flower_host
from isoproto.engines.in_process import in_process_host


def ray_of(actor: str | None, *, initialised: bool = True) -> SimpleNamespace:
    context = SimpleNamespace(get_actor_id=lambda: actor)
    return SimpleNamespace(is_initialized=lambda: initialised, get_runtime_context=lambda: context)


def test_a_process_of_flowers_is_a_real_device_without_ray(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert flower_host() == REAL_DEVICE == Host(simulated=False, worker=0)


@pytest.mark.parametrize("ray", [ray_of("0" * 32, initialised=False), ray_of(None)])
def test_ray_alone_does_not_make_a_worker(monkeypatch, ray):
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert flower_host() == REAL_DEVICE


def test_an_actor_of_ray_is_a_worker_known_by_random_bits(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", ray_of("00000000f" + "a" * 23))
    assert flower_host() == Host(simulated=True, worker=16)


def test_each_node_in_one_process_is_one_simulated_client():
    assert in_process_host() == Host(simulated=True, worker=0)
