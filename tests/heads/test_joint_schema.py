"""The joint schema head against outputs of Clef's own code and against torch; padded, batched and on a mesh."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from tiny_joint import Record, TorchHead

from converters.joint_head import RULES
from converters.tables import Assignment
from sysone_jax.errors import CheckpointError
from sysone_jax.heads import joint_schema
from sysone_jax.heads.joint_schema import JointHeadConfig, JointSchemaHead, Schema
from sysone_jax.ops.stack import unstack
from sysone_jax.sharding import abstract, fill, leaves, make_mesh, shardings

CLEF = JointHeadConfig(hidden_size=5120, width=1024, routing_layers=2, layers=4, heads=16, feedforward=4096)
CLEF_FLASH = dataclasses.replace(CLEF, hidden_size=4096)
SYSONE_MINI = JointHeadConfig(hidden_size=576, width=256, routing_layers=1, layers=1, heads=4, feedforward=512)

# A tiny Clef-Flash with random weights, its hidden states, and the float32 logits that Clef's own head gave for them.
# The output embedding holds the rows that the prompts use, and the prompts' tokens are numbers of those rows.
GOLDEN = np.load(Path(__file__).parents[1] / "data" / "heads" / "clef_flash.npz")
GOLDEN_CONFIG = JointHeadConfig(hidden_size=64, width=48, routing_layers=2, layers=2, heads=4, feedforward=80)
GOLDEN_CASES = ("joint", "single", "noul_only")

TOLERANCE = 1e-5  # of the largest logit; float32 differs by a few 1e-7


class Tensors:
    """A checkpoint in memory. Meta tensors have shapes and no data."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> np.ndarray:
        return self.tensors[name].numpy()


def load(
    tensors: Mapping[str, torch.Tensor],
    config: JointHeadConfig,
    dtype: DTypeLike = jnp.float32,
    arithmetic: DTypeLike = jnp.float32,
) -> JointSchemaHead:
    module = abstract(lambda: JointSchemaHead(config, dtype, arithmetic))
    arrays = Assignment(RULES, Tensors(tensors), module).arrays()
    return fill(module, {path: jnp.asarray(array, dtype) for path, array in arrays})


def golden_tensors() -> dict[str, torch.Tensor]:
    names = [name for name in GOLDEN.files if name.startswith("head/")]
    return {name.removeprefix("head/"): torch.from_numpy(GOLDEN[name]) for name in names}


def golden_record(case: str) -> Record:
    tokens = GOLDEN[f"{case}/tokens"]
    return Record(
        GOLDEN[f"{case}/hidden"],
        tokens,
        GOLDEN[f"{case}/question_types"],
        GOLDEN[f"{case}/question_spans"] + len(tokens),
        GOLDEN[f"{case}/option_spans"] + len(tokens),
        GOLDEN[f"{case}/option_counts"],
    )


def pad(record: Record, tokens: int, questions: int, options: int) -> tuple[np.ndarray, Schema]:
    """The record in a larger bucket. The padding holds what must never matter: NaN, infinities, absurd numbers."""
    rows, used = record.hidden.shape[0], len(record.option_spans)
    hidden = np.full((tokens, record.hidden.shape[1]), np.nan, np.float32)
    hidden[1::3], hidden[2::3] = np.inf, -np.inf
    hidden[:rows] = record.hidden

    def padded(values: np.ndarray, size: int) -> np.ndarray:
        junk = np.resize(np.array([10**6, -7, 0, 3, -(10**6)], np.int32), size)
        junk[: len(values)] = values
        return junk

    return hidden, Schema(
        length=np.int32(rows),
        tokens=padded(record.tokens, tokens),
        question_start=padded(record.question_spans[:, 0], questions),
        question_end=padded(record.question_spans[:, 1], questions),
        question_type=padded(record.types, questions),
        question_count=np.int32(len(record.types)),
        option_start=padded(record.option_spans[:, 0], options),
        option_end=padded(record.option_spans[:, 1], options),
        option_question=padded(record.owners, options),
        option_count=np.int32(used),
    )


def unpadded(record: Record) -> tuple[np.ndarray, Schema]:
    return pad(record, len(record.tokens), len(record.types), len(record.option_spans))


@jax.jit
def read(head: JointSchemaHead, hidden: jax.Array, table: jax.Array, schema: Schema) -> jax.Array:
    return head(hidden, table, schema)


@jax.jit
def read_batch(head: JointSchemaHead, hidden: jax.Array, table: jax.Array, schema: Schema) -> jax.Array:
    return jax.vmap(lambda *record: head(record[0], table, record[1]))(hidden, schema)


def logits(head: JointSchemaHead, table: np.ndarray, hidden: np.ndarray, schema: Schema) -> np.ndarray:
    """Logits of every option, padding included, on one device."""
    with jax.set_mesh(make_mesh((1, 1))):
        return np.asarray(read(head, hidden, table, schema))


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, in parts of the largest logit."""
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def golden_head() -> JointSchemaHead:
    return load(golden_tensors(), GOLDEN_CONFIG)


def random_head(config: JointHeadConfig, seed: int) -> TorchHead:
    """Weights that hide nothing: norms far from one, biases far from zero, and a scale beyond its cap in odd seeds."""
    generator = torch.Generator().manual_seed(seed)
    head = TorchHead(config)
    for name, parameter in head.state_dict().items():
        if "norm" in name and name.endswith("weight"):
            parameter.uniform_(0.5, 1.5, generator=generator)
        elif parameter.ndim:
            parameter.normal_(0.0, 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5, generator=generator)
    head.residual_gate.data.fill_(0.3 * seed - 0.2)
    head.prior_logit_scale.data.fill_(2.0 if seed % 2 else 4.7)
    head.joint_logit_scale.data.fill_(5.2 if seed % 2 else 2.5)
    return head


def random_record(embed: int, vocab: int, tokens: int, option_counts: tuple[int, ...], seed: int) -> Record:
    """Spans of 1 to 5 tokens in order: each question, then its options, then a few tokens to the end of the prompt."""
    random = np.random.default_rng(seed)
    spans = []
    for _ in range(len(option_counts) + sum(option_counts)):
        start = (spans[-1][1] if spans else tokens // 4) + int(random.integers(3))
        spans.append((start, start + int(random.integers(1, 6))))
    assert spans[-1][1] < tokens
    opens = np.concatenate([[0], np.cumsum(np.array(option_counts) + 1)[:-1]])
    spans = np.array(spans, np.int32)
    return Record(
        random.standard_normal((tokens, embed)).astype(np.float32),
        random.integers(vocab, size=tokens).astype(np.int32),
        random.integers(3, size=len(option_counts)).astype(np.int32),
        spans[opens],
        np.delete(spans, opens, axis=0),
        np.array(option_counts),
    )


SIZES = {
    "one question": (JointHeadConfig(24, 16, 1, 1, 2, 32), 40, (2,)),
    "three questions": (JointHeadConfig(80, 48, 2, 3, 4, 72), 130, (3, 2, 5)),
    "many questions": (JointHeadConfig(96, 160, 3, 4, 5, 224), 330, (1, 9, 2, 4, 2, 7, 3)),
}
VOCAB = 56


def random_table(embed: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, embed]).standard_normal((VOCAB, embed)).astype(np.float32)


@pytest.mark.parametrize(
    ("config", "count"), [(CLEF, 128_056_324), (CLEF_FLASH, 121_762_820), (SYSONE_MINI, 2_469_252)], ids=str
)
def test_the_head_has_the_published_number_of_parameters(config: JointHeadConfig, count: int):
    assert config.parameter_count == count


def test_the_config_reads_the_checkpoint_file():
    assert JointHeadConfig.from_json(dataclasses.asdict(CLEF)) == CLEF


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": 0.1}, r"must hold exactly .*; missing or unknown: \['dropout'\]"),
        ({"heads": None}, r"must hold exactly .*; missing or unknown: \['heads'\]"),
        ({"layers": "4"}, "layers must be a positive integer, not '4'"),
        ({"layers": True}, "layers must be a positive integer, not True"),
        ({"routing_layers": 0}, "routing_layers must be a positive integer, not 0"),
        ({"heads": 15}, "width 1024 must be a multiple of heads 15"),
    ],
)
def test_a_config_that_this_head_is_not_is_refused(change: dict, message: str):
    mapping = {name: value for name, value in (dataclasses.asdict(CLEF) | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        JointHeadConfig.from_json(mapping)


@pytest.mark.parametrize(("config", "tensors"), [(CLEF, 122), (CLEF_FLASH, 122), (SYSONE_MINI, 54)], ids=str)
def test_the_table_covers_the_checkpoint_and_the_head(config: JointHeadConfig, tensors: int):
    with torch.device("meta"):
        checkpoint = TorchHead(config).state_dict()
    assert len(checkpoint) == tensors
    module = abstract(lambda: JointSchemaHead(config))
    Assignment(RULES, Tensors(checkpoint), module)
    assert {rule.target for rule in RULES} == {path for path, _ in leaves(module)}


def test_the_table_refuses_another_checkpoint():
    with torch.device("meta"):
        checkpoint = TorchHead(CLEF).state_dict()
    checkpoint["layers.0.gate.weight"] = checkpoint.pop("layers.3.linear1.weight")
    with pytest.raises(CheckpointError, match=r"layers\.0\.gate\.weight; missing tensor layers\.3\.linear1\.weight"):
        Assignment(RULES, Tensors(checkpoint), abstract(lambda: JointSchemaHead(CLEF)))


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden_logits(golden_head: JointSchemaHead, case: str):
    record = golden_record(case)
    got = logits(golden_head, GOLDEN["output_embedding"], *unpadded(record))
    assert got.dtype == np.float32
    assert distance(got, GOLDEN[f"{case}/option_logits"]) < TOLERANCE
    shares = [np.exp(part - part.max()) for part in np.split(got, np.cumsum(record.option_counts)[:-1])]
    probabilities = np.concatenate([part / part.sum() for part in shares])
    np.testing.assert_allclose(probabilities, GOLDEN[f"{case}/option_probs"], atol=1e-5)


@pytest.mark.parametrize("bucket", [(683, 4, 16), (704, 8, 11), (1024, 16, 64)])
@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_padding_is_inert(golden_head: JointSchemaHead, case: str, bucket: tuple[int, int, int]):
    record = golden_record(case)
    got = logits(golden_head, GOLDEN["output_embedding"], *pad(record, *bucket))
    assert np.isfinite(got).all()
    assert distance(got[: len(record.option_spans)], GOLDEN[f"{case}/option_logits"]) < TOLERANCE


def test_a_record_of_padding_alone_stays_finite(golden_head: JointSchemaHead):
    hidden, schema = pad(golden_record("joint"), 704, 8, 16)
    nothing = dataclasses.replace(schema, length=np.int32(0), question_count=np.int32(0), option_count=np.int32(0))
    hidden = np.full_like(hidden, np.nan)
    assert np.isfinite(logits(golden_head, GOLDEN["output_embedding"], hidden, nothing)).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 4)])
def test_records_in_a_batch_on_a_mesh(golden_head: JointSchemaHead, shape: tuple[int, int]):
    cases = (*GOLDEN_CASES, GOLDEN_CASES[0])
    batch = jax.tree.map(lambda *leaf: np.stack(leaf), *[pad(golden_record(case), 704, 8, 16) for case in cases])
    table = GOLDEN["output_embedding"]
    table = np.concatenate([table, np.full((-len(table) % 8, table.shape[1]), np.nan, np.float32)])
    mesh = make_mesh(shape)
    where = shardings(golden_head, mesh)
    with jax.set_mesh(mesh):
        head = fill(golden_head, {path: jax.device_put(leaf[...], where[path]) for path, leaf in leaves(golden_head)})
        hidden, schema = jax.device_put(batch, NamedSharding(mesh, P("data")))
        got = np.asarray(read_batch(head, hidden, jax.device_put(table, NamedSharding(mesh, P("model"))), schema))
    for case, row in zip(cases, got, strict=True):
        expected = GOLDEN[f"{case}/option_logits"]
        assert distance(row[: len(expected)], expected) < TOLERANCE


def test_every_weight_is_whole_on_every_device(golden_head: JointSchemaHead):
    assert all(where.is_fully_replicated for where in shardings(golden_head, make_mesh((1, 8))).values())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_random_heads_agree_with_torch(size: str, seed: int):
    config, tokens, option_counts = SIZES[size]
    reference, table = random_head(config, seed), random_table(config.hidden_size, seed)
    record = random_record(config.hidden_size, VOCAB, tokens, option_counts, seed)
    expected = reference(record, torch.from_numpy(table)).numpy()
    head = load(reference.state_dict(), config)
    assert distance(logits(head, table, *unpadded(record)), expected) < TOLERANCE
    padded = logits(head, table, *pad(record, 384, 8, 32))
    assert np.isfinite(padded).all()
    assert distance(padded[: len(expected)], expected) < TOLERANCE


@pytest.mark.parametrize("sibling", ["absent", "of another type", "with its options apart", "elsewhere"])
def test_siblings_change_an_answer_as_in_torch(sibling: str):
    config, tokens, option_counts = SIZES["three questions"]
    reference, table = random_head(config, 1), random_table(config.hidden_size, 1)
    record = random_record(config.hidden_size, VOCAB, tokens, option_counts, 1)
    changed = {
        "absent": dataclasses.replace(
            record,
            types=record.types[:2],
            question_spans=record.question_spans[:2],
            option_spans=record.option_spans[:5],
            option_counts=record.option_counts[:2],
        ),
        "of another type": dataclasses.replace(record, types=np.array([*record.types[:2], 2 - record.types[2]])),
        "with its options apart": dataclasses.replace(record, option_counts=np.array([3, 4, 3])),
        "elsewhere": dataclasses.replace(
            record, question_spans=np.concatenate([record.question_spans[:2], [[2, 7]]]).astype(np.int32)
        ),
    }[sibling]
    head = load(reference.state_dict(), config)
    first = slice(0, record.option_counts[0])
    before, after = (reference(version, torch.from_numpy(table)).numpy() for version in (record, changed))
    got_before, got_after = (logits(head, table, *pad(version, 160, 4, 16)) for version in (record, changed))
    moved = np.abs(after - before[: len(after)])[first].max()
    assert moved > 20 * TOLERANCE * np.abs(before).max()
    difference = (got_after - got_before)[first] - (after[first] - before[first])
    assert np.abs(difference).max() < TOLERANCE * np.abs(before).max()


def test_unstacked_layers_give_the_same_logits(golden_head: JointSchemaHead):
    plain = load(golden_tensors(), GOLDEN_CONFIG)
    plain.evidence, plain.decoder = unstack(plain.evidence), unstack(plain.decoder)
    hidden, schema = unpadded(golden_record("joint"))
    stacked, unrolled = (logits(head, GOLDEN["output_embedding"], hidden, schema) for head in (golden_head, plain))
    assert distance(unrolled, stacked) < 1e-6


def test_weights_stored_in_bfloat16_are_computed_in_float32():
    short = load(golden_tensors(), GOLDEN_CONFIG, jnp.bfloat16)
    wide = fill(short, {path: leaf[...].astype(jnp.float32) for path, leaf in leaves(short)})
    hidden, schema = unpadded(golden_record("joint"))
    hidden, table = jnp.asarray(hidden, jnp.bfloat16), jnp.asarray(GOLDEN["output_embedding"], jnp.bfloat16)
    got = logits(short, table, hidden, schema)
    assert got.dtype == np.float32
    expected = logits(wide, table.astype(jnp.float32), hidden.astype(jnp.float32), schema)
    assert distance(got, expected) < 1e-6


BF16 = {
    **{
        case: (golden_tensors(), GOLDEN_CONFIG, golden_record(case), GOLDEN["output_embedding"])
        for case in GOLDEN_CASES
    },
    **{
        f"{size} {seed}": (
            random_head(config, seed).state_dict(),
            config,
            random_record(config.hidden_size, VOCAB, tokens, counts, seed),
            random_table(config.hidden_size, seed),
        )
        for size, (config, tokens, counts) in SIZES.items()
        for seed in (1, 2, 3)
    },
}


def test_in_bfloat16_the_head_rounds_as_much_as_torch_does():
    """No two implementations round alike (the release's own kernels differ): what can be asked is the same spread."""
    ours, theirs, apart = [], [], []
    for tensors, config, record, table in BF16.values():
        reference = TorchHead(config)
        reference.load_state_dict(dict(tensors))
        exact = reference(record, torch.from_numpy(table)).numpy()
        rounded = reference.bfloat16()(record, torch.from_numpy(table).bfloat16()).float().numpy()
        got = logits(load(tensors, config, jnp.bfloat16, jnp.bfloat16), table, *unpadded(record))
        assert np.array_equal(got, got.astype(jnp.bfloat16).astype(np.float32))
        ours.append(np.abs(got - exact).max())
        theirs.append(np.abs(rounded - exact).max())
        apart.append(np.abs(got - rounded).max())
    assert max(theirs) > 0.1
    for found in (ours, apart):
        assert np.mean(found) < 1.3 * np.mean(theirs) and max(found) < 1.3 * max(theirs), (found, theirs)


def test_padding_is_inert_in_bfloat16():
    head = load(golden_tensors(), GOLDEN_CONFIG, jnp.bfloat16, jnp.bfloat16)
    record = golden_record("joint")
    plain = logits(head, GOLDEN["output_embedding"], *unpadded(record))
    padded = logits(head, GOLDEN["output_embedding"], *pad(record, 1024, 16, 64))
    assert np.isfinite(padded).all()
    assert distance(padded[: len(plain)], plain) < 2**-7


def test_blocks_of_options_give_the_logits_of_all_at_once(
    golden_head: JointSchemaHead, monkeypatch: pytest.MonkeyPatch
):
    hidden, schema = pad(golden_record("joint"), 690, 6, 17)
    whole = logits(golden_head, GOLDEN["output_embedding"], hidden, schema)
    monkeypatch.setattr(joint_schema, "ROW_BLOCK", 5)
    with jax.set_mesh(make_mesh((1, 1))):
        again = jax.jit(lambda head, *record: head(*record))  # traced anew
        blocks = np.asarray(again(golden_head, hidden, GOLDEN["output_embedding"], schema))
    count = int(schema.option_count)
    assert distance(blocks[:count], whole[:count]) < TOLERANCE


def test_no_product_may_drop_below_float32(golden_head: JointSchemaHead):
    hidden, schema = unpadded(golden_record("joint"))
    table = jnp.asarray(GOLDEN["output_embedding"], jnp.bfloat16)
    with jax.default_matmul_precision("bfloat16"), jax.set_mesh(make_mesh((1, 1))):
        program = read.lower(golden_head, jnp.asarray(hidden, jnp.bfloat16), table, schema).as_text()
    products = re.findall(r"stablehlo\.dot_general.*", program)
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in product and "bf16" not in product for product in products)


def test_gradients_are_finite_under_padding(golden_head: JointSchemaHead):
    hidden, schema = pad(golden_record("joint"), 704, 8, 16)
    table, real = GOLDEN["output_embedding"], np.arange(16) < schema.option_count
    with jax.set_mesh(make_mesh((1, 1))):
        gradients = jax.grad(lambda head: jnp.sum(jnp.where(real, read(head, hidden, table, schema), 0.0)))(golden_head)
    for path, gradient in leaves(gradients):
        assert np.isfinite(gradient[...]).all(), path
