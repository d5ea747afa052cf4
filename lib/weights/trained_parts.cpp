#include "weights/trained_parts.h"

#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"
#include "weights/adapter_config.h"
#include "weights/peft_adapter.h"

namespace dsckpt {
namespace {

// Names of peft's wrappers in the names of wrapped modules: LoraLayer and ParamWrapper,
// ModulesToSaveWrapper, TrainableTokensWrapper.
constexpr std::string_view kBaseLayer = ".base_layer";
constexpr std::string_view kOriginalModule = ".original_module";
constexpr std::string_view kTokenAdapter = ".token_adapter";

std::string without_part(std::string name, std::string_view part) {
  for (size_t at = name.find(part); at != name.npos;) {
    const size_t end = at + part.size();
    if (end == name.size() || name[end] == '.') {
      name.erase(at, part.size());
      at = name.find(part, at);
    } else {
      at = name.find(part, end);
    }
  }
  return name;
}

class PartsFinder {
 public:
  PartsFinder(const Checkpoint& checkpoint, const std::vector<ChosenTensor>& chosen,
              const AdapterOptions& options, bool own_base)
      : checkpoint_(checkpoint), chosen_(chosen), options_(options), own_base_(own_base) {}

  TrainedParts find() {
    parts_.adapter = checkpoint_.facts().from_weights() ? "" : adapter_name();
    for (const ChosenTensor& each : chosen_) add(each);
    if (!parts_.has_methods) {
      if (const auto path = find_adapter_config(checkpoint_, parts_.adapter, options_)) {
        static_cast<void>(LoraSettings(read_adapter_config(*path), path->string(), own_base_));
      }
      throw UsageError("--merge: no trained parameter is part of a PEFT adapter")
          .with_hint("zero-to-fp32 CHECKPOINT OUTPUT_DIR writes all of the weights");
    }
    return std::move(parts_);
  }

 private:
  std::string adapter_name() const {
    std::set<std::string> names;
    for (const ChosenTensor& each : chosen_) {
      if (!may_be_trained(checkpoint_, *each.param) || each.param->kind == ParamKind::buffer)
        continue;
      if (is_of_unsaved_method(each.tensor.name)) {
        throw UnsupportedError({.tensor = each.tensor.name},
                               "belongs to a PEFT method that is not merged");
      }
      if (const auto name = adapter_tensor_name(each.tensor.name)) names.insert(name->adapter);
    }
    if (names.empty()) return "";
    if (names.size() > 1) {
      throw UsageError("--merge: several adapters were trained:" +
                       listed({names.begin(), names.end()}))
          .with_hint("choose one by leaving out the others: --exclude '\\." + *names.rbegin() +
                     "(\\.|$)'");
    }
    return *names.begin();
  }

  void add(const ChosenTensor& each) {
    const std::string& name = each.tensor.name;
    const bool is_saved = checkpoint_.facts().from_weights();
    const auto part = adapter_part(name, !is_saved);
    if (!part) return add_besides(each);
    if (!is_saved) {
      const auto of = adapter_tensor_name(name);
      if (!of || of->adapter != parts_.adapter || each.param->kind == ParamKind::buffer) return;
    }
    if (!part->module.empty()) check_peft_prefix(name, "--merge");
    parts_.has_methods = true;
    const std::string module = name_in_base(part->module);
    if (part->method == "modules_to_save") {
      add_whole(module + "." + part->member, {&each, true});
    } else if (part->method == "trainable_tokens_delta") {
      parts_.rows.emplace(module, &each);
    } else if (part->method.starts_with("lora_")) {
      add_to_layer(*part, module, each);
    } else {
      throw UnsupportedError(
          {.tensor = name},
          "belongs to a PEFT method that is not merged: LoRA and trainable tokens are");
    }
  }

  void add_to_layer(const AdapterPart& part, const std::string& module, const ChosenTensor& each) {
    LoraTensors& layer = parts_.layers[part.module];
    layer.name = each.tensor.name;
    layer.module = module;
    const ChosenTensor** place = nullptr;
    const bool is_plain = part.member.empty() || part.member == "weight";
    if (part.method == "lora_A" && part.member == "weight") place = &layer.a;
    if (part.method == "lora_B" && part.member == "weight") place = &layer.b;
    if (part.method == "lora_B" && part.member == "bias") place = &layer.bias;
    if (part.method == "lora_embedding_A" && is_plain) place = &layer.a;
    if (part.method == "lora_embedding_B" && is_plain) place = &layer.b;
    if (part.method == "lora_magnitude_vector" && is_plain) place = &layer.magnitude;
    if (place == nullptr || *place != nullptr) {
      throw UnsupportedError({.tensor = each.tensor.name},
                             "belongs to a variant of LoRA that is not merged");
    }
    if (part.method.starts_with("lora_embedding_")) layer.is_embedding = true;
    *place = &each;
  }

  // A trained tensor outside the adapter replaces the base's tensor.
  void add_besides(const ChosenTensor& each) {
    const Param& param = *each.param;
    if (!checkpoint_.facts().from_weights()) {
      if (param.kind != ParamKind::trainable) return;
      // A checkpoint with its own base has this tensor there already.
      if (own_base_ && !each.tensor.name.starts_with(kPeftPrefix)) return;
    }
    add_whole(name_in_base(each.tensor.name), {&each, checkpoint_.facts().from_weights()});
  }

  void add_whole(const std::string& name, WholeTensor whole) {
    const auto [other, is_new] = parts_.whole.emplace(name, whole);
    if (is_new) return;
    // The trained copy of a module replaces the original one.
    const bool is_copy = whole.tensor->tensor.name.find(".modules_to_save.") != std::string::npos;
    if (is_copy) other->second = whole;
  }

  const Checkpoint& checkpoint_;
  const std::vector<ChosenTensor>& chosen_;
  const AdapterOptions& options_;
  const bool own_base_;
  TrainedParts parts_;
};

}  // namespace

std::string name_in_base(const std::string& name) {
  std::string plain = name.starts_with(kPeftPrefix) ? name.substr(kPeftPrefix.size()) : name;
  for (const std::string_view part : {kBaseLayer, kOriginalModule, kTokenAdapter}) {
    plain = without_part(std::move(plain), part);
  }
  return plain;
}

TrainedParts find_trained_parts(const Checkpoint& checkpoint,
                                const std::vector<ChosenTensor>& chosen,
                                const AdapterOptions& options, bool own_base) {
  return PartsFinder(checkpoint, chosen, options, own_base).find();
}

}  // namespace dsckpt
