// Names on the hub and names in the module, for models of the transformers library.
//
// Since its release 5 modules have other names, and other tensors, than files on the hub. For
// example, "mlp.experts.gate_up_proj" [experts, 2 * inner, hidden] is
// "mlp.experts.0.gate_proj.weight" and so on there. For a model that was made from its
// configuration, save_pretrained writes the hub's form:
// core_model_loading.revert_weight_conversion. Its rules are data, rules.jsonl, which
// scripts/make_names.py writes of an installed release (README.md here).
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

// A tensor of one side, made from tensors of the other.
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
    no,       // the configuration is not one of a model of transformers
    unknown,  // there are no rules of its class of model
    older,    // transformers below 5 saved it, whose modules have the hub's names, or no release
    same,     // names and tensors are the same on both sides
    rules,
  };

  // Takes the text of a config.json, in any condition. `any_release`: known() is never
  // Known::older, whatever release of transformers the text names.
  explicit HubNames(std::string_view config, bool any_release = false);
  // Takes rules other than those that are built in, for tests; they have to live as long.
  HubNames(std::string_view config, bool any_release, std::string_view rules);
  ~HubNames();
  HubNames(HubNames&&) noexcept;
  HubNames& operator=(HubNames&&) noexcept;

  Known known() const;
  // The class of model, "Qwen3MoeForCausalLM"; "" if the configuration names none.
  const std::string& model() const;
  // The release of transformers that saved the configuration; "" if it names none.
  const std::string& release() const;
  // The reason for Known::no and Known::unknown: "config.json names no class of model". Else "".
  const std::string& why_not() const;

  // The first name that does not begin as the module's do. It belongs to something else, or to a
  // model that lies in another one. The result is nullptr if there is none. With Known::rules.
  const std::string* foreign_name(std::span<const ModelTensor> tensors) const;

  // The module's tensors as the hub has them, in their order. With Known::rules. Throws
  // UnsupportedError that names the tensor if the rules do not fit. Reasons are sizes that do not
  // divide, and a missing tensor among several that become one. Others are two tensors that would
  // have one name, and permutations that would be read in very many pieces.
  std::vector<RenamedTensor> to_hub(std::span<const ModelTensor> tensors) const;

  // The module's shape for a name; nullptr if it has no such tensor, or is not known.
  using ShapeOf = std::function<const Shape*(const std::string&)>;
  // The hub's tensors as the module has them. Returns nullopt unless to_hub() would give them the
  // same names again; so it does for names that are already the module's. Without `shape_of` it
  // also does if names alone do not tell the module's. With Known::rules. Throws as to_hub().
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
