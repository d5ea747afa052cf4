// FarOutput over an object store in memory that minds what stores mind, and fails as they do.
#include "exec/far_output.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "exec/executor.h"
#include "exec/packed_output.h"
#include "exec/portion.h"
#include "exec/rank_job.h"
#include "exec/shares.h"
#include "exec/staged_output.h"
#include "exec/staging_owner.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"
#include "support/plan_runner.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using test::random_bytes;

constexpr uint64_t kPart = 4096;
constexpr int64_t kSecondOfStore = 1'000'000'000;
constexpr int64_t kDayOfStore = 24 * 3600 * kSecondOfStore;
constexpr std::string_view kFolder = "run/out/";

// The fault of a request.
enum class Fault : uint8_t {
  none,
  fails,              // nothing is done
  lost,               // it is done, and nobody hears of it
  interrupted,        // nothing is done, from now on only what cleans up
  interrupted_after,  // it is done, then as above
  again,              // of a completion: not done, and the upload is gone
  twice,              // of the begin of an upload: there is another one that nobody knows
};

// Everything that is not as a store may have it is a problem, which the test's end shows.
class MemoryStore : public FarStore {
 public:
  struct Object {
    std::string bytes = {};
    std::string etag = {};
    int64_t modified = 0;
    bool is_own = false;
  };
  struct Upload {
    std::string path = {};
    int64_t begun = 0;
    std::map<unsigned, std::string> parts = {};
  };

  ~MemoryStore() override {
    for (const std::string& problem : problems) ADD_FAILURE() << problem;
  }

  unsigned requests() const override { return at_most; }

  std::vector<FarObject> list(const std::string& front) override {
    return request("list", front, [&](Fault) {
      std::vector<FarObject> found;
      for (const auto& [path, object] : objects) {
        if (!path.starts_with(front)) continue;
        found.push_back({path, has_etags ? object.etag : "", object.bytes.size(), object.modified});
      }
      return found;
    });
  }
  std::optional<std::string> find_etag(const std::string& path) override {
    return request("find", path, [&](Fault) -> std::optional<std::string> {
      const auto found = objects.find(path);
      if (found == objects.end()) return std::nullopt;
      return found->second.etag;
    });
  }
  std::optional<std::string> find_own(const std::string& path) override {
    return request("find own", path, [&](Fault) -> std::optional<std::string> {
      const auto found = objects.find(path);
      if (found == objects.end() || !found->second.is_own || !keeps_owners) return std::nullopt;
      return found->second.etag;
    });
  }
  std::string run() const override { return "run"; }
  void take_run(const std::string&) override {}
  std::string read(const std::string& path, size_t most) override {
    return request("read", path, [&](Fault) {
      const auto found = objects.find(path);
      if (found == objects.end()) throw IoError({.file = path}, "is not there", 0);
      check(found->second.bytes.size() <= most, "more than was asked for of " + path);
      return found->second.bytes;
    });
  }

  FarPublished put(const std::string& path, std::span<const std::byte> bytes,
                   const std::optional<std::string>& before) override {
    return request("put", path, [&](Fault now_fault) -> FarPublished {
      if (now_fault == Fault::again) return {FarPublished::What::again, ""};
      if (is_refused(path, before)) return {FarPublished::What::refused, ""};
      return make(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    });
  }

  Begun begin_upload(const std::string& path) override {
    return request("begin", path, [&](Fault now_fault) -> Begun {
      if (now_fault == Fault::twice) uploads_[new_name("upload")] = {path, now};
      const std::string id = new_name("upload");
      uploads_[id] = {path, now};
      return {id, now_fault == Fault::twice};
    });
  }
  std::string send_part(const std::string& path, const std::string& upload, unsigned number,
                        std::span<const std::byte> bytes) override {
    return request("part", path, [&](Fault) {
      Upload& to = find(path, upload);
      check(number >= 1 && number <= 10'000, "part " + std::to_string(number));
      check(!bytes.empty(), "an empty part");
      to.parts[number] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      bytes_sent += bytes.size();
      return etag_of_part(to.parts[number]);
    });
  }
  FarPublished complete(const std::string& path, const std::string& upload,
                        std::span<const std::string> parts,
                        const std::optional<std::string>& before) override {
    return request("complete", path, [&](Fault now_fault) -> FarPublished {
      const Upload& from = find(path, upload);
      std::string bytes;
      check(!parts.empty() && parts.size() == from.parts.size(), "different parts than were sent");
      unsigned number = 0;
      for (const auto& [sent, part] : from.parts) {
        check(sent == ++number && parts[number - 1] == etag_of_part(part), "another part");
        check(number == parts.size() || part.size() == part_bytes, "a part of another size");
        bytes += part;
      }
      if (now_fault == Fault::again) {
        uploads_.erase(upload);
        return {FarPublished::What::again, ""};
      }
      if (is_refused(path, before)) return {FarPublished::What::refused, ""};
      uploads_.erase(upload);
      return make(path, bytes);
    });
  }
  void abort_upload(const std::string& path, const std::string& upload) override {
    request("abort", path, [&](Fault) { return uploads_.erase(upload); });
  }
  std::vector<FarUpload> uploads(const std::string& front) override {
    return request("uploads", front, [&](Fault) {
      std::vector<FarUpload> found;
      for (const auto& [id, upload] : uploads_) {
        if (upload.path.starts_with(front)) found.push_back({upload.path, id, upload.begun});
      }
      return found;
    });
  }
  void remove(const std::string& path) override {
    request("remove", path, [&](Fault) { return objects.erase(path); });
  }

  void stand_in(const FarObject& object) override {
    const auto found = objects.find(object.path);
    check(found != objects.end() && found->second.etag == object.etag &&
              found->second.bytes.size() == object.size,
          "another stand-in for " + object.path);
  }
  void clean_up(bool yes) override { cleans_up_ = yes; }

  // As somebody else does it.
  void set(const std::string& path, const std::string& bytes, int64_t modified = 0) {
    objects[path] = {bytes, new_name("etag"), modified == 0 ? now : modified, false};
  }
  void add_upload(const std::string& id, const std::string& path, int64_t begun) {
    uploads_[id] = {path, begun};
  }
  std::set<std::string> upload_ids() const {
    std::set<std::string> ids;
    for (const auto& [id, upload] : uploads_) ids.insert(id);
    return ids;
  }

  // Requests done or tried, such as "put run/out/a", in order.
  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  void forget_log() { log_.clear(); }

  // Its parameter is a line of the log. Called by one thread at a time.
  std::function<Fault(const std::string&)> fault = {};
  unsigned at_most = 4;
  uint64_t part_bytes = kPart;
  bool has_etags = true;
  bool keeps_owners = true;      // find_own()
  bool has_equal_etags = false;  // of objects that hold the same
  int64_t now = 1'000'000 * kSecondOfStore + 17;
  std::map<std::string, Object> objects = {};
  std::atomic<uint64_t> bytes_sent{0};  // in parts
  std::vector<std::string> problems = {};

 private:
  template <typename Work>
  std::invoke_result_t<Work, Fault> request(const std::string& what, const std::string& path,
                                            Work&& work) {
    const unsigned others = at_once_++;
    struct End {
      std::atomic<unsigned>& count;
      ~End() { --count; }
    } const end{at_once_};
    std::this_thread::yield();
    const std::lock_guard lock(mutex_);
    check(others < at_most, "too many requests at once");
    log_.push_back(what + " " + path);
    if (is_interrupted_ && !cleans_up_) throw InterruptedError();
    const Fault now_fault = fault ? fault(log_.back()) : Fault::none;
    if (now_fault == Fault::fails) throw IoError({.file = path}, "as the test wants it", 0);
    is_interrupted_ =
        is_interrupted_ || now_fault == Fault::interrupted || now_fault == Fault::interrupted_after;
    if (now_fault == Fault::interrupted && !cleans_up_) throw InterruptedError();
    auto result = work(now_fault);
    if (now_fault == Fault::lost) throw IoError({.file = path}, "as the test wants it", 0);
    if (now_fault == Fault::interrupted_after && !cleans_up_) throw InterruptedError();
    return result;
  }

  void check(bool is_good, const std::string& problem) {
    if (!is_good) problems.push_back(problem);
  }
  std::string new_name(const std::string& front) { return front + std::to_string(names_++); }
  static std::string etag_of_part(const std::string& bytes) {
    return "part of " + std::to_string(std::hash<std::string>()(bytes));
  }
  Upload& find(const std::string& path, const std::string& id) {
    const auto found = uploads_.find(id);
    if (found == uploads_.end() || found->second.path != path) {
      throw IoError({.file = path}, "no such upload", 0);
    }
    return found->second;
  }
  bool is_refused(const std::string& path, const std::optional<std::string>& before) const {
    if (!before) return false;
    const auto found = objects.find(path);
    return (found == objects.end() ? "" : found->second.etag) != *before;
  }
  FarPublished make(const std::string& path, const std::string& bytes) {
    const std::string etag = has_equal_etags ? etag_of_part(bytes) : new_name("etag");
    objects[path] = {bytes, etag, now, true};
    return {FarPublished::What::done, objects[path].etag};
  }

  mutable std::mutex mutex_;
  std::map<std::string, Upload> uploads_;
  std::vector<std::string> log_;
  std::atomic<unsigned> at_once_{0};
  std::atomic<bool> cleans_up_{false};
  bool is_interrupted_ = false;
  uint64_t names_ = 1;
};

FarPlace place_in(const std::shared_ptr<MemoryStore>& store) {
  return {store, "run/out", "s3://models"};
}

// An output of `size` bytes with digests. Places of patches are at its first and last bytes and
// across the ends of parts. Between them are records, each with one or two of the places.
void add_patched_output(PlanBuilder& builder, const std::string& path, uint64_t size,
                        uint64_t seed) {
  const OutputId out = builder.add_output(path, size);
  const std::string bytes = random_bytes(size, seed);
  std::mt19937_64 random(seed);
  std::set<uint64_t> places{0, size - 4};
  for (uint64_t end = kPart; end + 4 < size; end += kPart) {
    if (random() % 3 == 0) places.insert(end - random() % 4);
    if (random() % 3 == 0) places.insert(end - 100 - random() % 1000);
  }
  std::vector<uint64_t> apart;
  for (const uint64_t place : places) {
    if (apart.empty() || apart.back() + 4 <= place) apart.push_back(place);
  }
  std::vector<Digest> digests;
  for (size_t i = 0; i < apart.size(); ++i) {
    builder.put_literal(out, apart[i], std::string(4, '\0'));
    const uint64_t begin = apart[i] + 4;
    const uint64_t end = i + 1 < apart.size() ? apart[i + 1] : size;
    if (begin == end) continue;
    builder.put_literal(out, begin, bytes.substr(begin, end - begin));
    digests.push_back({out, begin, end, {}});
  }
  std::shuffle(apart.begin(), apart.end(), random);
  for (size_t i = 0; i < apart.size(); ++i) {
    digests[i % digests.size()].patches.push_back(apart[i]);
  }
  for (Digest& digest : digests) builder.add_digest(std::move(digest));
}

// Three that have several parts, one part, and nearly none, and a small index.
CopyPlan some_files() {
  PlanBuilder builder;
  add_patched_output(builder, "a.bin", 5 * kPart + 3, 1);
  add_patched_output(builder, "sub/b.bin", kPart, 2);
  builder.put_literal(builder.add_output("c.json", 1), 0, "c");
  builder.add_output("empty", 0);
  builder.put_literal(builder.add_output("index.json", 5), 0, "index");
  return builder.finish();
}

class FarOutputTest : public testing::Test {
 protected:
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  InputFiles inputs_;
  Progress progress_;
  FarOptions options_{.part_bytes = kPart, .held_bytes = 0};
  ExecOptions execution_{.threads = 3, .unit_bytes = kPart};
  Pointer pointer_ = {"run/latest", "out"};
  std::vector<std::string> notes_;  // of the last run

  CommitHelp help(const CopyPlan& plan, FarOutput& output) {
    return {.write_again = [&](OutputId out) {
      Progress unseen;
      execute_one(plan, out, inputs_, output, unseen, {.threads = 1, .unit_bytes = kPart});
    }};
  }

  // As a tool does it.
  void run(const CopyPlan& plan) {
    FarOutput output(plan, place_in(store_), options_);
    try {
      output.prepare();
      execute(plan, inputs_, output, progress_, execution_);
      output.commit(pointer_, help(plan, output));
    } catch (const Error&) {
      output.give_up();
      notes_ = output.notes();
      throw;
    }
    notes_ = output.notes();
  }

  std::map<std::string, std::string> expected(const CopyPlan& plan) const {
    const std::vector<std::string> outputs = test::run_plan(plan, inputs_);
    std::map<std::string, std::string> files;
    for (size_t i = 0; i < outputs.size(); ++i) {
      files[std::string(kFolder) + plan.outputs()[i].path] = outputs[i];
    }
    if (!pointer_.file.empty()) files["run/latest"] = pointer_.text;
    return files;
  }
  std::map<std::string, std::string> there() const {
    std::map<std::string, std::string> files;
    for (const auto& [path, object] : store_->objects) files[path] = object.bytes;
    return files;
  }
  void expect_written(const CopyPlan& plan) const {
    EXPECT_TRUE(there() == expected(plan));
    EXPECT_TRUE(store_->upload_ids().empty());
  }
};

TEST_F(FarOutputTest, WritesWhatThePlanSays) {
  PlanBuilder builder;
  uint64_t seed = 0;
  for (const uint64_t size : {5 * kPart + 3, kPart, kPart + 1, kPart - 1, 3 * kPart, uint64_t{9},
                              2 * kPart + 2, 40 * kPart + 77}) {
    add_patched_output(builder, "f" + std::to_string(seed), size, seed);
    ++seed;
  }
  builder.add_output("empty", 0);
  const CopyPlan plan = builder.finish();
  for (const uint64_t held : {uint64_t{0}, 6 * kPart, uint64_t{1} << 20}) {
    for (const uint64_t unit : {kPart, 4 * kPart}) {
      for (const uint64_t part : {kPart, 4 * kPart}) {
        for (const unsigned threads : {1u, 2u, 8u}) {
          store_ = std::make_shared<MemoryStore>();
          store_->at_most = std::max(4u, threads);
          store_->part_bytes = part;
          options_.part_bytes = part;
          options_.held_bytes = held;
          execution_.threads = threads;
          execution_.unit_bytes = unit;
          run(plan);
          expect_written(plan);
          EXPECT_TRUE(notes_.empty());
        }
      }
    }
  }
}

TEST_F(FarOutputTest, ShowsNothingBeforeTheCommit) {
  const CopyPlan plan = some_files();
  {
    FarOutput output(plan, place_in(store_), options_);
    output.prepare();
    execute(plan, inputs_, output, progress_, execution_);
    ASSERT_EQ(store_->objects.size(), 1u);
    EXPECT_TRUE(store_->objects.begin()->first.starts_with("run/out/.dsckpt-staging-"));
    EXPECT_EQ(store_->upload_ids().size(), 4u);
  }
  EXPECT_TRUE(store_->objects.empty());
  EXPECT_TRUE(store_->upload_ids().empty());
}

TEST_F(FarOutputTest, IsMadeOfWhatThePackedOutputGives) {
  const test::TempFolder folder;
  const FileId in = inputs_.add(
      folder.write("in", test::make_content(test::Content::normal_floats, 5 * test::kMiB)));
  PlanBuilder builder;
  for (const char* path : {"a.bin", "b.bin"}) {
    builder.put(builder.add_output(path, 5 * test::kMiB), 0,
                TensorSource::stored({in, 0, 5 * test::kMiB}, DType::float32,
                                     {static_cast<int64_t>(5 * test::kMiB / 4)}));
  }
  add_patched_output(builder, "small.bin", 5000, 3);
  builder.put_literal(builder.add_output("index.json", 5), 0, "index");
  const CopyPlan plan = builder.finish();
  StagedOutput staged(plan, folder.path() / "out", {.packed = true});
  staged.prepare();
  PackedOutput here(plan, staged, 3);
  execute(plan, inputs_, here, progress_, execution_);
  staged.commit();
  for (const uint64_t held : {uint64_t{0}, uint64_t{1} << 20}) {
    store_ = std::make_shared<MemoryStore>();
    options_.packed = true;
    options_.held_bytes = held;
    FarOutput output(plan, place_in(store_), options_);
    output.prepare();
    PackedOutput packed(plan, output, 3);
    execute(plan, inputs_, packed, progress_, execution_);
    output.commit({}, help(plan, output));
    EXPECT_EQ(store_->objects.size(), 4u);
    for (const std::string name : {"a.bin.dspack", "b.bin.dspack", "small.bin.dspack"}) {
      EXPECT_TRUE(store_->objects[std::string(kFolder) + name].bytes ==
                  test::read_all(folder.path() / "out" / name))
          << name;
    }
    EXPECT_EQ(store_->objects["run/out/index.json"].bytes, "index");
    EXPECT_TRUE(store_->upload_ids().empty());
  }
}

// Each portion is another process's, which knows only what goes through bytes.
struct Portions {
  const CopyPlan& plan;
  const InputFiles& inputs;
  static constexpr uint64_t kUnit = 64 << 10;
  const RecordChecks checks{plan, {}, false};
  const Units units{plan, {}, kUnit};
  const PortionCutter cutter{plan, units, checks.use(), kUnit};

  PortionResult run(const BatchRange& batches, const FarPlace& place, const RankJob& job,
                    const Folder& folder) const {
    Portion portion = Portion::decode(cutter.cut(batches).encode());
    const FarStaging& far = job.place.far;
    struct Parts : StagingSink {
      Parts(const PlanPart& part, const FarPlace& place, const FarStaging& far, const Folder& in)
          : folder(in) {
        std::vector<FarStaging::Object> objects;
        for (const OutputId out : part.outputs) objects.push_back(far.objects.at(out));
        parts.emplace(part.plan, place, FarParts::Cut{far.part_bytes, false}, std::move(objects),
                      [] {});
      }
      void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
        parts->write_at(out, offset, bytes);
      }
      bool wants_digests_early() const override { return true; }
      void finish(OutputId out) override { parts->finish(out); }
      SentWork end() override { return parts->leave(folder); }
      Folder folder;
      std::optional<FarParts> parts;
    };
    Progress progress;
    RateLimit unlimited(0, progress.cancelled);
    auto run = std::make_unique<PortionRun>(
        std::move(portion), inputs.selected(cutter.cut(batches).part.files),
        [&](const PlanPart& part) { return std::make_unique<Parts>(part, place, far, folder); },
        unlimited, progress, PortionOptions{});
    std::string bytes;
    run_portions(
        2, [&] { return std::move(run); },
        [&](const PortionResult& done) { bytes = done.encode(); });
    return PortionResult::decode(bytes);
  }
};

TEST_F(FarOutputTest, IsSentBySeveralProcesses) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::mt19937_64 random(seed);
    PlanBuilder builder;
    add_patched_output(builder, "large", (17 << 20) + random() % 1000, seed);  // is cut
    for (uint64_t i = 0; i < 5; ++i) {
      add_patched_output(builder, "f" + std::to_string(i), 9 + random() % (9 * kPart), seed + i);
    }
    builder.add_output("empty", 0);
    const CopyPlan plan = builder.finish();
    store_ = std::make_shared<MemoryStore>();
    store_->at_most = 8;
    store_->part_bytes = options_.part_bytes = 4 * Portions::kUnit;
    const test::TempFolder folder;
    options_.folder = folder.path();
    options_.held_bytes = random() % 2 * (9 * kPart);
    FarOutput output(plan, place_in(store_), options_);
    output.prepare();
    const RankJob job = RankJob::decode(RankJob{.place = output.place()}.encode());
    const Folder files = output.folder()->below(output.place().files_in);
    const Portions portions{plan, inputs_};
    RunState done{.unit_bytes = Portions::kUnit};
    const Shares shares(portions.units, {}, {.ranks = 3, .cut_bytes = options_.part_bytes});
    for (int rank = 0; rank < 3; ++rank) {
      for (const Shares::Piece& piece : shares.of(rank)) {
        if (random() % 4 == 0) continue;  // the commit does it
        // A second process that is late changes nothing.
        for (uint64_t times = random() % 2; times > 0; --times) {
          portions.run(piece.batches, place_in(store_), job, files);
        }
        const PortionResult result = portions.run(piece.batches, place_in(store_), job, files);
        output.take(result.sent);
        done.done.push_back(piece.batches);
        done.digests.insert(done.digests.end(), result.sums.digests.begin(),
                            result.sums.digests.end());
      }
    }
    join_pieces(done.digests);
    ExecOptions execution{.threads = 2, .unit_bytes = Portions::kUnit, .from = &done};
    execute(plan, inputs_, output, progress_, execution);
    output.commit(pointer_, help(plan, output));
    SCOPED_TRACE(seed);
    expect_written(plan);
  }
}

// The objects in the order in which they became visible, without markers.
std::vector<std::string> made_visible(const std::vector<std::string>& log) {
  std::vector<std::string> made;
  for (const std::string& line : log) {
    const bool is_made = line.starts_with("put ") || line.starts_with("complete ");
    if (is_made && line.find(".dsckpt-staging-") == line.npos) {
      made.push_back(line.substr(line.find(' ') + 1));
    }
  }
  return made;
}

TEST_F(FarOutputTest, MakesTheLastOneLastAndThenThePointer) {
  const CopyPlan plan = some_files();
  run(plan);
  const std::vector<std::string> made = made_visible(store_->log());
  ASSERT_EQ(made.size(), 6u);
  EXPECT_EQ(made[4], "run/out/index.json");
  EXPECT_EQ(made[5], "run/latest");
}

TEST_F(FarOutputTest, RefusesWhatIsThere) {
  const CopyPlan plan = some_files();
  for (const std::string path :
       {"run/out/sub/b.bin", "run/out/index.json", "run/out/a.bin.dspack", "run/out/a.bin.zst"}) {
    store_ = std::make_shared<MemoryStore>();
    store_->set(path, "old");
    EXPECT_ERROR(run(plan), UsageError, "s3://models/" + path + ": exists already");
    EXPECT_ERROR(FarOutput(plan, place_in(store_), options_).check(), UsageError, "exists already");
    EXPECT_EQ(store_->objects.size(), 1u);
  }
  for (const std::string path : {"run/out", "run/out/sub", "run/out/a.bin/x"}) {
    store_ = std::make_shared<MemoryStore>();
    store_->set(path, "old");
    options_.force = true;
    EXPECT_ERROR(run(plan), UsageError, "folder");
    EXPECT_EQ(store_->objects.size(), 1u);
  }
}

TEST_F(FarOutputTest, RefusesWhatAppearsMeanwhile) {
  const CopyPlan plan = some_files();
  for (const std::string path : {"run/out/a.bin", "run/out/c.json", "run/out/index.json"}) {
    store_ = std::make_shared<MemoryStore>();
    store_->fault = [&](const std::string& line) {
      const bool is_made = line == "complete " + path || line == "put " + path;
      if (is_made) store_->set(path, "another's");
      return Fault::none;
    };
    EXPECT_ERROR(run(plan), UsageError, "s3://models/" + path + ": exists already");
    EXPECT_EQ(there(), (std::map<std::string, std::string>{{path, "another's"}}));
    EXPECT_TRUE(store_->upload_ids().empty());
  }
}

// Runs that fail at one request, in turn at each of those that a run makes.
class FarFaultTest : public FarOutputTest {
 protected:
  using Objects = std::map<std::string, MemoryStore::Object>;

  void begin(const std::set<std::string>& old) {
    store_ = std::make_shared<MemoryStore>();
    store_->at_most = at_most_;
    for (const std::string& path : old) store_->set(path, "old");
    before_ = store_->objects;
    asked_ = 0;
  }

  size_t requests_of_a_run(const CopyPlan& plan, const std::set<std::string>& old) {
    begin(old);
    run(plan);
    return store_->log().size();
  }

  // All of the plan, and of the old ones those that it does not replace.
  void expect_done(const CopyPlan& plan) const {
    auto wanted = expected(plan);
    if (!options_.whole_folder) {
      for (const auto& [path, object] : before_) wanted.emplace(path, object.bytes);
      wanted.erase("run/out/c.json.zst");  // c.json, under another name
    }
    auto found = there();
    for (const std::string& note : notes_) {
      for (auto it = found.begin(); it != found.end();) {
        const bool is_marker = it->first.find(".dsckpt-staging-") != it->first.npos;
        it = is_marker && note.find(it->first) != note.npos ? found.erase(it) : std::next(it);
      }
    }
    EXPECT_TRUE(found == wanted);
  }

  // Nothing of the run, and of the old ones what is not there any more is named.
  void expect_undone(const std::string& said, bool may_be_left) const {
    std::string all = said;
    for (const std::string& note : notes_) all += "\n" + note;
    const auto is_named = [&](const std::string& path) {
      for (const char* what : {" is ", " may be ", " and unfinished uploads stay"}) {
        if (all.find("s3://models/" + path + what) != all.npos) return true;
      }
      return false;
    };
    bool has_marker = false;
    for (const auto& [path, object] : store_->objects) {
      has_marker = has_marker || path.find(".dsckpt-staging-") != path.npos;
      const auto old = before_.find(path);
      if (old == before_.end()) {
        EXPECT_TRUE(may_be_left && is_named(path)) << path << " is left: " << all;
      } else if (old->second.etag != object.etag) {
        EXPECT_TRUE(is_named(path)) << path << " is another one: " << all;
      }
    }
    for (const auto& [path, object] : before_) {
      EXPECT_TRUE(store_->objects.contains(path) || is_named(path)) << path << ": " << all;
    }
    EXPECT_TRUE(store_->upload_ids().empty() || (may_be_left && has_marker)) << all;
  }

  void fail_at_each(const CopyPlan& plan, const std::set<std::string>& old) {
    const size_t requests = requests_of_a_run(plan, old);
    expect_done(plan);
    for (const Fault fault :
         {Fault::fails, Fault::lost, Fault::interrupted, Fault::interrupted_after}) {
      for (size_t at = 1; at <= requests; ++at) {
        SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << " at " << at);
        begin(old);
        store_->fault = [&](const std::string&) { return ++asked_ == at ? fault : Fault::none; };
        try {
          run(plan);
          expect_done(plan);
        } catch (const Error& error) {
          EXPECT_TRUE(error.kind() == ErrorKind::io || error.kind() == ErrorKind::interrupted);
          expect_undone(error.what(), false);
        }
        if (HasFailure()) return show_log();
      }
    }
  }

  void show_log() const {
    std::string lines;
    for (const std::string& line : store_->log()) lines += "\n" + line;
    ADD_FAILURE() << lines;
  }

  // From one request on, nothing can be done any more.
  void lose_at_each(const CopyPlan& plan, const std::set<std::string>& old) {
    const size_t requests = requests_of_a_run(plan, old);
    for (const Fault fault : {Fault::fails, Fault::lost}) {
      for (size_t at = 1; at <= requests; ++at) {
        SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << " from " << at);
        begin(old);
        store_->fault = [&](const std::string&) {
          return ++asked_ == at ? fault : asked_ > at ? Fault::fails : Fault::none;
        };
        try {
          run(plan);
          expect_done(plan);
        } catch (const IoError& error) {
          expect_undone(error.what(), true);
        }
        if (HasFailure()) return show_log();
      }
    }
  }

  void in_each_way(const std::function<void(const std::set<std::string>&)>& fail) {
    const std::set<std::string> old{"run/out/a.bin", "run/out/index.json", "run/out/theirs",
                                    "run/out/c.json.zst"};
    for (const uint64_t held : {uint64_t{0}, kPart}) {
      options_.held_bytes = held;
      options_.force = options_.whole_folder = false;
      fail({});
      options_.force = true;
      if (!HasFailure()) fail(old);
      options_.whole_folder = true;
      if (!HasFailure()) fail(old);
      if (HasFailure()) return;
    }
  }

  unsigned at_most_ = 1;
  Objects before_;
  size_t asked_ = 0;
};

TEST_F(FarFaultTest, LeavesNothingWhicheverRequestFails) {
  const CopyPlan plan = some_files();
  execution_.threads = 1;
  in_each_way([&](const std::set<std::string>& old) { fail_at_each(plan, old); });
}

TEST_F(FarFaultTest, LeavesNothingWhicheverRequestOfManyAtOnceFails) {
  const CopyPlan plan = some_files();
  at_most_ = 8;
  execution_.threads = 3;
  in_each_way([&](const std::set<std::string>& old) { fail_at_each(plan, old); });
}

TEST_F(FarFaultTest, NamesWhatIsLeftWhenTheStoreIsGone) {
  const CopyPlan plan = some_files();
  execution_.threads = 1;
  in_each_way([&](const std::set<std::string>& old) { lose_at_each(plan, old); });
}

TEST_F(FarOutputTest, SendsAnewWhatTheStoreWantsAnew) {
  const CopyPlan plan = some_files();
  for (const uint64_t held : {uint64_t{0}, kPart}) {
    options_.held_bytes = held;
    for (const std::string name : {"a.bin", "sub/b.bin", "c.json", "index.json", "latest"}) {
      for (const int times : {1, 3}) {
        store_ = std::make_shared<MemoryStore>();
        int asked = 0;
        store_->fault = [&](const std::string& line) {
          const bool is_made = line.starts_with("put ") || line.starts_with("complete ");
          return is_made && line.ends_with("/" + name) && ++asked <= times ? Fault::again
                                                                           : Fault::none;
        };
        run(plan);
        EXPECT_EQ(asked, times + 1);
        expect_written(plan);
      }
      store_ = std::make_shared<MemoryStore>();
      store_->fault = [&](const std::string& line) {
        const bool is_made = line.starts_with("put ") || line.starts_with("complete ");
        return is_made && line.ends_with("/" + name) ? Fault::again : Fault::none;
      };
      EXPECT_ERROR(run(plan), IoError, "somebody else writes it at the same time");
      EXPECT_TRUE(store_->objects.empty());
      EXPECT_TRUE(store_->upload_ids().empty());
    }
  }
}

TEST_F(FarOutputTest, GivesUpAgainTheUploadThatWasToBeSentAnew) {
  int asked = 0;
  store_->fault = [&](const std::string& line) {
    if (line == "complete run/out/a.bin") return Fault::again;
    return line == "abort run/out/a.bin" && ++asked == 1 ? Fault::fails : Fault::none;
  };
  EXPECT_ERROR(run(some_files()), IoError, "as the test wants it");
  EXPECT_EQ(asked, 2);
}

// Each request would take its time to fail.
TEST_F(FarOutputTest, AsksAStoreThatIsGoneAFewTimes) {
  PlanBuilder builder;
  for (uint64_t i = 0; i < 100; ++i) {
    add_patched_output(builder, "f" + std::to_string(i), kPart + i, i);
  }
  store_->at_most = 1;
  execution_.threads = 1;
  size_t completed = 0;
  size_t in_vain = 0;
  store_->fault = [&](const std::string& line) {
    completed += line.starts_with("complete ") ? 1 : 0;
    if (completed < 80) return Fault::none;
    ++in_vain;
    return Fault::fails;
  };
  EXPECT_ERROR(run(builder.finish()), IoError, "run/out/f5 may be the new one");
  EXPECT_LT(in_vain, 20u);
}

TEST_F(FarOutputTest, SendsManyAnewAtOnce) {
  PlanBuilder builder;
  for (uint64_t i = 0; i < 40; ++i) {
    add_patched_output(builder, "f" + std::to_string(i), kPart + i, i);
  }
  const CopyPlan plan = builder.finish();
  std::map<std::string, int> asked;
  store_->fault = [&](const std::string& line) {
    return line.starts_with("complete ") && ++asked[line] == 1 ? Fault::again : Fault::none;
  };
  run(plan);
  EXPECT_EQ(asked.size(), 40u);
  expect_written(plan);
}

TEST_F(FarOutputTest, RefusesAnInputThatHasChangedWhenItIsSentAnew) {
  const test::TempFolder folder;
  const std::string bytes = random_bytes(3 * kPart, 5);
  const FileId in = inputs_.add(folder.write("in", bytes));
  PlanBuilder builder;
  const OutputId out = builder.add_output("a.bin", 3 * kPart);
  builder.put(
      out, 0,
      TensorSource::stored({in, 0, 3 * kPart}, DType::uint8, {static_cast<int64_t>(3 * kPart)}));
  const CopyPlan plan = builder.finish();
  for (const size_t at : {size_t{0}, size_t{kPart}, size_t{3 * kPart - 1}}) {
    store_ = std::make_shared<MemoryStore>();
    int asked = 0;
    store_->fault = [&](const std::string& line) {
      if (line != "complete run/out/a.bin" || ++asked > 1) return Fault::none;
      std::fstream file(folder.path() / "in", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(bytes[at] + 1));
      return Fault::again;
    };
    EXPECT_ERROR(run(plan), IoError, "the input now gives different bytes");
    EXPECT_TRUE(store_->objects.empty());
    EXPECT_TRUE(store_->upload_ids().empty());
    folder.write("in", bytes);
  }
}

TEST_F(FarOutputTest, ReplacesInOrder) {
  const CopyPlan plan = some_files();
  options_.force = true;
  store_->set("run/out/theirs", "theirs");
  store_->set("run/outside", "theirs");
  run(plan);
  store_->forget_log();
  const auto before = store_->objects;
  run(plan);
  std::vector<std::string> changes;
  for (const std::string& line : store_->log()) {
    if (line.find(".dsckpt-staging-") != line.npos) continue;
    if (line.starts_with("put ") || line.starts_with("complete ") || line.starts_with("remove ")) {
      changes.push_back(line);
    }
  }
  ASSERT_EQ(changes.size(), 7u);
  EXPECT_EQ(changes[0], "remove run/out/index.json");
  EXPECT_EQ(changes[5], "complete run/out/index.json");
  EXPECT_EQ(changes[6], "put run/latest");
  auto wanted = expected(plan);
  wanted["run/out/theirs"] = wanted["run/outside"] = "theirs";
  EXPECT_TRUE(there() == wanted);
  for (const auto& [path, object] : expected(plan)) {
    EXPECT_NE(store_->objects[path].etag, before.at(path).etag) << path;
  }
}

TEST_F(FarOutputTest, ReplacesAFolderAsAWhole) {
  const CopyPlan plan = some_files();
  options_.whole_folder = true;
  store_->set("run/out/theirs", "theirs");
  store_->set("run/out/sub/deep/theirs", "theirs");
  store_->set("run/outside", "theirs");
  EXPECT_ERROR(run(plan), UsageError, "s3://models/run/out: exists already");
  options_.force = true;
  run(plan);
  auto wanted = expected(plan);
  wanted["run/outside"] = "theirs";
  EXPECT_TRUE(there() == wanted);
}

TEST_F(FarOutputTest, ReplacesOnlyWhatItHasSeen) {
  const CopyPlan plan = some_files();
  options_.force = true;
  execution_.threads = 1;
  store_->at_most = 1;
  store_->set("run/out/a.bin", "old");
  store_->fault = [&](const std::string& line) {
    if (line == "complete run/out/a.bin") store_->set("run/out/a.bin", "another's");
    return Fault::none;
  };
  EXPECT_ERROR(run(plan), IoError, "somebody else has written it meanwhile");
  EXPECT_EQ(there(), (std::map<std::string, std::string>{{"run/out/a.bin", "another's"}}));
  EXPECT_TRUE(store_->upload_ids().empty());
}

TEST_F(FarOutputTest, FindsTheUploadThatNobodyWasToldOf) {
  const CopyPlan plan = some_files();
  for (const bool fails : {false, true}) {
    store_ = std::make_shared<MemoryStore>();
    store_->add_upload("older", "run/out/a.bin", store_->now - 2 * kSecondOfStore);
    store_->fault = [&](const std::string& line) {
      if (fails && line == "put run/latest") return Fault::fails;
      return line == "begin run/out/a.bin" ? Fault::twice : Fault::none;
    };
    if (fails) {
      EXPECT_ERROR(run(plan), IoError, "as the test wants it");
      EXPECT_TRUE(store_->objects.empty());
    } else {
      run(plan);
      EXPECT_TRUE(there() == expected(plan));
    }
    EXPECT_EQ(store_->upload_ids(), std::set<std::string>{"older"});
  }
}

TEST_F(FarOutputTest, KeepsFewPartsAtOnce) {
  // Each record's digest is in front of it, and again at the file's end.
  constexpr uint64_t kRecord = 10 * kPart + 100;
  PlanBuilder builder;
  for (int file = 0; file < 2; ++file) {
    const uint64_t size = 20 * (kRecord + 8);
    const OutputId out = builder.add_output("f" + std::to_string(file), size);
    const Extent kept = builder.keep_literal(random_bytes(kRecord, 1));
    for (uint64_t i = 0; i < 20; ++i) {
      const uint64_t begin = i * (kRecord + 4) + 4;
      builder.put_literal(out, begin - 4, std::string(4, '\0'));
      builder.put_kept_literal(out, begin, kept);
      builder.put_literal(out, size - 80 + 4 * i, std::string(4, '\0'));
      builder.add_digest({out, begin, begin + kRecord, {begin - 4, size - 80 + 4 * i}});
    }
  }
  const CopyPlan plan = builder.finish();

  // Counts the bytes that were given and are not sent yet.
  class Counting : public Sink {
   public:
    Counting(Sink& to, MemoryStore& store) : to_(to), store_(store) {}
    void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
      given_ += bytes.size();
      to_.write_at(out, offset, bytes);
      const uint64_t kept = given_ - store_.bytes_sent;
      for (uint64_t seen = most; seen < kept && !most.compare_exchange_weak(seen, kept);) {
      }
    }
    bool wants_digests_early() const override { return to_.wants_digests_early(); }
    void finish(OutputId out) override { to_.finish(out); }
    std::atomic<uint64_t> most{0};

   private:
    Sink& to_;
    MemoryStore& store_;
    std::atomic<uint64_t> given_{0};
  };

  for (const unsigned threads : {1u, 4u}) {
    store_ = std::make_shared<MemoryStore>();
    execution_.threads = threads;
    FarOutput output(plan, place_in(store_), options_);
    output.prepare();
    Counting counting(output, *store_);
    execute(plan, inputs_, counting, progress_, execution_);
    output.commit({}, help(plan, output));
    EXPECT_TRUE(store_->objects["run/out/f0"].bytes == test::run_plan(plan, inputs_)[0]);
    // Per thread: the part that it sends, and two that wait for the two records in its unit; and
    // the files' ends.
    EXPECT_LE(counting.most, (3 * threads + 3) * kPart);
  }
}

// The signature of a process that has ended.
std::string line_of_a_dead_process() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string line = owner_line();
    ::_exit(::write(ends[1], line.data(), line.size()) < 0 ? 1 : 0);
  }
  ::close(ends[1]);
  std::string line(4096, '\0');
  line.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], line.data(), 4096), 0)));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return line;
}

class FarLeftOverTest : public FarOutputTest {
 protected:
  static constexpr const char* kMarker = "run/out/.dsckpt-staging-1";

  void leave(const std::string& owner, int64_t modified, const std::string& marker = kMarker) {
    store_->set(marker, owner + "\n\"run/out/a.bin\"\n\"run/out/old.bin\"\n", modified);
    for (const std::string path : {"a.bin", "old.bin", "not ours"}) {
      const std::string name = path + " of " + marker.back();
      store_->add_upload(name, "run/out/" + path, modified / kSecondOfStore * kSecondOfStore);
      store_->add_upload("older " + name, "run/out/" + path, modified - kSecondOfStore);
    }
  }
  static std::string of_another_host(const std::string& line) {
    auto owner = nlohmann::json::parse(line);
    owner["host"] = "node7";
    owner["pid"] = 17;
    owner["job"] = "";
    return owner.dump();
  }

  const CopyPlan plan_ = some_files();
};

const std::set<std::string> kNotSwept{"older a.bin of 1", "older old.bin of 1", "not ours of 1",
                                      "older not ours of 1"};

TEST_F(FarLeftOverTest, OfADeadRunIsSwept) {
  leave(line_of_a_dead_process(), store_->now - 5 * kSecondOfStore);
  run(plan_);
  EXPECT_TRUE(there() == expected(plan_));
  EXPECT_EQ(store_->upload_ids(), kNotSwept);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(notes_[0].starts_with("removed s3://models/" + std::string(kMarker) +
                                    " and 2 unfinished uploads, which a run that was killed ("))
      << notes_[0];
}

TEST_F(FarLeftOverTest, OfARunThatIsUnderWayIsLeftAlone) {
  leave(owner_line(), store_->now - 2 * kDayOfStore);
  const auto uploads = store_->upload_ids();
  auto wanted = expected(plan_);
  wanted[kMarker] = store_->objects[kMarker].bytes;
  run(plan_);
  EXPECT_TRUE(there() == wanted);
  EXPECT_EQ(store_->upload_ids(), uploads);
  EXPECT_TRUE(notes_.empty());
}

TEST_F(FarLeftOverTest, OfAnotherHostIsNamedAndSweptADayLater) {
  for (const std::string& owner : {of_another_host(owner_line()), std::string("{}")}) {
    for (const bool is_old : {false, true}) {
      store_ = std::make_shared<MemoryStore>();
      leave(owner, store_->now - kDayOfStore + (is_old ? 0 : kSecondOfStore));
      const auto uploads = store_->upload_ids();
      auto wanted = expected(plan_);
      if (!is_old) wanted[kMarker] = store_->objects[kMarker].bytes;
      run(plan_);
      EXPECT_TRUE(there() == wanted);
      EXPECT_EQ(store_->upload_ids(), is_old ? kNotSwept : uploads);
      ASSERT_EQ(notes_.size(), 1u);
      EXPECT_NE(notes_[0].find(kMarker), std::string::npos);
      EXPECT_EQ(notes_[0].find("process 17 on node7") != std::string::npos, owner != "{}");
      EXPECT_EQ(notes_[0].find("a day later") != std::string::npos, !is_old) << notes_[0];
    }
  }
}

// Or of another machine that is called as this one.
TEST_F(FarLeftOverTest, OfThisHostBeforeItsStartIsSweptADayLater) {
  auto owner = nlohmann::json::parse(owner_line());
  owner["boot"] = "another";
  for (const bool is_old : {false, true}) {
    store_ = std::make_shared<MemoryStore>();
    leave(owner.dump(), store_->now - kDayOfStore + (is_old ? 0 : kSecondOfStore));
    const auto uploads = store_->upload_ids();
    run(plan_);
    EXPECT_EQ(store_->upload_ids(), is_old ? kNotSwept : uploads);
  }
}

// A reply to this run was lost, and no store says whose an upload is.
TEST_F(FarLeftOverTest, IsLeftAloneWhereTheRunThatFailsIsInDoubt) {
  leave(of_another_host(owner_line()), store_->now);
  const auto uploads = store_->upload_ids();
  store_->fault = [](const std::string& line) {
    if (line == "begin run/out/a.bin") return Fault::twice;
    return line == "put run/latest" ? Fault::fails : Fault::none;
  };
  EXPECT_ERROR(run(plan_), IoError, "as the test wants it");
  const auto left = store_->upload_ids();
  EXPECT_TRUE(std::includes(left.begin(), left.end(), uploads.begin(), uploads.end()));
  EXPECT_EQ(left.size(), uploads.size() + 1);
  ASSERT_EQ(notes_.size(), 2u);
  EXPECT_NE(notes_[1].find("2 unfinished uploads may belong to another run"), std::string::npos)
      << notes_[1];
}

// Two runs wrote there at once, and one of them was killed.
TEST_F(FarLeftOverTest, OfADeadRunIsNotSweptWhereALiveOneWrites) {
  leave(line_of_a_dead_process(), store_->now - 50 * kSecondOfStore);
  leave(owner_line(), store_->now - 20 * kSecondOfStore, "run/out/.dsckpt-staging-2");
  const auto uploads = store_->upload_ids();
  run(plan_);
  const auto left = store_->upload_ids();
  EXPECT_FALSE(left.contains("a.bin of 1"));
  EXPECT_FALSE(left.contains("old.bin of 1"));
  EXPECT_TRUE(left.contains("a.bin of 2"));
  EXPECT_TRUE(left.contains("old.bin of 2"));
  EXPECT_TRUE(store_->objects.contains("run/out/.dsckpt-staging-2"));
}

TEST_F(FarLeftOverTest, OfManyUploadsIsSwept) {
  leave(line_of_a_dead_process(), store_->now - 5 * kSecondOfStore);
  for (int i = 0; i < 300; ++i) {
    store_->add_upload("many" + std::to_string(i), "run/out/a.bin", store_->now);
  }
  run(plan_);
  EXPECT_EQ(store_->upload_ids(), kNotSwept);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("302 unfinished uploads"), std::string::npos) << notes_[0];
}

TEST_F(FarLeftOverTest, IsGoneMeanwhile) {
  leave(line_of_a_dead_process(), store_->now - 5 * kSecondOfStore);
  store_->fault = [&](const std::string& line) {
    if (line == std::string("read ") + kMarker) store_->objects.erase(kMarker);
    return Fault::none;
  };
  run(plan_);
  EXPECT_TRUE(notes_.empty()) << notes_[0];
}

TEST_F(FarLeftOverTest, IsNoReasonToFail) {
  for (const std::string request : {"read ", "uploads ", "abort ", "remove "}) {
    store_ = std::make_shared<MemoryStore>();
    leave(line_of_a_dead_process(), store_->now - 5 * kSecondOfStore);
    store_->fault = [&](const std::string& line) {
      const bool is_of_it = request == "uploads " || line.ends_with(kMarker) ||
                            (request == "abort " && line.ends_with(".bin"));
      return line.starts_with(request) && is_of_it ? Fault::fails : Fault::none;
    };
    run(plan_);
    ASSERT_EQ(notes_.size(), 1u);
    EXPECT_NE(notes_[0].find(std::string("s3://models/") + kMarker), std::string::npos);
    EXPECT_TRUE(store_->objects.contains(kMarker));
  }
}

TEST_F(FarLeftOverTest, OfALongRunIsOfAllThatItHasBegun) {
  const int64_t begin = store_->now;
  options_.beat = std::chrono::seconds(0);
  std::string marker;
  std::string said;
  {
    FarOutput output(plan_, place_in(store_), options_);
    output.prepare();
    marker = store_->objects.begin()->first;
    EXPECT_FALSE(nlohmann::json::parse(store_->objects[marker].bytes.substr(
                                           0, store_->objects[marker].bytes.find('\n')))
                     .contains("since"));
    store_->now += 5 * kSecondOfStore;
    execute(plan_, inputs_, output, progress_, execution_);
    ASSERT_EQ(store_->objects.size(), 1u);
    EXPECT_EQ(store_->objects[marker].modified, store_->now);
    said = store_->objects[marker].bytes;
  }
  EXPECT_TRUE(store_->objects.empty());
  // The same, killed.
  auto owner = nlohmann::json::parse(line_of_a_dead_process());
  owner["since"] = nlohmann::json::parse(said.substr(0, said.find('\n'))).at("since");
  EXPECT_EQ(owner["since"], begin);
  store_->set(marker, owner.dump() + said.substr(said.find('\n')));
  store_->add_upload("first", "run/out/a.bin", begin / kSecondOfStore * kSecondOfStore);
  store_->add_upload("older", "run/out/a.bin", (begin / kSecondOfStore - 1) * kSecondOfStore);
  run(plan_);
  EXPECT_EQ(store_->upload_ids(), std::set<std::string>{"older"});
  EXPECT_TRUE(there() == expected(plan_));
}

TEST_F(FarOutputTest, SaysThatItLivesWithoutFailingForIt) {
  const CopyPlan plan = some_files();
  options_.beat = std::chrono::seconds(0);
  int beats = 0;
  store_->fault = [&](const std::string& line) {
    const bool is_beat = line.starts_with("put run/out/.dsckpt-staging-") && ++beats > 1;
    return is_beat ? Fault::fails : Fault::none;
  };
  run(plan);
  EXPECT_GT(beats, 1);
  expect_written(plan);
}

TEST_F(FarOutputTest, IsCompleteWithAPointerThatNobodyHeardOf) {
  const CopyPlan plan = some_files();
  for (const std::string said : {"", "another", "out"}) {
    for (const Fault fault : {Fault::lost, Fault::interrupted_after, Fault::fails}) {
      store_ = std::make_shared<MemoryStore>();
      if (!said.empty()) store_->set("run/latest", said);
      // As if this process had written it for another output.
      if (!said.empty()) store_->objects["run/latest"].is_own = true;
      store_->has_equal_etags = true;
      store_->fault = [&](const std::string& line) {
        return line == "put run/latest" ? fault : Fault::none;
      };
      if (fault != Fault::fails || said == "out") {
        run(plan);
        expect_written(plan);
      } else {
        EXPECT_ERROR(run(plan), IoError, "as the test wants it");
        EXPECT_EQ(store_->objects.size(), said.empty() ? 0u : 1u);
      }
    }
  }
}

TEST_F(FarOutputTest, TakesBackOnlyWhatIsItsOwn) {
  const CopyPlan plan = some_files();
  for (const bool keeps_owners : {true, false}) {
    store_ = std::make_shared<MemoryStore>();
    store_->keeps_owners = keeps_owners;
    store_->fault = [&](const std::string& line) {
      if (line != "put run/latest") return Fault::none;
      store_->set("run/out/a.bin", "another's");
      return Fault::fails;
    };
    EXPECT_ERROR(run(plan), IoError, "s3://models/run/out/a.bin may be the new one");
    EXPECT_EQ(there(), (std::map<std::string, std::string>{{"run/out/a.bin", "another's"}}));
  }
}

TEST_F(FarOutputTest, NamesWhatAStoreThatKeepsNoOwnersMayHaveMade) {
  const CopyPlan plan = some_files();
  store_->keeps_owners = false;
  store_->fault = [&](const std::string& line) {
    return line == "complete run/out/index.json" ? Fault::lost : Fault::none;
  };
  EXPECT_ERROR(run(plan), IoError, "s3://models/run/out/index.json may be the new one");
  EXPECT_EQ(there(), (std::map<std::string, std::string>{{"run/out/index.json", "index"}}));
}

}  // namespace
}  // namespace dsckpt
