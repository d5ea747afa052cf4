// NaN and Inf.

#include <cmath>
#include <cstring>
#include <set>

#include "base/kernels.h"
#include "checkpoint/model_states.h"
#include "format/read_tensor.h"
#include "format/tensors_in.h"
#include "inspect/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;

// As many as fit the caches of a core.
constexpr int64_t kPieceElements = 16 << 10;

// How many NaN and Inf there are, and where the first one is.
struct Count {
  uint64_t nan = 0;
  uint64_t inf = 0;
  std::optional<int64_t> first;
};

Count count_nonfinite(const InputFiles& inputs, const TensorSource& source, bool may_be_infinite) {
  thread_local std::vector<std::byte> bytes;
  thread_local std::vector<float> values;
  Count count;
  for (int64_t at = 0; at < source.numel(); at += kPieceElements) {
    const int64_t n = std::min(kPieceElements, source.numel() - at);
    bytes.resize(static_cast<size_t>(n) * size_of(source.dtype()));
    values.resize(static_cast<size_t>(n));
    read_elements(inputs, source, at, n, bytes);
    if (source.dtype() == DType::float32) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      convert(source.dtype(), DType::float32, bytes.data(),
              reinterpret_cast<std::byte*>(values.data()), values.size());
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i]) || (may_be_infinite && std::isinf(values[i]))) continue;
      ++(std::isnan(values[i]) ? count.nan : count.inf);
      if (!count.first) count.first = at + static_cast<int64_t>(i);
    }
  }
  return count;
}

struct Named {
  std::string name;
  TensorSource value;
  bool may_be_infinite = false;  // masks among buffers are
};

bool is_floating(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
      return true;
    default:
      return false;
  }
}

// Every copy that a source is made of, so that none is left out.
void add_parts(std::vector<Named>& out, const std::string& name, const TensorSource& source) {
  bool plain = true;
  source.lower([&](const SourceRun& run) {
    plain = plain && run.combine != Combine::same && run.combine != Combine::mean &&
            run.stored == run.result;
  });
  if (plain) return out.push_back({name, source});
  const auto add = [&](FileId file, uint64_t offset, uint64_t bytes, DType dtype) {
    const auto count = static_cast<int64_t>(bytes / size_of(dtype));
    out.push_back({name, TensorSource::stored({file, offset, bytes}, dtype, {count})});
  };
  source.lower([&](const SourceRun& run) {
    if (run.combine == Combine::zeros) return;
    const auto add_rows = [&](FileId file, uint64_t offset, uint64_t row_bytes, int64_t stride) {
      for (uint64_t row = 0; row < run.rows; ++row) {
        add(file, offset + row * static_cast<uint64_t>(stride), row_bytes, run.stored);
      }
    };
    if (run.combine != Combine::interleave) {
      add_rows(run.file, run.offset, run.row_bytes, run.rows == 1 ? 0 : run.stride);
    }
    for (const Operand& operand : run.more) {
      const bool column = run.combine == Combine::interleave;
      add_rows(operand.in, operand.src, column ? operand.row_bytes : run.row_bytes,
               column ? operand.stride : 0);
    }
  });
}

// Weights, 16-bit weights, states and buffers.
std::vector<Named> finite_tensors(Verification& v) {
  std::vector<Named> tensors;
  for (const Param& param : v.checkpoint->params()) {
    if (!param.alias_of.empty()) continue;
    if (param.kind == ParamKind::buffer) {
      tensors.push_back({param.name, param.weight, true});
      continue;
    }
    add_parts(tensors, param.name, param.weight);
    for (const ParamState& state : param.states) add_parts(tensors, param.name, state.value);
  }
  for (const CheckedFile* file : v.of_kind(Kind::model_states)) {
    const ModelStates model(*file->shard);
    for (const auto& [name, value] : model.module) {
      if (model.buffer_names.contains(name)) continue;
      tensors.push_back({name, file->shard->archive.tensor(value)});
    }
  }
  for (const CheckedFile* file : v.of_kind(Kind::layer)) {
    for (const auto& [key, value] : file->shard->archive.root().as_dict().items) {
      if (!key.is(pickle::Kind::string) || !TorchArchive::is_tensor(value)) continue;
      tensors.push_back({std::string(key.as_string()), file->shard->archive.tensor(value)});
    }
  }
  return tensors;
}

void report_nonfinite(Verification& v, const Named& tensor, const Count& count) {
  Finding finding{.check = Check::nonfinite, .message = {}, .file = {}};
  v.set_place(finding, place_of(tensor.value, *count.first));
  finding.tensor = tensor.name;
  finding.message = std::to_string(count.nan) + " NaN and " + std::to_string(count.inf) +
                    " Inf among " + std::to_string(tensor.value.numel()) + " elements";
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
        tensors.push_back({entry.name, file.safetensors->tensor(entry)});
      }
    }
    if (!file.usable() || !file.shard) continue;
    for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
      tensors.push_back({found.path, file.shard->archive.tensor(found.value)});
    }
  }
  std::erase_if(tensors, [&](const Named& tensor) {
    return !is_floating(tensor.value.dtype()) ||
           (!v.damaged.empty() && v.is_doubtful(tensor.value));
  });
  std::vector<std::optional<Count>> counts(tensors.size());
  for_each_index(tensors.size(), [&](size_t i) {
    v.stop_if_cancelled();
    const Count count = count_nonfinite(v.inputs, tensors[i].value, tensors[i].may_be_infinite);
    if (count.first) counts[i] = count;
  });
  std::set<std::pair<FileId, uint64_t>> reported;  // some tensors are views of one another
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!counts[i]) continue;
    const auto place = place_of(tensors[i].value, *counts[i]->first);
    if (place && !reported.emplace(place->file, place->offset).second) continue;
    report_nonfinite(v, tensors[i], *counts[i]);
  }
}

}  // namespace dsckpt
