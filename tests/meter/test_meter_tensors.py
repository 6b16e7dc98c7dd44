"""Live bytes of real and fake tensors, by component and moment."""

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

from grpo_bench.meter.tensors import LiveBytes, make_fake


def by_shape(tensor):
    """A component for vectors and one for the rest."""
    return "vectors" if tensor.dim() == 1 else "matrices"


def test_counts_storages_while_they_live():
    live = LiveBytes(by_shape)
    with live, live.moment("all"):
        a = torch.zeros(10)  # 40 bytes
        b = torch.zeros(3, 4, dtype=torch.bfloat16)  # 24
        view = a[2:]
        assert live.live == {"vectors": 40, "matrices": 24}
        del a
        assert live.live["vectors"] == 40  # the view holds it
        del view
        assert live.live["vectors"] == 0
        c = b + 1  # 48 together
    assert live.live["matrices"] == 48
    assert live.peaks == {"all": {"vectors": 40, "matrices": 24}}  # 64 > 48
    del b, c
    assert not any(live.live.values())


def test_moments_have_peaks_of_their_own():
    live = LiveBytes(by_shape)
    with live:
        kept = torch.zeros(100)  # 400 bytes, in no moment
        with live.moment("outer"):
            torch.zeros(10)
            with live.moment("inner"):
                torch.zeros(20)
            torch.zeros(5)
        with live.moment("outer"):
            torch.zeros(1)
        before = live.begin("last")
    assert before == ""
    totals = {name: sum(parts.values()) for name, parts in live.peaks.items()}
    assert totals == {"outer": 440, "inner": 480, "last": 400}
    del kept


def test_label_moves_existing_storages():
    live = LiveBytes(by_shape)
    weight = torch.zeros(6)
    live.label([weight], "weights")
    live.label([weight[1:]], "others")  # the same storage
    assert live.live["weights"] == 0
    assert live.live["others"] == 24


def test_others_count_in_the_peaks():
    rest = {"arrays": 0, "environment": 7}
    live = LiveBytes(by_shape, lambda: rest)
    with live, live.moment("all"):
        a = torch.zeros(10)  # 40 bytes
        rest["arrays"] = 100
        a.add_(1)  # seen here: 40 + 100 + 7
        rest["arrays"] = 0
        b = torch.zeros(20)  # 40 + 80 + 7 is less
    assert live.peaks == {"all": {"vectors": 40, "arrays": 100, "environment": 7}}
    del a, b


def test_memory_that_torch_did_not_make_does_not_count():
    array = np.zeros(10)

    def torchs(tensor):
        return "torch" if tensor.untyped_storage().resizable() else None

    live = LiveBytes(torchs)
    with live, live.moment("all"):
        lent = torch.as_tensor(array)
        live.label([lent[2:]], "views")
        made = lent + 1  # 10 float64
    assert live.peaks == {"all": {"torch": 80}}
    assert live.live["views"] == 0
    del made


def training_step(layer, x):
    """Forward, loss as a number, backward."""
    loss = layer(x).log_softmax(-1)[x[:, :5] == 0].pow(2).mean()
    loss.backward()
    return float(loss.detach())


def test_fake_tensors_count_as_real_ones():
    peaks = []
    for device in ("cpu", "meta"):
        layer = nn.Linear(16, 5, device=device)
        if device == "meta":
            make_fake([layer])
        live = LiveBytes(lambda tensor: "all")
        live.label(layer.parameters(), "all")
        with live, live.moment("step"):
            number = training_step(layer, torch.zeros(7, 16))
        assert isinstance(number, float)
        peaks.append(live.peaks["step"]["all"])
    assert peaks[0] == pytest.approx(peaks[1], rel=0.05)  # the mask is all true
    assert peaks[0] > 4 * (16 * 5 + 5) * 2  # weights and gradients


def test_fake_weights_stay_tied_and_shared():
    a, b = nn.Linear(3, 3, device="meta"), nn.Linear(3, 3, device="meta")
    b.weight = a.weight
    a.register_buffer("scale", torch.zeros(2, device="meta"))
    a.bias.requires_grad_(False)
    make_fake([nn.ModuleList([a]), b, a])
    assert b.weight is a.weight
    for tensor in (*a.parameters(), *a.buffers(), *b.parameters()):
        assert isinstance(tensor, FakeTensor)
        assert tensor.device.type == "cpu"
    assert a.weight.requires_grad
    assert not a.bias.requires_grad
