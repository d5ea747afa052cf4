// Merges an adapter into its base, with the same weights as peft's merge_and_unload().
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "base/text.h"
#include "checkpoint/other_values.h"
#include "checkpoint/weights.h"
#include "dsckpt/error.h"
#include "dsckpt/weights.h"
#include "job/cast.h"
#include "job/job_impl.h"
#include "plan/tensor_source.h"
#include "weights/adapter_config.h"
#include "weights/companions.h"
#include "weights/model_config.h"
#include "weights/peft_adapter.h"
#include "weights/selection.h"
#include "weights/trained_parts.h"
#include "weights/weights_format.h"
#include "weights/weights_report.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

const TensorSource& source_of(const ChosenTensor* tensor) {
  return tensor->tensor.source;
}

// The base's tensors, in the base's order.
struct BaseTensors {
  struct Tensor {
    std::string name;
    Param param;           // the values too
    std::string alias_of;  // in the base
  };
  std::string display;  // for messages
  std::vector<Tensor> tensors = {};
  KeyedMap<std::string, size_t> index = {};
  std::vector<std::string> valueless = {};  // Checkpoint::valueless

  void add(Tensor tensor) {
    if (!index.emplace(tensor.name, tensors.size()).second) {
      throw InconsistentError({.file = display, .tensor = tensor.name}, "appears twice");
    }
    tensors.push_back(std::move(tensor));
  }
  const Tensor* find(const std::string& name) const {
    const auto found = index.find(name);
    return found == index.end() ? nullptr : &tensors[found->second];
  }
};

BaseTensors base_of_checkpoint(const Checkpoint& checkpoint,
                               const std::vector<ChosenTensor>& chosen) {
  BaseTensors base{.display = checkpoint.tag_folder().string()};
  for (const std::string& name : checkpoint.valueless()) {
    base.valueless.push_back(name_in_base(name));
  }
  const bool has_base = std::any_of(chosen.begin(), chosen.end(), [](const ChosenTensor& each) {
    return each.param->kind != ParamKind::buffer && !adapter_part(each.tensor.name, true);
  });
  if (!has_base) {
    throw InconsistentError({.file = base.display},
                            "has no frozen parameters: the run left them out")
        .with_hint("--merge BASE takes the folder of the model that was trained");
  }
  std::map<std::string, std::string> names;  // of the checkpoint, to names of the base
  for (const ChosenTensor& each : chosen) {
    const std::string& name = each.tensor.name;
    if (adapter_part(name, true)) continue;
    names.emplace(each.param->name, name_in_base(name));
  }
  for (const ChosenTensor& each : chosen) {
    const auto name = names.find(each.param->name);
    if (name == names.end() || base.find(name->second) != nullptr) continue;
    const auto owner = names.find(each.param->alias_of);
    base.add({name->second, *each.param,
              owner == names.end() || owner->second == name->second ? "" : owner->second});
  }
  return base;
}

BaseTensors base_of_weights(InputFiles& inputs, const fs::path& path,
                            std::vector<std::string>& notes) {
  const auto folders = std::make_shared<Folders>();
  const TagFolder found = find_input(path, {.folders = folders}, Beside::shards);
  const Checkpoint weights =
      found.has_only_weights()
          ? weights_alone(inputs, found.path, {.folders = folders, .choice = found.note})
          : Checkpoint::open_found(inputs, found, {.folders = folders});
  BaseTensors base{.display = path.string(), .valueless = weights.valueless()};
  for (const std::string& note : weights.notes()) notes.push_back(path.string() + ": " + note);
  for (const Param& param : weights.params()) {
    base.add({param.name, param, param.alias_of});
  }
  return base;
}

// Applies an adapter to a base.
class Merger {
 public:
  // `architecture`: the base's transformers class; "" if no configuration tells it.
  Merger(const BaseTensors& base, std::string architecture, const TrainedParts& parts,
         const LoraSettings& settings, const WeightsOptions& options,
         std::vector<std::string>& notes)
      : base_(base),
        architecture_(std::move(architecture)),
        parts_(parts),
        settings_(settings),
        options_(options),
        keep_fp32_(options.keep_fp32, "--keep-fp32"),
        notes_(notes) {
    for (const Tensor& tensor : base.tensors) {
      if (!tensor.alias_of.empty()) aliases_[tensor.alias_of].push_back(&tensor);
      if (!settings.targets_parameter(tensor.name)) continue;
      targeted_[tensor.name.substr(0, tensor.name.rfind('.'))].push_back(&tensor);
    }
  }

  const ModelChanges& changes() const { return changes_; }

  std::vector<OutputTensor> merge() {
    for (const auto& [name, tensor] : parts_.whole) add_replacement(name, *tensor);
    find_orientation();
    for (const auto& each : parts_.layers) {
      in_context({.tensor = each.second.name}, [&] { add_layer(each.second); });
    }
    for (const auto& each : parts_.rows) {
      if (change_with_others(each.first, *each.second)) continue;
      in_context({.tensor = each.second->tensor.name}, [&] { add_rows(each.first, *each.second); });
    }
    return outputs();
  }

 private:
  using Tensor = BaseTensors::Tensor;

  // Returns the output's type for a floating tensor.
  DType type_of(const Tensor& tensor) const {
    if (keep_fp32_.find_in(tensor.name)) return DType::float32;
    return options_.dtype.value_or(tensor.param.weight.dtype());
  }

  InconsistentError not_in_base(const std::string& name) const {
    return InconsistentError({.file = base_.display}, "has no tensor '" + name + "'");
  }

  const Tensor& find(const std::string& name) const {
    if (const Tensor* tensor = base_.find(name)) return *tensor;
    const std::string module = name.substr(0, name.rfind('.'));
    for (const char* packed : {".qweight", ".weight_packed", ".weight.absmax", ".blocks"}) {
      if (base_.find(module + packed) == nullptr) continue;
      throw UnsupportedError({.file = base_.display, .tensor = module + packed},
                             "is quantized: adapters are merged into floating weights");
    }
    if (base_.find(module + ".in_proj_weight") != nullptr) {
      throw UnsupportedError({.file = base_.display, .tensor = module + ".in_proj_weight"},
                             "belongs to a MultiheadAttention, whose adapters are not merged");
    }
    throw not_in_base(name).with_hint(
        "the base has to be the model that was trained; --key-map renames the adapter's tensors");
  }

  void add_replacement(const std::string& name, const ChosenTensor& trained) {
    const Tensor* tensor = base_.find(name);
    if (tensor == nullptr) {
      // Another name of a tensor that replaces its owner.
      if (base_.find(name_in_base(trained.param->alias_of)) != nullptr) return;
      if (is_tied_in_config(name, trained)) {
        // A trained copy of the embeddings, unless the adapter keeps both tied.
        if (settings_.ensures_tying()) return;
        changes_.untied = true;
        added_.emplace_back(name, &trained);
        return;
      }
      throw InconsistentError(
          {.tensor = trained.tensor.name},
          "was trained, but is neither in the adapter nor in the base, " + base_.display)
          .with_hint("--exclude leaves it out");
    }
    const bool is_shared = name == "shared.weight" || name.ends_with(".shared.weight");
    if (is_shared && !aliases_.contains(name) && !settings_.ensures_tying()) {
      throw UnsupportedError(
          {.tensor = trained.tensor.name},
          "is a trained copy of embeddings that encoder, decoder and head share, "
          "and the base has them once")
          .with_hint("an untied base takes it");
    }
    const Shape& shape = source_of(&trained).shape();
    const Shape wanted = without_padding(tensor->param, tensor->param.weight).shape();
    const bool grew = shape.size() == 2 && wanted.size() == 2 && shape[1] == wanted[1] &&
                      shape[0] > wanted[0] && is_embedding(name);
    if (grew) {
      changes_.vocabulary = ModelChanges::Vocabulary{wanted[0], shape[0]};
    } else if (shape != wanted) {
      throw InconsistentError({.tensor = trained.tensor.name},
                              "has shape " + to_text(shape) + ", in the base " + to_text(wanted));
    }
    replaced_.emplace(name, &trained);
    if (is_embedding(name) && !is_output_embedding(name)) replaced_input_ = tensor;
  }

  // Names of input and output embeddings in the models of transformers.
  static bool is_embedding(const std::string& name) {
    constexpr std::array<std::string_view, 7> kEmbeddings{
        "lm_head.weight",  "embed_out.weight",       "embed_tokens.weight",  "wte.weight",
        "embed_in.weight", "word_embeddings.weight", "tok_embeddings.weight"};
    return std::any_of(kEmbeddings.begin(), kEmbeddings.end(), [&](std::string_view each) {
      return name == each || name.ends_with("." + std::string(each));
    });
  }

  static bool is_output_embedding(const std::string& name) {
    return name.ends_with("lm_head.weight") || name.ends_with("embed_out.weight");
  }

  // Adds the output embeddings that only the base's configuration ties to input embeddings of which
  // a copy was trained: they keep the original ones.
  void add_original(std::vector<OutputTensor>& outputs) {
    if (replaced_input_ == nullptr || settings_.ensures_tying()) return;
    constexpr std::array<std::string_view, 3> kWithHead{"ForCausalLM", "LMHeadModel",
                                                        "ForConditionalGeneration"};
    const bool has_head =
        std::any_of(kWithHead.begin(), kWithHead.end(),
                    [&](std::string_view end) { return architecture_.ends_with(end); });
    const bool is_there = std::any_of(outputs.begin(), outputs.end(), [](const OutputTensor& each) {
      return is_output_embedding(each.name);
    });
    if (is_there) return;
    if (architecture_.empty()) {
      notes_.push_back("'" + replaced_input_->name +
                       "' is a trained copy; a model that ties its output embeddings to it needs "
                       "the original as lm_head.weight, and only a config.json with architectures "
                       "tells (--hf-config DIR)");
    }
    if (!has_head) return;
    outputs.push_back(
        {"lm_head.weight", cast(replaced_input_->param, type_of(*replaced_input_), notes_), {}});
    changes_.untied = true;
  }

  // Returns whether only the base's configuration ties this tensor to the input embeddings, whose
  // values then stand under their own name alone.
  bool is_tied_in_config(const std::string& name, const ChosenTensor& trained) const {
    const Shape& shape = source_of(&trained).shape();
    if (name != "lm_head.weight" && !name.ends_with(".lm_head.weight")) return false;
    return std::any_of(base_.tensors.begin(), base_.tensors.end(), [&](const Tensor& tensor) {
      return is_embedding(tensor.name) && shape.size() == 2 &&
             tensor.param.weight.shape().size() == 2 && tensor.param.weight.shape()[1] == shape[1];
    });
  }

  // Returns the values of the base's tensor, before the merge.
  TensorSource base_values(const Tensor& tensor) const {
    const auto found = replaced_.find(tensor.name);
    if (found != replaced_.end()) return source_of(found->second);
    return without_padding(tensor.param, tensor.param.weight);
  }

  void put(const Tensor& tensor, TensorSource merged) {
    if (!tensor.alias_of.empty()) {
      throw UnsupportedError({}, "is on '" + tensor.name + "', which is tied to '" +
                                     tensor.alias_of + "': merged, both would change")
          .with_hint("an untied base takes it");
    }
    if (const auto tied = aliases_.find(tensor.name); tied != aliases_.end()) {
      for (const Tensor* alias : tied->second) {
        if (replaced_.contains(alias->name)) continue;
        notes_.push_back("'" + alias->name + "' is tied to '" + tensor.name +
                         "' and changes with it, as in peft's merge_and_unload");
      }
    }
    if (!merged_.emplace(tensor.name, std::move(merged)).second) {
      throw UnsupportedError({}, "is on '" + tensor.name + "', which the adapter changes twice");
    }
  }

  static int64_t rank_of(const LoraTensors& layer) { return source_of(layer.a).shape().front(); }

  static bool is_complete(const LoraTensors& layer) {
    return layer.a != nullptr && layer.b != nullptr && source_of(layer.a).shape().size() >= 2 &&
           source_of(layer.b).shape().size() >= 2 && source_of(layer.a).numel() > 0 &&
           source_of(layer.b).numel() > 0;
  }

  // Returns whether lora_B @ lora_A has the weight's shape, as in linear layers and convolutions.
  static bool fits_plain(const LoraTensors& layer, const Shape& weight) {
    const Shape& a = source_of(layer.a).shape();
    const Shape& b = source_of(layer.b).shape();
    return weight.size() >= 2 && a.size() == weight.size() && b.front() == weight.front() &&
           source_of(layer.b).numel() == b.front() * a.front() &&
           std::equal(a.begin() + 1, a.end(), weight.begin() + 1, weight.end());
  }

  // The same for the transposed product: fan_in_fan_out, and embeddings.
  static bool fits_transposed(const LoraTensors& layer, const Shape& weight) {
    const Shape& a = source_of(layer.a).shape();
    const Shape& b = source_of(layer.b).shape();
    return weight.size() == 2 && a.size() == 2 && b.size() == 2 && a[0] == b[1] &&
           a[1] == weight[0] && b[0] == weight[1];
  }

  // Only the configuration shows whether square weights are transposed, and peft may have changed
  // it for other layers. So all weights that are not square must agree with it.
  void find_orientation() {
    for (const auto& [module, layer] : parts_.layers) {
      if (!is_complete(layer) || layer.is_embedding) continue;
      const Tensor* weight = base_.find(layer.module + ".weight");
      if (weight == nullptr) continue;
      const Shape shape = base_values(*weight).shape();
      const bool plain = fits_plain(layer, shape);
      if (plain == fits_transposed(layer, shape)) continue;
      (plain ? seen_plain_ : seen_transposed_) = true;
    }
  }

  void check_dora(const LoraTensors& layer, int64_t norms) const {
    const bool uses_dora = layer.magnitude != nullptr;
    if (settings_.use_dora().value_or(uses_dora) != uses_dora) {
      throw InconsistentError({.file = settings_.file(), .member = "use_dora"},
                              layer.magnitude == nullptr
                                  ? "is true, and the layer has no lora_magnitude_vector"
                                  : "is false, and the layer has a lora_magnitude_vector");
    }
    if (layer.magnitude == nullptr || source_of(layer.magnitude).numel() == norms) return;
    throw InconsistentError({.tensor = layer.magnitude->tensor.name},
                            "has shape " + to_text(source_of(layer.magnitude).shape()) + " for " +
                                counted(norms, "norm"));
  }

  [[noreturn]] void refuse_shapes(const LoraTensors& layer, const std::string& name,
                                  const Shape& weight) const {
    throw InconsistentError({}, "of shapes " + to_text(source_of(layer.b).shape()) + " and " +
                                    to_text(source_of(layer.a).shape()) + " does not fit '" + name +
                                    "', which has " + to_text(weight) + " in the base");
  }

  static TensorSource updated(LowRankUpdate update) {
    const DType type = update.base.dtype();
    if (type != DType::float32 && type != DType::bfloat16 && type != DType::float16) {
      throw UnsupportedError({}, "is on a tensor of type " + std::string(torch_name(type)) +
                                     ": adapters are merged into float32, bfloat16 and float16");
    }
    return TensorSource::low_rank_update(std::move(update));
  }

  void add_layer(const LoraTensors& layer) {
    if (!is_complete(layer)) {
      throw InconsistentError({}, "has no lora_A and lora_B that make a product");
    }
    const std::string name = layer.module + ".weight";
    if (const auto parameters = targeted_.find(layer.module); parameters != targeted_.end()) {
      return add_to_parameter(layer, parameters->second);
    }
    const Tensor& tensor = find(name);
    const TensorSource base = base_values(tensor);
    const Shape& shape = base.shape();
    const bool plain = !layer.is_embedding && fits_plain(layer, shape);
    const bool transposed = fits_transposed(layer, shape);
    if (!plain && !transposed) refuse_shapes(layer, name, shape);
    bool is_transposed = transposed;
    if (plain && transposed) {
      is_transposed = settings_.fan_in_fan_out();
      if (is_transposed ? seen_plain_ : seen_transposed_) {
        throw UnsupportedError({.file = settings_.file(), .member = "fan_in_fan_out"},
                               "contradicts other layers, and '" + name +
                                   "' is square: it is unknown whether it is transposed");
      }
    }
    const int64_t rank = rank_of(layer);
    const auto r = static_cast<uint64_t>(rank);
    const auto rows = static_cast<uint64_t>(shape.front());
    const uint64_t columns = static_cast<uint64_t>(base.numel()) / rows;
    const double scale = settings_.scaling(layer.module, rank);
    check_dora(layer, static_cast<int64_t>(is_transposed ? columns : rows));
    LowRankUpdate update{.base = base,
                         .rows = rows,
                         .columns = columns,
                         .rank = r,
                         .left = {},
                         .right = FactorView{source_of(layer.a), 0, columns, 1},
                         .scale = scale,
                         .magnitude = {},
                         .norms_of_columns = is_transposed};
    if (is_transposed) {
      update.left = FactorView{source_of(layer.a), 0, 1, rows};
      update.right = FactorView{source_of(layer.b), 0, 1, r};
    } else {
      update.left = FactorView{source_of(layer.b), 0, r, 1};
    }
    if (layer.magnitude != nullptr) update.magnitude = source_of(layer.magnitude);
    put(tensor, updated(std::move(update)));
    if (layer.bias != nullptr) add_bias(layer, scale);
  }

  // Merges lora_bias: base_layer.bias + lora_B.bias * scaling.
  void add_bias(const LoraTensors& layer, double scale) {
    const Tensor& tensor = find(layer.module + ".bias");
    const TensorSource base = base_values(tensor);
    if (base.shape() != source_of(layer.bias).shape()) {
      throw InconsistentError({.tensor = layer.bias->tensor.name},
                              "has shape " + to_text(source_of(layer.bias).shape()) +
                                  ", the bias in the base " + to_text(base.shape()));
    }
    const auto count = static_cast<uint64_t>(base.numel());
    put(tensor, updated({.base = base,
                         .rows = 1,
                         .columns = count,
                         .rank = 1,
                         .left = {},
                         .right = FactorView{source_of(layer.bias), 0, count, 1},
                         .scale = scale}));
  }

  // ParamWrapper: every expert has its own product. Its factors are consecutive in lora_A and
  // interleaved in lora_B. Weights are (experts, out, in), or (experts, in, out) in modules with
  // is_transposed.
  enum class Order : uint8_t { none, out_in, in_out, either };
  Order order_of(const LoraTensors& layer, const Tensor& tensor) const {
    const Shape shape = base_values(tensor).shape();
    const Shape& a = source_of(layer.a).shape();
    const Shape& b = source_of(layer.b).shape();
    if (shape.size() == 2) return fits_plain(layer, shape) ? Order::out_in : Order::none;
    if (shape.size() != 3 || a.size() != 2 || b.size() != 2 || a[0] != b[1] || shape[0] == 0 ||
        a[0] % shape[0] != 0) {
      return Order::none;
    }
    const bool out_in = shape[1] == b[0] && shape[2] == a[1];
    const bool in_out = shape[1] == a[1] && shape[2] == b[0];
    if (out_in && in_out) return Order::either;
    return out_in ? Order::out_in : in_out ? Order::in_out : Order::none;
  }

  // is_transposed belongs to the module, so weights that are not square decide for square ones.
  Order order_of_neighbours(const LoraTensors& layer,
                            const std::vector<const Tensor*>& parameters) const {
    for (const auto& [name, other] : parts_.layers) {
      if (other.module != layer.module || !is_complete(other)) continue;
      for (const Tensor* each : parameters) {
        if (base_values(*each).shape().size() != 3) continue;
        const Order order = order_of(other, *each);
        if (order == Order::out_in || order == Order::in_out) return order;
      }
    }
    return Order::either;
  }

  void add_to_parameter(const LoraTensors& layer, const std::vector<const Tensor*>& parameters) {
    const Tensor* tensor = nullptr;
    Order order = Order::none;
    for (const Tensor* each : parameters) {
      const Order its = order_of(layer, *each);
      if (its == Order::none) continue;
      if (tensor != nullptr) {
        throw UnsupportedError({}, "fits both '" + tensor->name + "' and '" + each->name +
                                       "': it is unknown to which of them it belongs");
      }
      tensor = each;
      order = its;
    }
    if (tensor == nullptr) {
      refuse_shapes(layer, parameters.front()->name, base_values(*parameters.front()).shape());
    }
    if (order == Order::either) order = order_of_neighbours(layer, parameters);
    if (order == Order::either) {
      throw UnsupportedError(
          {}, "is on '" + tensor->name +
                  "', whose experts are square: it is unknown whether they are transposed");
    }
    const TensorSource base = base_values(*tensor);
    const Shape& shape = base.shape();
    const auto experts = static_cast<uint64_t>(shape.size() == 3 ? shape[0] : 1);
    const auto rank = static_cast<uint64_t>(rank_of(layer)) / experts;
    const auto in = static_cast<uint64_t>(source_of(layer.a).shape()[1]);
    const auto out = static_cast<uint64_t>(source_of(layer.b).shape()[0]);
    check_dora(layer, 0);
    // Expert e: lora_A[e * rank + k, i] and lora_B[o, k * experts + e].
    const FactorView a{source_of(layer.a), rank * in, in, 1};
    const FactorView a_transposed{source_of(layer.a), rank * in, 1, in};
    const FactorView b{source_of(layer.b), 1, rank * experts, experts};
    const FactorView b_transposed{source_of(layer.b), 1, experts, rank * experts};
    const bool is_out_in = order == Order::out_in;
    put(*tensor, updated({.base = base,
                          .batches = experts,
                          .rows = is_out_in ? out : in,
                          .columns = is_out_in ? in : out,
                          .rank = rank,
                          .left = is_out_in ? b : a_transposed,
                          .right = is_out_in ? a : b_transposed,
                          .scale = settings_.scaling(tensor->name, static_cast<int64_t>(rank))}));
  }

  // Trained rows of tied embeddings have two names, and the base may have one of these alone.
  bool change_with_others(const std::string& module, const ChosenTensor& trained) const {
    const auto owner = [](const ChosenTensor& rows) {
      return rows.param->alias_of.empty() ? rows.param->name : rows.param->alias_of;
    };
    const auto is_own = [&](const std::string& name) {
      const Tensor* tensor = base_.find(name + ".weight");
      return tensor != nullptr && tensor->alias_of.empty();
    };
    return !is_own(module) &&
           std::any_of(parts_.rows.begin(), parts_.rows.end(), [&](const auto& other) {
             return is_own(other.first) && owner(*other.second) == owner(trained);
           });
  }

  // Merges like TrainableTokensLayer.merge: index_copy along dimension 0.
  void add_rows(const std::string& module, const ChosenTensor& trained) {
    const Tensor& tensor = find(module + ".weight");
    const TensorSource base = base_values(tensor);
    const TensorSource& rows = source_of(&trained);
    const std::vector<int64_t> indices = settings_.token_indices(module);
    const Shape& shape = base.shape();
    if (rows.shape().size() != 2 || shape.size() != 2 || rows.shape()[1] != shape[1]) {
      throw InconsistentError({}, "of shape " + to_text(rows.shape()) + " does not fit '" +
                                      tensor.name + "', which has " + to_text(shape) +
                                      " in the base");
    }
    if (static_cast<int64_t>(indices.size()) != rows.shape()[0]) {
      throw InconsistentError({.file = settings_.file(), .member = "trainable_token_indices"},
                              "has " + counted(indices.size(), "index", "indices") + " for " +
                                  counted(rows.shape()[0], "row"));
    }
    std::map<int64_t, int64_t> row_of;
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t index = indices[i] < 0 ? indices[i] + shape[0] : indices[i];
      if (index < 0 || index >= shape[0]) {
        throw InconsistentError({.file = settings_.file(), .member = "trainable_token_indices"},
                                "has " + std::to_string(indices[i]) + ", and '" + tensor.name +
                                    "' has " + counted(shape[0], "row"));
      }
      row_of[index] = static_cast<int64_t>(i);
    }
    const DType type = type_of(tensor);
    const TensorSource kept = base.to(type);
    const TensorSource written = rows.to(type);
    std::vector<TensorSource> pieces;
    int64_t done = 0;
    for (const auto& [index, row] : row_of) {
      if (index > done) pieces.push_back(kept.narrow(0, done, index - done));
      pieces.push_back(written.narrow(0, row, 1));
      done = index + 1;
    }
    if (done < shape[0]) pieces.push_back(kept.narrow(0, done, shape[0] - done));
    put(tensor, TensorSource::cat(0, std::move(pieces)));
  }

  // Follows alias_of, which the names in the engine have. A trained copy is no longer tied, and
  // neither is its original.
  std::string owner_of(const Tensor& tensor) const {
    const std::string& owner = tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
    if (settings_.ensures_tying()) return owner;
    if (replaced_.contains(tensor.name)) {
      const Param& trained = *replaced_.at(tensor.name)->param;
      return "trained " + (trained.alias_of.empty() ? trained.name : trained.alias_of);
    }
    return owner;
  }

  std::vector<OutputTensor> outputs() {
    std::vector<OutputTensor> outputs;
    KeyedMap<std::string, std::pair<DType, std::string>> written;  // by owner
    for (const Tensor& tensor : base_.tensors) {
      const std::string owner = owner_of(tensor);
      OutputTensor output{tensor.name, value_of(tensor, owner), {}};
      const auto [first, is_first] =
          written.emplace(owner, std::pair(output.source.dtype(), output.name));
      if (!is_first && first->second.first == output.source.dtype()) {
        output.alias_of = first->second.second;
      }
      outputs.push_back(std::move(output));
      if (!tensor.alias_of.empty()) {
        const Tensor* of = base_.find(tensor.alias_of);
        if (of != nullptr && owner_of(*of) != owner) changes_.untied = true;
      }
    }
    for (const auto& [name, trained] : added_) {
      const auto tied = std::find_if(base_.tensors.begin(), base_.tensors.end(),
                                     [](const Tensor& each) { return is_embedding(each.name); });
      const DType type = keep_fp32_.find_in(name) ? DType::float32 : type_of(*tied);
      outputs.push_back({name, cast(*trained->param, type, notes_), {}});
    }
    add_original(outputs);
    check_vocabulary(outputs);
    return outputs;
  }

  // Checks that all embeddings have grown if one has.
  void check_vocabulary(const std::vector<OutputTensor>& outputs) const {
    if (!changes_.vocabulary) return;
    for (const OutputTensor& output : outputs) {
      const Shape& shape = output.source.shape();
      if (!is_embedding(output.name) || shape.empty() || shape[0] == changes_.vocabulary->after) {
        continue;
      }
      throw InconsistentError({.tensor = output.name},
                              "has " + counted(shape[0], "row") +
                                  ", other embeddings have grown to " +
                                  std::to_string(changes_.vocabulary->after));
    }
  }

  TensorSource value_of(const Tensor& tensor, const std::string& owner) {
    const Tensor* of = base_.find(owner);
    if (of == nullptr) of = &tensor;
    Param param = of->param;
    param.name = tensor.name;
    if (const auto merged = merged_.find(of->name); merged != merged_.end()) {
      return merged->second.to(type_of(tensor));
    }
    // A tensor that was tied to one of which a copy was trained keeps the original.
    const bool takes_trained = of == &tensor || settings_.ensures_tying();
    const auto found = replaced_.find(of->name);
    if (takes_trained && found != replaced_.end()) {
      param = *found->second->param;
    }
    return cast(
        param,
        is_floating_point(of->param.weight.dtype()) ? std::optional(type_of(tensor)) : std::nullopt,
        notes_);
  }

  const BaseTensors& base_;
  const std::string architecture_;
  const TrainedParts& parts_;
  const LoraSettings& settings_;
  const WeightsOptions& options_;
  const Patterns keep_fp32_;
  std::vector<std::string>& notes_;
  std::map<std::string, std::vector<const Tensor*>> aliases_;  // by the name of their owner
  // Parameters with LoRA of their own, by module.
  std::map<std::string, std::vector<const Tensor*>> targeted_;
  std::map<std::string, const ChosenTensor*> replaced_;             // by name in the base
  std::map<std::string, TensorSource> merged_;                      // by name in the base
  std::vector<std::pair<std::string, const ChosenTensor*>> added_;  // tensors that the base lacks
  const Tensor* replaced_input_ = nullptr;                          // input embeddings
  ModelChanges changes_;
  bool seen_plain_ = false;
  bool seen_transposed_ = false;
};

LoraSettings settings_for(const Checkpoint& checkpoint, const TrainedParts& parts,
                          const AdapterOptions& options, bool own_base,
                          std::vector<std::string>& notes) {
  if (const auto path = adapter_config(checkpoint, parts.adapter, options, "--merge")) {
    return {read_adapter_config(*path), path->string(), own_base};
  }
  notes.emplace_back(
      "without a configuration, use_rslora, fan_in_fan_out and alpha_pattern get peft's defaults");
  return LoraSettings(*options.lora_alpha);
}

}  // namespace

namespace {

// Returns the transformers class of the base; "" if no configuration tells it.
std::string architecture_of_base(const Checkpoint& checkpoint, WeightsOptions weights,
                                 const MergeOptions& options) {
  std::error_code failed;
  const bool is_file = fs::is_regular_file(options.base, failed);
  const fs::path folder = is_file ? options.base.parent_path() : options.base;
  if (weights.hf_config.empty() && !options.base.empty() &&
      fs::exists(folder / "config.json", failed)) {
    weights.hf_config = folder;
  }
  const std::optional<std::string> config = config_text(checkpoint, weights);
  const std::string architecture = config ? architecture_in_config(*config) : std::string();
  return architecture == kAnyArchitecture ? std::string() : architecture;
}

}  // namespace

Job plan_merge(const Source& source, const WeightsOptions& weights, const MergeOptions& options) {
  const Checkpoint& checkpoint = *source->checkpoint;
  const bool own_base = options.base.empty();
  if (weights.states || weights.torch_optimizer || weights.exclude_frozen_parameters) {
    throw UsageError(
        "--merge writes whole weights, without --states, --torch-optimizer and "
        "--exclude-frozen-parameters");
  }
  if (!checkpoint.averaged().empty()) {
    throw UsageError("--merge and --average are both given")
        .with_hint("merge each of them, and average the results");
  }
  Job::Impl job = job_of(source);
  for (const IncompleteParam& param : choose_incomplete(checkpoint, weights)) {
    if (param.kind != ParamKind::trainable && !own_base) continue;
    throw InconsistentError(
        {.file = checkpoint.lost_files()[param.lost.front()].display, .tensor = param.name},
        "is part of the merge");
  }
  WeightsOptions as_stored = weights;
  as_stored.dtype = std::nullopt;
  as_stored.keep_fp32 = {};
  const std::vector<ChosenTensor> chosen = choose_tensors(checkpoint, as_stored, job.notes);
  const TrainedParts parts = find_trained_parts(checkpoint, chosen, options.adapter, own_base);
  const LoraSettings settings =
      settings_for(checkpoint, parts, options.adapter, own_base, job.notes);
  const BaseTensors base = own_base ? base_of_checkpoint(checkpoint, chosen)
                                    : base_of_weights(*source->inputs, options.base, job.notes);
  Merger merger(base, architecture_of_base(checkpoint, weights, options), parts, settings, weights,
                job.notes);
  std::vector<OutputTensor> tensors = merger.merge();
  const std::optional<DType> written = type_of_most(tensors);
  WeightsSplit split = split_weights(*weights.format, std::move(tensors), weights.max_shard_size);
  PlanBuilder plan;
  std::vector<std::string> missing = lay_out_companions(*source->inputs, checkpoint, weights,
                                                        written, plan, job.notes, merger.changes());
  lay_out_weights(plan, *weights.format, split);
  set_plan(job, plan);
  refuse_other_weights(job);
  if (!own_base) job.place.inputs.push_back({options.base, "where the base's weights are"});
  job.what = summary_of(split) + ", merged";
  auto report = std::make_shared<WeightsReport>(std::move(split), std::vector<StateFiles>());
  report->set_kind(*weights.format, base.valueless.empty(), false);
  report->add_missing(std::move(missing));
  for (const std::string& name : base.valueless) {
    job.left_out.push_back("no values\t" + printable(name));
  }
  report->add_facts(true, base.valueless);
  if (source->options.allow_missing) report->add_salvage(checkpoint, {});
  job.report = std::move(report);
  return Job(std::move(job));
}

}  // namespace dsckpt
