"""Clef's joint schema head in torch, and small random Clef-Flash checkpoints to read with it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tiny_checkpoint import write_head
from tiny_vision import IMAGES, VIDEOS, write_vision

from sysone_jax.heads.joint_schema import JointHeadConfig
from sysone_jax.media.request import NOTHING, Media
from sysone_jax.prompts.joint_schema import JointPrompt


@dataclasses.dataclass(frozen=True)
class Record:
    """What the head reads of one prompt."""

    hidden: np.ndarray  # [T D]
    tokens: np.ndarray  # [T]
    types: np.ndarray  # [Q]
    question_spans: np.ndarray  # [Q 2], absolute
    option_spans: np.ndarray  # [O 2]
    option_counts: np.ndarray  # [Q]

    @property
    def owners(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.option_counts)), self.option_counts)


class TorchEvidence(torch.nn.Module):
    def __init__(self, config: JointHeadConfig) -> None:
        super().__init__()
        width, inner = config.width, config.feedforward
        self.query_norm, self.memory_norm, self.feedforward_norm = (torch.nn.LayerNorm(width) for _ in range(3))
        self.attention = torch.nn.MultiheadAttention(width, config.heads, batch_first=True)
        self.feedforward = torch_mlp(width, inner, width)

    def forward(self, options: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        memory = self.memory_norm(memory)
        options = options + self.attention(self.query_norm(options), memory, memory, need_weights=False)[0]
        return options + self.feedforward(self.feedforward_norm(options))


def torch_mlp(size: int, inner: int, out: int) -> torch.nn.Sequential:
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(size, inner), torch.nn.GELU(), torch.nn.Dropout(0.0), linear(inner, out))


class TorchHead(torch.nn.Module):
    """The head's mathematics on torch's own layers and the checkpoint's own names, question by question, unpadded."""

    def __init__(self, config: JointHeadConfig) -> None:
        super().__init__()
        embed, width = config.hidden_size, config.width
        self.hidden_norm = torch.nn.LayerNorm(embed)
        self.memory_projection = torch.nn.Linear(embed, width, bias=False)
        self.question_projection = torch.nn.Linear(embed, width, bias=False)
        self.option_question_projection = torch.nn.Linear(embed, width, bias=False)
        self.global_projection = torch.nn.Linear(embed, width, bias=False)
        self.option_context_projection = torch.nn.Linear(embed, width, bias=False)
        self.option_lexical_projection = torch.nn.Linear(embed, width, bias=False)
        self.type_embedding = torch.nn.Embedding(3, width)
        self.evidence_layers = torch.nn.ModuleList(TorchEvidence(config) for _ in range(config.routing_layers))
        self.option_summary_norm = torch.nn.LayerNorm(width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerDecoderLayer(
                width, config.heads, config.feedforward, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(config.layers)
        )
        self.field_norm = torch.nn.LayerNorm(width)
        self.option_norm = torch.nn.LayerNorm(width)
        self.residual_scorer = torch_mlp(4 * width, width, 1)
        self.prior_logit_scale = torch.nn.Parameter(torch.zeros(()))
        self.joint_logit_scale = torch.nn.Parameter(torch.zeros(()))
        self.residual_gate = torch.nn.Parameter(torch.zeros(()))
        self.eval()

    @torch.no_grad()
    def forward(self, record: Record, table: torch.Tensor) -> torch.Tensor:
        cosine = torch.nn.functional.cosine_similarity
        normalize = torch.nn.functional.normalize
        x = self.hidden_norm(torch.from_numpy(record.hidden).to(table.dtype))
        memory, last = self.memory_projection(x)[None], x[-1]
        tokens = torch.from_numpy(record.tokens)
        asked = torch.stack([x[start:end].mean(0) for start, end in record.question_spans])
        context = torch.stack([x[start:end].mean(0) for start, end in record.option_spans])
        lexical = torch.stack([table[tokens[start:end]].mean(0) for start, end in record.option_spans])
        owners = torch.from_numpy(record.owners)

        options = self.option_context_projection(context) + self.option_lexical_projection(lexical)
        options = options + self.option_question_projection(asked)[owners]
        for layer in self.evidence_layers:
            options = layer(options[None], memory)[0]

        base = self.question_projection(asked)
        summaries = []
        for vector, own in zip(base, torch.split(options, record.option_counts.tolist()), strict=True):
            summaries.append(torch.softmax(own @ vector / vector.shape[0] ** 0.5, dim=0) @ own)
        fields = base + self.option_summary_norm(torch.stack(summaries)) + self.global_projection(last)
        fields = fields + self.type_embedding(torch.from_numpy(record.types))
        for layer in self.layers:
            fields = layer(fields[None], memory)[0]

        field, option = self.field_norm(fields)[owners], self.option_norm(options)
        prior = (normalize(lexical, dim=-1) * normalize(asked + last, dim=-1)[owners]).sum(-1)
        residual = self.residual_scorer(torch.cat([field, option, field * option, (field - option).abs()], -1))[:, 0]
        cap = torch.tensor(100.0).log()
        joint = self.joint_logit_scale.minimum(cap).exp() * cosine(field, option, dim=-1) + residual
        return self.prior_logit_scale.minimum(cap).exp() * prior + self.residual_gate.sigmoid() * joint


def write_joint(folder: Path, seed: int = 0) -> tuple[Any, TorchHead]:
    """A random Qwen3.5 with vision and a joint head; both again in torch.

    The processor's settings stand in one ``processor_config.json``, as in Clef's release.
    """
    model = write_vision(folder, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        write_head(folder, model.config.text_config.hidden_size, torch.float32, routing_layers=2)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).unlink()
    settings = {"processor_class": "Qwen3VLProcessor", "image_processor": IMAGES, "video_processor": VIDEOS}
    (folder / "processor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    head = TorchHead(JointHeadConfig(**json.loads((folder / "joint_head_config.json").read_text())))
    head.load_state_dict(load_file(folder / "joint_head.safetensors"))
    return model, head


@torch.no_grad()
def option_logits(model: Any, head: TorchHead, prompt: JointPrompt, media: Media = NOTHING) -> np.ndarray:
    """The reference: float32 logits [O] of every option in the prompt's order. ``media`` are patches."""
    tokens = torch.tensor([prompt.ids])
    given: dict[str, Any] = {}
    for items, values, grid in (
        (media.images, "pixel_values", "image_grid_thw"),
        (media.videos, "pixel_values_videos", "video_grid_thw"),
    ):
        if items:
            patches: Any = items
            given[values] = torch.from_numpy(np.concatenate([item.values for item in patches]))
            given[grid] = torch.tensor([item.grid for item in items])
    if given:
        kinds = (tokens == model.config.image_token_id).int() + 2 * (tokens == model.config.video_token_id).int()
        given["mm_token_type_ids"] = kinds
    body = model.model if given else model.model.language_model
    model.model.rope_deltas = None
    hidden = body(input_ids=tokens, use_cache=False, **given).last_hidden_state[0]
    record = Record(
        hidden=hidden.float().numpy(),
        tokens=np.asarray(prompt.ids),
        types=np.asarray(prompt.types),
        question_spans=np.asarray(prompt.question_spans),
        option_spans=np.asarray(prompt.option_spans),
        option_counts=np.asarray([len(order) for order in prompt.orders]),
    )
    return head(record, model.get_output_embeddings().weight.float()).numpy()
