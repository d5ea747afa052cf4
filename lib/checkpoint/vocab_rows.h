// A vocabulary with more or fewer tokens: the rows of its parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hub_weights.h"
#include "dsckpt/checkpoint.h"

namespace dsckpt {

// Immutable; any thread.
class VocabRows {
 public:
  // Finds the parameters of `base` with a row for each token, by the patterns of `change.vocab`.
  // Without any, the usual names of embeddings and heads count. Parameters in `dropped` do not
  // count. All have the same number of rows. Throws UsageError otherwise, and if there are none.
  VocabRows(InputFiles& inputs, const Checkpoint& base, const SetChange& change,
            const WeightNames& names, const KeyedSet<std::string>& dropped);

  // `name`: of a parameter that is tied to no other, or the owner's.
  bool has(const std::string& name) const { return members_.contains(name); }
  int64_t old_rows() const { return old_rows_; }
  int64_t rows() const { return rows_; }
  // The files of new rows, if there are any; they have to stay open.
  std::vector<WeightsFile> take_files() { return std::move(files_); }

  // `weight` of the parameter `name` with the new number of rows. Throws InconsistentError if the
  // weights with new rows lack the parameter or have another shape of it.
  TensorSource weight(const std::string& name, const TensorSource& weight) const;
  // The same of an optimizer state, where new rows are zero.
  TensorSource state(const TensorSource& state) const;

 private:
  TensorSource new_rows(const std::string& name, const TensorSource& weight) const;

  int64_t old_rows_ = 0;
  int64_t rows_ = 0;
  std::string how_;  // SetChange::new_rows
  KeyedSet<std::string> members_;
  KeyedMap<std::string, TensorSource> given_;
  std::vector<WeightsFile> files_;
};

}  // namespace dsckpt
