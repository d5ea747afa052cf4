// Names on the hub and names in the module, for models of the transformers library.
//
// Since its release 5 modules have other names, and other tensors, than files on the hub:
// "mlp.experts.gate_up_proj" [experts, 2 * inner, hidden] is there "mlp.experts.0.gate_proj.weight"
// and so on. What save_pretrained writes is the hub's, for a model that was made of its
// configuration: core_model_loading.revert_weight_conversion. Its rules are data, rules.jsonl,
// which scripts/make_names.py writes of an installed release (README.md here).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// The release of transformers that the rules are of: "5.24.0".
std::string_view transformers_of_rules();

struct ModelTensor {
  std::string name;
  TensorSource source;
};

// What tensors of one side are on the other.
struct RenamedTensor {
  std::string name;
  TensorSource source;
  std::vector<size_t> inputs;  // what it is made of: indices, rising, one at least
  size_t part = 0;             // which of the tensors that these inputs become
};

// The rules of one model. Immutable; any thread.
class HubNames {
 public:
  enum class Known {
    no,     // the configuration, or its class of model, is not one that there are rules of
    older,  // transformers below 5 saved it, whose modules have the hub's names
    same,   // names and tensors are the same on both sides
    rules,
  };

  // Of the text of a config.json, whatever it is. `any_release`: whatever release of transformers
  // it names, it is never Known::older.
  explicit HubNames(std::string_view config, bool any_release = false);
  // By other rules than those that are built in, for tests; they have to live as long.
  HubNames(std::string_view config, bool any_release, std::string_view rules);
  ~HubNames();
  HubNames(HubNames&&) noexcept;
  HubNames& operator=(HubNames&&) noexcept;

  Known known() const;
  // The class of model, "Qwen3MoeForCausalLM"; "" if the configuration names none.
  const std::string& model() const;
  // For messages, where known() is no: "config.json names no class of model".
  const std::string& why_not() const;

  // The first name that does not begin as the module's do: of something else, or of a model that
  // lies in another one. nullptr if there is none. With Known::rules.
  const std::string* foreign_name(std::span<const ModelTensor> tensors) const;

  // The module's tensors as the hub has them, in their order. With Known::rules. Throws
  // UnsupportedError that names the tensor for what the rules do not fit: sizes that do not divide,
  // a tensor that is missing of several that become one, two tensors that would have one name, and
  // permutations that would be read in very many pieces.
  std::vector<RenamedTensor> to_hub(std::span<const ModelTensor> tensors) const;

  // The shape that the module has of a name; nullptr if it has no such tensor, or is not known.
  using ShapeOf = std::function<const Shape*(const std::string&)>;
  // The hub's tensors as the module has them. nullopt unless to_hub() would make the same names of
  // them again, so for names that are the module's already; without `shape_of` also where names
  // alone do not tell the module's. With Known::rules. Throws as to_hub().
  std::optional<std::vector<RenamedTensor>> to_module(std::span<const ModelTensor> tensors,
                                                      const ShapeOf& shape_of) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

// The first of `tensors` whose name modules of transformers 5 have and few files on the hub: the
// fused experts. nullptr if there is none.
const std::string* fused_experts(std::span<const ModelTensor> tensors);

}  // namespace dsckpt
