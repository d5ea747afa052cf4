#include "weights/lora_layers.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

const TensorSource& values_of(const ChosenTensor* tensor) {
  return tensor->tensor.source;
}

class LayerMerger {
 public:
  LayerMerger(const BaseTensors& base, const TrainedParts& parts, const LoraSettings& settings,
              MergedModel& model)
      : base_(base), parts_(parts), settings_(settings), model_(model) {
    for (const Tensor& tensor : base.tensors) {
      if (!settings.targets_parameter(tensor.name)) continue;
      targeted_[tensor.name.substr(0, tensor.name.rfind('.'))].push_back(&tensor);
    }
  }

  void merge() {
    find_orientation();
    for (const auto& each : parts_.layers) {
      in_context({.tensor = each.second.name}, [&] { add_layer(each.second); });
    }
  }

 private:
  using Tensor = BaseTensors::Tensor;

  static int64_t rank_of(const LoraTensors& layer) { return values_of(layer.a).shape().front(); }

  static bool is_complete(const LoraTensors& layer) {
    return layer.a != nullptr && layer.b != nullptr && values_of(layer.a).shape().size() >= 2 &&
           values_of(layer.b).shape().size() >= 2 && values_of(layer.a).numel() > 0 &&
           values_of(layer.b).numel() > 0;
  }

  // Returns whether lora_B @ lora_A has the weight's shape, as in linear layers and convolutions.
  static bool fits_plain(const LoraTensors& layer, const Shape& weight) {
    const Shape& a = values_of(layer.a).shape();
    const Shape& b = values_of(layer.b).shape();
    return weight.size() >= 2 && a.size() == weight.size() && b.front() == weight.front() &&
           values_of(layer.b).numel() == b.front() * a.front() &&
           std::equal(a.begin() + 1, a.end(), weight.begin() + 1, weight.end());
  }

  // The same for the transposed product: fan_in_fan_out, and embeddings.
  static bool fits_transposed(const LoraTensors& layer, const Shape& weight) {
    const Shape& a = values_of(layer.a).shape();
    const Shape& b = values_of(layer.b).shape();
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
      const Shape shape = model_.values(*weight).shape();
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
    if (layer.magnitude == nullptr || values_of(layer.magnitude).numel() == norms) return;
    throw InconsistentError({.tensor = layer.magnitude->tensor.name},
                            "has shape " + to_text(values_of(layer.magnitude).shape()) + " for " +
                                counted(norms, "norm"));
  }

  [[noreturn]] void refuse_shapes(const LoraTensors& layer, const std::string& name,
                                  const Shape& weight) const {
    throw InconsistentError({}, "of shapes " + to_text(values_of(layer.b).shape()) + " and " +
                                    to_text(values_of(layer.a).shape()) + " does not fit '" + name +
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
    const Tensor& tensor = base_.at(name);
    const TensorSource base = model_.values(tensor);
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
                         .right = FactorView{values_of(layer.a), 0, columns, 1},
                         .scale = scale,
                         .magnitude = {},
                         .norms_of_columns = is_transposed};
    if (is_transposed) {
      update.left = FactorView{values_of(layer.a), 0, 1, rows};
      update.right = FactorView{values_of(layer.b), 0, 1, r};
    } else {
      update.left = FactorView{values_of(layer.b), 0, r, 1};
    }
    if (layer.magnitude != nullptr) update.magnitude = values_of(layer.magnitude);
    model_.change(tensor, updated(std::move(update)));
    if (layer.is_embedding) model_.note_tied(tensor);
    if (layer.bias != nullptr) add_bias(layer, scale);
  }

  // Merges lora_bias: base_layer.bias + lora_B.bias * scaling.
  void add_bias(const LoraTensors& layer, double scale) {
    const Tensor& tensor = base_.at(layer.module + ".bias");
    const TensorSource base = model_.values(tensor);
    if (base.shape() != values_of(layer.bias).shape()) {
      throw InconsistentError({.tensor = layer.bias->tensor.name},
                              "has shape " + to_text(values_of(layer.bias).shape()) +
                                  ", the bias in the base " + to_text(base.shape()));
    }
    const auto count = static_cast<uint64_t>(base.numel());
    model_.change(tensor, updated({.base = base,
                                   .rows = 1,
                                   .columns = count,
                                   .rank = 1,
                                   .left = {},
                                   .right = FactorView{values_of(layer.bias), 0, count, 1},
                                   .scale = scale}));
  }

  // ParamWrapper: every expert has its own product. Its factors are consecutive in lora_A and
  // interleaved in lora_B. Weights are (experts, out, in), or (experts, in, out) in modules with
  // is_transposed.
  enum class Order : uint8_t { none, out_in, in_out, either };
  Order order_of(const LoraTensors& layer, const Tensor& tensor) const {
    const Shape shape = model_.values(tensor).shape();
    const Shape& a = values_of(layer.a).shape();
    const Shape& b = values_of(layer.b).shape();
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
        if (model_.values(*each).shape().size() != 3) continue;
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
      refuse_shapes(layer, parameters.front()->name, model_.values(*parameters.front()).shape());
    }
    if (order == Order::either) order = order_of_neighbours(layer, parameters);
    if (order == Order::either) {
      throw UnsupportedError(
          {}, "is on '" + tensor->name +
                  "', whose experts are square: it is unknown whether they are transposed");
    }
    const TensorSource base = model_.values(*tensor);
    const Shape& shape = base.shape();
    const auto experts = static_cast<uint64_t>(shape.size() == 3 ? shape[0] : 1);
    const auto rank = static_cast<uint64_t>(rank_of(layer)) / experts;
    const auto in = static_cast<uint64_t>(values_of(layer.a).shape()[1]);
    const auto out = static_cast<uint64_t>(values_of(layer.b).shape()[0]);
    check_dora(layer, 0);
    // Expert e: lora_A[e * rank + k, i] and lora_B[o, k * experts + e].
    const FactorView a{values_of(layer.a), rank * in, in, 1};
    const FactorView a_transposed{values_of(layer.a), rank * in, 1, in};
    const FactorView b{values_of(layer.b), 1, rank * experts, experts};
    const FactorView b_transposed{values_of(layer.b), 1, experts, rank * experts};
    const bool is_out_in = order == Order::out_in;
    model_.change(*tensor,
                  updated({.base = base,
                           .batches = experts,
                           .rows = is_out_in ? out : in,
                           .columns = is_out_in ? in : out,
                           .rank = rank,
                           .left = is_out_in ? b : a_transposed,
                           .right = is_out_in ? a : b_transposed,
                           .scale = settings_.scaling(tensor->name, static_cast<int64_t>(rank))}));
  }

  const BaseTensors& base_;
  const TrainedParts& parts_;
  const LoraSettings& settings_;
  MergedModel& model_;
  // Parameters with LoRA of their own, by module.
  std::map<std::string, std::vector<const Tensor*>> targeted_;
  bool seen_plain_ = false;
  bool seen_transposed_ = false;
};

}  // namespace

void merge_layers(const BaseTensors& base, const TrainedParts& parts, const LoraSettings& settings,
                  MergedModel& model) {
  LayerMerger(base, parts, settings, model).merge();
}

}  // namespace dsckpt
