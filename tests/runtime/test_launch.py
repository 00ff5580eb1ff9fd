"""Which device and which backend a rank gets, and where its messages lie: with fewer GPUs than ranks gloo carries all, by the host's memory. GPUs are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import RankError
from autopar.runtime import Arrival, ProcessComm, launch, read_torchrun_env
from autopar.runtime import comm as comm_module

from .conftest import mesh_of

pytestmark = pytest.mark.torch

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


class Host:
    """Stands for a host with so many GPUs: the devices that ranks took, the backends that they joined with."""

    def __init__(self, monkeypatch, gpus):
        self.taken, self.joined = [], []
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", self.taken.append)
        monkeypatch.setattr(launch, "_join", lambda env, timeout_s, backend: self.joined.append(backend))
        monkeypatch.setattr(launch, "listen", lambda rank, error_file: None)
        monkeypatch.setattr(launch, "keep_pages", lambda: None)
        monkeypatch.setattr(launch, "solo_comm", lambda mesh, device: SimpleNamespace(device=device))
        monkeypatch.setattr(launch, "ProcessComm", lambda mesh, device, timeout_s: SimpleNamespace(device=device))

    def start(self, local_rank, local_size, world=4, device_type="cuda"):
        env = launch.TorchrunEnv(local_rank, local_rank, world, "localhost", 1, None, local_size)
        return launch.start_process_group(mesh_of(world), env, device_type=device_type)


@pytest.mark.parametrize(
    ("gpus", "local_size", "devices", "backend"),
    [
        (4, 4, [0, 1, 2, 3], "cpu:gloo,cuda:nccl"), (8, 2, [0, 1], "cpu:gloo,cuda:nccl"), (1, 1, [0], "cpu:gloo,cuda:nccl"),
        (1, 4, [0, 0, 0, 0], "gloo"), (2, 4, [0, 1, 0, 1], "gloo"), (3, 4, [0, 1, 2, 0], "gloo"), (0, 1, [0], "cpu:gloo,cuda:nccl"),
    ],
    ids=str,
)  # fmt: skip
def test_ranks_that_are_more_than_gpus_share_them(monkeypatch, gpus, local_size, devices, backend):
    """All ranks of a host get the same backend, whichever of them share a GPU."""
    host = Host(monkeypatch, gpus)
    found = [host.start(rank, local_size).device for rank in range(local_size)]
    assert found == host.taken == [torch.device("cuda", k) for k in devices] and host.joined == [backend] * local_size


def test_ranks_on_a_cpu_meet_over_gloo(monkeypatch):
    host = Host(monkeypatch, 2)
    assert host.start(1, 4, device_type="cpu").device == torch.device("cpu") and host.joined == ["gloo"] and not host.taken


def test_one_rank_meets_nobody(monkeypatch):
    host = Host(monkeypatch, 2)
    assert host.start(0, 1, world=1).device == launch.start_process_group(mesh_of(1), None, device_type="cuda").device == torch.device("cuda", 0)
    assert not host.joined


def test_torchrun_says_how_many_ranks_a_host_has():
    env = read_torchrun_env(TORCHRUN)
    assert (env.rank, env.local_rank, env.world_size, env.local_size) == (5, 1, 8, 4)
    assert read_torchrun_env({"RANK": "0", "WORLD_SIZE": "2"}).local_size == 1
    with pytest.raises(RankError, match="^LOCAL_WORLD_SIZE: expected a number, as torchrun sets it, found 'all'$"):
        read_torchrun_env({**TORCHRUN, "LOCAL_WORLD_SIZE": "all"})


# --- messages


class Wire:
    """Stands for torch.distributed of two ranks, of which this is the first: what is sent comes back, and the devices of all that it was given are remembered."""

    def __init__(self, monkeypatch, backend):
        self.groups, self.devices, self.sent = [], [], []
        work = SimpleNamespace(wait=lambda *timeout: True, is_completed=lambda: True)

        def new_group(ranks, **options):
            self.groups.append(ranks)
            return len(self.groups)

        def isend(x, target, group, tag=0):
            self.devices.append(x.device.type)
            self.sent.append(x.clone())
            return work

        def irecv(x, source, group, tag=0):
            self.devices.append(x.device.type)
            if self.sent and self.sent[0].numel() == x.numel() and x.device.type == "cpu":
                x.copy_(self.sent.pop(0))
            return work

        for name, stand_in in {"get_world_size": lambda: 2, "get_rank": lambda: 0, "get_backend_config": lambda: backend, "new_group": new_group, "isend": isend, "irecv": irecv}.items():
            monkeypatch.setattr(comm_module.dist, name, stand_in)


def talk(device):
    """A message to the other rank and one from it, on a device that this machine has not."""
    comm = ProcessComm(mesh_of(2), torch.device(device))
    comm.open_links([(0, 1), (1, 0)])
    comm.begin_step({1: [Arrival((0, 0), (2, 3), "float32")]})
    x = torch.arange(6.0).view(2, 3)
    comm.send(x if comm._messages_on.type == "cpu" else x.to(device), 1, (0, 0))
    return comm, x, comm.receive(1, (0, 0))


def test_gloo_carries_messages_of_a_gpu_in_the_hosts_memory(monkeypatch):
    wire = Wire(monkeypatch, "cpu:gloo,cuda:gloo")
    comm, _, found = talk("meta")
    comm.end_step()
    assert set(wire.devices) == {"cpu"} and found.device.type == "meta" and found.shape == (2, 3)
    assert wire.groups[1:] == [None], "one group for all links: gloo knows tags"


def test_nccl_carries_them_as_they_are(monkeypatch):
    wire = Wire(monkeypatch, "cpu:gloo,cuda:nccl")
    _, _, found = talk("meta")
    assert set(wire.devices) == {"meta"} and found.device.type == "meta"
    assert wire.groups[1:] == [[0, 1], [1, 0]], "a group per direction"


def test_on_a_cpu_what_comes_is_what_was_sent(monkeypatch):
    wire = Wire(monkeypatch, "cpu:gloo")
    comm, x, found = talk("cpu")
    comm.end_step()
    assert torch.equal(found, x) and set(wire.devices) == {"cpu"}
