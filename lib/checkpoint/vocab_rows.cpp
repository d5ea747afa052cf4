#include "checkpoint/vocab_rows.h"

#include <algorithm>
#include <utility>

#include "base/patterns.h"
#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// As transformers, GPT-NeoX, Megatron and torchtitan call embeddings and heads.
const std::vector<std::string> kUsualNames{
    R"((^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|token_embedding)\.weight$)",
    R"((^|\.)(lm_head|embed_out)\.(weight|bias)$)"};

std::string lines_of(const std::vector<const Param*>& params) {
  std::vector<std::string> lines;
  for (const Param* param : params) {
    lines.push_back("'" + param->name + "' " + to_text(param->weight.shape()));
  }
  return listed(lines);
}

// The mean of all rows, `count` times: as the product of a matrix of ones and the tensor. The
// factor is in memory, so it is taken some columns at a time.
TensorSource mean_rows(const TensorSource& tensor, int64_t count) {
  constexpr int64_t kMostElements = 1 << 22;
  const int64_t rows = tensor.shape().front();
  const int64_t columns = tensor.numel() / rows;
  const TensorSource matrix = tensor.view({rows, columns});
  const int64_t width = std::clamp<int64_t>(kMostElements / rows, 1, columns);
  std::vector<TensorSource> blocks;
  for (int64_t begin = 0; begin < columns; begin += width) {
    const int64_t wide = std::min(width, columns - begin);
    blocks.push_back(
        TensorSource::low_rank_update({.base = TensorSource::zeros(tensor.dtype(), {count, wide}),
                                       .rows = static_cast<uint64_t>(count),
                                       .columns = static_cast<uint64_t>(wide),
                                       .rank = static_cast<uint64_t>(rows),
                                       .right = {.values = matrix.narrow(1, begin, wide),
                                                 .row_stride = static_cast<uint64_t>(wide),
                                                 .column_stride = 1},
                                       .scale = 1.0 / static_cast<double>(rows)}));
  }
  Shape shape = tensor.shape();
  shape.front() = count;
  return TensorSource::cat(1, std::move(blocks)).view(std::move(shape));
}

}  // namespace

VocabRows::VocabRows(InputFiles& inputs, const Checkpoint& base, const SetChange& change,
                     const WeightNames& names, const KeyedSet<std::string>& dropped)
    : rows_(change.vocab_rows.value()), how_(change.new_rows) {
  const Patterns patterns(change.vocab.empty() ? kUsualNames : change.vocab, "--vocab");
  std::vector<const Param*> found;
  for (const Param& param : base.params()) {
    const bool may_be = param.kind != ParamKind::buffer && !param.weight.shape().empty();
    if (!may_be || dropped.contains(param.name) || !patterns.find_in(param.name)) continue;
    const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
    if (members_.insert(owner).second) found.push_back(base.find(owner));
  }
  if (found.empty()) {
    throw UsageError("--resize-vocab: no parameter has a name that embeddings have")
        .with_hint("--vocab REGEX says which have a row for each token");
  }
  old_rows_ = found.front()->weight.shape().front();
  for (const Param* param : found) {
    if (param->weight.shape().front() == old_rows_) continue;
    throw UsageError("--resize-vocab: these do not have the same number of rows:" + lines_of(found))
        .with_hint("--vocab REGEX says which have a row for each token");
  }
  if (rows_ == old_rows_) {
    throw UsageError("--resize-vocab: the vocabulary has " + counted(rows_, "row") + " already");
  }
  if (how_ == "mean" || how_ == "zero") return;
  Weights weights = Weights::open(inputs, how_, {.of_model = true});
  for (const WeightsTensor& tensor : weights.tensors()) {
    given_.emplace(engine_name(names, tensor.name), tensor.value);
  }
  files_ = std::move(weights).take_files();
}

TensorSource VocabRows::new_rows(const std::string& name, const TensorSource& weight) const {
  const int64_t more = rows_ - old_rows_;
  if (how_ == "mean") return mean_rows(weight, more);
  Shape shape = weight.shape();
  shape.front() = more;
  if (how_ == "zero") return TensorSource::zeros(weight.dtype(), shape);
  const auto given = given_.find(name);
  if (given == given_.end()) {
    throw InconsistentError({.file = how_, .tensor = name},
                            "is not there: --new-rows takes the "
                            "rows of the new tokens from it");
  }
  const TensorSource& values = given->second;
  if (values.shape() == shape) return values.to(weight.dtype());
  Shape whole = shape;
  whole.front() = rows_;
  if (values.shape() == whole) return values.narrow(0, old_rows_, more).to(weight.dtype());
  throw InconsistentError({.file = how_, .tensor = name},
                          "has shape " + to_text(values.shape()) + ", not " + to_text(shape) +
                              " of the new rows or " + to_text(whole) + " of all");
}

TensorSource VocabRows::weight(const std::string& name, const TensorSource& weight) const {
  if (rows_ < old_rows_) return weight.narrow(0, 0, rows_);
  return TensorSource::cat(0, {weight, new_rows(name, weight)});
}

TensorSource VocabRows::state(const TensorSource& state) const {
  if (rows_ < old_rows_) return state.narrow(0, 0, rows_);
  Shape shape = state.shape();
  shape.front() = rows_ - old_rows_;
  return TensorSource::cat(0, {state, TensorSource::zeros(state.dtype(), std::move(shape))});
}

}  // namespace dsckpt
