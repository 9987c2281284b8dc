"""The transformer for texts: what it sees of a row, refused names, and exact repetition."""

import numpy as np
import pytest
import torch

from colonnade.models import Network, OptimiserSpec, party_module, server_module
from colonnade.models.build import is_dotted, refuse_unknown
from colonnade.protocol.errors import ModelError

UNIT = 1 << 16


def build(name="transformer:20x8", shape=(5, 1), outputs=3):
    return party_module(name, shape, outputs, 7, "party-2").eval()


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.float32) / UNIT


@torch.no_grad()
def test_it_reads_words_in_order_and_no_padding():
    module = build()
    first, swapped, longer, empty = module(rows([2, 3, 0, 0, 0], [3, 2, 0, 0, 0], [2, 3, 3, 0, 0], [0, 0, 0, 0, 0]))
    assert torch.isfinite(empty).all()
    for other in (swapped, longer, empty):
        assert not torch.allclose(first, other, atol=1e-4)
    module.words.weight[0] = 100.0  # the vector of padding
    assert torch.allclose(module(rows([2, 3, 0, 0, 0]))[0], first, atol=1e-5)


@torch.no_grad()
def test_a_number_beyond_the_table_is_an_unknown_word():
    module = build()
    assert torch.equal(module(rows([2, 19, 1, 0, 0])), module(rows([2, 19, 65_535, 0, 0])))
    assert not torch.equal(module(rows([2, 18, 1, 0, 0])), module(rows([2, 19, 1, 0, 0])))


def test_attention_is_torchs():
    """One block, written out with torch's own layer."""
    block = build().blocks[0]
    theirs = torch.nn.TransformerEncoderLayer(
        8, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).train()
    pairs = {
        "self_attn.in_proj_weight": block.parts.weight, "self_attn.in_proj_bias": block.parts.bias,
        "self_attn.out_proj.weight": block.joined.weight, "self_attn.out_proj.bias": block.joined.bias,
        "linear1.weight": block.dense[0].weight, "linear1.bias": block.dense[0].bias,
        "linear2.weight": block.dense[2].weight, "linear2.bias": block.dense[2].bias,
        "norm1.weight": block.before.weight, "norm1.bias": block.before.bias,
        "norm2.weight": block.after.weight, "norm2.bias": block.after.bias,
    }  # fmt: skip
    theirs.load_state_dict(pairs)
    x, seen = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [True, True, False, False, False]])
    wanted = theirs(x, src_key_padding_mask=~seen)
    assert torch.allclose(block(x, seen), wanted, atol=1e-5)


def test_its_passes_draw_nothing_and_repeat():
    network = Network(build().train(), OptimiserSpec("adam"))
    x = rows([2, 3, 4, 0, 0], [5, 6, 0, 0, 0]).numpy()
    assert network.renewed(x, 1, x) is not None and not network._draws
    assert np.array_equal(network.forward(x, 0, 0), network.forward(x, 1, 9))


@pytest.mark.parametrize(
    "name",
    [
        "transformer:",
        "transformer:2",
        "transformer:70000",
        "transformer:50x6",
        "transformer:50x2048",
        "transformer:ax8",
    ],
)
def test_wrong_sizes_are_refused(name):
    with pytest.raises(ModelError, match=r"give the size of the vocabulary \(3 to 65536\) and the width"):
        build(name)


def test_other_rows_and_servers_are_refused():
    for shape in ((5,), (5, 2), (3, 4, 4)):
        with pytest.raises(ModelError, match="a row must be a text"):
            build(shape=shape)
    with pytest.raises(ModelError, match="is for parties"):
        server_module("transformer", 10, 3, 0)
    assert not is_dotted("transformer:20x8")
    refuse_unknown("transformer", "model.party")
