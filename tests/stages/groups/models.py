"""Small models of which most ops can be split over a tensor group."""

from __future__ import annotations

from typing import Any

import torch
import transformers as installed
from torch import nn

transformers: Any = installed


class Convolutions(nn.Module):
    """A residual block, a depthwise product, norms by channel, a gate by channel and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.depthwise, self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 32, 1, groups=2)
        self.group_norm, self.last = nn.GroupNorm(8, 32), nn.Conv2d(32, 16, 1)
        self.squeeze, self.excite = nn.Linear(16, 8), nn.Linear(8, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        """Map (b, 3, h, w) to (b, 10)."""
        y = self.norm(self.first(x)).relu()
        z = self.last(self.group_norm(self.grouped(self.depthwise(y).relu())).relu())
        gate = self.excite(self.squeeze(z.mean((2, 3))).relu()).sigmoid()
        z = y + z * gate[:, :, None, None]
        z = nn.functional.avg_pool2d(nn.functional.max_pool2d(z, 2), 2)
        return self.head(z.flatten(1).reshape(x.shape[0], 16, -1).amax(-1))


class Mixers(nn.Module):
    """Queries, keys and values in one product cut in several ways; attention by hand; gates in one product."""

    def __init__(self) -> None:
        super().__init__()
        self.sliced, self.stacked, self.chunked = nn.Linear(32, 64), nn.Linear(32, 96), nn.Linear(32, 96)
        self.out, self.gates, self.down = nn.Linear(32, 32), nn.Linear(32, 128, bias=False), nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)
        self.scale = nn.Parameter(torch.randn(32))

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        """Attention of (b, s, h, d) by products."""
        q, k, v = q.transpose(1, 2), k.permute(0, 2, 3, 1), v.transpose(1, 2)
        scores = (q @ k) / 2.0
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, -1e9).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Any) -> Any:
        """Map (b, s, 32) to (b, s, 32)."""
        b, s, _ = x.shape
        qkv = self.sliced(self.norm(x))
        q, k, v = qkv[..., :32], qkv[..., 32:48], qkv[..., 48:]
        k, v = (y.view(b, s, 4, 1, 4).expand(b, s, 4, 2, 4).reshape(b, s, 8, 4) for y in (k, v))
        x = x + self.out(self.attend(q.view(b, s, 8, 4), k, v))
        q, k, v = self.stacked(self.norm(x)).view(b, s, 3, 8, 4).unbind(2)
        x = x + self.out(self.attend(q, k, v)) * self.scale
        q, k, v = (y.view(b, s, 8, 4) for y in self.chunked(self.norm(x)).chunk(3, -1))
        x = x + self.out(self.attend(q, k, v))
        up, gate = self.gates(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(up * torch.nn.functional.silu(gate))


class Einsums(nn.Module):
    """Experts in one array, products by einsum, a table, a sum over what lies in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 24)), nn.Parameter(torch.randn(4, 24, 16))
        self.heads, self.join = nn.Parameter(torch.randn(16, 4, 8)), nn.Parameter(torch.randn(4, 8, 16))
        self.router = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        """Map (b, s) indices to (b, s, 40) logits."""
        y = self.table(x)
        flat = y.flatten(0, 1)
        spread = torch.bmm(torch.bmm(flat.expand(4, *flat.shape), self.up).relu(), self.down)
        y = y + (spread * self.router(flat).softmax(-1).t()[:, :, None]).sum(0).view(y.shape)
        heads = torch.einsum("bsd,dhk->bshk", y, self.heads)
        y = y + torch.einsum("bshk,hkd->bsd", heads * heads.sigmoid(), self.join)
        return y @ self.table.weight.t()


def case(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a model and its inputs.

    Parameters
    ----------
    name
        One of those below.
    """
    tokens = torch.randint(0, 40, (2, 8))
    ours = {"convolutions": (Convolutions, torch.randn(2, 3, 8, 8)), "mixers": (Mixers, torch.randn(2, 8, 32))}
    ours |= {"einsums": (Einsums, tokens)}
    if name in ours:
        made, x = ours[name]
        return made().eval(), (x,)
    if name == "encoder":
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(), (torch.randn(2, 8, 32),)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 40}
    more = {"intermediate_size": 64, "num_key_value_heads": 4}
    config: Any = {
        "llama": lambda: transformers.LlamaConfig(**shape, **more),
        "mixtral": lambda: transformers.MixtralConfig(**shape, **more, num_local_experts=4),
        "bert": lambda: transformers.BertConfig(**shape, intermediate_size=64),
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=8, vocab_size=40, n_positions=16, bos_token_id=0, eos_token_id=0
        ),
    }[name]()
    kind = transformers.AutoModel if name == "bert" else transformers.AutoModelForCausalLM
    return kind.from_config(config).eval(), (tokens,)


def without_weights(config: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a Llama whose weights take no memory, and a prompt of 2,048 tokens.

    Parameters
    ----------
    config
        Its sizes.
    """
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    return module, (torch.zeros(1, 2048, dtype=torch.long, device="meta"),)


class _WithConstants(nn.Module):
    """A mask, a layer without gradients, and one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(4, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.frozen(x * self.mask)))  # type: ignore[no-any-return, operator]


def with_constants() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model of which a part is not trained, and its input."""
    return _WithConstants(), (torch.ones(4, 8),)
