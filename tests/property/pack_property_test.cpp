// Packed and unpacked again any file is what it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "codec/frame.h"
#include "dsckpt/pack.h"
#include "exec/staged_output.h"
#include "format/safetensors.h"
#include "format/torch_archive.h"
#include "job/job_impl.h"
#include "support/packed_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::Content;

constexpr size_t kArchives = 10000;
constexpr size_t kBatch = 1000;  // files of a folder
constexpr size_t kPool = 6 << 20;

// Bytes of all kinds, for tensors to be taken from.
std::string pool() {
  std::string bytes;
  for (const Content kind : test::kContents) bytes += test::make_content(kind, kPool / 6, 11);
  return bytes;
}

class Archives {
 public:
  Archives(uint64_t seed, FileId pool) : random_(seed), pool_(pool) {}

  // Adds one more output to the plan.
  void add(PlanBuilder& plan, const std::string& number) {
    switch (below(3)) {
      case 0:
        return add_torch(plan, number + ".pt");
      case 1:
        return add_safetensors(plan, number + ".safetensors");
      default:
        return add_bytes(plan, number + (below(2) == 0 ? ".pt" : ".bin"));
    }
  }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }

  // Empty, one, a few, a power of two and one more or less, or anything.
  uint64_t count() {
    switch (below(6)) {
      case 0:
        return below(2);
      case 1:
        return below(40);
      case 2:
        return (uint64_t{1} << below(12)) + below(3) - 1;
      case 3:
        return below(400) == 0 ? below(1 << 19) : below(5000);
      default:
        return below(uint64_t{1} << below(13));
    }
  }

  TensorSource data(DType dtype, uint64_t count) {
    const uint64_t size = count * size_of(dtype);
    return TensorSource::stored({pool_, below(kPool - size + 1), size}, dtype,
                                {static_cast<int64_t>(count)});
  }

  DType dtype() {
    const auto type = static_cast<DType>(below(kDTypeCount));
    return is_quantised(type) ? DType::float32 : type;
  }

  void add_torch(PlanBuilder& plan, const std::string& path) {
    TorchArchiveWriter writer;
    pickle::Document& document = writer.document();
    const pickle::Value dict = document.dict();
    for (uint64_t i = below(6); i > 0; --i) {
      const std::string key = "layers." + std::to_string(i) + ".weight";
      const DType type = dtype();
      const uint64_t numel = count();
      const auto storage = writer.storage(data(type, numel));
      const uint64_t begin = below(numel + 1);
      const auto shape = static_cast<int64_t>(below(numel - begin + 1));
      document.set_item(dict, document.string(key),
                        below(2) == 0
                            ? writer.tensor(storage, {static_cast<int64_t>(numel)})
                            : writer.tensor(storage, {shape}, static_cast<int64_t>(begin)));
      if (below(3) == 0) {
        document.set_item(dict, document.string(key + ".tied"),
                          writer.tensor(storage, {static_cast<int64_t>(numel)}));
      }
      if (below(3) == 0) {
        document.set_item(dict, document.string("step" + std::to_string(i)),
                          pickle::Document::integer(static_cast<int64_t>(random_())));
      }
    }
    document.set_root(dict);
    std::move(writer).lay_out(plan, path);
  }

  void add_safetensors(PlanBuilder& plan, const std::string& path) {
    std::vector<NamedSource> tensors;
    for (uint64_t i = below(6); i > 0; --i) {
      const DType type = dtype();
      if (safetensors_name(type).empty()) continue;
      tensors.push_back({"layers." + std::to_string(i), data(type, count())});
    }
    lay_out_safetensors(plan, path, std::move(tensors), {{"format", "pt"}});
  }

  void add_bytes(PlanBuilder& plan, const std::string& path) {
    const uint64_t size = count() * (1 + below(8));
    const OutputId out = plan.add_output(path, size);
    if (size > 0) plan.put(out, 0, data(DType::uint8, size));
  }

  std::mt19937_64 random_;
  FileId pool_;
};

void run(const CopyPlan& plan, const InputFiles& inputs, const fs::path& target) {
  StagedOutput output(plan, target);
  output.prepare();
  Progress progress;
  execute(plan, inputs, output, progress);
  output.commit();
}

// How many runs of elements of more than a byte the packer saw.
size_t typed_items(const CopyPlan& plan) {
  return static_cast<size_t>(
      std::count_if(plan.items().begin(), plan.items().end(),
                    [](const CopyItem& item) { return size_of(item.to) > 1; }));
}

TEST(PackProperty, TenThousandArchivesComeBackByteForByte) {
  const test::TempFolder folder;
  const fs::path made = folder.path() / "made";
  const fs::path packed = folder.path() / "packed";
  const fs::path back = folder.path() / "back";
  InputFiles inputs;
  const FileId pool_id = inputs.add(folder.write("pool", pool()));
  size_t compared = 0;
  size_t typed = 0;
  size_t plain_bytes = 0;
  for (uint64_t seed = 0; seed < kArchives / kBatch; ++seed) {
    Archives archives(seed, pool_id);
    PlanBuilder builder;
    for (size_t i = 0; i < kBatch; ++i) archives.add(builder, std::to_string(i));
    run(builder.finish(), inputs, made);

    const Job job = plan_pack(made);
    typed += typed_items(job->plan);
    plain_bytes += job.notes().size();
    dsckpt::run(job, packed,
                {.threads = 1 + static_cast<unsigned>(seed % 4), .pack = kDefaultPackLevel});
    dsckpt::run(plan_unpack(packed), back, {.threads = 1 + static_cast<unsigned>(seed % 3)});
    for (const auto& entry : fs::directory_iterator(made)) {
      const fs::path name = entry.path().filename();
      ASSERT_TRUE(fs::exists(packed / (name.string() + ".dspack"))) << seed << " " << name;
      ASSERT_TRUE(test::read_all(back / name) == test::read_all(entry.path()))
          << seed << " " << name;
      ++compared;
    }
    const auto files = std::distance(fs::directory_iterator(back), fs::directory_iterator());
    ASSERT_EQ(files, static_cast<ptrdiff_t>(kBatch));
    for (const fs::path& done : {made, packed, back}) fs::remove_all(done);
  }
  EXPECT_EQ(compared, kArchives);
  // Archives were read as such, and what is none was not.
  EXPECT_GT(typed, kArchives / 2);
  EXPECT_GT(plain_bytes, kArchives / 4);
  EXPECT_LT(plain_bytes, kArchives * 2 / 5);
}

}  // namespace
}  // namespace dsckpt
