// Checks for NaN and Inf.

#include <algorithm>
#include <set>

#include "base/text.h"
#include "base/widen.h"
#include "checkpoint/model_states.h"
#include "format/tensors_in.h"
#include "inspect/ask.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;

struct Named {
  std::string name;
  std::string state;  // of the parameter, or ""
  TensorSource value;
  bool may_be_infinite = false;  // true for buffers, which may be masks

  // The elements to read.
  TensorSource distinct() const { return value.without_repeats(); }
};

// Floating and complex types have NaN.
bool can_be_nan(DType dtype) {
  return is_floating_point(real_part(dtype));
}

// Adds every copy that a source is made of, so that each is read.
void add_parts(std::vector<Named>& out, const std::string& name, const std::string& state,
               const TensorSource& source, bool may_be_infinite = false) {
  bool plain = true;
  source.without_repeats().lower([&](const SourceRun& run) {
    plain = plain && run.combine != Combine::same && run.combine != Combine::mean &&
            run.stored == run.result;
  });
  if (plain) return out.push_back({name, state, source, may_be_infinite});
  source.lower([&](const SourceRun& run) {
    for (const Rows& rows : run.sources()) {
      const auto count = static_cast<int64_t>(rows.row_bytes / size_of(run.stored));
      for (uint64_t row = 0; row < run.rows; ++row) {
        const Extent extent{rows.file, rows.begin_of(row), rows.row_bytes};
        out.push_back(
            {name, state, TensorSource::stored(extent, run.stored, {count}), may_be_infinite});
      }
    }
  });
}

// Skips a tensor of an unsupported kind, which check_tensors_in_files notes.
void add_stored(std::vector<Named>& out, const std::string& name, const CheckedFile& file,
                const pickle::Value& value) {
  const auto tensor = if_supported([&] { return file.shard->archive.tensor(value); });
  if (tensor) out.push_back({name, "", *tensor});
}

// Returns the weights, 16-bit weights, states and buffers.
std::vector<Named> finite_tensors(Verification& v) {
  std::vector<Named> tensors;
  for (const Param& param : v.checkpoint->params()) {
    if (!param.alias_of.empty()) continue;
    add_parts(tensors, param.name, "", param.weight, param.kind == ParamKind::buffer);
    for (const ParamState& state : param.states)
      add_parts(tensors, param.name, state.key, state.value);
  }
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    v.attempt(Check::layout, *file, [&] {
      const ModelStates model(*file->shard);
      for (const auto& [name, value] : model.module) {
        if (!model.buffer_names.contains(name)) add_stored(tensors, name, *file, value);
      }
    });
  }
  for (CheckedFile* file : v.of_kind(Kind::layer)) {
    v.attempt(Check::layout, *file, [&] {
      for (const auto& [key, value] : file->shard->archive.root().as_dict().items) {
        if (!key.is(pickle::Kind::string) || !TorchArchive::is_tensor(value)) continue;
        add_stored(tensors, std::string(key.as_string()), *file, value);
      }
    });
  }
  return tensors;
}

std::vector<Nonfinite> count_all(Verification& v, const std::vector<Named>& tensors) {
  std::vector<PassItem> items;
  for (const Named& tensor : tensors) {
    items.push_back({tensor.name,
                     {{&v.inputs, tensor.distinct()}},
                     uint64_t{tensor.may_be_infinite ? 1u : 0u}});
  }
  return ask(items, NonfiniteQuestion(), v.reading());
}

void report_nonfinite(Verification& v, const Named& tensor, const Nonfinite& count) {
  Finding finding{.check = Check::nonfinite, .message = {}, .file = {}};
  v.set_place(finding, place_of(tensor.distinct(), *count.first));
  finding.tensor = tensor.name;
  finding.state = tensor.state;
  const int64_t times = tensor.value.numel() / tensor.distinct().numel();
  finding.message = std::to_string(count.nan * static_cast<uint64_t>(times)) + " NaN and " +
                    std::to_string(count.inf * static_cast<uint64_t>(times)) + " Inf among " +
                    counted(tensor.value.numel(), "element");
  v.add(std::move(finding));
}

}  // namespace

void check_finite(Verification& v) {
  std::vector<Named> tensors;
  if (v.checkpoint) tensors = finite_tensors(v);
  for (const CheckedFile& file : v.files) {
    if (file.name) continue;
    if (file.safetensors) {
      for (const SafetensorsEntry& entry : file.safetensors->entries()) {
        tensors.push_back({entry.name, "", file.safetensors->tensor(entry)});
      }
    }
    if (!file.usable() || !file.shard) continue;
    for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
      add_stored(tensors, found.path, file, found.value);
    }
  }
  std::erase_if(tensors, [&](const Named& tensor) {
    return !can_be_nan(tensor.value.dtype()) || v.is_doubtful(tensor.value);
  });
  const std::vector<Nonfinite> counts = count_all(v, tensors);
  std::set<std::pair<FileId, uint64_t>> reported;  // some tensors are views of one another
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!counts[i].first) continue;
    const auto place = place_of(tensors[i].distinct(), *counts[i].first);
    if (place && !reported.emplace(place->file, place->offset).second) continue;
    report_nonfinite(v, tensors[i], counts[i]);
  }
}

}  // namespace dsckpt
