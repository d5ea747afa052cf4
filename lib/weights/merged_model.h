// A base with an adapter's changes: merged weights, trained copies of modules, and the ties between
// input and output embeddings, which these may end.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/tensor_source.h"
#include "weights/adapter_config.h"
#include "weights/merge_base.h"
#include "weights/model_config.h"
#include "weights/selection.h"
#include "weights/trained_parts.h"
#include "weights/weights_format.h"

namespace dsckpt {

// All arguments have to live as long. Errors are those of plan_merge.
class MergedModel {
 public:
  using Tensor = BaseTensors::Tensor;

  // `architecture`: the base's transformers class; "" if no configuration tells it. The trained
  // copies of `parts` replace the base's tensors.
  MergedModel(const BaseTensors& base, std::string architecture, const TrainedParts& parts,
              const LoraSettings& settings, const MergedTypes& types,
              std::vector<std::string>& notes);

  // The values of the base's tensor, or of its trained copy.
  TensorSource values(const Tensor& tensor) const;
  // Gives the base's tensor merged values. Throws UnsupportedError if it is tied to another one, or
  // was changed before.
  void change(const Tensor& tensor, TensorSource merged);
  // Notes that output embeddings which only the configuration ties to these change with them.
  void note_tied(const Tensor& embedding);

  // The whole model in the base's order, with changes() of its configuration. Once.
  std::vector<OutputTensor> outputs();
  const ModelChanges& changes() const { return changes_; }

 private:
  void replace(const std::string& name, const WholeTensor& whole);
  [[noreturn]] void refuse_place(const std::string& name, const WholeTensor& whole) const;
  bool is_tied_in_config(const std::string& name, const ChosenTensor& trained) const;
  const Tensor* partner_of(const std::string& name) const;
  void settle_original(const std::string& name, const ChosenTensor& trained);
  void add_original(std::vector<OutputTensor>& outputs);
  bool has_head() const;
  std::string owner_of(const Tensor& tensor) const;
  TensorSource value_of(const Tensor& tensor, const std::string& owner);
  void check_vocabulary(const std::vector<OutputTensor>& outputs) const;

  const BaseTensors& base_;
  const std::string architecture_;
  const LoraSettings& settings_;
  const MergedTypes& types_;
  std::vector<std::string>& notes_;
  std::map<std::string, std::vector<const Tensor*>> aliases_;  // by the name of their owner
  std::map<std::string, const ChosenTensor*> replaced_;        // by name in the base
  std::set<std::string> copies_;  // those of `replaced_` that are copies of modules
  // Tensors that the base ties to others, without the copies of modules.
  std::vector<std::pair<std::string, const ChosenTensor*>> originals_;
  std::deque<ChosenTensor> compared_;           // those of `replaced_` that were saved twice
  std::map<std::string, TensorSource> merged_;  // by name in the base
  std::vector<std::pair<std::string, const ChosenTensor*>> added_;  // tensors that the base lacks
  const Tensor* replaced_input_ = nullptr;                          // input embeddings
  ModelChanges changes_;
};

}  // namespace dsckpt
