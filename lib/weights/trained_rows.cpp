#include "weights/trained_rows.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dsckpt/error.h"
#include "plan/tensor_source.h"

namespace dsckpt {
namespace {

// Trained rows of tied embeddings have two names, and the base may have one of these alone.
bool change_with_others(const BaseTensors& base, const TrainedParts& parts,
                        const std::string& module, const ChosenTensor& trained) {
  const auto owner = [](const ChosenTensor& rows) {
    return rows.param->alias_of.empty() ? rows.param->name : rows.param->alias_of;
  };
  const auto is_own = [&](const std::string& name) {
    const BaseTensors::Tensor* tensor = base.find(name + ".weight");
    return tensor != nullptr && tensor->alias_of.empty();
  };
  return !is_own(module) &&
         std::any_of(parts.rows.begin(), parts.rows.end(), [&](const auto& other) {
           return is_own(other.first) && owner(*other.second) == owner(trained);
         });
}

// Merges like TrainableTokensLayer.merge: index_copy along dimension 0.
TensorSource with_rows(const TensorSource& base, const BaseTensors::Tensor& tensor,
                       const TensorSource& rows, const std::vector<int64_t>& indices,
                       const std::string& config, DType type) {
  const Shape& shape = base.shape();
  if (rows.shape().size() != 2 || shape.size() != 2 || rows.shape()[1] != shape[1]) {
    throw InconsistentError({}, "of shape " + to_text(rows.shape()) + " does not fit '" +
                                    tensor.name + "', which has " + to_text(shape) +
                                    " in the base");
  }
  if (static_cast<int64_t>(indices.size()) != rows.shape()[0]) {
    throw InconsistentError({.file = config, .member = "trainable_token_indices"},
                            "has " + counted(indices.size(), "index", "indices") + " for " +
                                counted(rows.shape()[0], "row"));
  }
  std::map<int64_t, int64_t> row_of;
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t index = indices[i] < 0 ? indices[i] + shape[0] : indices[i];
    if (index < 0 || index >= shape[0]) {
      throw InconsistentError({.file = config, .member = "trainable_token_indices"},
                              "has " + std::to_string(indices[i]) + ", and '" + tensor.name +
                                  "' has " + counted(shape[0], "row"));
    }
    row_of[index] = static_cast<int64_t>(i);
  }
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
  return TensorSource::cat(0, std::move(pieces));
}

}  // namespace

void merge_rows(const BaseTensors& base, const TrainedParts& parts, const LoraSettings& settings,
                const MergedTypes& types, MergedModel& model) {
  for (const auto& each : parts.rows) {
    const std::string& module = each.first;
    const ChosenTensor& trained = *each.second;
    if (change_with_others(base, parts, module, trained)) continue;
    in_context({.tensor = trained.tensor.name}, [&] {
      const BaseTensors::Tensor& tensor = base.at(module + ".weight");
      model.change(tensor,
                   with_rows(model.values(tensor), tensor, trained.tensor.source,
                             settings.token_indices(module), settings.file(), types.of(tensor)));
    });
  }
}

}  // namespace dsckpt
