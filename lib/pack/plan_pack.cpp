#include "pack/plan_pack.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <system_error>

#include "base/error.h"
#include "codec/frame.h"
#include "exec/frame_cuts.h"
#include "exec/workers.h"
#include "format/typed_extents.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStaging = ".dsckpt-staging-";
constexpr uint64_t kHashedAtOnce = 1 << 20;

struct FoundFile {
  fs::path stored;
  std::string name;  // of the content, relative to the output
};

// Files below a folder.
class Finder {
 public:
  explicit Finder(std::vector<std::string>& notes) : notes_(notes) {}

  std::vector<FoundFile> below(const fs::path& folder) {
    add_folder(folder, {});
    std::sort(found_.begin(), found_.end(),
              [](const FoundFile& a, const FoundFile& b) { return a.name < b.name; });
    const auto twice =
        std::adjacent_find(found_.begin(), found_.end(),
                           [](const FoundFile& a, const FoundFile& b) { return a.name == b.name; });
    if (twice != found_.end()) {
      throw InconsistentError({.file = twice->stored.string()},
                              "has the same content as " + (twice + 1)->stored.string() +
                                  " by its name: leave one of them in the folder");
    }
    return std::move(found_);
  }

 private:
  void add_folder(const fs::path& folder, const fs::path& name) {
    std::error_code failed;
    fs::directory_iterator it(folder, failed);
    for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
      add(it->path(), name / it->path().filename());
    }
    if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
  }

  void add(const fs::path& path, const fs::path& name) {
    std::error_code ignored;
    if (path.filename().native().starts_with(kStaging)) return leave_out(name, "is unfinished");
    if (fs::symlink_status(path, ignored).type() == fs::file_type::directory) {
      return add_folder(path, name);
    }
    switch (fs::status(path, ignored).type()) {
      case fs::file_type::regular:
        found_.push_back({path, content_path(name).generic_string()});
        return;
      case fs::file_type::not_found:
        return leave_out(name, "is a broken link");
      case fs::file_type::directory:
        return leave_out(name, "is a link to a folder");
      default:
        return leave_out(name, "is neither file nor folder");
    }
  }

  void leave_out(const fs::path& name, const std::string& why) {
    notes_.push_back(name.generic_string() + " " + why + " and is left out");
  }

  std::vector<FoundFile> found_;
  std::vector<std::string>& notes_;
};

std::vector<FoundFile> find_all(const fs::path& input, std::vector<std::string>& notes) {
  std::error_code failed;
  const fs::file_status status = fs::status(input, failed);
  std::vector<FoundFile> found;
  if (fs::is_directory(status)) {
    found = Finder(notes).below(input);
  } else if (fs::exists(status)) {
    found.push_back({input, content_path(input.filename()).string()});
  } else if (failed && status.type() != fs::file_type::not_found) {
    throw IoError({.file = input.string()}, "cannot open", failed.value());
  } else {
    throw UsageError(input.string() + ": there is no such file or folder");
  }
  if (found.empty()) throw UsageError(input.string() + ": holds no files");
  return found;
}

TensorSource bytes_of(const Extent& extent) {
  return TensorSource::stored(extent, DType::uint8, {static_cast<int64_t>(extent.size)});
}

// The whole file, its tensors as what they are and all between them as bytes.
void put_file(PlanBuilder& plan, OutputId out, FileId id, uint64_t size,
              const std::vector<TypedExtent>& tensors) {
  uint64_t at = 0;
  const auto put_bytes_up_to = [&](uint64_t end) {
    if (end > at) plan.put(out, at, bytes_of({id, at, end - at}));
    at = end;
  };
  for (const TypedExtent& tensor : tensors) {
    put_bytes_up_to(tensor.extent.offset);
    const uint64_t numel = tensor.extent.size / size_of(tensor.dtype);
    const uint64_t whole = numel * size_of(tensor.dtype);
    if (whole > 0) {
      plan.put(out, at,
               TensorSource::stored({id, at, whole}, tensor.dtype, {static_cast<int64_t>(numel)}));
    }
    at += whole;
  }
  put_bytes_up_to(size);
}

PackPlan plan_copies(InputFiles& inputs, const fs::path& input, bool typed) {
  PackPlan result;
  const std::vector<FoundFile> found = find_all(input, result.notes);
  std::error_code failed;
  const fs::path root = fs::is_directory(input, failed) ? input : input.parent_path();
  for (const FoundFile& file : found) result.inputs.push_back(inputs.add(file.stored, root));

  std::vector<TypedExtents> tensors(found.size());
  std::vector<std::string> notes(found.size());
  SharedPickles pickles;
  tbb::parallel_for(size_t{0}, typed ? found.size() : 0, [&](size_t i) {
    if (!is_packable(found[i].name)) return;
    try {
      tensors[i] = typed_extents(inputs, result.inputs[i], &pickles);
    } catch (const IoError&) {
      throw;
    } catch (const Error& error) {
      // Not for the packer to judge: whatever it is, it comes back as it was.
      if (found[i].name.ends_with(".swp")) {
        const uint64_t size = inputs[result.inputs[i]].size();
        tensors[i].extents = {{{result.inputs[i], 0, size}, DType::float32}};
      } else {
        notes[i] = found[i].name + " is packed as plain bytes: " + error.message();
      }
    }
  });

  PlanBuilder plan;
  for (size_t i = 0; i < found.size(); ++i) {
    const FileId id = result.inputs[i];
    const OutputId out = plan.add_output(found[i].name, inputs[id].size());
    put_file(plan, out, id, inputs[id].size(), tensors[i].extents);
    result.records.insert(result.records.end(), tensors[i].records.begin(),
                          tensors[i].records.end());
    if (!notes[i].empty()) result.notes.push_back(notes[i]);
  }
  result.plan = plan.finish();
  result.plan.validate(planned_inputs(inputs));
  return result;
}

bool holds(const fs::path& folder, const fs::path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

std::string kind_of(PlaneLayout layout) {
  if (layout == plane_layout_of(DType::float32)) return "float32";
  if (layout == plane_layout_of(DType::bfloat16)) return "bfloat16";
  if (layout == plane_layout_of(DType::float16)) return "float16 and other 16-bit types";
  if (layout == plane_layout_of(DType::int32)) return "other 32-bit types";
  if (layout == plane_layout_of(DType::int64)) return "64-bit types";
  return "other bytes";
}

}  // namespace

uint64_t PackPlan::bytes_packable() const {
  uint64_t sum = 0;
  for (const PlannedFile& file : plan.outputs()) {
    if (is_packable(file.path)) sum += file.size;
  }
  return sum;
}

PackPlan plan_pack(InputFiles& inputs, const fs::path& input) {
  return plan_copies(inputs, input, true);
}

PackPlan plan_unpack(InputFiles& inputs, const fs::path& input) {
  return plan_copies(inputs, input, false);
}

void check_pack_place(const fs::path& input, const fs::path& output) {
  if (output.empty()) throw UsageError("the output folder has no name");
  std::error_code failed;
  const fs::path from = fs::weakly_canonical(fs::absolute(input), failed);
  const fs::path to = fs::weakly_canonical(fs::absolute(output), failed);
  if (holds(from, to)) throw UsageError(output.string() + ": lies in the input folder");
  if (holds(to, from)) throw UsageError(output.string() + ": holds the input");
}

std::vector<std::optional<Sha256Digest>> sha256_of(const PackPlan& plan, const InputFiles& inputs,
                                                   Progress& progress, unsigned threads) {
  std::vector<std::optional<Sha256Digest>> digests(plan.inputs.size());
  progress.bytes_done = 0;
  progress.bytes_total = plan.bytes_packable();
  std::atomic<size_t> next{0};
  run_workers(threads, [&] {
    std::vector<std::byte> buffer(kHashedAtOnce);
    for (size_t i; (i = next++) < digests.size();) {
      if (!is_packable(plan.plan.outputs()[i].path)) continue;
      const InputFile& file = inputs[plan.inputs[i]];
      Sha256 hash;
      for (uint64_t at = 0; at < file.size();) {
        if (progress.cancelled) throw InterruptedError();
        const auto piece =
            std::span(buffer).first(std::min<uint64_t>(buffer.size(), file.size() - at));
        file.read_at(at, piece);
        hash.update(piece);
        at += piece.size();
        progress.bytes_done += piece.size();
      }
      digests[i] = hash.digest();
    }
  });
  return digests;
}

void check_sha256(const PackPlan& plan, const InputFiles& inputs,
                  const std::vector<std::optional<Sha256Digest>>& digests) {
  bool any = false;
  for (size_t i = 0; i < digests.size(); ++i) {
    const InputFile& file = inputs[plan.inputs[i]];
    const auto expected = file.sha256();
    if (!expected || !digests[i]) continue;
    any = true;
    if (*expected != *digests[i]) {
      throw CorruptError({.file = file.display()}, "has the SHA-256 " + hex_digits(*digests[i]) +
                                                       ", was packed with " +
                                                       hex_digits(*expected));
    }
  }
  if (!any) {
    throw UsageError("--sha256: no file was packed with --sha256, so there is nothing to compare");
  }
}

ExecStats run_pack(const PackPlan& plan, const InputFiles& inputs, const fs::path& output,
                   Progress& progress, const RunOptions& options) {
  RunOptions whole = options;
  whole.stage.whole_folder = true;
  return run_plan(plan.plan, inputs, plan.records, fs::weakly_canonical(fs::absolute(output)),
                  progress, whole);
}

double PackEstimate::Kind::ratio() const {
  return sampled == 0 ? 1 : static_cast<double>(sampled_stored) / static_cast<double>(sampled);
}

double PackEstimate::stored() const {
  double sum = 0;
  for (const Kind& kind : kinds) sum += kind.ratio() * static_cast<double>(kind.bytes);
  return sum;
}

PackEstimate estimate_pack(const PackPlan& plan, const InputFiles& inputs, int level,
                           uint64_t sample_bytes, Progress& progress, unsigned threads) {
  struct Sample {
    FileId file;
    FrameCut cut;
    uint64_t stored = 0;
  };
  std::map<std::string, PackEstimate::Kind> kinds;
  std::vector<Sample> samples;
  PackEstimate result;
  const uint64_t step =
      std::max<uint64_t>(plan.bytes_packable() / std::max<uint64_t>(sample_bytes, 1), 1);
  uint64_t frames = 0;
  for (OutputId out = 0; out < plan.plan.outputs().size(); ++out) {
    if (!is_packable(plan.plan.outputs()[out].path)) continue;
    ++result.files;
    for (const FrameCut& cut : cut_into_frames(plan.plan, out, {})) {
      result.bytes += cut.size;
      kinds[kind_of(cut.layout)].bytes += cut.size;
      if (frames++ % step == 0) samples.push_back({plan.inputs[out], cut, 0});
    }
  }
  for (const Sample& sample : samples) result.seconds += static_cast<double>(sample.cut.size);
  const double sampled = result.seconds;
  progress.bytes_done = 0;
  progress.bytes_total = static_cast<uint64_t>(sampled);

  result.threads = threads == 0 ? cores() : threads;
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<size_t> next{0};
  run_workers(result.threads, [&] {
    FrameEncoder encoder(level);
    for (size_t i; (i = next++) < samples.size();) {
      if (progress.cancelled) throw InterruptedError();
      Sample& sample = samples[i];
      const auto content = inputs[sample.file].read(sample.cut.begin, sample.cut.size);
      sample.stored = encoder.encode(content, sample.cut.layout).size();
      progress.bytes_done += content.size();
    }
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  result.seconds = sampled > 0 ? took.count() * static_cast<double>(result.bytes) / sampled : 0;

  for (const Sample& sample : samples) {
    PackEstimate::Kind& kind = kinds[kind_of(sample.cut.layout)];
    kind.sampled += sample.cut.size;
    kind.sampled_stored += sample.stored;
  }
  for (auto& [name, kind] : kinds) {
    kind.kind = name;
    result.kinds.push_back(std::move(kind));
  }
  std::sort(result.kinds.begin(), result.kinds.end(),
            [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace dsckpt
