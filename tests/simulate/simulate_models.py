"""Shapes of real models: their parameters by name, module by module, and how ranks share them."""
import math
import typing

# How tensor-parallel ranks share a parameter: cut along dimension 0 or 1, or each with a copy. Copies
# of layer norms are not kept equal in training, so they are averaged.
COLUMN, ROW, VOCABULARY, REPLICATED, AVERAGED = "column", "row", "vocabulary", "replicated", "averaged"


class Experts(typing.NamedTuple):
    count: int  # in each layer but the first `dense_layers`
    inner: int  # the width of one; one more is shared by all tokens
    dense_layers: int


class Latent(typing.NamedTuple):
    """Attention with keys and values of low rank."""
    q_rank: int
    kv_rank: int
    plain: int  # of a head's query, without and with rotation
    rotated: int
    value: int


class Model(typing.NamedTuple):
    family: str
    layers: int
    hidden: int
    inner: int  # the width of the feed-forward layers
    heads: int
    kv_heads: int
    vocab: int
    latent: Latent | None = None
    experts: Experts | None = None


DEEPSEEK_LATENT = Latent(1536, 512, 128, 64, 128)

MODELS = {
    "bloom-560m": Model("bloom", 24, 1024, 4096, 16, 16, 250680),
    "bloom-7b1": Model("bloom", 30, 4096, 16384, 32, 32, 250680),
    "bloom-176b": Model("bloom", 70, 14336, 57344, 112, 112, 250680),
    "llama-400m": Model("llama", 20, 1024, 4096, 16, 16, 32000),
    "llama-8b": Model("llama", 32, 4096, 14336, 32, 8, 128256),
    "llama-70b": Model("llama", 80, 8192, 28672, 64, 8, 128256),
    "llama-405b": Model("llama", 126, 16384, 53248, 128, 8, 128256),
    "mistral-7b": Model("llama", 32, 4096, 14336, 32, 8, 32000),
    "deepseek-v3": Model("deepseek", 61, 7168, 18432, 128, 128, 129280, DEEPSEEK_LATENT, Experts(256, 2048, 3)),
    "kimi-k2": Model("deepseek", 61, 7168, 18432, 64, 64, 163840, DEEPSEEK_LATENT, Experts(384, 2048, 1)),
    # For tests. Numbers with remainders, wherever a real model may have them.
    "tiny-bloom": Model("bloom", 3, 24, 92, 4, 4, 301),
    "tiny-llama": Model("llama", 2, 24, 92, 4, 2, 301),
    "tiny-moe": Model("deepseek", 3, 20, 46, 2, 2, 301, Latent(7, 5, 4, 2, 3), Experts(4, 9, 1)),
}


class Module(typing.NamedTuple):
    pipeline_prefix: str  # of the names of its parameters in a pipeline
    path: str  # and elsewhere
    params: list  # of (name, shape, how it is shared)
    counts: bool = True  # where a pipeline is cut: every stage gets as many of these
    # The tensors of one expert: (name, shape). All experts come behind the parameter with index experts_at - 1.
    expert: list = ()
    experts_at: int = 0


def bloom(model, vocab):
    width = model.hidden
    norm = [("weight", (width,), AVERAGED), ("bias", (width,), AVERAGED)]
    embedding = Module("tied_modules.embed.", "transformer.", [
        ("word_embeddings.weight", (vocab, width), VOCABULARY),
        ("word_embeddings.norm.weight", (width,), AVERAGED),
        ("word_embeddings.norm.bias", (width,), AVERAGED)])
    layers = [Module(f"{3 + i}.", f"transformer.h.{i}.", [
        ("input_layernorm.weight", (width,), AVERAGED),
        ("input_layernorm.bias", (width,), AVERAGED),
        ("self_attention.query_key_value.weight", (3 * width, width), COLUMN),
        ("self_attention.query_key_value.bias", (3 * width,), COLUMN),
        ("self_attention.dense.weight", (width, width), ROW),
        ("self_attention.dense.bias", (width,), REPLICATED),
        ("post_attention_layernorm.weight", (width,), AVERAGED),
        ("post_attention_layernorm.bias", (width,), AVERAGED),
        ("mlp.dense_h_to_4h.weight", (model.inner, width), COLUMN),
        ("mlp.dense_h_to_4h.bias", (model.inner,), COLUMN),
        ("mlp.dense_4h_to_h.weight", (width, model.inner), ROW),
        ("mlp.dense_4h_to_h.bias", (width,), REPLICATED)]) for i in range(model.layers)]
    last = Module(f"{4 + model.layers}.", "transformer.ln_f.", norm, counts=False)
    # The last stage has the whole module of the embeddings once more, for its matrix.
    return [embedding, *layers, last, embedding]


def decoder(model, vocab, layers):
    """Around `layers`: embeddings, a norm and a head of its own."""
    width = model.hidden
    return [Module("0.", "model.", [("embed_tokens.weight", (vocab, width), VOCABULARY)]),
            *layers,
            Module(f"{1 + model.layers}.", "model.norm.", [("weight", (width,), REPLICATED)], counts=False),
            Module(f"{2 + model.layers}.", "", [("lm_head.weight", (vocab, width), VOCABULARY)])]


def feed_forward(path, width, inner):
    return [(f"{path}gate_proj.weight", (inner, width), COLUMN),
            (f"{path}up_proj.weight", (inner, width), COLUMN),
            (f"{path}down_proj.weight", (width, inner), ROW)]


def norms(width):
    return [("input_layernorm.weight", (width,), REPLICATED), ("post_attention_layernorm.weight", (width,), REPLICATED)]


def llama(model, vocab):
    width, kv_width = model.hidden, model.hidden // model.heads * model.kv_heads
    return decoder(model, vocab, [Module(f"{1 + i}.", f"model.layers.{i}.", [
        ("self_attn.q_proj.weight", (width, width), COLUMN),
        ("self_attn.k_proj.weight", (kv_width, width), COLUMN),
        ("self_attn.v_proj.weight", (kv_width, width), COLUMN),
        ("self_attn.o_proj.weight", (width, width), ROW),
        *feed_forward("mlp.", width, model.inner),
        *norms(width)]) for i in range(model.layers)])


def latent_attention(model):
    width, heads = model.hidden, model.heads
    q_rank, kv_rank, plain, rotated, value = model.latent
    return [("self_attn.q_a_proj.weight", (q_rank, width), REPLICATED),
            ("self_attn.q_a_layernorm.weight", (q_rank,), REPLICATED),
            ("self_attn.q_b_proj.weight", (heads * (plain + rotated), q_rank), COLUMN),
            ("self_attn.kv_a_proj_with_mqa.weight", (kv_rank + rotated, width), REPLICATED),
            ("self_attn.kv_a_layernorm.weight", (kv_rank,), REPLICATED),
            ("self_attn.kv_b_proj.weight", (heads * (plain + value), kv_rank), COLUMN),
            ("self_attn.o_proj.weight", (width, heads * value), ROW)]


EXPERT_PREFIX = "mlp.deepspeed_moe.experts.deepspeed_experts."


def deepseek(model, vocab):
    """In DeepSpeed's own MoE layers."""
    width, attention = model.hidden, latent_attention(model)
    gate = [("mlp.correction_bias", (model.experts.count,), REPLICATED),
            ("mlp.deepspeed_moe.gate.wg.weight", (model.experts.count, width), REPLICATED)]
    dense = [*attention, *feed_forward("mlp.", width, model.inner), *norms(width)]
    sparse = [*attention, *gate, *feed_forward("mlp.shared_experts.", width, model.experts.inner), *norms(width)]
    expert = [(name, shape) for name, shape, _ in feed_forward("", width, model.experts.inner)]
    layers = []
    for i in range(model.layers):
        place = f"{1 + i}.", f"model.layers.{i}."
        if i < model.experts.dense_layers:
            layers.append(Module(*place, dense))
        else:
            layers.append(Module(*place, sparse, expert=expert, experts_at=len(attention) + len(gate)))
    return decoder(model, vocab, layers)


FAMILIES = {"bloom": bloom, "llama": llama, "deepseek": deepseek}


def modules_of(model, vocab=None):
    """`vocab`: with its padding, if there is any."""
    return FAMILIES[model.family](model, vocab or model.vocab)


def shapes_of(modules, experts=0):
    """All parameters that no pipeline cuts, in the order of the model. The first `experts` of each layer of
    experts."""
    shapes = {}
    for module in modules:
        params = [(module.path + name, shape) for name, shape, _ in module.params]
        of_experts = [(f"{module.path}{EXPERT_PREFIX}{number}.{name}", shape)
                      for number in range(experts) for name, shape in module.expert]
        shapes.update([*params[:module.experts_at], *of_experts, *params[module.experts_at:]])
    return shapes


def parameter_count(model):
    shapes = shapes_of(modules_of(model), model.experts.count if model.experts else 0)
    return sum(map(math.prod, shapes.values()))


def is_tied(modules):
    return modules.count(modules[0]) > 1
